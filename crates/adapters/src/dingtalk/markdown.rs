//! Converts Markdown into the subset that DingTalk shows: headings, quotes, emphasis, links,
//! images and lists.
//!
//! Only what DingTalk shows differently is changed: a line break needs two spaces before it, and
//! a table is put into a code block, because DingTalk would show its lines as one. Everything
//! else stays as its author wrote it.

use std::fmt::Write as _;
use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::markdown::{replace_ranges, table_as_code};

/// The longest title, in characters. DingTalk shows it in notifications only.
const MAX_TITLE_CHARS: usize = 60;

/// The title of a message whose text has no words.
const DEFAULT_TITLE: &str = "Message";

/// Returns the Markdown as DingTalk reads it.
pub(super) fn to_dingtalk(markdown: &str) -> String {
    replace_ranges(markdown, edits(markdown))
}

/// Returns what is replaced, in order.
fn edits(markdown: &str) -> Vec<(Range<usize>, String)> {
    let mut edits = Vec::new();
    let mut depth = 0_usize;
    for (event, range) in Parser::new_ext(markdown, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::SoftBreak | Event::HardBreak => edits.push((range, "  \n".to_owned())),
            Event::Start(Tag::Table(_)) if depth == 0 => {
                let code = table_as_code(&markdown[range.clone()]);
                edits.push((range, code));
            }
            Event::Start(Tag::BlockQuote(_) | Tag::Item) => depth += 1,
            Event::End(TagEnd::BlockQuote(_) | TagEnd::Item) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    edits
}

/// Returns a title for a notification: the first line with words, without its markup.
pub(super) fn title(title: Option<&str>, markdown: &str) -> String {
    let given = title.map(str::trim).filter(|title| !title.is_empty());
    let found = given.map_or_else(|| first_line(markdown), str::to_owned);
    let line: String =
        found.lines().next().unwrap_or_default().chars().take(MAX_TITLE_CHARS).collect();
    if line.trim().is_empty() { DEFAULT_TITLE.to_owned() } else { line }
}

fn first_line(markdown: &str) -> String {
    let mut line = String::new();
    for event in Parser::new(markdown) {
        match event {
            Event::Text(text) | Event::Code(text) => {
                let _ = write!(line, "{text}");
            }
            // An inline element ends within a line.
            Event::End(TagEnd::Emphasis | TagEnd::Strong | TagEnd::Link | TagEnd::Image) => {}
            Event::SoftBreak | Event::HardBreak | Event::End(_) if !line.trim().is_empty() => break,
            _ => {}
        }
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::markdown::split_plain;

    #[test]
    fn line_breaks_have_two_spaces() {
        for (markdown, want) in [
            ("a\nb", "a  \nb"),
            ("a  \nb", "a  \nb"),
            ("a\\\nb", "a  \nb"),
            ("a\n\nb", "a\n\nb"),
            ("> a\n> b", "> a  \n> b"),
            ("- a\n  b\n- c", "- a  \n  b\n- c"),
            (
                "# T\n\n**b** *i* [l](https://x) ![p](https://y)",
                "# T\n\n**b** *i* [l](https://x) ![p](https://y)",
            ),
            ("```\na\nb\n```", "```\na\nb\n```"),
            ("", ""),
        ] {
            assert_eq!(to_dingtalk(markdown), want, "{markdown:?}");
        }
    }

    #[test]
    fn tables_become_code() {
        let table = "| a | b |\n| - | - |\n| 1 | ```2``` |\n";
        let want = format!("x\n\n````\n{table}````\n\ny");
        assert_eq!(to_dingtalk(&format!("x\n\n{table}\ny")), want);
        assert_eq!(to_dingtalk("|a|\n|-|\n|1|"), "```\n|a|\n|-|\n|1|\n```");
        let quoted = "> |a|\n> |-|\n> |1|\n";
        assert_eq!(to_dingtalk(quoted), quoted);
    }

    #[test]
    fn title_is_the_first_line_without_markup() {
        for (given, markdown, want) in [
            (Some("Build"), "text", "Build"),
            (None, "## The **build** is [red](https://x)\n\nmore", "The build is red"),
            (None, "one\ntwo", "one"),
            (None, "- item\n- other", "item"),
            (Some(" "), "---", "Message"),
            (None, "", "Message"),
        ] {
            assert_eq!(title(given, markdown), want, "{markdown:?}");
        }
        assert_eq!(title(None, &"é".repeat(100)).chars().count(), MAX_TITLE_CHARS);
    }

    proptest! {
        #[test]
        fn plain_parts_fit_and_have_every_character(text in "[a-z é\n\"]{0,400}", max in 12_usize..60) {
            let size = |part: &str| serde_json::to_string(part).unwrap().len();
            let parts = split_plain(&text, &size, max);
            let joined: String = parts.concat().replace('\n', "");
            prop_assert_eq!(joined, text.replace('\n', ""));
            for part in &parts {
                prop_assert!(size(part) <= max, "{:?}", part);
            }
        }

        #[test]
        fn conversion_keeps_every_word(text in "[a-z*_`|> \n#-]{0,200}") {
            let words = |text: &str| -> String { text.chars().filter(char::is_ascii_lowercase).collect() };
            prop_assert_eq!(words(&to_dingtalk(&text)), words(&text));
        }
    }
}
