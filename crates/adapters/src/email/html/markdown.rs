//! Writes Markdown: blocks with prefixes, inline styles, escaped text.
//!
//! A [`MarkdownFrame`] is a text under construction: the document, a table cell, a link or a
//! piece of code. Breaks, spaces and styles are written together with the text behind them, so
//! that nothing is left open at the end of a line and nothing empty is written.

/// Break before the next text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TextBreak {
    #[default]
    None,
    /// The text starts on a new line.
    Line,
    /// The text starts behind a blank line.
    Blank,
}

/// What a frame may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A part with lines and paragraphs.
    Block,
    /// One line: breaks are spaces.
    Inline,
    /// Text as it is, for code.
    Raw,
}

/// Which inline styles are set: bold, italic, struck.
pub(super) type TextStyles = [bool; 3];

const STYLE_MARKS: [&str; 3] = ["**", "*", "~~"];

/// Prefix of the lines of a list item or a quote.
#[derive(Debug)]
pub(super) struct LinePrefix {
    /// Prefix of the first line, until it is written.
    pub first: Option<String>,
    pub rest: &'static str,
}

/// A text under construction.
#[derive(Debug)]
pub(super) struct MarkdownFrame {
    pub kind: FrameKind,
    pub out: String,
    pub prefixes: Vec<LinePrefix>,
    /// Styles that the surrounding frame has written already.
    base: TextStyles,
    /// Styles whose mark is written, in order.
    open: Vec<usize>,
    pending: TextBreak,
    /// The fewest prefixes since the last text. They precede a blank line.
    pending_prefixes: usize,
    has_space: bool,
    /// Whether white space came before the first text.
    pub has_leading_space: bool,
    is_line_start: bool,
}

impl MarkdownFrame {
    pub fn new(kind: FrameKind, base: TextStyles) -> Self {
        Self {
            kind,
            out: String::new(),
            prefixes: Vec::new(),
            base,
            open: Vec::new(),
            pending: TextBreak::None,
            pending_prefixes: 0,
            has_space: false,
            has_leading_space: false,
            is_line_start: true,
        }
    }

    /// Requests a break before the next text.
    pub fn request_break(&mut self, wanted: TextBreak) {
        match self.kind {
            FrameKind::Block => {
                // A paragraph at the start of a list item stays beside the marker.
                let is_item_start = self.prefixes.last().is_some_and(|p| p.first.is_some());
                let wanted = if is_item_start { wanted.min(TextBreak::Line) } else { wanted };
                self.pending = self.pending.max(wanted);
                self.pending_prefixes = self.pending_prefixes.min(self.prefixes.len());
            }
            FrameKind::Inline => self.space(),
            FrameKind::Raw => self.out.push('\n'),
        }
    }

    pub fn space(&mut self) {
        self.has_leading_space |= self.out.is_empty();
        self.has_space = true;
    }

    /// Writes text: white space is collapsed, the rest is escaped.
    pub fn text(&mut self, text: &str, styles: TextStyles) {
        if self.kind == FrameKind::Raw {
            self.out.extend(text.chars().filter(|c| !is_invisible(*c)).map(plain_space));
            return;
        }
        for (number, word) in text.split(is_space).enumerate() {
            if number > 0 {
                self.space();
            }
            let is_mark = |c: char| is_invisible(c) || matches!(c, '\u{200c}' | '\u{200d}');
            if word.chars().all(is_mark) {
                continue;
            }
            self.begin(styles);
            escape_into(word, &mut self.out, self.is_line_start);
            self.is_line_start = false;
        }
    }

    /// Writes inline Markdown, such as a link.
    pub fn inline(&mut self, markdown: &str, styles: TextStyles) {
        self.begin(styles);
        self.out.push_str(markdown);
        self.is_line_start = false;
    }

    /// Writes lines of Markdown. In an inline frame they become one line.
    pub fn lines(&mut self, markdown: &str) {
        if self.kind != FrameKind::Block {
            for word in markdown.split_whitespace() {
                self.space();
                self.inline(word, self.base);
            }
            self.space();
            return;
        }
        self.begin([false; 3]);
        for (number, line) in markdown.lines().enumerate() {
            if number > 0 {
                self.out.push('\n');
                self.push_prefixes(self.prefixes.len());
            }
            if line.is_empty() {
                let length = self.out.trim_end_matches(' ').len();
                self.out.truncate(length);
            }
            self.out.push_str(line);
        }
        self.is_line_start = false;
    }

    /// Closes the styles and returns the text.
    pub fn finish(mut self) -> Self {
        self.close_styles(|_| true);
        self
    }

    /// Whether white space follows the last text.
    pub fn has_trailing_space(&self) -> bool {
        self.has_space && !self.out.is_empty()
    }

    /// Writes what is due before a text: break, prefixes, space and marks of styles.
    fn begin(&mut self, styles: TextStyles) {
        if self.kind == FrameKind::Raw {
            return;
        }
        let is_start = self.out.is_empty();
        if self.pending != TextBreak::None && !is_start {
            self.close_styles(|_| true);
            self.out.push('\n');
            if self.pending == TextBreak::Blank {
                self.push_rests(self.pending_prefixes);
                let length = self.out.trim_end_matches(' ').len();
                self.out.truncate(length);
                self.out.push('\n');
            }
        }
        if self.pending != TextBreak::None || is_start {
            self.push_prefixes(self.prefixes.len());
            self.is_line_start = true;
        } else {
            let base = self.base;
            self.close_styles(|style| !styles[style] || base[style]);
            if self.has_space && !self.is_line_start {
                self.out.push(' ');
            }
        }
        self.pending = TextBreak::None;
        self.pending_prefixes = self.prefixes.len();
        self.has_space = false;
        for style in 0..styles.len() {
            if styles[style] && !self.base[style] && !self.open.contains(&style) {
                self.out.push_str(STYLE_MARKS[style]);
                self.open.push(style);
                self.is_line_start = false;
            }
        }
    }

    /// Closes styles from the last opened to the first that `is_closed` selects.
    fn close_styles(&mut self, is_closed: impl Fn(usize) -> bool) {
        if let Some(first) = self.open.iter().position(|style| is_closed(*style)) {
            for style in self.open.drain(first..).rev() {
                self.out.push_str(STYLE_MARKS[style]);
            }
        }
    }

    fn push_prefixes(&mut self, count: usize) {
        for prefix in &mut self.prefixes[..count] {
            match prefix.first.take() {
                Some(first) => self.out.push_str(&first),
                None => self.out.push_str(prefix.rest),
            }
        }
    }

    fn push_rests(&mut self, count: usize) {
        for prefix in &self.prefixes[..count.min(self.prefixes.len())] {
            self.out.push_str(prefix.rest);
        }
    }
}

/// White space of HTML, and the spaces that mails use for layout.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{3164}' | '\u{ffa0}' | '\u{2800}')
}

fn plain_space(c: char) -> char {
    if c == '\u{a0}' { ' ' } else { c }
}

/// Characters without a glyph, which hide text from people or filters.
fn is_invisible(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{180e}' | '\u{200b}' | '\u{feff}')
        || matches!(c, '\u{2060}'..='\u{2064}' | '\u{e0000}'..='\u{e007f}')
}

/// Escapes a word, so that Markdown shows it as it is and reads no HTML in it.
fn escape_into(word: &str, out: &mut String, is_line_start: bool) {
    let is_link = word.contains("://");
    let has_semicolon = word.contains(';');
    let mut before = None;
    let mut chars = word.chars().filter(|c| !is_invisible(*c)).peekable();
    let mut is_marker = is_line_start;
    while let Some(c) = chars.next() {
        let next = chars.peek().copied();
        let is_inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let must_escape = match c {
            '<' | '\\' | '`' => true,
            ']' => matches!(next, Some('(' | '[' | ':')),
            _ if is_link => false,
            '*' => true,
            '_' => !(is_inside(before) && is_inside(next)),
            '~' => next == Some('~') || before == Some('~'),
            '&' => has_semicolon && next.is_some_and(|c| c == '#' || c.is_ascii_alphabetic()),
            '#' | '=' => is_line_start && is_marker,
            '>' => before.is_none() && is_line_start,
            '+' | '-' => is_line_start && is_marker && matches!(next, None | Some('-')),
            '.' | ')' => {
                is_line_start
                    && next.is_none()
                    && before.is_some_and(|c| c.is_ascii_digit())
                    && is_number(word)
            }
            _ => false,
        };
        is_marker &= matches!(c, '#' | '=' | '-');
        if must_escape {
            out.push('\\');
        }
        out.push(c);
        before = Some(c);
    }
}

/// Whether the word is the marker of an ordered list: `1.` or `2)`.
fn is_number(word: &str) -> bool {
    word[..word.len() - 1].bytes().all(|byte| byte.is_ascii_digit()) && word.len() <= 10
}
