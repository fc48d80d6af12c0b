//! Parses search queries.
//!
//! ```text
//!   deploy "build is red" 部署 dep* from:ann in:ops since:7d has:attachment tunnel:lark status:new
//! ```
//!
//! A message is found when it meets all conditions. Words between quotes, and the tokens of one
//! word such as `v1.2` or `部署服务`, must follow each other. The words `from:`, `in:`, `since:`,
//! `has:`, `tunnel:` and `status:` are filters; every other colon is punctuation.

use jiff::civil::Date;

use crate::claim::ClaimState;
use crate::delivery::SendState;
use crate::did::TunnelId;
use crate::search::tokens::{SearchToken, TokenKind, tokens};
use crate::time::Timestamp;

/// Maximum length of a query, in bytes.
pub const MAX_QUERY_BYTES: usize = 4_096;

/// Maximum number of tokens in all phrases of a query.
const MAX_QUERY_TOKENS: usize = 128;

/// Conditions that a message must meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchQuery {
    /// In title, text, names of files, authors or chat.
    pub phrases: Vec<SearchPhrase>,
    /// In the names and ids of authors.
    pub from: Vec<SearchPhrase>,
    /// In name and id of the chat, in the thread or in the recipients.
    pub chat: Vec<SearchPhrase>,
    pub has: Vec<SearchMark>,
    pub tunnels: Vec<TunnelId>,
    /// Stored at this time or later.
    pub since: Option<Timestamp>,
    pub status: Option<SearchStatus>,
}

/// Tokens that must follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPhrase {
    /// At least one token.
    pub tokens: Vec<String>,
    /// The last token is the beginning of a token.
    pub is_prefix: bool,
}

/// A property of a message that a query can ask for: `has:attachment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchMark {
    Attachment,
    Image,
    Link,
}

/// The status of a Mail in a workspace, or of a delivery of a sent message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStatus {
    Claim(ClaimState),
    Delivery(SendState),
}

/// Why a text is not a query. `at` is the number of the character, from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuery {
    #[error("the query has {0} bytes; expected at most {MAX_QUERY_BYTES}")]
    TooLong(usize),
    #[error("the quote at character {at} is not closed; add `\"` at the end of the phrase")]
    OpenQuote { at: usize },
    #[error(
        "`{filter}:` at character {at} has no value; write it without a space, as in {example}"
    )]
    NoValue { filter: &'static str, at: usize, example: &'static str },
    #[error("`{filter}:` at character {at} has the unknown value {value:?}; expected {expected}")]
    UnknownValue { filter: &'static str, at: usize, value: String, expected: String },
    #[error("the query has more than {MAX_QUERY_TOKENS} words at character {at}; use fewer")]
    TooManyWords { at: usize },
    #[error(
        "the query has no word to search for; expected a word, a phrase or a filter such as from:ann"
    )]
    Empty,
}

impl SearchMark {
    pub const ALL: [Self; 3] = [Self::Attachment, Self::Image, Self::Link];

    /// The word behind `has:`, also in the index.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attachment => "attachment",
            Self::Image => "image",
            Self::Link => "link",
        }
    }
}

/// The words before a colon that are filters, with an example each.
const FILTERS: [(&str, &str); 6] = [
    ("from", "from:ann"),
    ("in", "in:ops"),
    ("since", "since:7d"),
    ("has", "has:attachment"),
    ("tunnel", "tunnel:lark-main"),
    ("status", "status:new"),
];

impl SearchQuery {
    /// Parses a query. Durations of `since:` count back from `now`; days start at 00:00 UTC.
    ///
    /// # Errors
    ///
    /// [`InvalidQuery`] with the place of the first error.
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, InvalidQuery> {
        if text.len() > MAX_QUERY_BYTES {
            return Err(InvalidQuery::TooLong(text.len()));
        }
        let mut reader = QueryReader { rest: text, text, tokens: 0 };
        let mut query = Self::default();
        while let Some(word) = reader.next_word()? {
            query.add(&word, &mut reader, now)?;
        }
        if query == Self::default() { Err(InvalidQuery::Empty) } else { Ok(query) }
    }

    fn add(
        &mut self,
        word: &QueryWord<'_>,
        reader: &mut QueryReader<'_>,
        now: Timestamp,
    ) -> Result<(), InvalidQuery> {
        let QueryWord { filter, value, at, .. } = *word;
        let Some((filter, example)) = filter else {
            self.phrases.extend(reader.phrase(word)?);
            return Ok(());
        };
        if value.trim().is_empty() {
            return Err(InvalidQuery::NoValue { filter, at, example });
        }
        let unknown = |expected: String| {
            let value = value.chars().take(80).collect();
            InvalidQuery::UnknownValue { filter, at, value, expected }
        };
        match filter {
            "from" | "in" => {
                let phrase = reader.phrase(word)?;
                let phrase = phrase.ok_or_else(|| unknown("letters or digits".to_owned()))?;
                if filter == "from" { self.from.push(phrase) } else { self.chat.push(phrase) }
            }
            "has" => {
                let found = SearchMark::ALL.into_iter().find(|it| it.as_str() == value);
                let names = SearchMark::ALL.map(SearchMark::as_str).join(", ");
                self.has.push(found.ok_or_else(|| unknown(format!("one of {names}")))?);
            }
            "tunnel" => {
                let tunnel = value.parse().map_err(|_| unknown("the id of a tunnel".to_owned()))?;
                self.tunnels.push(tunnel);
            }
            "status" => {
                let status = SearchStatus::parse(value);
                self.status = Some(status.ok_or_else(|| unknown(SearchStatus::names()))?);
            }
            _ => {
                let expected = "a time such as 2026-02-06T20:45:00Z, a day such as 2026-02-06 or a \
                                duration such as 30m, 2h or 7d";
                let since = parse_since(value, now);
                self.since = Some(since.ok_or_else(|| unknown(expected.to_owned()))?);
            }
        }
        Ok(())
    }
}

impl SearchStatus {
    /// Parses the name of a state in upper or lower case.
    fn parse(word: &str) -> Option<Self> {
        let word = word.to_uppercase();
        let delivery = || SendState::parse(&word).map(Self::Delivery);
        ClaimState::parse(&word).map(Self::Claim).or_else(delivery)
    }

    fn names() -> String {
        let claims = ClaimState::ALL.map(ClaimState::as_str).join(", ");
        let deliveries = SendState::ALL.map(SendState::as_str).join(", ");
        format!("{claims} for Mails, or {deliveries} for sent messages").to_lowercase()
    }
}

/// Parses RFC 3339, a day, or a duration before `now`.
fn parse_since(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Ok(time) = Timestamp::from_rfc3339(text) {
        return Some(time);
    }
    if let Ok(date) = text.parse::<Date>() {
        return Timestamp::from_rfc3339(&format!("{date}T00:00:00Z")).ok();
    }
    let unit = text.chars().last()?;
    let ms: i64 = match unit {
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => 86_400_000,
        'w' => 7 * 86_400_000,
        _ => return None,
    };
    let count: u32 = text.strip_suffix(unit)?.parse().ok()?;
    Some(Timestamp::from_ms(now.ms().saturating_sub(ms.checked_mul(i64::from(count))?)))
}

/// One word or quoted phrase, without its filter.
struct QueryWord<'a> {
    filter: Option<(&'static str, &'static str)>,
    value: &'a str,
    is_quoted: bool,
    /// Number of its first character, from 1.
    at: usize,
}

struct QueryReader<'a> {
    text: &'a str,
    rest: &'a str,
    /// Number of tokens so far.
    tokens: usize,
}

impl<'a> QueryReader<'a> {
    fn next_word(&mut self) -> Result<Option<QueryWord<'a>>, InvalidQuery> {
        self.rest = self.rest.trim_start();
        if self.rest.is_empty() {
            return Ok(None);
        }
        let at = self.position();
        let filter = FILTERS.into_iter().find(|(name, _)| {
            self.rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
        });
        if let Some((name, _)) = filter {
            self.rest = &self.rest[name.len() + 1..];
        }
        if let Some(quoted) = self.rest.strip_prefix('"') {
            let open = InvalidQuery::OpenQuote { at: self.position() };
            let (value, rest) = quoted.split_once('"').ok_or(open)?;
            self.rest = rest;
            return Ok(Some(QueryWord { filter, value, is_quoted: true, at }));
        }
        let end =
            self.rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(self.rest.len());
        let (value, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(Some(QueryWord { filter, value, is_quoted: false, at }))
    }

    /// The number of the next character, from 1.
    fn position(&self) -> usize {
        self.text[..self.text.len() - self.rest.len()].chars().count() + 1
    }

    /// Returns the phrase of a word; `None` when it has punctuation only.
    fn phrase(&mut self, word: &QueryWord<'_>) -> Result<Option<SearchPhrase>, InvalidQuery> {
        let (value, star) = match word.value.strip_suffix('*') {
            Some(value) if !word.is_quoted => (value, true),
            _ => (word.value, false),
        };
        let found = tokens(value, MAX_QUERY_TOKENS + 1);
        self.tokens += found.len();
        if self.tokens > MAX_QUERY_TOKENS {
            return Err(InvalidQuery::TooManyWords { at: word.at });
        }
        Ok(SearchPhrase::new(found, star))
    }
}

impl SearchPhrase {
    /// Builds the phrase that finds a text with these tokens in sequence.
    fn new(mut found: Vec<SearchToken>, star: bool) -> Option<Self> {
        let last = found.pop()?;
        // In the text, the run of the last character can go on.
        let is_prefix = match (last.kind, found.last().map(|token| token.kind)) {
            (TokenKind::LastOfRun, Some(TokenKind::Pair)) => false,
            (TokenKind::LastOfRun, _) => {
                found.push(last);
                true
            }
            _ => {
                found.push(last);
                star
            }
        };
        Some(Self { tokens: found.into_iter().map(|token| token.text).collect(), is_prefix })
    }

    /// Whether `tokens` start with this phrase.
    pub fn is_start_of(&self, tokens: &[SearchToken]) -> bool {
        let last = self.tokens.len() - 1;
        tokens.len() > last
            && self.tokens.iter().zip(tokens).enumerate().all(|(at, (wanted, token))| {
                let is_same = token.text == *wanted;
                is_same || self.is_prefix && at == last && token.text.starts_with(wanted.as_str())
            })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::search::tokens::MAX_WORD_CHARS;

    const NOW: Timestamp = Timestamp::from_ms(1_770_410_700_000);

    /// Describes phrases: tokens with `+` between them, and `*` behind a prefix.
    fn describe(phrases: &[SearchPhrase]) -> String {
        let phrase = |phrase: &SearchPhrase| {
            format!("{}{}", phrase.tokens.join("+"), if phrase.is_prefix { "*" } else { "" })
        };
        phrases.iter().map(phrase).collect::<Vec<_>>().join(" ")
    }

    fn parse(text: &str) -> Result<SearchQuery, String> {
        SearchQuery::parse(text, NOW).map_err(|error| error.to_string())
    }

    /// Whether a query of phrases finds a text, without an index.
    fn finds(query: &str, text: &str) -> bool {
        let found = tokens(text, usize::MAX);
        let phrases = SearchQuery::parse(query, NOW).unwrap().phrases;
        phrases.iter().all(|phrase| (0..found.len()).any(|at| phrase.is_start_of(&found[at..])))
    }

    #[test]
    fn words_phrases_and_prefixes_are_parsed() {
        for (text, expected) in [
            ("deploy", "deploy"),
            ("Build RED", "build red"),
            ("\"build is red\" now", "build+is+red now"),
            ("dep*", "dep*"),
            ("\"dep*\"", "dep"),
            ("v1.2.3", "v1+2+3"),
            ("ann@example.com", "ann+example+com"),
            ("部署服务", "部署+署服+服务"),
            ("部", "部*"),
            ("部署deploy", "部署+署+deploy"),
            ("deploy部", "deploy+部*"),
            ("\"部署 服务\"", "部署+署+服务"),
            ("https://x.example/a?b", "https+x+example+a+b"),
            ("fromage:x In:ops", "fromage+x in+ops"),
            ("a\"b c\"d", "a b+c d"),
            ("🎉 ok", "🎉 ok"),
            ("-- ok", "ok"),
        ] {
            assert_eq!(describe(&parse(text).unwrap().phrases), expected, "{text:?}");
        }
    }

    #[test]
    fn filters_are_parsed() {
        let query = parse("from:ann in:\"Ops team\" has:image tunnel:lark-main status:new red");
        let query = query.unwrap();
        let phrases = [&query.from, &query.chat, &query.phrases].map(|it| describe(it));
        assert_eq!(phrases, ["ann", "ops+team", "red"]);
        assert_eq!(query.has, [SearchMark::Image]);
        assert_eq!(query.tunnels, ["lark-main".parse().unwrap()]);
        assert_eq!(query.status, Some(SearchStatus::Claim(ClaimState::New)));
        let status = parse("status:UNCERTAIN").unwrap().status;
        assert_eq!(status, Some(SearchStatus::Delivery(SendState::Uncertain)));
        for (since, expected) in [
            ("2026-02-01T00:00:00Z", "2026-02-01T00:00:00.000Z"),
            ("2026-02-01", "2026-02-01T00:00:00.000Z"),
            ("45m", "2026-02-06T20:00:00.000Z"),
            ("7d", "2026-01-30T20:45:00.000Z"),
        ] {
            let query = parse(&format!("since:{since}")).unwrap();
            assert_eq!(query.since.unwrap().rfc3339(), expected, "{since}");
        }
    }

    #[test]
    fn errors_name_the_place_and_the_next_step() {
        for (text, expected) in [
            (
                "",
                "the query has no word to search for; expected a word, a phrase or a filter such as from:ann",
            ),
            (
                "?! ...",
                "the query has no word to search for; expected a word, a phrase or a filter such as from:ann",
            ),
            (
                "红 \"build is",
                "the quote at character 3 is not closed; add `\"` at the end of the phrase",
            ),
            (
                "from:\"ann",
                "the quote at character 6 is not closed; add `\"` at the end of the phrase",
            ),
            (
                "a from: ann",
                "`from:` at character 3 has no value; write it without a space, as in from:ann",
            ),
            (
                "has:legs",
                "`has:` at character 1 has the unknown value \"legs\"; expected one of attachment, image, link",
            ),
            (
                "in:!",
                "`in:` at character 1 has the unknown value \"!\"; expected letters or digits",
            ),
            (
                "x since:soon",
                "`since:` at character 3 has the unknown value \"soon\"; expected a time such as 2026-02-06T20:45:00Z, a day such as 2026-02-06 or a duration such as 30m, 2h or 7d",
            ),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()), "{text:?}");
        }
        let error = parse("status:lost").unwrap_err();
        assert!(error.contains("deadletter") && error.contains("uncertain"), "{error}");
        let long = "x".repeat(1 << 20);
        assert_eq!(
            parse(&long),
            Err("the query has 1048576 bytes; expected at most 4096".to_owned())
        );
        let error = parse(&"a b ".repeat(100)).unwrap_err();
        assert_eq!(error, "the query has more than 128 words at character 257; use fewer");
    }

    proptest! {
        #[test]
        fn every_text_is_a_query_or_an_error(text in "(\\PC|\"|from:|in:|\\*|部){0,60}") {
            if let Ok(query) = SearchQuery::parse(&text, NOW) {
                let phrases = query.phrases.iter().chain(&query.from).chain(&query.chat);
                for token in phrases.flat_map(|phrase| &phrase.tokens) {
                    prop_assert!(!token.is_empty() && token.chars().count() <= MAX_WORD_CHARS);
                    prop_assert!(!token.contains(|c: char| c.is_ascii() && !c.is_ascii_alphanumeric()));
                }
            }
        }

        #[test]
        fn run_is_found_exactly_where_it_is_a_substring(
            text in "[部署服务再サー배포。 a]{0,24}",
            query in "[部署服务再サー배포]{1,4}",
        ) {
            prop_assert_eq!(finds(&query, &text), text.contains(&query));
        }

        #[test]
        fn mixed_run_is_found_exactly_where_it_is_a_substring(
            text in "(xay|xby)?([部署服]{1,3}(xay|xby)){0,5}[部署服]{0,2}",
            query in "([部署服]{1,2}xay|xay[部署服]{1,2}|[部署]xby[部署])",
        ) {
            prop_assert_eq!(finds(&query, &text), text.contains(&query));
        }

        #[test]
        fn word_is_found_exactly_where_it_is_a_word(
            text in "[a-dA-D ,.]{0,40}",
            word in "[a-d]{1,3}",
        ) {
            let lower = text.to_lowercase();
            let words: Vec<_> = lower.split([' ', ',', '.']).collect();
            prop_assert_eq!(finds(&word, &text), words.contains(&word.as_str()));
            let is_start = words.iter().any(|it| it.starts_with(&word));
            prop_assert_eq!(finds(&format!("{word}*"), &text), is_start);
        }

        #[test]
        fn phrase_is_found_exactly_where_its_words_follow_each_other(
            text in "([a-c]{1,2}[ .]){0,12}",
            phrase in "[a-c]{1,2} [a-c]{1,2}",
        ) {
            let spaced = |text: &str| format!(" {} ", text.replace('.', " ").trim());
            let expected = spaced(&text).contains(&spaced(&phrase));
            prop_assert_eq!(finds(&format!("\"{phrase}\""), &text), expected);
        }
    }
}
