//! Cursors: where the next page of a list starts.
//!
//! A cursor is opaque to callers. It has a sequence number and a checksum of the number and
//! the list, so that the cursor of another list, or an invented one, is rejected instead of
//! returning a wrong page.

use sha2::{Digest, Sha256};

use crate::hex;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid cursor; use the `next` value of the previous page of the same list")]
pub struct InvalidCursor;

/// Returns the cursor after entry `seq` of the list `scope`.
pub fn write(scope: &str, seq: i64) -> String {
    format!("{seq:016x}{}", hex::encode(&check(scope, seq)))
}

/// Returns the sequence number of a cursor.
///
/// # Errors
///
/// [`InvalidCursor`] when the cursor was not made for `scope`.
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
        fn cursor_is_accepted_by_its_own_list_only(scope in ".{0,40}", other in ".{0,40}", seq: i64) {
            let cursor = write(&scope, seq);
            prop_assert_eq!(read(&scope, &cursor), Ok(seq));
            if other != scope {
                prop_assert_eq!(read(&other, &cursor), Err(InvalidCursor));
            }
        }

        #[test]
        fn other_texts_are_not_cursors(text in "\\PC{0,40}|[0-9a-f]{24}") {
            prop_assert_eq!(read("a list", &text), Err(InvalidCursor));
        }
    }
}
