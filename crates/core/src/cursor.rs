//! Where a page ends, so that the next one can start there.
//!
//! To the caller a cursor is opaque. Inside it is a sequence number and a check
//! over it and the list it came from, so that a cursor of another list, or a
//! made-up one, is refused instead of silently showing the wrong page.

use sha2::{Digest, Sha256};

use crate::hex;

/// The cursor does not belong to this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is not of this list; take the one that came with its last page")]
pub struct InvalidCursor;

/// Writes the cursor that follows entry `seq` of the list `scope`.
pub fn write(scope: &str, seq: i64) -> String {
    format!("{seq:016x}{}", hex::encode(&check(scope, seq)))
}

/// Reads it back.
///
/// # Errors
///
/// [`InvalidCursor`], when it was not written for `scope`.
pub fn read(scope: &str, cursor: &str) -> Result<i64, InvalidCursor> {
    let (seq, shown) = cursor.split_at_checked(16).ok_or(InvalidCursor)?;
    let seq = i64::from_be_bytes(hex::decode(seq).ok_or(InvalidCursor)?);
    let shown: [u8; 4] = hex::decode(shown).ok_or(InvalidCursor)?;
    if shown == check(scope, seq) { Ok(seq) } else { Err(InvalidCursor) }
}

fn check(scope: &str, seq: i64) -> [u8; 4] {
    let hash = Sha256::new().chain_update(seq.to_be_bytes()).chain_update(scope).finalize();
    let hash: [u8; 32] = hash.into();
    [hash[0], hash[1], hash[2], hash[3]]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_comes_back_to_its_own_list_only(scope in ".{0,40}", other in ".{0,40}", seq: i64) {
            let cursor = write(&scope, seq);
            prop_assert_eq!(read(&scope, &cursor), Ok(seq));
            if other != scope {
                prop_assert_eq!(read(&other, &cursor), Err(InvalidCursor));
            }
        }

        #[test]
        fn nothing_else_is_a_cursor(text in "\\PC{0,40}|[0-9a-f]{24}") {
            prop_assert_eq!(read("a list", &text), Err(InvalidCursor));
        }
    }
}
