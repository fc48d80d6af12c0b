//! Walks through a Markdown text, for conversions to the formats of providers.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A part of a text that has a beginning and an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkdownMark {
    Paragraph,
    /// A heading of level 1 to 6.
    Heading(u8),
    Quote,
    /// A list; `Some` holds the first number.
    List(Option<u64>),
    /// An item, with its number if the list is ordered.
    Item(Option<u64>),
    /// A block of code, with its language if the author named one.
    CodeBlock(Option<String>),
    Table,
    TableRow {
        is_head: bool,
    },
    TableCell,
    Bold,
    Italic,
    Strike,
    Link(String),
    Image(String),
}

/// Receives the parts of a text in order. Marks are nested.
pub trait MarkdownSink {
    /// A mark begins here, or ends when `is_start` is false.
    fn mark(&mut self, mark: &MarkdownMark, is_start: bool);

    /// Text without Markdown. Raw HTML is text, too.
    fn text(&mut self, text: &str);

    /// A span of code inside a line.
    fn code(&mut self, text: &str);

    /// The end of a line inside a paragraph.
    fn line_break(&mut self);

    /// A horizontal line between blocks.
    fn rule(&mut self);

    /// The box of a task in a list.
    fn task(&mut self, is_done: bool);
}

/// Passes all parts of `markdown` to `sink`.
pub fn walk(markdown: &str, sink: &mut dyn MarkdownSink) {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut walker = Walker { sink, marks: Vec::new(), numbers: Vec::new() };
    for event in Parser::new_ext(markdown, options) {
        walker.event(event);
    }
}

struct Walker<'a> {
    sink: &'a mut dyn MarkdownSink,
    /// The open marks; `None` for parts that have none.
    marks: Vec<Option<MarkdownMark>>,
    /// The next number of each open list.
    numbers: Vec<Option<u64>>,
}

impl Walker<'_> {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => {
                let mark = self.mark(tag);
                if let Some(mark) = &mark {
                    self.sink.mark(mark, true);
                }
                self.marks.push(mark);
            }
            Event::End(tag) => {
                if let TagEnd::List(_) = tag {
                    self.numbers.pop();
                }
                if let Some(Some(mark)) = self.marks.pop() {
                    self.sink.mark(&mark, false);
                }
            }
            Event::Text(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => self.sink.text(&text),
            Event::Code(text) => self.sink.code(&text),
            Event::SoftBreak | Event::HardBreak => self.sink.line_break(),
            Event::Rule => self.sink.rule(),
            Event::TaskListMarker(is_done) => self.sink.task(is_done),
        }
    }

    fn mark(&mut self, tag: Tag<'_>) -> Option<MarkdownMark> {
        Some(match tag {
            Tag::Paragraph | Tag::HtmlBlock => MarkdownMark::Paragraph,
            Tag::Heading { level, .. } => MarkdownMark::Heading(level as u8),
            Tag::BlockQuote(_) => MarkdownMark::Quote,
            Tag::List(first) => {
                self.numbers.push(first);
                MarkdownMark::List(first)
            }
            Tag::Item => MarkdownMark::Item(self.next_number()),
            Tag::CodeBlock(CodeBlockKind::Fenced(info)) => {
                let language = info.split_whitespace().next().map(str::to_owned);
                MarkdownMark::CodeBlock(language)
            }
            Tag::CodeBlock(CodeBlockKind::Indented) => MarkdownMark::CodeBlock(None),
            Tag::Table(_) => MarkdownMark::Table,
            Tag::TableHead => MarkdownMark::TableRow { is_head: true },
            Tag::TableRow => MarkdownMark::TableRow { is_head: false },
            Tag::TableCell => MarkdownMark::TableCell,
            Tag::Strong => MarkdownMark::Bold,
            Tag::Emphasis => MarkdownMark::Italic,
            Tag::Strikethrough => MarkdownMark::Strike,
            Tag::Link { dest_url, .. } => MarkdownMark::Link(dest_url.into_string()),
            Tag::Image { dest_url, .. } => MarkdownMark::Image(dest_url.into_string()),
            _ => return None,
        })
    }

    fn next_number(&mut self) -> Option<u64> {
        let number = self.numbers.last_mut()?.as_mut()?;
        *number += 1;
        Some(*number - 1)
    }
}
