//! Converts a text with entities into Markdown.
//!
//! Entities count in UTF-16 units. One that is not within the text, or that cuts a character, is
//! ignored. Telegram nests entities; ones that overlap in another way are cut into nested ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::Value;

use super::wire::{integer, text};
use crate::markdown::{end_line, push_code, push_code_block_of, push_link, push_text, quoted};

/// Most entities that are read. Telegram allows 100.
const MAX_ENTITIES: usize = 1000;

/// Deepest nesting that is written.
const MAX_DEPTH: usize = 16;

/// Longest language of a code block, in bytes.
const MAX_LANGUAGE_BYTES: usize = 40;

/// Schemes that a link may have.
const LINK_SCHEMES: [&str; 4] = ["https://", "http://", "mailto:", "tg://"];

/// A text as Markdown, and the accounts that it mentions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TelegramMarkdown {
    pub markdown: String,
    pub mentions: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SpanStyle {
    Bold,
    Italic,
    Strike,
    Code,
    Pre(String),
    Quote,
    Link(String),
    /// The text is a URL.
    Url,
}

/// A styled part of the text, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StyledSpan {
    start: usize,
    end: usize,
    style: SpanStyle,
}

/// Converts `content` with its entities.
pub(super) fn to_markdown(content: &str, entities: &[Value]) -> TelegramMarkdown {
    let offsets = Utf16Offsets::new(content);
    let (mut spans, mut mentions) = (Vec::new(), Vec::new());
    for entity in entities.iter().take(MAX_ENTITIES) {
        let Some((start, end)) = offsets.range(entity) else { continue };
        let part = &content[start..end];
        if let Some(name) = mentioned(entity, part)
            && !mentions.contains(&name)
        {
            mentions.push(name);
        }
        if let Some(style) = style(entity) {
            spans.push(StyledSpan { start, end, style });
        }
    }
    let mut writer = MarkdownWriter { text: content, spans: nested(spans), next: 0 };
    let markdown = writer.render(0, content.len(), 0);
    TelegramMarkdown { markdown, mentions }
}

/// The byte offset of each UTF-16 unit.
struct Utf16Offsets(Vec<Option<usize>>);

impl Utf16Offsets {
    fn new(text: &str) -> Self {
        let mut offsets = Vec::with_capacity(text.len() + 1);
        for (at, c) in text.char_indices() {
            offsets.push(Some(at));
            if c.len_utf16() == 2 {
                offsets.push(None);
            }
        }
        offsets.push(Some(text.len()));
        Self(offsets)
    }

    /// Returns the bytes of an entity; `None` when it is empty or not within the text.
    fn range(&self, entity: &Value) -> Option<(usize, usize)> {
        let (offset, length) = (integer(entity, "offset")?, integer(entity, "length")?);
        let at = |unit: i64| *self.0.get(usize::try_from(unit).ok()?)?;
        let (start, end) = (at(offset)?, at(offset.checked_add(length)?)?);
        (start < end).then_some((start, end))
    }
}

fn style(entity: &Value) -> Option<SpanStyle> {
    Some(match text(entity, "type")? {
        "bold" => SpanStyle::Bold,
        "italic" => SpanStyle::Italic,
        "strikethrough" => SpanStyle::Strike,
        "code" => SpanStyle::Code,
        "pre" => SpanStyle::Pre(language(text(entity, "language").unwrap_or_default())),
        "blockquote" | "expandable_blockquote" => SpanStyle::Quote,
        "text_link" => SpanStyle::Link(text(entity, "url")?.to_owned()),
        "url" => SpanStyle::Url,
        // Markdown has no underline and no spoilers, and the text of all others says it.
        _ => return None,
    })
}

/// Returns the language of a code block, if it can stand behind the fence.
fn language(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-#._".contains(c);
    match name.len() <= MAX_LANGUAGE_BYTES && name.chars().all(is_plain) {
        true => name.to_owned(),
        false => String::new(),
    }
}

/// Returns the name of a mentioned account.
fn mentioned(entity: &Value, part: &str) -> Option<String> {
    match text(entity, "type")? {
        "mention" => Some(part.trim_start_matches('@').to_owned()).filter(|name| !name.is_empty()),
        "text_mention" => {
            let user = &entity["user"];
            let name = text(user, "username").map(str::to_owned);
            Some(
                name.or_else(|| super::inbound::full_name(user)).unwrap_or_else(|| part.to_owned()),
            )
        }
        // `/deploy@test_bot` is for one bot.
        "bot_command" => part.split_once('@').map(|(_, bot)| bot.to_owned()),
        _ => None,
    }
}

/// Returns spans in the order of their starts, in which each contains the following ones or ends
/// before them.
fn nested(spans: Vec<StyledSpan>) -> Vec<StyledSpan> {
    let mut count = spans.len();
    let mut waiting: BTreeMap<_, _> = spans
        .into_iter()
        .enumerate()
        .map(|(at, span)| ((span.start, Reverse(span.end), at), span))
        .collect();
    let (mut result, mut open): (Vec<StyledSpan>, Vec<usize>) = (Vec::new(), Vec::new());
    while let Some((_, mut span)) = waiting.pop_first() {
        open.retain(|end| *end > span.start);
        let inner_end = open.iter().copied().min().unwrap_or(span.end);
        if span.end > inner_end && count < 4 * MAX_ENTITIES {
            // The rest goes on behind the end of the span that it overlaps.
            let rest = StyledSpan { start: inner_end, ..span.clone() };
            waiting.insert((rest.start, Reverse(rest.end), count), rest);
            count += 1;
        }
        span.end = span.end.min(inner_end);
        if open.len() < MAX_DEPTH {
            open.push(span.end);
            result.push(span);
        }
    }
    result
}

struct MarkdownWriter<'a> {
    text: &'a str,
    spans: Vec<StyledSpan>,
    /// The first span that is not written.
    next: usize,
}

impl MarkdownWriter<'_> {
    /// Returns the Markdown of a part of the text.
    fn render(&mut self, start: usize, end: usize, depth: usize) -> String {
        let (mut out, mut at) = (String::new(), start);
        while let Some(span) = self.spans.get(self.next).filter(|span| span.start < end).cloned() {
            self.next += 1;
            push_text(&mut out, &self.text[at.min(span.start)..span.start]);
            at = self.push_span(&mut out, &span, depth);
        }
        push_text(&mut out, &self.text[at.min(end)..end]);
        out
    }

    /// Appends a span and returns where the text goes on.
    fn push_span(&mut self, out: &mut String, span: &StyledSpan, depth: usize) -> usize {
        let raw = &self.text[span.start..span.end];
        match &span.style {
            SpanStyle::Bold => self.push_emphasis(out, span, "**", depth),
            SpanStyle::Italic => self.push_emphasis(out, span, "*", depth),
            SpanStyle::Strike => self.push_emphasis(out, span, "~~", depth),
            SpanStyle::Code => {
                self.skip_inner(span);
                if raw.trim().is_empty() { out.push_str(raw) } else { push_code(out, raw) }
            }
            SpanStyle::Pre(language) => {
                self.skip_inner(span);
                push_code_block_of(out, language, raw);
                return self.after_block(span.end);
            }
            SpanStyle::Quote => {
                let inner = self.render(span.start, span.end, depth + 1);
                end_line(out);
                // Without an empty line, the next line would belong to the quotation.
                out.push_str(&quoted(&inner));
                out.push('\n');
                return self.after_block(span.end);
            }
            SpanStyle::Link(url) => {
                self.skip_inner(span);
                if LINK_SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
                    push_link(out, url, Some(raw));
                } else {
                    push_text(out, &format!("{raw} ({url})"));
                }
            }
            SpanStyle::Url => {
                self.skip_inner(span);
                let has_scheme = LINK_SCHEMES.iter().any(|scheme| raw.starts_with(scheme));
                if has_scheme { push_link(out, raw, None) } else { push_text(out, raw) }
            }
        }
        span.end
    }

    /// Appends emphasised text. Markdown has no emphasis across paragraphs and none that begins or
    /// ends with a space, so every line has its own.
    fn push_emphasis(&mut self, out: &mut String, span: &StyledSpan, mark: &str, depth: usize) {
        let inner = self.render(span.start, span.end, depth + 1);
        let after = self.text[span.end..].chars().next();
        let last = inner.split('\n').count() - 1;
        let has_block = inner.contains("```") || inner.starts_with("> ") || inner.contains("\n> ");
        for (number, line) in inner.split('\n').enumerate() {
            if number > 0 {
                out.push('\n');
            }
            let core = line.trim();
            let before = out.chars().next_back();
            let after = if number == last { after } else { None };
            let start = line.len() - line.trim_start().len();
            let (lead, tail) = (&line[..start], &line[start + core.len()..]);
            let before = if lead.is_empty() { before } else { None };
            let after = if tail.is_empty() { after } else { None };
            if core.is_empty() || has_block || !can_wrap(before, core, after) {
                out.push_str(line);
            } else {
                out.push_str(&format!("{lead}{mark}{core}{mark}{tail}"));
            }
        }
    }

    /// Passes over the spans inside of code and links, which have no styles.
    fn skip_inner(&mut self, span: &StyledSpan) {
        while self.spans.get(self.next).is_some_and(|inner| inner.start < span.end) {
            self.next += 1;
        }
    }

    /// Returns where the text goes on behind a block, which ends with a line break of its own.
    fn after_block(&self, end: usize) -> usize {
        if self.text[end..].starts_with('\n') { end + 1 } else { end }
    }
}

/// Tells whether Markdown reads marks around `core` as emphasis: next to a letter or digit
/// outside, the inside must not be punctuation.
fn can_wrap(before: Option<char>, core: &str, after: Option<char>) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| !c.is_whitespace() && !is_punctuation(c));
    let first = core.chars().next().is_some_and(is_punctuation);
    let last = core.chars().next_back().is_some_and(is_punctuation);
    !(first && is_word(before) || last && is_word(after))
}

/// Emoji and other symbols count as punctuation in Markdown.
fn is_punctuation(c: char) -> bool {
    !c.is_alphanumeric() && !c.is_whitespace()
}

#[cfg(test)]
mod tests;
