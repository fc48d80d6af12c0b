//! Writes Markdown from Slack's texts, and collects the accounts that they mention.

pub(super) use crate::markdown::{
    end_line, end_paragraph, push_code, push_code_block, push_link, push_text, quoted,
};
pub(super) use crate::names::TextContext;

/// Replaces Slack's three escapes.
pub(super) fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
