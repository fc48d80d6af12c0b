//! Lower-case hexadecimal: ids, hashes, cursors and marks are written this way.

/// Returns `bytes` as lower-case hex digits.
pub fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Reads exactly `2 * N` lower-case hex digits; `None` for any other text.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let mut out = [0; N];
    if pairs.len() != N {
        return None;
    }
    for (byte, [high, low]) in out.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_lower_case_and_decode_to_the_same_bytes() {
        assert_eq!(encode(&[0, 9, 0xab, 0xff]), "0009abff");
        assert_eq!(decode("0009abff"), Some([0, 9, 0xab, 0xff]));
    }

    #[test]
    fn other_lengths_and_characters_are_rejected() {
        for text in ["", "0", "00", "000", "0000ff", "00FF", "00g0", "0x00"] {
            assert_eq!(decode::<2>(text), None, "{text}");
        }
    }
}
