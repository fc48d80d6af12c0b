//! Splits a long text that is no Markdown into messages.

/// Splits a text that is no Markdown into parts of at most `max` by `size`, at line breaks where
/// possible.
pub fn split_plain(text: &str, size: &dyn Fn(&str) -> usize, max: usize) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while size(rest) > max {
        let fits = longest_prefix(rest, size, max);
        let at = rest[..fits].rfind('\n').filter(|at| *at > fits / 2).map_or(fits, |at| at + 1);
        parts.push(rest[..at].trim_end_matches('\n').to_owned());
        rest = &rest[at..];
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(rest.to_owned());
    }
    parts
}

/// Returns the length of the longest prefix with at most `max` by `size`, at least one character.
fn longest_prefix(text: &str, size: &dyn Fn(&str) -> usize, max: usize) -> usize {
    // No measure counts less than one for four bytes.
    let (mut low, mut high) = (0, text.len().min(max.saturating_mul(4)));
    while low < high {
        let middle = text.floor_char_boundary(low + (high - low).div_ceil(2));
        if middle <= low {
            break;
        }
        if size(&text[..middle]) <= max { low = middle } else { high = middle - 1 }
    }
    low.max(text.chars().next().map_or(0, char::len_utf8))
}
