//! Estimates the tokens of a text, and cuts texts to a budget.

/// Most tokens of the text of one result. Clients cut or reject longer ones.
pub const MAX_RESULT_TOKENS: usize = 10_000;

/// Tokens of a result that are left for its facts and delimiters.
const RESERVED_TOKENS: usize = 1_000;

/// Most tokens of a text from outside in one result.
pub const MAX_TEXT_TOKENS: usize = MAX_RESULT_TOKENS - RESERVED_TOKENS;

/// ASCII characters per token.
const ASCII_PER_TOKEN: usize = 4;

/// Estimates the tokens of a text: one for four ASCII characters, one for every other character.
pub fn estimate_tokens(text: &str) -> usize {
    let ascii = text.bytes().filter(u8::is_ascii).count();
    let others = text.chars().filter(|c| !c.is_ascii()).count();
    ascii.div_ceil(ASCII_PER_TOKEN) + others
}

/// Returns the longest start of a text that has at most `tokens`.
pub fn cut(text: &str, tokens: usize) -> &str {
    let (mut ascii, mut others) = (0_usize, 0);
    for (at, c) in text.char_indices() {
        if c.is_ascii() {
            ascii += 1;
        } else {
            others += 1;
        }
        if ascii.div_ceil(ASCII_PER_TOKEN) + others > tokens {
            return &text[..at];
        }
    }
    text
}

/// Returns the first line of a text, shortened to `chars` characters.
pub fn shorten(text: &str, chars: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_ascii_characters_or_one_other_are_a_token() {
        for (text, tokens) in
            [("", 0), ("a", 1), ("four", 1), ("fours", 2), ("世界", 2), ("a世", 2), ("😀", 1)]
        {
            assert_eq!(estimate_tokens(text), tokens, "{text}");
        }
    }

    #[test]
    fn cut_text_is_the_longest_start_within_the_budget() {
        for text in ["", "grüße, 世界 and more ASCII text", "世界世界", "plain"] {
            for tokens in 0..12 {
                let start = cut(text, tokens);
                assert!(text.starts_with(start) && estimate_tokens(start) <= tokens);
                let next = text[start.len()..].chars().next();
                if let Some(next) = next {
                    assert!(estimate_tokens(&format!("{start}{next}")) > tokens, "{text} {tokens}");
                }
            }
        }
    }

    #[test]
    fn shortened_text_has_one_line() {
        assert_eq!(shorten(" a\n\tb  c ", 9), "a b c");
        assert_eq!(shorten("世界世界", 2), "世界…");
    }
}
