//! Decodes UTF-7 (RFC 2152), which old mail programs send.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};

const SHIFTED: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

/// Decodes UTF-7. Bytes that are not ASCII, and damaged sequences, become replacement
/// characters.
pub(super) fn decode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'+' {
            text.push(if byte.is_ascii() {
                char::from(*byte)
            } else {
                char::REPLACEMENT_CHARACTER
            });
            continue;
        }
        let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
        let length = rest.iter().take_while(|byte| is_digit(byte)).count();
        let (digits, behind) = rest.split_at(length);
        match SHIFTED.decode(digits) {
            Ok(units) if !units.is_empty() => push_utf16(&units, &mut text),
            Ok(_) if behind.starts_with(b"-") => text.push('+'),
            _ => text.push(char::REPLACEMENT_CHARACTER),
        }
        rest = behind.strip_prefix(b"-").unwrap_or(behind);
    }
    text
}

fn push_utf16(bytes: &[u8], text: &mut String) {
    let (units, _) = bytes.as_chunks::<2>();
    let units = units.iter().map(|unit| u16::from_be_bytes(*unit));
    let chars = char::decode_utf16(units);
    text.extend(chars.map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)));
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn examples_of_the_rfc_are_decoded() {
        for (bytes, want) in [
            ("A+ImIDkQ.", "A\u{2262}\u{391}."),
            ("Hi Mom +Jjo-!", "Hi Mom \u{263a}!"),
            ("+ZeVnLIqe-", "\u{65e5}\u{672c}\u{8a9e}"),
            ("Item 3 is +AKM-1.", "Item 3 is \u{a3}1."),
            ("1 +- 1", "1 + 1"),
            ("+2D3eAA-", "\u{1f600}"),
            ("+", "\u{fffd}"),
            ("+A", "\u{fffd}"),
        ] {
            assert_eq!(decode(bytes.as_bytes()), want, "{bytes}");
        }
        assert_eq!(decode(b"a\xffb"), "a\u{fffd}b");
    }
}
