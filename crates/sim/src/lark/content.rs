//! Content of messages by kind, as Lark puts it on the wire: JSON as a string, with placeholders for
//! the people that are mentioned.

use serde_json::{Value, json};

use super::{TENANT, bot_user, events};
use crate::control::{ControlError, SayRequest, resolve_files};
use crate::store::{SimFile, SimUser};
use crate::world::World;

/// Kind and content of a message of a person.
#[derive(Debug, Default)]
pub struct SaidContent {
    pub kind: String,
    pub content: String,
    /// People that are mentioned, as the API lists them.
    pub mentions: Vec<Value>,
    /// Messages inside of a forwarded one.
    pub forwarded: Vec<Value>,
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
enum TextPiece {
    Text(String),
    User(String),
    Everyone,
}

/// Key by which messages name a file.
pub fn file_key(file: &SimFile) -> String {
    let prefix = if file.mime_type.starts_with("image/") { "img_v3_" } else { "file_v3_" };
    format!("{prefix}{}", file.id)
}

/// Id of the file of a key.
pub fn file_of_key(key: &str) -> &str {
    key.strip_prefix("img_v3_").or_else(|| key.strip_prefix("file_v3_")).unwrap_or(key)
}

/// Divides a text at `@NAME` of known people and at `@all`.
fn pieces(world: &World, text: &str) -> Vec<TextPiece> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('@') {
        plain.push_str(before);
        let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len());
        let name = &after[..end];
        let found = match name {
            "all" => Some(TextPiece::Everyone),
            name => world.store.find_user(name).map(|user| TextPiece::User(user.id.clone())),
        };
        match found {
            Some(piece) => {
                if !plain.is_empty() {
                    pieces.push(TextPiece::Text(std::mem::take(&mut plain)));
                }
                pieces.push(piece);
                rest = &after[end..];
            }
            None => {
                plain.push('@');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(TextPiece::Text(plain));
    }
    pieces
}

/// Gives each person that is mentioned a placeholder.
struct MentionList<'a> {
    world: &'a World,
    mentions: Vec<Value>,
}

impl MentionList<'_> {
    fn key(&mut self, id: &str) -> (String, String) {
        let name = self.world.store.users.get(id).map_or(id, |user| &user.name).to_owned();
        if let Some(known) = self.mentions.iter().find(|mention| mention["id"] == id) {
            return (known["key"].as_str().unwrap_or_default().to_owned(), name);
        }
        let key = format!("@_user_{}", self.mentions.len() + 1);
        self.mentions.push(json!({
            "key": key, "id": id, "id_type": "open_id", "name": name, "tenant_key": TENANT,
        }));
        (key, name)
    }

    fn text(&mut self, pieces: &[TextPiece]) -> String {
        let shown = pieces.iter().map(|piece| match piece {
            TextPiece::Text(text) => text.clone(),
            TextPiece::User(id) => self.key(id).0,
            TextPiece::Everyone => "@_all".to_owned(),
        });
        shown.collect()
    }

    fn paragraph(&mut self, pieces: &[TextPiece]) -> Vec<Value> {
        let shown = pieces.iter().map(|piece| match piece {
            TextPiece::Text(text) => json!({"tag": "text", "text": text, "style": []}),
            TextPiece::User(id) => {
                let (key, name) = self.key(id);
                json!({"tag": "at", "user_id": key, "user_name": name, "style": []})
            }
            TextPiece::Everyone => {
                json!({"tag": "at", "user_id": "@_all", "user_name": "Everyone", "style": []})
            }
        });
        shown.collect()
    }
}

/// The kind of a message that is not given.
fn kind_of(request: &SayRequest, files: &[SimFile]) -> Result<&'static str, ControlError> {
    let is_image = |file: &SimFile| file.mime_type.starts_with("image/");
    match files {
        [] if request.blocks.is_some() => Ok("post"),
        [] => Ok("text"),
        [file] if request.text.is_empty() => Ok(match file.mime_type.split('/').next() {
            Some("image") => "image",
            Some("audio") => "audio",
            Some("video") => "media",
            _ => "file",
        }),
        files if files.iter().all(is_image) => Ok("post"),
        _ => Err(ControlError::new(
            "a message has text and images, or one other file; say the others separately",
        )),
    }
}

/// The kind and content of what a person says.
pub fn said(
    world: &mut World,
    request: &SayRequest,
    is_direct: bool,
) -> Result<SaidContent, ControlError> {
    let files = resolve_files(world, &request.files)?;
    let kind = match &request.kind {
        Some(kind) => kind.clone(),
        None => kind_of(request, &files)?.to_owned(),
    };
    if kind == "merge_forward" {
        return forwarded(world, request);
    }
    let mut text = pieces(world, &request.text);
    if request.mention == Some(true) && !is_direct {
        let bot = bot_user(request.app);
        if !text.contains(&TextPiece::User(bot.clone())) {
            let first = [TextPiece::User(bot), TextPiece::Text(" ".to_owned())];
            text.splice(0..0, first);
        }
    }
    let mut list = MentionList { world, mentions: Vec::new() };
    let content = match (kind.as_str(), &request.blocks) {
        // A text that need not be JSON.
        (_, Some(Value::String(content))) => content.clone(),
        ("post", Some(Value::Array(paragraphs))) => {
            json!({"title": request.text, "content": paragraphs}).to_string()
        }
        (_, Some(content)) => content.to_string(),
        ("text", None) => json!({"text": list.text(&text)}).to_string(),
        ("post", None) => post(&mut list, &text, &files).to_string(),
        (kind, None) => file_content(kind, &files)
            .map_or_else(|| other_content(world, kind, request), Ok)?
            .to_string(),
    };
    Ok(SaidContent { kind, content, mentions: list.mentions, forwarded: Vec::new() })
}

/// A post with one paragraph per line, and the images below.
fn post(list: &mut MentionList<'_>, text: &[TextPiece], images: &[SimFile]) -> Value {
    let mut paragraphs = vec![Vec::new()];
    for piece in text {
        match piece {
            TextPiece::Text(text) => {
                for (number, line) in text.split('\n').enumerate() {
                    if number > 0 {
                        paragraphs.push(Vec::new());
                    }
                    if !line.is_empty()
                        && let Some(last) = paragraphs.last_mut()
                    {
                        last.extend(list.paragraph(&[TextPiece::Text(line.to_owned())]));
                    }
                }
            }
            piece => {
                let at = list.paragraph(std::slice::from_ref(piece));
                if let Some(last) = paragraphs.last_mut() {
                    last.extend(at);
                }
            }
        }
    }
    for image in images {
        let (key, size) = (file_key(image), 300);
        paragraphs
            .push(vec![json!({"tag": "img", "image_key": key, "width": size, "height": size})]);
    }
    json!({"title": "", "content": paragraphs})
}

/// Content of a message with a file; `None` for other kinds.
fn file_content(kind: &str, files: &[SimFile]) -> Option<Value> {
    let file = files.first()?;
    let key = file_key(file);
    Some(match kind {
        "image" => json!({"image_key": key}),
        "audio" => json!({"file_key": key, "duration": 2000}),
        "media" => json!({
            "file_key": key, "image_key": format!("img_v3_{}", file.id), "file_name": file.name,
            "duration": 2000,
        }),
        "sticker" => json!({"file_key": key}),
        "file" | "folder" => json!({"file_key": key, "file_name": file.name}),
        _ => return None,
    })
}

/// Content of kinds without a file.
fn other_content(world: &World, kind: &str, request: &SayRequest) -> Result<Value, ControlError> {
    let text = &request.text;
    let missing = |what: &str| ControlError(format!("there is no {what} {text:?}"));
    Ok(match kind {
        "interactive" => json!({"title": null, "elements": [[{"tag": "text", "text": text}]]}),
        "share_chat" => {
            let chat = world.store.find_chat(text).ok_or_else(|| missing("chat"))?;
            json!({"chat_id": chat})
        }
        "share_user" => {
            let user: &SimUser = world.store.find_user(text).ok_or_else(|| missing("user"))?;
            json!({"user_id": user.id})
        }
        "location" => json!({"name": text, "longitude": "13.377704", "latitude": "52.516275"}),
        "system" => json!({
            "template": "{from_user} invited {to_chatters} to this chat.",
            "from_user": ["ann"], "to_chatters": [text],
        }),
        "hongbao" => json!({"text": "[red packet]"}),
        _ => {
            let message = format!("a message of the kind {kind:?} needs a file, or `blocks`");
            return Err(ControlError(message));
        }
    })
}

/// A forwarded message: `blocks` lists messages as `{user, text}`, or ids of existing ones.
fn forwarded(world: &mut World, request: &SayRequest) -> Result<SaidContent, ControlError> {
    let blocks = request.blocks.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
    let mut items = Vec::new();
    for block in &blocks {
        if let Some(id) = block.as_str() {
            let found = world.store.find_message(id);
            let found = found.ok_or_else(|| ControlError(format!("there is no message {id:?}")))?;
            items.push(found.1.body.clone());
            continue;
        }
        let user = events::person(world, block["user"].as_str())?;
        let content = json!({"text": block["text"]}).to_string();
        let us = world.ids.next_us();
        let sender = events::user_sender(&user.id);
        let said = SaidContent { kind: "text".to_owned(), content, ..SaidContent::default() };
        items.push(events::new_item(&events::new_message_id(), "oc_elsewhere", &sender, &said, us));
    }
    Ok(SaidContent {
        kind: "merge_forward".to_owned(),
        content: json!({"content": "Merged and Forwarded Message"}).to_string(),
        forwarded: items,
        ..SaidContent::default()
    })
}
