//! Converts the HTML of a mail to Markdown that people and agents can read.
//!
//! The converter reads tags one after the other and keeps a stack of open elements: there is
//! no tree and no recursion, so that nesting cannot exhaust the stack, and its time is linear.
//! It writes only what it knows: text, links with `http`, `https`, `mailto` or `tel`,
//! headings, lists, quotes, code and tables. Scripts, styles, forms, remote images and text
//! that a mail program does not show never appear. See docs/adr/0010-html-mail.md.

mod elements;
mod entities;
mod markdown;
mod style;
mod table;
#[cfg(test)]
mod tests;
mod tokens;

use elements::HtmlConverter;
use style::HidingRules;
use tokens::{HtmlToken, HtmlTokens};

/// Bytes of HTML that are read.
pub const MAX_HTML_BYTES: usize = 2 << 20;

/// The text of an HTML mail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HtmlText {
    pub markdown: String,
    /// Whether the HTML or its text was longer than the limits.
    pub is_cut: bool,
}

/// Converts HTML to Markdown of at most `limit` bytes. Reads [`MAX_HTML_BYTES`].
pub fn html_to_markdown(html: &str, limit: usize) -> HtmlText {
    let read = &html[..html.floor_char_boundary(MAX_HTML_BYTES)];
    let mut is_cut = read.len() < html.len();
    let mut hiding_rules = HidingRules::default();
    for token in HtmlTokens::new(read) {
        match token {
            HtmlToken::Open(tag) if tag.name == "style" => hiding_rules.read(tag.raw_text),
            _ => {}
        }
    }
    let mut converter = HtmlConverter::new(hiding_rules);
    for token in HtmlTokens::new(read) {
        match token {
            HtmlToken::Text(text) => converter.text(&text),
            HtmlToken::Open(tag) => converter.open(&tag),
            HtmlToken::Close(name) => converter.close(&name),
        }
        if converter.length() > limit {
            is_cut = true;
            break;
        }
    }
    let mut markdown = converter.finish();
    is_cut |= markdown.len() > limit;
    markdown.truncate(markdown.floor_char_boundary(limit));
    markdown.truncate(markdown.trim_end().len());
    HtmlText { markdown, is_cut }
}
