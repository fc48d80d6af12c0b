//! File names of attachments, made safe.

/// Longest name that is kept, in bytes. File systems allow 255.
const MAX_NAME: usize = 200;
/// Longest ending that is kept when a name is cut, in bytes.
const MAX_ENDING: usize = 16;

/// The last component of a name that a sender chose, without characters that deceive readers,
/// terminals or file systems. `None` when nothing is left.
pub(super) fn safe_name(name: &str) -> Option<String> {
    let last = name.rsplit(['/', '\\']).find(|piece| !piece.trim().is_empty())?;
    let clean: String = last
        .chars()
        .filter(|c| !is_deceptive(*c))
        .map(|c| if matches!(c, ':' | '*' | '?' | '"' | '<' | '>' | '|') { '_' } else { c })
        .collect();
    // A leading dot would hide the file; a trailing one is dropped by some systems.
    let clean = clean.trim_matches(is_edge);
    (!clean.is_empty()).then(|| shortened(clean))
}

fn is_edge(c: char) -> bool {
    c == '.' || c.is_whitespace()
}

/// Control characters, marks of the writing direction, and invisible characters.
fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{fffd}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// Cuts the middle of a long name; its ending stays.
fn shortened(name: &str) -> String {
    if name.len() <= MAX_NAME {
        return name.to_owned();
    }
    let ending = name.rfind('.').map_or("", |dot| &name[dot..]);
    let ending = if ending.len() <= MAX_ENDING { ending } else { "" };
    let start = &name[..name.floor_char_boundary(MAX_NAME - ending.len())];
    format!("{}{ending}", start.trim_end_matches(is_edge))
}

/// A name for a part without one.
pub(super) fn default_name(mime_type: &str) -> String {
    let (kind, sub) = mime_type.split_once('/').unwrap_or((mime_type, ""));
    let is_plain =
        !sub.is_empty() && sub.len() <= 8 && sub.bytes().all(|b| b.is_ascii_alphanumeric());
    match (kind, sub) {
        ("message", "rfc822" | "global") => "message.eml".to_owned(),
        ("message", "delivery-status" | "global-delivery-status") => {
            "delivery-status.txt".to_owned()
        }
        ("text", "rfc822-headers") => "headers.txt".to_owned(),
        ("text", "calendar") => "invitation.ics".to_owned(),
        ("text", "plain") => "text.txt".to_owned(),
        ("text", _) if is_plain => format!("text.{sub}"),
        ("image", "jpeg") => "image.jpg".to_owned(),
        ("image", "svg+xml") => "image.svg".to_owned(),
        ("image" | "audio" | "video", _) if is_plain => format!("{kind}.{sub}"),
        ("application", "pgp-signature") => "signature.asc".to_owned(),
        ("application", "pkcs7-signature" | "x-pkcs7-signature") => "smime.p7s".to_owned(),
        ("application", "pkcs7-mime" | "x-pkcs7-mime") => "smime.p7m".to_owned(),
        ("application", "pdf" | "zip" | "json" | "xml") => format!("attachment.{sub}"),
        _ => "attachment.bin".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_have_no_path_and_no_deceptive_characters() {
        for (name, want) in [
            ("report.pdf", Some("report.pdf")),
            ("../../etc/passwd", Some("passwd")),
            ("C:\\Users\\ann\\a b.txt", Some("a b.txt")),
            ("/", None),
            ("..", None),
            (".", None),
            ("", None),
            ("   ", None),
            ("dir/", Some("dir")),
            ("a/..", None),
            (".bashrc", Some("bashrc")),
            ("x.exe.", Some("x.exe")),
            ("a\0b\r\nc.txt", Some("abc.txt")),
            ("\u{1b}[31mred\u{7}.txt", Some("[31mred.txt")),
            ("photo\u{202e}gpj.exe", Some("photogpj.exe")),
            ("a:b|c?.txt", Some("a_b_c_.txt")),
            ("报告.pdf", Some("报告.pdf")),
            ("\u{2215}etc", Some("\u{2215}etc")),
        ] {
            assert_eq!(safe_name(name).as_deref(), want, "{name:?}");
        }
        let long = safe_name(&format!("{}.tar", "é".repeat(300))).unwrap();
        assert!(long.len() <= MAX_NAME && long.ends_with("é.tar"), "{long}");
    }

    #[test]
    fn parts_without_a_name_get_one_by_type() {
        for (mime_type, want) in [
            ("image/png", "image.png"),
            ("image/jpeg", "image.jpg"),
            ("message/rfc822", "message.eml"),
            ("text/calendar", "invitation.ics"),
            ("application/pdf", "attachment.pdf"),
            ("application/vnd.ms-excel", "attachment.bin"),
            ("text/../../x", "attachment.bin"),
            ("image/x.y/z", "attachment.bin"),
            ("", "attachment.bin"),
        ] {
            assert_eq!(default_name(mime_type), want, "{mime_type}");
        }
    }

    proptest! {
        #[test]
        fn no_name_is_a_path(name in any::<String>(), dots in "[./\\\\a ]{0,12}") {
            for name in [&name, &dots] {
                if let Some(safe) = safe_name(name) {
                    prop_assert!(!safe.contains(['/', '\\', '\0']), "{safe}");
                    prop_assert!(!safe.starts_with('.') && !safe.is_empty() && safe.len() <= MAX_NAME);
                    prop_assert_eq!(safe_name(&safe), Some(safe.clone()));
                }
            }
        }
    }
}
