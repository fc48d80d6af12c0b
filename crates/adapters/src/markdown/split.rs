//! Splits a long Markdown text into messages.
//!
//! A piece ends between blocks if possible, else between lines or words. Code, links and
//! emphasis stay whole; what is longer than a piece is closed at its end and opened again in the
//! next one. White space at a cut is dropped, except in code.

use super::layout::MarkdownLayout;

/// Splits `markdown` into pieces of at most `max` by the measure `size`, such as the number of
/// bytes, characters or UTF-16 units. A piece has at least one character, even if that is larger
/// than `max`.
pub fn split(markdown: &str, size: &dyn Fn(&str) -> usize, max: usize) -> Vec<String> {
    if size(markdown) <= max {
        return vec![markdown.to_owned()];
    }
    let fits = |text: &str| size(text) <= max;
    let layout = MarkdownLayout::parse(markdown, &fits);
    let splitter = Splitter { text: markdown, size, max, layout };
    let (mut pieces, mut at, mut open) = (Vec::new(), 0, String::new());
    while at < markdown.len() {
        let cut = splitter.cut(at, &open);
        let piece = splitter.piece(at, cut, &open);
        if !piece.trim().is_empty() {
            pieces.push(piece);
        }
        at = splitter.next_start(cut);
        open = splitter.opening(at);
    }
    pieces
}

/// Pieces with a smaller limit have no room for what is closed and opened.
const MIN_DECORATED: usize = 16;

/// How far from a cut the ends of a character reference are searched, in bytes. The longest
/// name has 31 letters.
const MAX_ENTITY_BYTES: usize = 32;

struct Splitter<'a> {
    text: &'a str,
    size: &'a dyn Fn(&str) -> usize,
    max: usize,
    layout: MarkdownLayout,
}

/// How good a place for a cut is, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CutQuality {
    Block,
    Line,
    Word,
    Character,
}

impl Splitter<'_> {
    /// Returns the end of the piece that begins at `at`.
    fn cut(&self, at: usize, open: &str) -> usize {
        let text = self.text;
        if self.limit(at) == text.len() && self.fits(at, text.len(), open) {
            return text.len();
        }
        let mut end = self.longest(at, open);
        loop {
            let place = self.best_place(at, end);
            let is_minimal = text[at..place].chars().nth(1).is_none();
            if is_minimal || self.fits(at, place, open) {
                return place;
            }
            // What is closed at this place needs more room.
            end = floor(text, place - 1);
        }
    }

    /// Returns the best place for a cut behind `at`, up to `end`.
    fn best_place(&self, at: usize, end: usize) -> usize {
        let middle = at + (end - at) / 2;
        let mut best: Option<(bool, CutQuality, usize)> = None;
        let places = self.text[at..end].char_indices().skip(1).map(|(offset, _)| at + offset);
        for place in places.chain([end]) {
            let Some(quality) = self.quality(place) else { continue };
            // The last one of the best quality, in the second half if there is one.
            let is_early = place < middle || quality == CutQuality::Character;
            if best.is_none_or(|(early, known, _)| (is_early, quality) <= (early, known)) {
                best = Some((is_early, quality, place));
            }
        }
        // An element that does not fit together with what was opened again is cut.
        best.map_or(end, |(.., place)| place)
    }

    /// Returns the largest end of a piece, whatever it cuts; at least one character.
    fn longest(&self, at: usize, open: &str) -> usize {
        let text = self.text;
        let first = at + text[at..].chars().next().map_or(1, char::len_utf8);
        let (mut low, mut high) = (first, self.limit(at));
        while low < high {
            let middle = floor(text, low + (high - low).div_ceil(2)).max(low);
            let middle = if middle == low { ceil(text, low + 1) } else { middle };
            if middle <= high && self.fits(at, middle, open) {
                low = middle;
            } else if middle > high {
                break;
            } else {
                high = floor(text, middle - 1);
            }
        }
        low
    }

    /// Returns where the piece that begins at `at` ends at the latest.
    fn limit(&self, at: usize) -> usize {
        // No measure counts less than one for four bytes.
        (at + 4 * self.max + 4).min(self.text.len())
    }

    fn fits(&self, at: usize, end: usize, open: &str) -> bool {
        (self.size)(&self.piece(at, end, open)) <= self.max
    }

    /// Returns the text of a piece, with what is opened and closed.
    fn piece(&self, at: usize, end: usize, open: &str) -> String {
        let mut piece = format!("{open}{}", &self.text[at..end]);
        if !self.is_in_code(end) {
            piece.truncate(piece.trim_end().len());
        }
        if self.is_decorated(end) {
            for wrap in self.layout.wraps_at(end).rev() {
                let has_line_end = wrap.close.starts_with('\n') && piece.ends_with('\n');
                piece.push_str(if has_line_end { &wrap.close[1..] } else { &wrap.close });
            }
        }
        piece
    }

    /// Returns what is opened again at the beginning of a piece.
    fn opening(&self, at: usize) -> String {
        if !self.is_decorated(at) {
            return String::new();
        }
        let is_line_start = self.text[..at].ends_with('\n');
        let quote = if is_line_start { "" } else { self.layout.quote_prefix(self.text, at) };
        let mut open = String::new();
        for wrap in self.layout.wraps_at(at) {
            open.push_str(&wrap.open);
        }
        if self.is_in_code(at) { open + quote } else { format!("{quote}{open}") }
    }

    /// Tells whether there is room for closing and opening at a cut.
    fn is_decorated(&self, at: usize) -> bool {
        if self.max < MIN_DECORATED {
            return false;
        }
        let quote = self.layout.quote_prefix(self.text, at);
        let added: usize = self
            .layout
            .wraps_at(at)
            .map(|wrap| (self.size)(&wrap.open) + (self.size)(&wrap.close))
            .sum();
        added + (self.size)(quote) <= self.max / 2
    }

    fn is_in_code(&self, at: usize) -> bool {
        self.layout.wraps_at(at).any(|wrap| wrap.is_code)
    }

    /// Returns how good a cut is; `None` when it damages something.
    fn quality(&self, at: usize) -> Option<CutQuality> {
        if at < self.text.len() && self.layout.atom_at(at).is_some() {
            return None;
        }
        let before = self.text[..at].chars().next_back()?;
        let after = self.text[at..].chars().next().unwrap_or(' ');
        if before == '\\' || (before == '\r' && after == '\n') || is_in_entity(self.text, at) {
            return None;
        }
        let is_line = before == '\n' || after == '\n';
        let is_block = is_line && self.layout.blocks.binary_search(&self.skip_space(at)).is_ok();
        Some(match (is_block, is_line) {
            (true, _) => CutQuality::Block,
            (_, true) => CutQuality::Line,
            _ if before.is_whitespace() || is_cjk_break(before, after) => CutQuality::Word,
            _ => CutQuality::Character,
        })
    }

    fn skip_space(&self, at: usize) -> usize {
        self.text.len() - self.text[at..].trim_start().len()
    }

    /// Returns where the piece after a cut begins.
    fn next_start(&self, cut: usize) -> usize {
        if self.is_in_code(cut) {
            // The line end at a cut in code is written by the closing fence.
            let rest = &self.text[cut..];
            let skipped = rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix('\n'));
            let next = self.text.len() - skipped.unwrap_or(rest).len();
            return if self.is_in_code(next) { next } else { cut };
        }
        let next = self.skip_space(cut);
        match self.text[cut..next].rfind('\n') {
            Some(line_end) if self.layout.is_indented_code(next) => cut + line_end + 1,
            _ => next,
        }
    }
}

/// Tells whether `at` is inside a character reference such as `&amp;`.
fn is_in_entity(text: &str, at: usize) -> bool {
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'#';
    let (before, after) = text.as_bytes().split_at(at);
    let start = before.iter().rev().take(MAX_ENTITY_BYTES).find(|byte| !is_part(byte));
    let end = after.iter().take(MAX_ENTITY_BYTES).find(|byte| !is_part(byte));
    start == Some(&b'&') && end == Some(&b';')
}

/// Tells whether a line may end between two characters of a script without spaces.
fn is_cjk_break(before: char, after: char) -> bool {
    const OPENING: &str = "（「『【《〈“‘［｛";
    const CLOSING: &str = "，。、！？；：）」』】》〉”’］｝…—";
    (is_cjk(before) || is_cjk(after)) && !OPENING.contains(before) && !CLOSING.contains(after)
}

fn is_cjk(c: char) -> bool {
    matches!(u32::from(c), 0x2e80..=0x9fff | 0xac00..=0xd7af | 0xf900..=0xfaff | 0xff00..=0xff60 | 0x20000..=0x3ffff)
}

/// Returns the character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Returns the character boundary at or after `at`.
fn ceil(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}
