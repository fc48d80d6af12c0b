//! Splits text into search tokens. The index and the query parser use the same function.
//!
//! | text | tokens |
//! | --- | --- |
//! | `Deploy Café` | `deploy` `cafe` |
//! | `部署服务` | `部署` `署服` `服务` `务` |
//! | `v1.2部署` | `v1` `2` `部署` `署` |
//! | `👍🏽🇩🇪` | `👍` `🇩🇪` |
//!
//! Chinese, Japanese and Korean are written without spaces between words, or with endings that
//! belong to the word. A run of their characters becomes all pairs of neighbours and the last
//! character alone. So every part of a run is a sequence of tokens in the text, without a
//! dictionary, and a single character is the beginning of a token.

use std::ops::Range;

use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};

/// Maximum length of a word, in characters. Longer words are cut in texts and in queries.
pub const MAX_WORD_CHARS: usize = 64;

/// What a token was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Letters and digits, an emoji or a flag.
    Word,
    /// Two neighbouring characters of a run.
    Pair,
    /// The last character of a run.
    LastOfRun,
}

/// One token and the bytes of the text that it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchToken {
    pub text: String,
    pub kind: TokenKind,
    pub bytes: Range<usize>,
}

/// Returns the tokens of a text, at most `limit`.
pub fn tokens(text: &str, limit: usize) -> Vec<SearchToken> {
    let mut found = Vec::new();
    for_each_token(text, |token, kind, bytes| {
        found.push(SearchToken { text: token.to_owned(), kind, bytes });
        found.len() < limit
    });
    found
}

/// Returns the tokens of a text with a space between them, as the index stores them. The text
/// behind `max_bytes` is left out.
pub fn joined_tokens(text: &str, max_bytes: usize) -> String {
    let mut joined = String::with_capacity(text.len().min(max_bytes).saturating_mul(2));
    for_each_token(text, |token, _, bytes| {
        if bytes.end > max_bytes {
            return false;
        }
        if !joined.is_empty() {
            joined.push(' ');
        }
        joined.push_str(token);
        true
    });
    joined
}

/// Calls `found` for each token of a text, until it returns `false`.
pub fn for_each_token(text: &str, found: impl FnMut(&str, TokenKind, Range<usize>) -> bool) {
    let buffer = String::new();
    let mut tokenizer = Tokenizer { found, stopped: false, state: RunState::Between, buffer };
    let (mut folded, mut chars) = (Vec::new(), text.char_indices().peekable());
    while let Some((start, c)) = chars.next() {
        let mut end = start + c.len_utf8();
        while let Some((at, _)) = chars.next_if(|(_, next)| joins_previous(*next)) {
            end = text.ceil_char_boundary(at + 1);
        }
        folded.clear();
        fold(&text[start..end], &mut folded);
        for c in &folded {
            tokenizer.push(*c, start..end);
        }
        if tokenizer.stopped {
            return;
        }
    }
    tokenizer.end_run();
}

/// What a folded character is for the tokenizer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    /// Part of a word in a script with spaces between words.
    Word,
    /// Part of a run of Chinese, Japanese or Korean.
    Run,
    /// A word of its own.
    Symbol,
    /// Half of a flag.
    FlagHalf,
    /// Invisible, or changes only the look of a character.
    Ignored,
    Separator,
}

/// The token that is not complete yet. The letters of a word are in the buffer of the tokenizer.
enum RunState {
    Between,
    Word { chars: usize, bytes: Range<usize> },
    Run { last: char, bytes: Range<usize> },
    Flag { first: char, bytes: Range<usize> },
}

struct Tokenizer<F> {
    found: F,
    stopped: bool,
    state: RunState,
    /// One for all tokens: a text has hundreds of them.
    buffer: String,
}

impl<F: FnMut(&str, TokenKind, Range<usize>) -> bool> Tokenizer<F> {
    fn push(&mut self, c: char, at: Range<usize>) {
        let class = class(c);
        match (&mut self.state, class) {
            (_, CharClass::Ignored) => {}
            (RunState::Word { chars, bytes }, CharClass::Word) => {
                bytes.end = at.end;
                if *chars < MAX_WORD_CHARS {
                    self.buffer.push(c);
                    *chars += 1;
                }
            }
            (RunState::Run { last, bytes }, CharClass::Run) => {
                let span = bytes.start..at.end;
                self.buffer.extend([*last, c]);
                (*last, *bytes) = (c, at);
                self.emit_buffer(TokenKind::Pair, span);
            }
            (RunState::Flag { first, bytes }, CharClass::FlagHalf) => {
                let span = bytes.start..at.end;
                self.buffer.extend([*first, c]);
                self.state = RunState::Between;
                self.emit_buffer(TokenKind::Word, span);
            }
            _ => {
                self.end_run();
                match class {
                    CharClass::Word => {
                        self.buffer.push(c);
                        self.state = RunState::Word { chars: 1, bytes: at };
                    }
                    CharClass::Run => self.state = RunState::Run { last: c, bytes: at },
                    CharClass::FlagHalf => self.state = RunState::Flag { first: c, bytes: at },
                    CharClass::Symbol => {
                        self.emit(c.encode_utf8(&mut [0; 4]), TokenKind::Word, at);
                    }
                    CharClass::Ignored | CharClass::Separator => {}
                }
            }
        }
    }

    fn end_run(&mut self) {
        match std::mem::replace(&mut self.state, RunState::Between) {
            RunState::Between => {}
            RunState::Word { bytes, .. } => self.emit_buffer(TokenKind::Word, bytes),
            RunState::Run { last, bytes } => {
                self.emit(last.encode_utf8(&mut [0; 4]), TokenKind::LastOfRun, bytes);
            }
            RunState::Flag { first, bytes } => {
                self.emit(first.encode_utf8(&mut [0; 4]), TokenKind::Word, bytes);
            }
        }
    }

    /// Passes on the token in the buffer, and empties the buffer.
    fn emit_buffer(&mut self, kind: TokenKind, bytes: Range<usize>) {
        self.stopped = self.stopped || !(self.found)(&self.buffer, kind, bytes);
        self.buffer.clear();
    }

    fn emit(&mut self, token: &str, kind: TokenKind, bytes: Range<usize>) {
        self.stopped = self.stopped || !(self.found)(token, kind, bytes);
    }
}

/// Appends the characters of one letter without accents, in lower case and in their usual width.
fn fold(letter: &str, folded: &mut Vec<char>) {
    let mut chars = letter.chars();
    if let (Some(c), None) = (chars.next(), chars.next()) {
        if c.is_ascii() {
            return folded.push(c.to_ascii_lowercase());
        }
        // Most characters of these scripts have one form only.
        if matches!(c, 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '一'..='鿿' | '가'..='힣') {
            return folded.push(c);
        }
    }
    const DECOMPOSE: DecomposingNormalizerBorrowed<'static> =
        DecomposingNormalizerBorrowed::new_nfkd();
    const COMPOSE: ComposingNormalizerBorrowed<'static> = ComposingNormalizerBorrowed::new_nfc();
    let plain = DECOMPOSE.normalize_iter(letter.chars()).filter(|c| !is_accent(*c));
    for c in COMPOSE.normalize_iter(plain).flat_map(char::to_lowercase) {
        match c {
            'ß' => folded.extend(['s', 's']),
            'ς' => folded.push('σ'),
            // These letters have no decomposition.
            'ø' => folded.push('o'),
            'đ' => folded.push('d'),
            'ł' => folded.push('l'),
            'ı' => folded.push('i'),
            c => folded.push(c),
        }
    }
}

/// Whether `c` belongs to the letter before it: an accent, a voicing mark or a part of a Korean
/// syllable.
fn joins_previous(c: char) -> bool {
    is_accent(c)
        || matches!(c, '\u{3099}' | '\u{309a}' | '\u{ff9e}' | '\u{ff9f}' | '\u{1160}'..='\u{11ff}')
}

/// Accents of Latin, Greek and Cyrillic letters.
fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

fn class(c: char) -> CharClass {
    match c {
        _ if c.is_ascii() => {
            if c.is_ascii_alphanumeric() {
                CharClass::Word
            } else {
                CharClass::Separator
            }
        }
        // Han, Hiragana, Katakana, Hangul; 々 repeats the character before it.
        '々'..='〇'
        | 'ぁ'..='ゖ'
        | '\u{3099}'..='\u{309a}'
        | 'ゝ'..='ゟ'
        | 'ァ'..='ヺ'
        | 'ー'..='ヿ'
        | 'ㄱ'..='\u{318e}'
        | 'ㇰ'..='ㇿ'
        | '㐀'..='䶿'
        | '一'..='鿿'
        | '가'..='힣'
        | '\u{1100}'..='\u{11ff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}' => CharClass::Run,
        '\u{1f1e6}'..='\u{1f1ff}' => CharClass::FlagHalf,
        // Soft hyphen, joiners and marks without width, combining symbols, variation selectors,
        // skin tones, tags.
        '\u{ad}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2060}'..='\u{2064}'
        | '\u{20d0}'..='\u{20ff}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{1f3fb}'..='\u{1f3ff}'
        | '\u{e0000}'..='\u{e01ef}' => CharClass::Ignored,
        '\u{2300}'..='\u{23ff}'
        | '\u{2600}'..='\u{27bf}'
        | '\u{2b00}'..='\u{2bff}'
        | '\u{1f000}'..='\u{1faff}' => CharClass::Symbol,
        _ if c.is_alphanumeric() => CharClass::Word,
        _ => CharClass::Separator,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The tokens of a text, with a space between them.
    fn joined(text: &str) -> String {
        joined_tokens(text, usize::MAX)
    }

    #[test]
    fn texts_of_many_scripts_become_tokens() {
        for (text, expected) in [
            ("", ""),
            (" ,.-_ \n", ""),
            ("Deploy the SERVER!", "deploy the server"),
            ("Café naïve Łódź Straße Ελλάς İstanbul", "cafe naive lodz strasse ελλασ istanbul"),
            ("Cafe\u{301}", "cafe"),
            ("ann@example.com v1.2.3 a_b", "ann example com v1 2 3 a b"),
            ("部署服务", "部署 署服 服务 务"),
            ("部", "部"),
            ("deploy部署v2", "deploy 部署 署 v2"),
            ("是的。我们", "是的 的 我们 们"),
            ("サーバーの再起動", "サー ーバ バー ーの の再 再起 起動 動"),
            ("ｻｰﾊﾞｰ サーバー", "サー ーバ バー ー サー ーバ バー ー"),
            ("배포했습니다 완료", "배포 포했 했습 습니 니다 다 완료 료"),
            ("\u{1107}\u{1162}포", "배포 포"),
            ("か\u{3099}き", "がき き"),
            ("ＡＢＣ１２３", "abc123"),
            ("人々", "人々 々"),
            ("👍🏽 ok🎉🎉", "👍 ok 🎉 🎉"),
            ("👩‍💻", "👩 💻"),
            ("🇩🇪🇫🇷🇺", "🇩🇪 🇫🇷 🇺"),
            ("❤️ 1️⃣", "❤ 1"),
            ("pass\u{200b}word co\u{ad}operate", "password cooperate"),
            ("привет Ёлка", "привет елка"),
        ] {
            assert_eq!(joined(text), expected, "{text:?}");
        }
    }

    #[test]
    fn long_words_are_cut_and_the_rest_of_the_text_is_kept() {
        let text = format!("{} end", "x".repeat(1000));
        assert_eq!(joined(&text), format!("{} end", "x".repeat(MAX_WORD_CHARS)));
    }

    #[test]
    fn limits_end_the_text_at_a_token() {
        assert_eq!(joined_tokens("one two three", 8), "one two");
        assert_eq!(joined_tokens("部署服务", 7), "部署");
        assert_eq!(tokens("a b c", 2).len(), 2);
    }

    #[test]
    fn tokens_have_the_bytes_they_were_made_of() {
        let text = "Ça  部署 e\u{301}x";
        let found = tokens(text, usize::MAX);
        let spans: Vec<_> = found.iter().map(|token| &text[token.bytes.clone()]).collect();
        assert_eq!(spans, ["Ça", "部署", "署", "e\u{301}x"]);
    }

    proptest! {
        #[test]
        fn every_text_has_tokens_in_order_within_its_bytes(text in "\\PC{0,60}") {
            let mut last = 0;
            for token in tokens(&text, usize::MAX) {
                prop_assert!(text.get(token.bytes.clone()).is_some_and(|part| !part.is_empty()));
                prop_assert!(token.bytes.start >= last, "{:?}", token);
                last = token.bytes.start;
                prop_assert!(!token.text.is_empty());
                prop_assert!(token.text.chars().all(|c| class(c) != CharClass::Separator));
            }
        }

        #[test]
        fn tokens_of_joined_tokens_are_the_same_words(text in "[a-zA-Zé àß0-9.,🎉]{0,40}") {
            prop_assert_eq!(joined(&joined(&text)), joined(&text));
        }
    }
}
