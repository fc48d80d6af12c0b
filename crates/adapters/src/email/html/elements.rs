//! Turns elements of HTML into calls of the Markdown writer.

use super::markdown::{FrameKind, LinePrefix, MarkdownFrame, TextBreak, TextStyles};
use super::style::{HidingRules, TagVisibility, is_pixel, visibility};
use super::table::HtmlTable;
use super::tokens::HtmlTag;

/// Most elements that are open at a time; deeper ones have no effect but their text.
const MAX_OPEN: usize = 4_096;
/// How many open elements an end tag is compared with.
const MAX_SEARCH: usize = 512;
/// Most frames at a time: tables, links and code within each other.
const MAX_FRAMES: usize = 32;
/// Most prefixes of a line: quotes and list items within each other.
const MAX_PREFIXES: usize = 16;
/// Longest link that is written, in bytes.
const MAX_LINK: usize = 4_096;
/// Highest number of a list item.
const MAX_NUMBER: u32 = 999_999;

/// Elements without content and end tag.
const VOID: [&str; 17] = [
    "area", "base", "basefont", "bgsound", "br", "col", "embed", "frame", "hr", "img", "input",
    "keygen", "link", "meta", "param", "source", "wbr",
];
/// Elements whose content is never shown.
const NEVER_SHOWN: [&str; 17] = [
    "audio", "canvas", "datalist", "iframe", "math", "noembed", "noframes", "script", "select",
    "style", "svg", "template", "textarea", "title", "track", "video", "xmp",
];
/// Elements on lines of their own. They end an open paragraph.
const BLOCKS: [&str; 31] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "center",
    "dd",
    "details",
    "dialog",
    "dir",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "header",
    "hr",
    "legend",
    "li",
    "main",
    "menu",
    "nav",
    "ol",
    "p",
    "pre",
    "section",
    "summary",
    "table",
    "ul",
];
/// HTML elements that end an SVG or MathML element around them.
const BREAKOUT: [&str; 30] = [
    "b",
    "big",
    "blockquote",
    "body",
    "br",
    "center",
    "code",
    "dd",
    "div",
    "dl",
    "dt",
    "em",
    "h1",
    "h2",
    "h3",
    "hr",
    "i",
    "img",
    "li",
    "ol",
    "p",
    "pre",
    "small",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "u",
    "ul",
];

#[derive(Debug)]
struct OpenElement {
    name: String,
    /// Whether text in it is too small to be seen.
    is_tiny: bool,
    effect: ElementEffect,
}

/// What ends together with an element.
#[derive(Debug)]
enum ElementEffect {
    None,
    /// A block with this break around it.
    Block(TextBreak),
    Style(usize),
    /// A list item or quote, and the number of prefixes before it.
    Prefix(usize, TextBreak),
    List,
    Heading(usize),
    Link(Option<String>),
    Code,
    Preformatted,
    Quotation,
    Table,
    Cell,
}

/// Reads tags and texts, and writes Markdown.
#[derive(Debug)]
pub(super) struct HtmlConverter {
    hiding_rules: HidingRules,
    /// The last one is written to.
    frames: Vec<MarkdownFrame>,
    open: Vec<OpenElement>,
    /// Number of open `p` elements. Most blocks end none, so that none is searched.
    paragraphs: usize,
    /// Number of open elements beyond [`MAX_OPEN`].
    excess: usize,
    /// Whether one of them is hidden.
    is_excess_hidden: bool,
    /// Index of the open element that hides its content.
    hidden_at: Option<usize>,
    /// How many open elements set each style.
    styles: [usize; 3],
    tables: Vec<HtmlTable>,
    /// The next number of each open list; `None` for bullets.
    lists: Vec<Option<u32>>,
}

impl HtmlConverter {
    pub fn new(hiding_rules: HidingRules) -> Self {
        Self {
            hiding_rules,
            frames: vec![MarkdownFrame::new(FrameKind::Block, [false; 3])],
            open: Vec::new(),
            paragraphs: 0,
            excess: 0,
            is_excess_hidden: false,
            hidden_at: None,
            styles: [0; 3],
            tables: Vec::new(),
            lists: Vec::new(),
        }
    }

    /// Length of the text that is being written.
    pub fn length(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.out.len())
    }

    /// Ends all open elements and returns the Markdown.
    pub fn finish(mut self) -> String {
        self.end_from(0);
        self.frames.pop().map(|frame| frame.finish().out).unwrap_or_default()
    }

    pub fn text(&mut self, text: &str) {
        let is_tiny = self.open.last().is_some_and(|element| element.is_tiny);
        if self.hidden_at.is_some() || self.is_excess_hidden || is_tiny {
            return;
        }
        let styles = self.styles();
        self.frame().text(text, styles);
    }

    pub fn open(&mut self, tag: &HtmlTag<'_>) {
        let name = tag.name.as_str();
        if let Some(at) = self.hidden_at
            && matches!(self.open[at].name.as_str(), "svg" | "math")
            && BREAKOUT.contains(&name)
        {
            self.end_from(at);
        }
        self.end_implied(name);
        let TagVisibility { mut is_hidden, is_tiny } = visibility(tag, &self.hiding_rules);
        is_hidden |= NEVER_SHOWN.contains(&name);
        if VOID.contains(&name) {
            if !is_hidden && self.hidden_at.is_none() && !self.is_excess_hidden {
                self.void(tag);
            }
            return;
        }
        if self.open.len() >= MAX_OPEN {
            self.excess += 1;
            self.is_excess_hidden |= is_hidden;
            return;
        }
        let inherited = self.open.last().is_some_and(|element| element.is_tiny);
        let effect = match self.hidden_at {
            None if !is_hidden => self.begin(tag),
            _ => ElementEffect::None,
        };
        if is_hidden && self.hidden_at.is_none() {
            self.hidden_at = Some(self.open.len());
        }
        let is_tiny = is_tiny.unwrap_or(inherited);
        self.paragraphs += usize::from(name == "p");
        self.open.push(OpenElement { name: name.to_owned(), is_tiny, effect });
    }

    pub fn close(&mut self, name: &str) {
        if self.excess > 0 {
            self.excess -= 1;
            self.is_excess_hidden &= self.excess > 0;
            return;
        }
        let crosses_cells =
            matches!(name, "table" | "tbody" | "thead" | "tfoot" | "tr" | "td" | "th");
        let is_block = crosses_cells || BLOCKS.contains(&name) || is_heading(name);
        let (mut found, mut crosses_block) = (None, false);
        for (at, element) in self.open.iter().enumerate().rev().take(MAX_SEARCH) {
            if element.name == name {
                found = Some(at);
                break;
            }
            // An end tag does not leave its cell, nor does one of a row leave its table.
            let is_barrier = match crosses_cells {
                true => element.name == "table",
                false => matches!(element.name.as_str(), "td" | "th"),
            };
            if is_barrier {
                break;
            }
            crosses_block |= !is_block && BLOCKS.contains(&element.name.as_str());
        }
        match found {
            // `<b><p></b>` ends the style, but not the paragraph.
            Some(at) if crosses_block && self.ends_in_place(at) => {}
            Some(at) => self.end_from(at),
            None if self.hidden_at.is_none() && name == "br" => {
                self.frame().request_break(TextBreak::Line);
            }
            None if self.hidden_at.is_none() && name == "p" => {
                self.frame().request_break(TextBreak::Blank);
            }
            None => {}
        }
    }

    /// Ends an inline element that has open blocks inside. Returns whether it could be ended
    /// without them; browsers ignore the end tag of an element without a style.
    fn ends_in_place(&mut self, at: usize) -> bool {
        match self.open[at].effect {
            ElementEffect::None => true,
            ElementEffect::Style(style) => {
                self.styles[style] -= 1;
                self.open[at].effect = ElementEffect::None;
                self.open[at].name.clear();
                true
            }
            _ => false,
        }
    }

    /// Ends the elements that an opening tag ends without an end tag.
    fn end_implied(&mut self, name: &str) {
        let (ends, barriers): (&[&str], &[&str]) = match name {
            "li" => (&["li"], &["ul", "ol", "menu", "dir", "td", "th", "table"]),
            "dt" | "dd" => (&["dt", "dd"], &["dl", "td", "th", "table"]),
            "td" | "th" => (&["td", "th"], &["table", "tr"]),
            "tr" => (&["tr"], &["table"]),
            "tbody" | "thead" | "tfoot" => (&["tbody", "thead", "tfoot"], &["table"]),
            "a" => (&["a"], &["td", "th", "table"]),
            _ if self.paragraphs > 0 && (BLOCKS.contains(&name) || is_heading(name)) => {
                (&["p"], &["td", "th", "table", "button", "object"])
            }
            _ => return,
        };
        let mut recent = self.open.iter().enumerate().rev().take(MAX_SEARCH);
        let found = recent.find(|(_, element)| {
            let name = element.name.as_str();
            ends.contains(&name) || barriers.contains(&name)
        });
        if let Some((at, element)) = found
            && ends.contains(&element.name.as_str())
        {
            self.end_from(at);
        }
    }

    /// Starts the effect of an element that is shown.
    fn begin(&mut self, tag: &HtmlTag<'_>) -> ElementEffect {
        let name = tag.name.as_str();
        match name {
            "b" | "strong" => self.begin_style(0),
            "i" | "em" | "cite" | "dfn" => self.begin_style(1),
            "s" | "strike" | "del" => self.begin_style(2),
            "a" => {
                let link = tag.get("href").and_then(safe_link);
                self.begin_frame(FrameKind::Inline, ElementEffect::Link(link))
            }
            "code" | "kbd" | "samp" | "tt" => self.begin_frame(FrameKind::Raw, ElementEffect::Code),
            "pre" | "listing" => {
                self.frame().request_break(TextBreak::Blank);
                self.begin_frame(FrameKind::Raw, ElementEffect::Preformatted)
            }
            "q" => {
                self.text("“");
                ElementEffect::Quotation
            }
            "blockquote" => self.begin_prefix(None, "> ", TextBreak::Blank),
            "ul" | "ol" | "menu" | "dir" => self.begin_list(tag),
            "li" => self.begin_item(),
            "table" => self.begin_table(tag),
            "tr" if !self.tables.is_empty() => {
                if let Some(table) = self.tables.last_mut() {
                    table.begin_row();
                }
                ElementEffect::None
            }
            "td" | "th" if !self.tables.is_empty() => {
                self.begin_frame(FrameKind::Block, ElementEffect::Cell)
            }
            "p" => self.begin_block(TextBreak::Blank),
            _ if is_heading(name) => {
                self.frame().request_break(TextBreak::Blank);
                let level = usize::from(name.as_bytes()[1] - b'0');
                self.begin_frame(FrameKind::Inline, ElementEffect::Heading(level))
            }
            _ if BLOCKS.contains(&name) || matches!(name, "td" | "th" | "tr" | "caption") => {
                self.begin_block(TextBreak::Line)
            }
            _ => ElementEffect::None,
        }
    }

    fn begin_block(&mut self, around: TextBreak) -> ElementEffect {
        self.frame().request_break(around);
        ElementEffect::Block(around)
    }

    fn begin_style(&mut self, style: usize) -> ElementEffect {
        self.styles[style] += 1;
        ElementEffect::Style(style)
    }

    fn begin_frame(&mut self, kind: FrameKind, effect: ElementEffect) -> ElementEffect {
        let outer = self.frames.last().map(|frame| frame.kind);
        if self.frames.len() >= MAX_FRAMES || outer == Some(FrameKind::Raw) {
            return ElementEffect::None;
        }
        // Headings are bold already, and the text around a link has its own marks.
        let base = match effect {
            ElementEffect::Heading(_) => [true, true, false],
            ElementEffect::Link(_) => self.styles(),
            _ => [false; 3],
        };
        self.frames.push(MarkdownFrame::new(kind, base));
        effect
    }

    fn begin_prefix(
        &mut self,
        first: Option<String>,
        rest: &'static str,
        around: TextBreak,
    ) -> ElementEffect {
        let frame = self.frame();
        frame.request_break(around);
        let count = frame.prefixes.len();
        if frame.kind != FrameKind::Block || count >= MAX_PREFIXES {
            return ElementEffect::Block(around);
        }
        frame.prefixes.push(LinePrefix { first, rest });
        ElementEffect::Prefix(count, around)
    }

    fn begin_list(&mut self, tag: &HtmlTag<'_>) -> ElementEffect {
        let around = if self.lists.is_empty() { TextBreak::Blank } else { TextBreak::Line };
        self.frame().request_break(around);
        let start = tag.get("start").and_then(|start| start.trim().parse().ok()).unwrap_or(1);
        self.lists.push((tag.name == "ol").then_some(start));
        ElementEffect::List
    }

    fn begin_item(&mut self) -> ElementEffect {
        let (marker, rest) = match self.lists.last_mut() {
            Some(Some(number)) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1).min(MAX_NUMBER);
                (marker, "   ")
            }
            _ => ("- ".to_owned(), "  "),
        };
        self.begin_prefix(Some(marker), rest, TextBreak::Line)
    }

    fn begin_table(&mut self, tag: &HtmlTag<'_>) -> ElementEffect {
        self.frame().request_break(TextBreak::Line);
        if self.tables.len() + self.frames.len() >= MAX_FRAMES {
            return ElementEffect::Block(TextBreak::Line);
        }
        let is_layout =
            tag.get("role").is_some_and(|role| role.eq_ignore_ascii_case("presentation"));
        self.tables.push(HtmlTable::new(is_layout));
        ElementEffect::Table
    }

    /// Ends the open elements from the last to the one at `index`.
    fn end_from(&mut self, index: usize) {
        while self.open.len() > index
            && let Some(element) = self.open.pop()
        {
            self.paragraphs -= usize::from(element.name == "p");
            self.end(element.effect);
            if self.hidden_at == Some(self.open.len()) {
                self.hidden_at = None;
            }
        }
    }

    fn end(&mut self, effect: ElementEffect) {
        match effect {
            ElementEffect::None => {}
            ElementEffect::Block(around) => self.frame().request_break(around),
            ElementEffect::Style(style) => self.styles[style] -= 1,
            ElementEffect::Prefix(count, around) => {
                self.frame().prefixes.truncate(count);
                self.frame().request_break(around);
            }
            ElementEffect::List => {
                self.lists.pop();
                let around = if self.lists.is_empty() { TextBreak::Blank } else { TextBreak::Line };
                self.frame().request_break(around);
            }
            ElementEffect::Heading(level) => {
                let text = self.end_frame().out;
                if !text.is_empty() {
                    self.frame().lines(&format!("{} {text}", "#".repeat(level)));
                }
                self.frame().request_break(TextBreak::Blank);
            }
            ElementEffect::Link(link) => self.end_link(link),
            ElementEffect::Code => {
                let text = self.end_frame().out;
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                if !text.is_empty() {
                    let styles = self.styles();
                    let fence = "`".repeat(longest_run(&text) + 1);
                    let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
                    self.frame().inline(&format!("{fence}{pad}{text}{pad}{fence}"), styles);
                }
            }
            ElementEffect::Preformatted => {
                let text = self.end_frame().out;
                let text = text.trim_matches('\n').trim_end();
                if !text.is_empty() {
                    let fence = "`".repeat(longest_run(text).max(2) + 1);
                    self.frame().lines(&format!("{fence}\n{text}\n{fence}"));
                }
                self.frame().request_break(TextBreak::Blank);
            }
            ElementEffect::Quotation => self.text("”"),
            ElementEffect::Table => {
                let markdown = self.tables.pop().map(HtmlTable::markdown).unwrap_or_default();
                if !markdown.is_empty() {
                    let is_data = markdown.starts_with("| ");
                    let around = if is_data { TextBreak::Blank } else { TextBreak::Line };
                    self.frame().request_break(around);
                    self.frame().lines(&markdown);
                    self.frame().request_break(around);
                }
            }
            ElementEffect::Cell => {
                let text = self.end_frame().out;
                if let Some(table) = self.tables.last_mut() {
                    table.add_cell(text);
                }
            }
        }
    }

    fn end_link(&mut self, link: Option<String>) {
        let frame = self.end_frame();
        let styles = self.styles();
        if frame.has_leading_space {
            self.frame().space();
        }
        if !frame.out.is_empty() {
            let text = frame.out.as_str();
            let markdown = match link {
                Some(link) if link == text => format!("<{link}>"),
                Some(link) if link.strip_prefix("mailto:") == Some(text) => format!("<{text}>"),
                Some(link) => format!("[{text}]({link})"),
                None => text.to_owned(),
            };
            self.frame().inline(&markdown, styles);
        }
        if frame.has_trailing_space() {
            self.frame().space();
        }
    }

    fn end_frame(&mut self) -> MarkdownFrame {
        let frame = self.frames.pop().map(MarkdownFrame::finish);
        frame.unwrap_or_else(|| MarkdownFrame::new(FrameKind::Block, [false; 3]))
    }

    /// Writes an element without content.
    fn void(&mut self, tag: &HtmlTag<'_>) {
        match tag.name.as_str() {
            "br" => self.frame().request_break(TextBreak::Line),
            "hr" => {
                self.frame().request_break(TextBreak::Blank);
                if self.frame().kind == FrameKind::Block {
                    self.frame().lines("---");
                }
                self.frame().request_break(TextBreak::Blank);
            }
            "img" => self.image(tag),
            _ => {}
        }
    }

    /// An image is its description, with a link to a remote one. Tracking pixels and images
    /// without a description are dropped.
    fn image(&mut self, tag: &HtmlTag<'_>) {
        let alt = tag.get("alt").map(str::trim).filter(|alt| !alt.is_empty());
        let Some(alt) = alt.filter(|_| !is_pixel(tag)) else { return };
        let styles = self.styles();
        if self.frame().kind != FrameKind::Block {
            // Inside of a link, which a second link would break.
            self.frame().text(alt, styles);
            return;
        }
        let mut label = MarkdownFrame::new(FrameKind::Inline, styles);
        label.text(alt, styles);
        let label = label.finish().out;
        let is_remote = |link: &String| link.starts_with("http");
        let markdown = match tag.get("src").and_then(safe_link).filter(is_remote) {
            Some(link) => format!("[image: {label}]({link})"),
            None => format!("[image: {label}]"),
        };
        self.frame().inline(&markdown, styles);
    }

    /// The frame that is written to. The document's own frame is always there.
    fn frame(&mut self) -> &mut MarkdownFrame {
        if self.frames.is_empty() {
            self.frames.push(MarkdownFrame::new(FrameKind::Block, [false; 3]));
        }
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    fn styles(&self) -> TextStyles {
        self.styles.map(|count| count > 0)
    }
}

fn is_heading(name: &str) -> bool {
    matches!(name.as_bytes(), [b'h', b'1'..=b'6'])
}

/// Length of the longest run of backticks.
fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// A link that is safe to show and to follow: with a known scheme, on one line, and with
/// characters that do not end a link in Markdown. `None` for any other.
fn safe_link(href: &str) -> Option<String> {
    let href: String = href.chars().filter(|c| !c.is_control()).collect();
    let href = href.trim();
    let (scheme, _) = href.split_once(':')?;
    let scheme = scheme.to_ascii_lowercase();
    if !["http", "https", "mailto", "tel"].contains(&scheme.as_str()) || href.len() > MAX_LINK {
        return None;
    }
    let mut link = String::with_capacity(href.len());
    link.push_str(&scheme);
    for c in href[scheme.len()..].chars() {
        match c {
            ' ' => link.push_str("%20"),
            '(' => link.push_str("%28"),
            ')' => link.push_str("%29"),
            '<' => link.push_str("%3C"),
            '>' => link.push_str("%3E"),
            '\\' => link.push_str("%5C"),
            c if c.is_whitespace() => {}
            c => link.push(c),
        }
    }
    Some(link)
}
