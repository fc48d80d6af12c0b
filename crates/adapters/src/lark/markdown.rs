//! Converts Markdown into what the element `md` of a post shows: emphasis, links, lists, quotes,
//! code and mentions.
//!
//! Only what Lark shows differently is changed: a heading becomes a bold line, a table a block of
//! code, and an image a link. Everything else stays as its author wrote it.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::markdown::{replace_ranges, table_as_code};

/// The beginning of a mention.
const MENTION: &str = "<at ";

/// Longest id of an account in a mention, in bytes.
const MAX_ACCOUNT_BYTES: usize = 64;

/// Returns the Markdown as Lark reads it.
pub(super) fn to_lark(markdown: &str) -> String {
    mentions(&replace_ranges(markdown, edits(markdown)))
}

/// Returns what is replaced, in order.
fn edits(markdown: &str) -> Vec<(Range<usize>, String)> {
    let mut edits = Vec::new();
    let mut depth = 0_usize;
    let parser = Parser::new_ext(markdown, Options::ENABLE_TABLES).into_offset_iter();
    for (event, range) in parser {
        match event {
            Event::Start(Tag::Table(_)) if depth == 0 => {
                let code = table_as_code(&markdown[range.clone()]);
                edits.push((range, code));
            }
            Event::Start(Tag::Heading { .. }) => {
                let bold = bold_heading(&markdown[range.clone()]);
                edits.push((range, bold));
            }
            Event::Start(Tag::Image { .. }) if markdown[range.clone()].starts_with('!') => {
                edits.push((range.start..range.start + 1, String::new()));
            }
            Event::Start(Tag::BlockQuote(_) | Tag::Item) => depth += 1,
            Event::End(TagEnd::BlockQuote(_) | TagEnd::Item) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    edits
}

/// Returns a heading as a bold line. Emphasis inside of it would end the bold text.
fn bold_heading(heading: &str) -> String {
    let after = if heading.ends_with('\n') { "\n" } else { "" };
    let line = heading.trim().lines().next().unwrap_or_default();
    let words = line.trim_start_matches('#').trim().trim_end_matches('#').trim();
    let words = words.replace("**", "").replace("__", "");
    if words.is_empty() { after.to_owned() } else { format!("**{words}**{after}") }
}

/// Returns the text with mentions of people only. A mention of everyone, or of something that is no
/// account, becomes text.
pub(super) fn mentions(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MENTION) {
        out.push_str(&rest[..at]);
        let tag = &rest[at..];
        let Some(end) = tag.find('>') else {
            // It has no end, so it is no mention.
            out.push_str(tag);
            return out;
        };
        let after = &tag[end + 1..];
        let (name, next) = match after.split_once("</at>") {
            Some((name, next)) if !name.contains('<') && !name.contains('\n') => (name, next),
            _ => ("", after),
        };
        match account(&tag[..end]) {
            Some(account) => out.push_str(&format!("<at user_id=\"{account}\">{name}</at>")),
            None if name.is_empty() => out.push_str("@all"),
            None => out.push_str(&format!("@{name}")),
        }
        rest = next;
    }
    out.push_str(rest);
    out
}

/// Returns the account of a tag such as `<at user_id="ou_1"`; `None` for everyone and for anything
/// that is no account.
fn account(tag: &str) -> Option<&str> {
    let value = tag.split_once("user_id=").or_else(|| tag.split_once("id="))?.1;
    let value = value.trim_start_matches(['"', '\'']);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let end = value.find(|c| !is_part(c)).unwrap_or(value.len());
    let account = &value[..end];
    let is_account = account.len() <= MAX_ACCOUNT_BYTES && !account.is_empty();
    (is_account && !account.eq_ignore_ascii_case("all")).then_some(account)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_tables_and_images_are_changed() {
        for (markdown, want) in [
            ("# The build\n\ntext", "**The build**\n\ntext"),
            ("## a **b** ##\n", "**a b**\n"),
            ("Title\n=====\n\nx", "**Title**\n\nx"),
            ("**b** *i* ~~s~~ `c` [l](https://x)", "**b** *i* ~~s~~ `c` [l](https://x)"),
            ("see ![chart](https://x/y.png)!", "see [chart](https://x/y.png)!"),
            ("|a|\n|-|\n|1|", "```\n|a|\n|-|\n|1|\n```"),
            ("- a\n- b\n\n> q\n\n1. c", "- a\n- b\n\n> q\n\n1. c"),
            ("```\n# not a heading\n```", "```\n# not a heading\n```"),
            ("", ""),
        ] {
            assert_eq!(to_lark(markdown), want, "{markdown:?}");
        }
    }

    #[test]
    fn people_are_mentioned_and_everyone_is_not() {
        for (text, want) in [
            (r#"hi <at user_id="ou_1">Ann</at>!"#, r#"hi <at user_id="ou_1">Ann</at>!"#),
            (r#"<at user_id='ou_1'></at>"#, r#"<at user_id="ou_1"></at>"#),
            (r#"<at id=ou_1></at>"#, r#"<at user_id="ou_1"></at>"#),
            (r#"<at user_id="all">everyone</at>"#, "@everyone"),
            (r#"<at user_id="ALL"></at> x"#, "@all x"),
            (r#"<at user_id="">x</at>"#, "@x"),
            (r#"<at user_id="ou_1""#, r#"<at user_id="ou_1""#),
            (r#"a <at user_id="ou_1"> b"#, r#"a <at user_id="ou_1"></at> b"#),
            ("a < b and <b>", "a < b and <b>"),
        ] {
            assert_eq!(mentions(text), want, "{text}");
        }
    }
}
