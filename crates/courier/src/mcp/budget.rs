//! How many tokens a result may have.

pub use monoco_core::text_budget::{cut, estimate_tokens};

/// Most tokens of the text of one result. Clients cut or reject longer ones.
pub const MAX_RESULT_TOKENS: usize = 10_000;

/// Tokens of a result that are left for its facts and delimiters.
const RESERVED_TOKENS: usize = 1_000;

/// Most tokens of a text from outside in one result.
pub const MAX_TEXT_TOKENS: usize = MAX_RESULT_TOKENS - RESERVED_TOKENS;

/// Returns the first line of a text, shortened to `chars` characters.
pub fn shorten(text: &str, chars: usize) -> String {
    let mut line = String::with_capacity(text.len().min(4 * chars + 3));
    let mut left = chars;
    for word in text.split_whitespace() {
        let space = if line.is_empty() { "" } else { " " };
        for char in space.chars().chain(word.chars()) {
            if left == 0 {
                line.push('…');
                return line;
            }
            line.push(char);
            left -= 1;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_text_has_one_line() {
        assert_eq!(shorten(" a\n\tb  c ", 9), "a b c");
        assert_eq!(shorten("世界世界", 2), "世界…");
    }
}
