//! Contents of messages that people send: texts, files, albums, places, polls and service messages.

use serde_json::{Value, json};

use super::bot_name;
use super::files::{kind_of, merge};
use super::format::{detect_entities, utf16_len};
use super::send::add_media;
use crate::control::{ControlError, SayRequest, resolve_files};
use crate::random::random_below;
use crate::world::World;

/// Kinds of messages that have a file.
const FILE_KINDS: [&str; 8] =
    ["photo", "document", "voice", "video", "audio", "animation", "video_note", "sticker"];

/// Kinds of messages of people without a file.
const OTHER_KINDS: [&str; 6] = ["text", "location", "venue", "contact", "poll", "dice"];

/// Kinds of messages about a chat, and one whose content is given as `raw`.
const SERVICE_KINDS: [&str; 5] =
    ["raw", "new_chat_title", "pinned_message", "video_chat_started", "group_chat_created"];

/// The text of a request with the mention that it asks for.
fn text_of(request: &SayRequest) -> String {
    let mention = format!("@{}", bot_name(request.app));
    match request.mention {
        Some(true) if !request.text.contains(&mention) => format!("{mention} {}", request.text),
        _ => request.text.clone(),
    }
}

/// Text and entities of a request, under the names that a text or a caption has.
pub fn text_fields(text: &str, entities: Option<&Value>, is_caption: bool) -> Value {
    let mut fields = json!({});
    if text.is_empty() {
        return fields;
    }
    let (text_key, entities_key) =
        if is_caption { ("caption", "caption_entities") } else { ("text", "entities") };
    let entities = entities.cloned().unwrap_or_else(|| json!(detect_entities(text)));
    fields[text_key] = json!(text);
    if entities.as_array().is_none_or(|entities| !entities.is_empty()) {
        fields[entities_key] = entities;
    }
    fields
}

/// The contents of the messages that a request causes: several for an album, otherwise one.
pub fn contents(world: &mut World, request: &SayRequest) -> Result<Vec<Value>, ControlError> {
    let text = text_of(request);
    let kind = request.kind.as_deref();
    if let Some(kind) = kind.filter(|kind| !FILE_KINDS.contains(kind)) {
        return other_content(kind, &text, request).map(|content| vec![content]);
    }
    if request.files.is_empty() {
        return match kind {
            Some(kind) => Err(ControlError(format!("a message of kind {kind:?} needs `files`"))),
            None => Ok(vec![text_fields(&text, request.blocks.as_ref(), false)]),
        };
    }
    let files = resolve_files(world, &request.files)?;
    if files.len() > 10 {
        let found = files.len();
        return Err(ControlError(format!("found {found} files, expected at most 10 in an album")));
    }
    let group = (files.len() > 1).then(|| random_below(usize::MAX).to_string());
    let mut contents = Vec::new();
    for (place, file) in files.iter().enumerate() {
        let kind = kind.unwrap_or_else(|| kind_of(file));
        let mut content = json!({});
        add_media(&mut content, kind, file);
        if let Some(group) = &group {
            content["media_group_id"] = json!(group);
        }
        if place == 0 {
            merge(&mut content, &text_fields(&text, request.blocks.as_ref(), true));
        }
        contents.push(content);
    }
    Ok(contents)
}

/// A message without a file; `blocks` replaces the default content of its kind.
fn other_content(kind: &str, text: &str, request: &SayRequest) -> Result<Value, ControlError> {
    let place = json!({"latitude": 48.2082, "longitude": 16.3738});
    let default = match kind {
        "text" | "raw" => return Ok(text_fields(text, request.blocks.as_ref(), false)),
        "location" => place,
        "venue" => json!({"location": place, "title": "Town hall", "address": "Main square 1"}),
        "contact" => json!({
            "phone_number": "+15550100", "first_name": "Bob", "last_name": "Example",
            "user_id": 1002,
        }),
        "poll" => poll(if text.is_empty() { "Lunch?" } else { text }),
        "dice" => json!({"emoji": "\u{1f3b2}", "value": 4}),
        "new_chat_title" => json!(if text.is_empty() { "A new title" } else { text }),
        "pinned_message" => {
            json!({"message_id": 1, "date": 0, "chat": {"id": 0, "type": "private"}})
        }
        "video_chat_started" => json!({}),
        "group_chat_created" => json!(true),
        _ => {
            let known: Vec<_> =
                FILE_KINDS.iter().chain(&OTHER_KINDS).chain(&SERVICE_KINDS).collect();
            return Err(ControlError(format!("found kind {kind:?}, expected one of {known:?}")));
        }
    };
    let content = request.blocks.clone().unwrap_or(default);
    let mut fields = json!({kind: content});
    if kind == "venue" {
        // Older clients read the place of a venue here.
        fields["location"] = fields["venue"]["location"].clone();
    }
    Ok(fields)
}

fn poll(question: &str) -> Value {
    let option =
        |id: &str, text: &str| json!({"persistent_id": id, "text": text, "voter_count": 0});
    json!({
        "id": random_below(usize::MAX).to_string(), "question": question,
        "options": [option("a", "Yes"), option("b", "No")], "total_voter_count": 0,
        "is_closed": false, "is_anonymous": true, "type": "regular",
        "allows_multiple_answers": false, "allows_revoting": true, "members_only": false,
    })
}

/// Whether a message is about its chat and has no content of a person.
pub fn is_service(message: &Value) -> bool {
    !FILE_KINDS.iter().chain(&OTHER_KINDS).any(|kind| message.get(kind).is_some())
}

/// The part of a message that a reply quotes, with its place in UTF-16 code units.
pub fn quote_json(quoted: &Value, part: &str) -> Result<Value, ControlError> {
    let text = quoted["text"].as_str().or(quoted["caption"].as_str()).unwrap_or_default();
    let missing = || ControlError(format!("the quoted message does not contain {part:?}"));
    let start = text.find(part).ok_or_else(missing)?;
    Ok(json!({"text": part, "position": utf16_len(&text[..start]), "is_manual": true}))
}
