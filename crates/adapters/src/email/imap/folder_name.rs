//! Names of folders as IMAP writes them: quoted, and in modified UTF-7 (RFC 3501, section 5.1.3).

use base64::Engine as _;
use base64::alphabet::IMAP_MUTF7;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};

/// Base64 with `,` instead of `/`, without padding.
const MODIFIED_BASE64: GeneralPurpose = GeneralPurpose::new(&IMAP_MUTF7, NO_PAD);

/// Returns the name of a folder as the argument of a command.
pub fn quoted(name: &str) -> String {
    quote(&encode(name))
}

/// Returns text as a quoted string. Characters that it cannot hold are left out.
pub fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars().filter(|c| !matches!(c, '\r' | '\n' | '\0')) {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out + "\""
}

fn encode(name: &str) -> String {
    let mut out = String::new();
    let mut special = Vec::new();
    for c in name.chars() {
        let is_plain = matches!(c, ' '..='~');
        if is_plain && !special.is_empty() {
            push_special(&mut out, &mut special);
        }
        match c {
            '&' => out.push_str("&-"),
            c if is_plain => out.push(c),
            c => special.extend(c.encode_utf16(&mut [0; 2]).iter().flat_map(|n| n.to_be_bytes())),
        }
    }
    if !special.is_empty() {
        push_special(&mut out, &mut special);
    }
    out
}

fn push_special(out: &mut String, special: &mut Vec<u8>) {
    out.push('&');
    out.push_str(&MODIFIED_BASE64.encode(&special));
    out.push('-');
    special.clear();
}

/// Returns the name that a server wrote in modified UTF-7; the text itself when it is not
/// valid, because some servers write UTF-8.
pub fn decode(name: &str) -> String {
    try_decode(name).unwrap_or_else(|| name.to_owned())
}

fn try_decode(name: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let (inside, after) = after.split_once('-')?;
        if inside.is_empty() {
            out.push('&');
        } else {
            let bytes = MODIFIED_BASE64.decode(inside).ok()?;
            let (pairs, odd) = bytes.as_chunks::<2>();
            let units: Vec<u16> = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
            if !odd.is_empty() {
                return None;
            }
            out.push_str(&String::from_utf16(&units).ok()?);
        }
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn folder_names_are_written_in_modified_utf7() {
        for (name, written) in [
            ("INBOX", "INBOX"),
            ("R&D", "R&-D"),
            ("~peter/mail/台北/日本語", "~peter/mail/&U,BTFw-/&ZeVnLIqe-"),
            ("已发送", "&XfJT0ZAB-"),
            ("😀", "&2D3eAA-"),
        ] {
            assert_eq!(encode(name), written);
            assert_eq!(decode(written), name);
        }
        assert_eq!(quoted(r#"a "b\c"#), r#""a \"b\\c""#);
        assert_eq!(quote("a\r\nb"), "\"ab\"");
        for text in ["&", "&x", "&!-", "&AA-", "&2D0-"] {
            assert_eq!(decode(text), text, "not valid, so unchanged");
        }
    }

    proptest! {
        #[test]
        fn every_name_is_read_back(name in any::<String>()) {
            let written = encode(&name);
            prop_assert!(written.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            prop_assert_eq!(decode(&written), name);
        }
    }
}
