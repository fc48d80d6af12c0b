//! Estimates the tokens of a text for language models, and cuts texts to a number of tokens.

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
}
