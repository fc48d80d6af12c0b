//! Puts text from outside into Markdown, so that it cannot end or start anything around it.

use std::fmt::Write as _;

/// Characters that start or end emphasis, code, links, images, tables or HTML.
const SPECIAL: [char; 10] = ['\\', '`', '*', '[', ']', '<', '>', '|', '~', '&'];

/// Returns `text` on one line, without control characters and with special characters escaped.
/// At most `max` characters of it are kept.
pub(super) fn inline(text: &str, max: usize) -> String {
    let (mut out, mut kept, mut space) = (String::new(), 0, false);
    for c in text.chars() {
        if c.is_whitespace() || c.is_control() {
            space = !out.is_empty();
            continue;
        }
        if kept >= max {
            out.push('…');
            break;
        }
        if std::mem::take(&mut space) {
            out.push(' ');
            kept += 1;
        }
        // An underscore inside a word has no meaning.
        let emphasis = c == '_' && !out.ends_with(char::is_alphanumeric);
        if SPECIAL.contains(&c) || emphasis {
            out.push('\\');
        }
        out.push(c);
        kept += 1;
    }
    out
}

/// Returns `text` as a quotation: the Markdown of the author stays inside, and HTML is shown as
/// text. At most `max` characters of it are kept.
pub(super) fn quote(text: &str, max: usize) -> String {
    let mut out = String::new();
    let mut left = max;
    for line in text.trim().lines() {
        if left == 0 {
            out.push_str("> …\n");
            break;
        }
        let kept: String = line.trim_end().chars().take(left).collect();
        left = left.saturating_sub(kept.chars().count() + 1);
        let kept = kept.replace(|c: char| c.is_control() && c != '\t', " ").replace('<', "\\<");
        let _ = writeln!(out, "> {kept}");
    }
    out.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Returns a link, if `text` is one that can stand alone; otherwise the escaped text.
pub(super) fn link(text: &str) -> String {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '<' | '>' | '`' | '"' | '\\');
    let web = text.starts_with("https://") || text.starts_with("http://");
    if web && text.len() <= 2048 && text.chars().all(plain) {
        text.to_owned()
    } else {
        inline(text, 200)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_line_or_quotation() {
        for (text, want) in [
            ("plain snake_case text", "plain snake_case text"),
            (" a\n\n# b\r\n```\u{1b}[31m", "a # b \\`\\`\\` \\[31m"),
            ("**x** _y_ <b>&lt;", "\\*\\*x\\*\\* \\_y_ \\<b\\>\\&lt;"),
            ("![i](u) | ~~s~~", "!\\[i\\](u) \\| \\~\\~s\\~\\~"),
            ("@monoco::alpha", "@monoco::alpha"),
            ("", ""),
        ] {
            assert_eq!(inline(text, 100), want, "{text:?}");
        }
        assert_eq!(inline(&"é".repeat(11), 10), "é".repeat(10) + "…");
        assert_eq!(quote("a\n\n```\n<b>\r\n\u{7}c\n", 100), "> a\n>\n> ```\n> \\<b>\n>  c");
        assert_eq!(quote("abcdef\nghi", 3), "> abc\n> …");
        assert_eq!(link("https://x.example/a?b=(c)"), "https://x.example/a?b=(c)");
        assert_eq!(link("javascript:alert(1)"), "javascript:alert(1)");
        assert_eq!(link("https://x.example/ [y](z)"), "https://x.example/ \\[y\\](z)");
    }
}
