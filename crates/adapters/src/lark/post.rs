//! Posts: paragraphs of tagged elements, as Markdown.

use serde_json::Value;

use super::content::{ContentSource, LarkContent, file, mention, named_file, push_mentions};
use super::files::LarkFileKind;
use super::wire::{list, text};
use crate::markdown::{end_line, end_paragraph, push_code, push_code_block, push_link, push_text};
use crate::names::TextContext;

/// Converts a post, in the first of its languages.
pub(super) fn read(
    content: &Value,
    source: &ContentSource<'_>,
    context: &TextContext<'_>,
) -> LarkContent {
    let post = localised(content);
    let mut shown = LarkContent { is_complete: true, ..LarkContent::default() };
    if let Some(title) = text(post, "title") {
        shown.markdown.push_str("**");
        push_text(&mut shown.markdown, title.trim());
        shown.markdown.push_str("**");
        end_paragraph(&mut shown.markdown);
    }
    for paragraph in list(post, "content") {
        for element in paragraph.as_array().into_iter().flatten() {
            push_element(&mut shown, element, source, context);
        }
        end_line(&mut shown.markdown);
    }
    shown.markdown.truncate(shown.markdown.trim_end().len());
    shown
}

/// Returns the post in one language. Received posts have no languages; copies of sent ones do.
fn localised(content: &Value) -> &Value {
    if content.get("content").is_some() {
        return content;
    }
    let mut values = content.as_object().into_iter().flatten().map(|(_, value)| value);
    values.find(|value| value.get("content").is_some()).unwrap_or(content)
}

fn push_element(
    shown: &mut LarkContent,
    element: &Value,
    source: &ContentSource<'_>,
    context: &TextContext<'_>,
) {
    let words = text(element, "text").unwrap_or_default();
    let out = &mut shown.markdown;
    match text(element, "tag").unwrap_or_default() {
        "text" => push_styled(out, element, words, source, context),
        "a" => push_link(out, text(element, "href").unwrap_or_default(), Some(words)),
        "at" => {
            let mark = text(element, "user_id").unwrap_or_default();
            let name = match mark {
                "all" | "@_all" => context.broadcast("all"),
                mark => mention(mark, source, context)
                    .unwrap_or_else(|| context.mention(mark, text(element, "user_name"))),
            };
            push_text(out, &name);
        }
        "img" => {
            push_text(out, "[image]");
            let kind = LarkFileKind::Image;
            shown.artifacts.extend(file(source, element, "image_key", kind, "image"));
        }
        "media" => {
            push_text(out, "[video]");
            shown.artifacts.extend(named_file(source, element, "video"));
        }
        "emotion" => {
            let emoji = text(element, "emoji_type").unwrap_or("?");
            push_text(out, &format!(":{emoji}:"));
        }
        "code_block" => push_code_block(out, words),
        "hr" => {
            end_paragraph(out);
            out.push_str("---");
            end_paragraph(out);
        }
        // It is Markdown already.
        "md" => out.push_str(words),
        _ => {
            shown.is_complete = false;
            push_text(&mut shown.markdown, words);
        }
    }
}

fn push_styled(
    out: &mut String,
    element: &Value,
    words: &str,
    source: &ContentSource<'_>,
    context: &TextContext<'_>,
) {
    let styles: Vec<_> = list(element, "style").iter().filter_map(Value::as_str).collect();
    let inner = words.trim();
    if styles.is_empty() || inner.is_empty() {
        return push_mentions(out, words, source, context);
    }
    // Emphasis does not begin or end with a space.
    let (start, end) = (words.len() - words.trim_start().len(), words.trim_end().len());
    out.push_str(&words[..start]);
    if styles.contains(&"code") {
        push_code(out, inner);
    } else {
        let marks =
            [("bold", "**"), ("italic", "*"), ("lineThrough", "~~"), ("strikethrough", "~~")];
        let marks = marks.iter().filter(|(style, _)| styles.contains(style)).map(|(_, mark)| *mark);
        let marks: String = marks.collect();
        out.push_str(&marks);
        push_mentions(out, inner, source, context);
        out.extend(reversed(&marks));
    }
    out.push_str(&words[end..]);
}

/// Returns opening marks in the order in which they are closed.
fn reversed(marks: &str) -> Vec<&'static str> {
    let mut closing = Vec::new();
    let mut rest = marks;
    while !rest.is_empty() {
        let mark = ["**", "~~", "*"].into_iter().find(|mark| rest.starts_with(mark)).unwrap_or("*");
        closing.insert(0, mark);
        rest = rest.get(mark.len()..).unwrap_or_default();
    }
    closing
}
