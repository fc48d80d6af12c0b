//! A conversation that was forwarded: its messages, which Lark gives out with one call, as one
//! text.

use std::collections::BTreeSet;

use serde_json::Value;

use super::content;
use super::inbound::{LarkReader, history_source};
use super::tenant::LarkTenant;
use super::wire::{list, text, time};
use crate::markdown::{end_paragraph, push_text, quoted};
use crate::names::TextContext;

/// Most messages that are written, and deepest conversation inside of a conversation.
const MAX_MESSAGES: usize = 500;
const MAX_DEPTH: usize = 5;

/// Returns the messages below `root` as Markdown, with names.
pub(super) async fn read(tenant: &LarkTenant, root: &str, data: &Value) -> String {
    let items = list(data, "items");
    let authors = items.iter().filter_map(|item| text(&item["sender"], "id"));
    let authors: BTreeSet<_> = authors.map(str::to_owned).collect();
    tenant.names.look_up(&tenant.client, authors).await;
    let find_name = |id: &str| tenant.names.find(id);
    write(items, root, &TextContext::new(&find_name))
}

/// Writes the messages below `root`.
fn write(items: &[Value], root: &str, context: &TextContext<'_>) -> String {
    let mut out = String::new();
    let mut left = MAX_MESSAGES;
    push_children(&mut out, items, root, context, 0, &mut left);
    if left == 0 {
        end_paragraph(&mut out);
        out.push_str(&format!("[cut after {MAX_MESSAGES} messages]\n"));
    }
    if out.is_empty() {
        out.push_str("[the conversation has no messages, or the bot may not read them]\n");
    }
    out
}

fn push_children(
    out: &mut String,
    items: &[Value],
    parent: &str,
    context: &TextContext<'_>,
    depth: usize,
    left: &mut usize,
) {
    let children = items.iter().filter(|item| text(item, "upper_message_id") == Some(parent));
    for item in children {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let sender = LarkReader::history_sender(item, context);
        let name = sender.map_or_else(|| "?".to_owned(), |it| it.name.unwrap_or(it.id));
        let at = time(item, "create_time").map(|at| format!(", {}", at.rfc3339()));
        end_paragraph(out);
        push_text(out, &format!("{name}{}:", at.unwrap_or_default()));
        end_paragraph(out);
        let source = history_source(item);
        match (source.kind, depth < MAX_DEPTH) {
            ("merge_forward", true) => {
                let mut inner = String::new();
                push_children(&mut inner, items, source.message_id, context, depth + 1, left);
                out.push_str(&quoted(&inner));
            }
            _ => out.push_str(&content::read(source, context).markdown),
        }
        end_paragraph(out);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(id: &str, upper: &str, kind: &str, content: &str) -> Value {
        json!({"message_id": id, "upper_message_id": upper, "msg_type": kind,
               "create_time": "1700000000000", "body": {"content": content},
               "sender": {"id": "ou_ann", "id_type": "open_id", "sender_type": "user"}})
    }

    #[test]
    fn messages_are_written_with_authors_and_nested_conversations_as_quotes() {
        let items = [
            item("om_root", "", "merge_forward", "{}"),
            item("om_1", "om_root", "text", r#"{"text":"one"}"#),
            item("om_2", "om_root", "merge_forward", "{}"),
            item("om_3", "om_2", "text", r#"{"text":"inside"}"#),
        ];
        let find_name = |_: &str| Some("Ann".to_owned());
        let found = write(&items, "om_root", &TextContext::new(&find_name));
        let at = "Ann, 2023-11-14T22:13:20.000Z:";
        assert_eq!(found, format!("{at}\n\none\n\n{at}\n\n> {at}\n>\n> inside\n\n"));
    }

    #[test]
    fn circles_and_long_conversations_end() {
        let find_name = |_: &str| None;
        let circle = [item("om_1", "om_1", "merge_forward", "{}")];
        assert!(write(&circle, "om_1", &TextContext::new(&find_name)).len() < 1000);
        let many: Vec<_> =
            (0..2000).map(|n| item(&format!("om_x{n}"), "om_r", "text", "{}")).collect();
        let found = write(&many, "om_r", &TextContext::new(&find_name));
        assert!(found.ends_with("[cut after 500 messages]\n"));
        assert!(write(&[], "om_r", &TextContext::new(&find_name)).contains("no messages"));
    }
}
