//! The text of a message: its blocks or its mrkdwn, and what was shared with it.

use serde_json::Value;

use super::markup::{TextContext, end_paragraph, push_link, push_text, quoted};
use super::wire::{list, text};
use super::{blocks, mrkdwn};

/// Subtypes of messages that people and bots write. Their text is complete.
const KNOWN_SUBTYPES: [&str; 5] =
    ["file_share", "thread_broadcast", "me_message", "file_comment", "bot_message"];

/// The text of a message, as Markdown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MessageText {
    pub markdown: String,
    /// Whether it shows everything that the payload has.
    pub is_complete: bool,
    /// The author of a message that was shared without a comment.
    pub forwarded_from: Option<String>,
}

/// Returns the text of a message.
pub(super) fn read(message: &Value, context: &TextContext<'_>) -> MessageText {
    let mut is_complete = true;
    let mut markdown = body(message, context, &mut is_complete);
    if let Some(subtype) = text(message, "subtype")
        && !KNOWN_SUBTYPES.contains(&subtype)
    {
        is_complete = false;
        let note = format!(
            "[Slack message of the kind {subtype}: this version cannot show all of it; \
             the payload is attached]"
        );
        let mut noted = String::new();
        push_text(&mut noted, &note);
        if !markdown.is_empty() {
            end_paragraph(&mut noted);
        }
        markdown.insert_str(0, &noted);
    }
    if text(message, "subtype") == Some("me_message") {
        markdown = format!("*{}*", markdown.trim());
    }
    let is_empty = markdown.is_empty();
    let mut forwarded_from = None;
    for shared in list(message, "attachments").iter().filter(|shared| !is_preview(shared)) {
        if is_empty && is_shared_message(shared) && forwarded_from.is_none() {
            forwarded_from = text(shared, "author_name").map(str::to_owned);
        }
        end_paragraph(&mut markdown);
        markdown.push_str(quoted(&attachment(shared, context)).trim_end());
    }
    MessageText { markdown, is_complete, forwarded_from }
}

/// Returns the Markdown of the blocks, or of the text when there are unknown blocks.
fn body(message: &Value, context: &TextContext<'_>, is_complete: &mut bool) -> String {
    let source = text(message, "text").unwrap_or_default();
    let list = list(message, "blocks");
    if list.is_empty() {
        return mrkdwn::to_markdown(source, context);
    }
    let converted = blocks::to_markdown(list, context);
    *is_complete = converted.unknown.is_empty();
    let is_usable = *is_complete && !converted.markdown.is_empty();
    match is_usable || source.is_empty() {
        true => converted.markdown,
        false => mrkdwn::to_markdown(source, context),
    }
}

/// Tells whether an attachment is the preview of a link, which Slack adds by itself.
fn is_preview(attachment: &Value) -> bool {
    text(attachment, "from_url").is_some() && !is_shared_message(attachment)
}

fn is_shared_message(attachment: &Value) -> bool {
    let is = |key: &str| attachment[key].as_bool() == Some(true);
    is("is_share") || is("is_msg_unfurl")
}

/// Returns the Markdown of a shared message or of an attachment of an app.
fn attachment(attachment: &Value, context: &TextContext<'_>) -> String {
    let mut out = String::new();
    if let Some(author) = text(attachment, "author_name") {
        push_text(&mut out, author);
        out.push_str(":\n");
    }
    if let Some(pretext) = text(attachment, "pretext") {
        out.push_str(&mrkdwn::to_markdown(pretext, context));
        out.push('\n');
    }
    if let Some(title) = text(attachment, "title") {
        match text(attachment, "title_link") {
            Some(url) => push_link(&mut out, url, Some(title)),
            None => push_text(&mut out, title),
        }
        out.push('\n');
    }
    let inner = list(attachment, "message_blocks").first().map(|first| &first["message"]["blocks"]);
    let inner = inner.and_then(Value::as_array).map(|list| blocks::to_markdown(list, context));
    let inner = inner.filter(|inner| inner.unknown.is_empty() && !inner.markdown.is_empty());
    match (inner, text(attachment, "text"), text(attachment, "fallback")) {
        (Some(inner), ..) => out.push_str(&inner.markdown),
        (None, Some(content), _) => out.push_str(&mrkdwn::to_markdown(content, context)),
        (None, None, Some(fallback)) if out.is_empty() => push_text(&mut out, fallback),
        _ => {}
    }
    for field in list(attachment, "fields") {
        let (title, value) = (text(field, "title").unwrap_or_default(), text(field, "value"));
        out.push('\n');
        push_text(&mut out, title);
        out.push_str(": ");
        out.push_str(&mrkdwn::to_markdown(value.unwrap_or_default(), context));
    }
    out.trim().to_owned()
}
