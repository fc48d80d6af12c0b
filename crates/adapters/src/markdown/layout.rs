//! The structure of a Markdown text that matters when it is cut: what must stay whole, and what
//! can be closed at the end of one piece and opened again in the next.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag};

/// Longest first line of a fence that is repeated in the next piece, in bytes.
const MAX_INFO_BYTES: usize = 40;

/// The structure of one text. All positions are byte offsets.
#[derive(Debug, Default)]
pub(super) struct MarkdownLayout {
    /// What is not cut, in order and without overlap.
    atoms: Vec<Range<usize>>,
    /// Elements that are longer than a piece, outer before inner.
    pub wraps: Vec<Wrap>,
    /// Where blocks begin, in order.
    pub blocks: Vec<usize>,
    quotes: Vec<Range<usize>>,
    /// Where indented code begins, behind its indentation.
    indented: Vec<usize>,
}

/// An element that is closed before a cut and opened after it.
#[derive(Debug)]
pub(super) struct Wrap {
    outer: Range<usize>,
    /// The content without the delimiters.
    pub inner: Range<usize>,
    pub open: String,
    pub close: String,
    /// Whether white space and line ends are content.
    pub is_code: bool,
}

impl MarkdownLayout {
    /// Elements that `fits` does not accept are cut.
    pub fn parse(text: &str, fits: &dyn Fn(&str) -> bool) -> Self {
        let (mut layout, mut whole_until) = (Self::default(), 0);
        let options =
            Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match &event {
                Event::Start(Tag::BlockQuote(_)) => layout.quotes.push(range.clone()),
                Event::Start(
                    Tag::Paragraph | Tag::Heading { .. } | Tag::Item | Tag::CodeBlock(_),
                ) => layout.blocks.push(range.start),
                _ => {}
            }
            if let Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)) = &event {
                layout.indented.push(range.start);
            }
            let Some(wrap) = element(text, &event, &range) else { continue };
            if range.start < whole_until {
                continue;
            }
            if fits(&text[range.clone()]) {
                whole_until = range.end;
                layout.atoms.push(range);
            } else if let Some(wrap) = wrap {
                // The delimiters stay together with the nearest character.
                let first = text[wrap.inner.clone()].chars().next().map_or(0, char::len_utf8);
                layout.atoms.push(range.start..wrap.inner.start + first);
                layout.wraps.push(wrap);
            }
        }
        for wrap in &layout.wraps {
            let last = text[wrap.inner.clone()].chars().next_back().map_or(0, char::len_utf8);
            layout.atoms.push(wrap.inner.end - last..wrap.outer.end);
        }
        layout.atoms.sort_by_key(|atom| (atom.start, atom.end));
        layout.blocks.sort_unstable();
        layout
    }

    /// Returns the atom that a cut at `at` would damage.
    pub fn atom_at(&self, at: usize) -> Option<&Range<usize>> {
        let next = self.atoms.partition_point(|atom| atom.start < at);
        // Atoms at the ends of elements may overlap the atom before them.
        self.atoms[..next].iter().rev().take(4).find(|atom| at < atom.end)
    }

    /// Returns the cut elements that contain `at`, outer before inner.
    pub fn wraps_at(&self, at: usize) -> impl DoubleEndedIterator<Item = &Wrap> {
        self.wraps.iter().filter(move |wrap| wrap.inner.start < at && at < wrap.inner.end)
    }

    /// Tells whether indented code begins at `at`, behind its indentation.
    pub fn is_indented_code(&self, at: usize) -> bool {
        self.indented.contains(&at)
    }

    /// Returns the marks of a quotation that the line around `at` begins with.
    pub fn quote_prefix<'a>(&self, text: &'a str, at: usize) -> &'a str {
        if !self.quotes.iter().any(|quote| quote.contains(&at)) {
            return "";
        }
        let line = &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..];
        let end = line.find(|c| c != '>' && c != ' ').unwrap_or(line.len());
        let prefix = &line[..end];
        if prefix.contains('>') { prefix } else { "" }
    }
}

/// Returns `None` for an event that may be cut anywhere, `Some(None)` for an element that stays
/// whole if it fits, and the delimiters of an element that can be opened again.
fn element(text: &str, event: &Event<'_>, range: &Range<usize>) -> Option<Option<Wrap>> {
    let source = &text[range.clone()];
    match event {
        Event::Start(Tag::Emphasis) => Some(inline(range, source.get(..1)?, false)),
        Event::Start(Tag::Strong) => Some(inline(range, source.get(..2)?, false)),
        Event::Start(Tag::Strikethrough) => Some(inline(range, run(source), false)),
        Event::Code(_) => Some(inline(range, run(source), true)),
        Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => Some(fence(text, range)),
        Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)) => Some(Some(Wrap {
            outer: range.clone(),
            inner: range.clone(),
            open: String::new(),
            close: String::new(),
            is_code: true,
        })),
        Event::Start(Tag::Link { .. } | Tag::Image { .. } | Tag::Table(_))
        | Event::InlineHtml(_) => Some(None),
        _ => None,
    }
}

/// Returns the run of equal characters at the beginning.
fn run(source: &str) -> &str {
    let first = source.chars().next().unwrap_or(' ');
    &source[..source.len() - source.trim_start_matches(first).len()]
}

fn inline(range: &Range<usize>, delimiter: &str, is_code: bool) -> Option<Wrap> {
    let inner = range.start + delimiter.len()..range.end.checked_sub(delimiter.len())?;
    let (open, close) = (delimiter.to_owned(), delimiter.to_owned());
    let outer = range.clone();
    (inner.start < inner.end).then_some(Wrap { outer, inner, open, close, is_code })
}

fn fence(text: &str, range: &Range<usize>) -> Option<Wrap> {
    let source = &text[range.clone()];
    let delimiter = run(source);
    let first_line = source.lines().next()?;
    let start = range.start + source.find('\n')? + 1;
    let last_line = source.trim_end().rfind('\n').map(|end| range.start + end);
    let is_closed = last_line.is_some_and(|end| {
        end + 1 >= start && text[end + 1..range.end].trim_end().ends_with(delimiter)
    });
    let end = match last_line {
        Some(end) if is_closed && end > start => end,
        _ => range.end,
    };
    // Marks of quotations stay, and marks of lists become their indentation.
    let line_start = text[..range.start].rfind('\n').map_or(0, |end| end + 1);
    let prefix = &text[line_start..range.start];
    let prefix: String = prefix.chars().map(|c| if c == '>' { '>' } else { ' ' }).collect();
    let info = if first_line.len() <= MAX_INFO_BYTES { first_line.trim_end() } else { delimiter };
    let open = format!("{prefix}{info}\n");
    let close = format!("\n{prefix}{delimiter}");
    let outer = range.clone();
    (start < end).then_some(Wrap { outer, inner: start..end, open, close, is_code: true })
}
