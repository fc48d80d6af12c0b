//! The part of a message that shows why it was found.

use std::ops::Range;

use serde::Serialize;

use super::query::{SearchPhrase, SearchQuery};
use super::tokens::{SearchToken, TokenKind, tokens};

/// Maximum length of a snippet, in characters, without the dots at its ends.
const MAX_SNIPPET_CHARS: usize = 160;

/// Characters that are shown before the first match.
const CHARS_BEFORE_MATCH: usize = 40;

/// Stands for text that is left out.
const ELLIPSIS: char = '…';

/// A part of a message. It is untrusted text without markup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SearchSnippet {
    pub text: String,
    /// First and behind the last character of each match, counted in characters of `text`.
    pub highlights: Vec<(usize, usize)>,
}

impl SearchSnippet {
    /// Shows the first of `texts` that a phrase of the query matches, otherwise the beginning of
    /// the first one.
    pub fn new(texts: &[&str], query: &SearchQuery) -> Self {
        for text in texts {
            let found = matches(text, &query.phrases);
            if let Some(first) = found.first() {
                return cut(text, first.start, &found);
            }
        }
        texts.first().map_or_else(Self::default, |text| cut(text, 0, &[]))
    }
}

/// Returns the bytes that phrases match, in order and without overlaps.
fn matches(text: &str, phrases: &[SearchPhrase]) -> Vec<Range<usize>> {
    let found = tokens(text, usize::MAX);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for at in 0..found.len() {
        for phrase in phrases.iter().filter(|phrase| phrase.is_start_of(&found[at..])) {
            let last = &found[at + phrase.tokens.len() - 1];
            let bytes = found[at].bytes.start..end_of(text, phrase, last);
            match merged.last_mut() {
                Some(before) if bytes.start <= before.end => before.end = before.end.max(bytes.end),
                _ => merged.push(bytes),
            }
        }
    }
    merged
}

/// The end of a match. Of a pair that starts with a single character, only that one matches.
fn end_of(text: &str, phrase: &SearchPhrase, last: &SearchToken) -> usize {
    let is_half = phrase.is_prefix && last.kind == TokenKind::Pair;
    match text[last.bytes.clone()].chars().next() {
        Some(c) if is_half => last.bytes.start + c.len_utf8(),
        _ => last.bytes.end,
    }
}

/// Cuts the text around the byte `first`, and counts the matches inside in characters.
fn cut(text: &str, first: usize, matches: &[Range<usize>]) -> SearchSnippet {
    let before = text[..first].char_indices().rev().take(CHARS_BEFORE_MATCH);
    let start = before.last().map_or(first, |(at, _)| at);
    let length = text[start..].char_indices().nth(MAX_SNIPPET_CHARS);
    let end = length.map_or(text.len(), |(at, _)| start + at);
    let mut snippet = SearchSnippet::default();
    let dots = usize::from(start > 0);
    snippet.text.extend((start > 0).then_some(ELLIPSIS));
    // One character for one, so that the places of the matches stay.
    let shown = text[start..end].chars().map(|c| if c.is_whitespace() { ' ' } else { c });
    snippet.text.extend(shown);
    snippet.text.extend((end < text.len()).then_some(ELLIPSIS));
    let (mut chars, mut counted) = (dots, start);
    let mut place = |byte: usize| {
        chars += text[counted..byte].chars().count();
        counted = byte;
        chars
    };
    for bytes in matches.iter().filter(|bytes| bytes.start >= start && bytes.end <= end) {
        snippet.highlights.push((place(bytes.start), place(bytes.end)));
    }
    snippet
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Timestamp;

    fn query(text: &str) -> SearchQuery {
        SearchQuery::parse(text, Timestamp::from_ms(0)).unwrap()
    }

    /// The snippet with `[` and `]` around its highlights.
    fn marked(words: &str, texts: &[&str]) -> String {
        let SearchSnippet { text, highlights } = SearchSnippet::new(texts, &query(words));
        let mut marked = String::new();
        for (at, c) in text.chars().enumerate() {
            marked.extend(highlights.iter().any(|(start, _)| *start == at).then_some('['));
            marked.push(c);
            marked.extend(highlights.iter().any(|(_, end)| *end == at + 1).then_some(']'));
        }
        marked
    }

    #[test]
    fn matches_are_highlighted_in_the_text_of_the_message() {
        for (words, text, expected) in [
            ("red", "the build is RED now", "the build is [RED] now"),
            ("build red", "red build,\nred", "[red] [build], [red]"),
            ("\"is red\"", "it is red", "it [is red]"),
            ("dep*", "deployed to depot", "[deployed] to [depot]"),
            ("cafe", "un café", "un [café]"),
            ("部署服务", "我们部署服务器", "我们[部署服务]器"),
            ("部", "全部部署", "全[部部]署"),
            ("部 署", "部署", "[部署]"),
            ("🎉", "ok 🎉!", "ok [🎉]!"),
            ("from:ann", "hello", "hello"),
            ("x", "", ""),
        ] {
            assert_eq!(marked(words, &[text]), expected, "{words}");
        }
    }

    #[test]
    fn first_text_with_a_match_is_shown() {
        assert_eq!(marked("red", &["the text", "a red title"]), "a [red] title");
        assert_eq!(marked("ann", &["the text", "a red title"]), "the text");
    }

    #[test]
    fn long_text_is_cut_around_the_first_match() {
        let text = format!("{}needle{}", "字 ".repeat(500), " 字".repeat(500));
        let snippet = SearchSnippet::new(&[&text], &query("needle"));
        assert_eq!(snippet.highlights, [(41, 47)]);
        assert_eq!(snippet.text.chars().count(), MAX_SNIPPET_CHARS + 2);
        assert!(snippet.text.starts_with('…') && snippet.text.ends_with('…'));
    }

    proptest! {
        #[test]
        fn highlights_are_inside_of_every_snippet(text in "\\PC{0,300}", words in "[a-e部署]{1,3}\\*?") {
            let snippet = SearchSnippet::new(&[&text], &query(&words));
            let length = snippet.text.chars().count();
            let mut last = 0;
            for (start, end) in snippet.highlights {
                prop_assert!(last <= start && start < end && end <= length);
                last = end;
            }
        }
    }
}
