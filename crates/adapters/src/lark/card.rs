//! The words of a card, as Markdown. Layout, colours and buttons are left out, so the payload is
//! always attached.

use serde_json::Value;

use super::wire::text;
use crate::markdown::{end_paragraph, push_link, push_text};

/// Deepest element that is read, and most texts that are shown.
const MAX_DEPTH: usize = 20;
const MAX_TEXTS: usize = 200;

/// Returns the title and the texts of a card.
pub(super) fn read(card: &Value) -> String {
    let mut out = String::new();
    push_text(&mut out, "[card; the payload is attached]");
    let mut texts = Vec::new();
    let title = text(card, "title").or_else(|| text(&card["header"]["title"], "content"));
    collect(&card["header"]["subtitle"], 0, &mut texts);
    for key in ["elements", "body", "i18n_elements"] {
        collect(&card[key], 0, &mut texts);
    }
    if let Some(title) = title {
        end_paragraph(&mut out);
        out.push_str("**");
        push_text(&mut out, title.trim());
        out.push_str("**");
    }
    for found in texts {
        end_paragraph(&mut out);
        out.push_str(found.trim());
    }
    out
}

/// Collects the texts of elements in their order, as Markdown.
fn collect(element: &Value, depth: usize, texts: &mut Vec<String>) {
    if depth > MAX_DEPTH || texts.len() >= MAX_TEXTS {
        return;
    }
    match element {
        Value::Array(elements) => {
            for element in elements {
                collect(element, depth + 1, texts);
            }
        }
        Value::Object(entries) => {
            let words = text(element, "content").or(text(element, "text"));
            let mut found = String::new();
            match (text(element, "tag").unwrap_or_default(), words) {
                ("markdown" | "lark_md" | "md", Some(words)) => found.push_str(words),
                ("a", _) => {
                    push_link(&mut found, text(element, "href").unwrap_or_default(), words);
                }
                ("text" | "plain_text", Some(words)) => push_text(&mut found, words),
                _ => {
                    for value in entries.values() {
                        collect(value, depth + 1, texts);
                    }
                    return;
                }
            }
            if !found.trim().is_empty() {
                texts.push(found);
            }
        }
        _ => {}
    }
}
