//! The one table of characters that are escaped or removed in untrusted text.
//!
//! Names, subjects and texts come from outside. Some characters end a line for one program
//! and not for another, change what a terminal shows, or are invisible, so that two
//! different words look the same. Log lines, terminal output, JSON on a terminal and the
//! front matter of Mails escape them; e-mail addresses must not contain them.
//!
//! U+200C and U+200D (joiners) and U+FE00 to U+FE0F (variation selectors) are not in the
//! table: Persian, several Indic scripts and composed emoji need them. Only addresses
//! reject them, see [`is_unsafe_in_address`].

use std::fmt::Write as _;

/// Whether `c` must be escaped or removed wherever untrusted text is shown or written.
pub fn is_unsafe(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    is_control(c)
        || is_line_separator(c)
        || is_bidi_control(c)
        || is_invisible(c)
        || is_tag(c)
        || is_noncharacter(c)
}

/// Whether `c` must not occur in an e-mail address: unsafe characters, joiners and
/// variation selectors, and characters that look like `.` or `@`.
pub fn is_unsafe_in_address(c: char) -> bool {
    is_unsafe(c)
        || matches!(
            c,
            '\u{200c}' | '\u{200d}' | '\u{fe00}'
                ..='\u{fe0f}' | '\u{fffc}' | '\u{fffd}'
            // ONE DOT LEADER, IDEOGRAPHIC FULL STOP, FULLWIDTH FULL STOP,
            // HALFWIDTH IDEOGRAPHIC FULL STOP, FULLWIDTH COMMERCIAL AT
            | '\u{2024}' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}' | '\u{ff20}'
        )
}

/// Appends `c` to one line of text: `\n`, `\r`, `\t` and `\u{…}` for unsafe characters.
pub fn push_escaped(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if is_unsafe(c) => {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
        c => out.push(c),
    }
}

/// Returns `text` on one line, with unsafe characters as [`push_escaped`] writes them.
pub fn escape_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_escaped(&mut out, c));
    out
}

/// C0, DEL and C1: terminals execute them, and most programs end a line at some of them.
fn is_control(c: char) -> bool {
    c.is_control()
}

/// LINE SEPARATOR and PARAGRAPH SEPARATOR: line breaks for some programs only.
fn is_line_separator(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
}

/// Marks, embeddings, overrides and isolates that change the direction of the text.
fn is_bidi_control(c: char) -> bool {
    matches!(c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Characters without width: soft hyphen, Mongolian vowel separator, zero-width space,
/// word joiner, invisible operators, deprecated format characters, byte order mark and
/// annotation marks. Includes the reserved code points of these blocks.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}'
        | '\u{feff}' | '\u{fff0}'..='\u{fffb}')
}

/// Tag characters and supplementary variation selectors: a complete hidden alphabet.
fn is_tag(c: char) -> bool {
    matches!(c, '\u{e0000}'..='\u{e0fff}')
}

/// U+FFFE and U+FFFF, which YAML cannot contain unescaped.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_unsafe(chars: impl IntoIterator<Item = char>) {
        for c in chars {
            assert!(is_unsafe(c), "U+{:04X}", u32::from(c));
            assert!(is_unsafe_in_address(c), "U+{:04X}", u32::from(c));
        }
    }

    #[test]
    fn control_characters_are_unsafe() {
        assert_unsafe(('\0'..' ').chain('\u{7f}'..='\u{9f}'));
    }

    #[test]
    fn line_separators_are_unsafe() {
        assert_unsafe(['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}']);
    }

    #[test]
    fn bidirectional_controls_are_unsafe() {
        assert_unsafe(['\u{61c}', '\u{200e}', '\u{200f}']);
        assert_unsafe(('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}'));
    }

    #[test]
    fn invisible_characters_are_unsafe() {
        assert_unsafe(['\u{ad}', '\u{180e}', '\u{200b}', '\u{feff}']);
        assert_unsafe(('\u{2060}'..='\u{206f}').chain('\u{fff0}'..='\u{fffb}'));
    }

    #[test]
    fn tag_characters_are_unsafe() {
        assert_unsafe('\u{e0000}'..='\u{e0fff}');
    }

    #[test]
    fn noncharacters_of_the_first_plane_are_unsafe() {
        assert_unsafe(['\u{fffe}', '\u{ffff}']);
    }

    #[test]
    fn visible_text_is_safe() {
        for c in (' '..='~').chain("éß漢字日本語عرب🙂\u{a0}\u{301}\u{fffd}".chars()) {
            assert!(!is_unsafe(c), "U+{:04X}", u32::from(c));
        }
    }

    #[test]
    fn joiners_and_lookalikes_are_unsafe_in_addresses_only() {
        let chars = "\u{200c}\u{200d}\u{fe0f}\u{2024}\u{3002}\u{ff0e}\u{ff20}\u{ff61}\u{fffd}";
        for c in chars.chars() {
            assert!(!is_unsafe(c) && is_unsafe_in_address(c), "U+{:04X}", u32::from(c));
        }
        assert!(!"ann.b-1_é漢".chars().any(is_unsafe_in_address));
    }

    #[test]
    fn escaped_text_is_one_safe_line() {
        let text = "a\n\r\t\u{1b}[2J\u{202e}\u{200b}\u{e0041}é";
        let line = escape_line(text);
        assert_eq!(line, "a\\n\\r\\t\\u{1b}[2J\\u{202e}\\u{200b}\\u{e0041}é");
        assert!(!line.chars().any(is_unsafe));
    }
}
