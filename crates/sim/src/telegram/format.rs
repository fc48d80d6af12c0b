//! Texts with entities, whose offsets and lengths count UTF-16 code units.

use serde_json::{Value, json};

use super::api::SimTelegramFailure;
use super::markup;
use super::params::SimTelegramParams;

/// UTF-16 code units of the text of a message at most.
pub const MAX_TEXT: usize = 4096;

/// UTF-16 code units of a caption at most.
pub const MAX_CAPTION: usize = 1024;

/// Entities that a message keeps; the others are ignored.
const MAX_ENTITIES: usize = 100;

/// A text and the entities in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimFormattedText {
    pub text: String,
    pub entities: Vec<Value>,
}

/// Length in UTF-16 code units.
pub fn utf16_len(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// Reads a text with its entities or its markup, as `sendMessage` and captions have them.
pub fn read_text(
    params: &SimTelegramParams,
    text_key: &str,
    entities_key: &str,
) -> Result<SimFormattedText, SimTelegramFailure> {
    let entities = params.json(entities_key);
    formatted(&params.text(text_key), &params.text("parse_mode"), entities.as_ref())
}

/// Applies a parse mode or given entities to a text.
pub fn formatted(
    text: &str,
    parse_mode: &str,
    entities: Option<&Value>,
) -> Result<SimFormattedText, SimTelegramFailure> {
    let parsed = match parse_mode.to_lowercase().as_str() {
        "" => {
            let given = entities.and_then(Value::as_array).cloned().unwrap_or_default();
            Ok(SimFormattedText { text: text.to_owned(), entities: given })
        }
        "html" => markup::parse_html(text),
        "markdownv2" => markup::parse_markdown_v2(text),
        "markdown" => markup::parse_markdown(text),
        _ => return Err(SimTelegramFailure::bad("unsupported parse_mode")),
    };
    let cannot =
        |reason: String| SimTelegramFailure::bad(&format!("can't parse entities: {reason}"));
    let mut parsed = parsed.map_err(cannot)?;
    for entity in &parsed.entities {
        if !entity["type"].is_string() {
            return Err(SimTelegramFailure::bad(
                "can't parse MessageEntity: field \"type\" must be of type String",
            ));
        }
    }
    trim(&mut parsed);
    add_detected(&mut parsed);
    parsed.entities.truncate(MAX_ENTITIES);
    Ok(parsed)
}

/// Removes white space at both ends, moves the entities, and drops those beyond the text.
fn trim(formatted: &mut SimFormattedText) {
    let end = formatted.text.trim_end().len();
    formatted.text.truncate(end);
    let start = formatted.text.len() - formatted.text.trim_start().len();
    let removed = utf16_len(&formatted.text[..start]) as i64;
    formatted.text.drain(..start);
    let length = utf16_len(&formatted.text) as i64;
    formatted.entities.retain_mut(|entity| {
        let offset = entity["offset"].as_i64().unwrap_or(-1) - removed;
        let end = offset + entity["length"].as_i64().unwrap_or(0);
        let (offset, end) = (offset.max(0), end.min(length));
        entity["offset"] = json!(offset);
        entity["length"] = json!(end - offset);
        end > offset
    });
}

/// Adds what is found in the text where there is no entity yet.
fn add_detected(formatted: &mut SimFormattedText) {
    let range = |entity: &Value| {
        let offset = entity["offset"].as_u64().unwrap_or(0);
        (offset, offset + entity["length"].as_u64().unwrap_or(0))
    };
    let given: Vec<_> = formatted.entities.iter().map(range).collect();
    let is_free = |entity: &Value| {
        let (start, end) = range(entity);
        given.iter().all(|(from, to)| end <= *from || start >= *to)
    };
    let detected = detect_entities(&formatted.text);
    formatted.entities.extend(detected.into_iter().filter(is_free));
    formatted.entities.sort_by_key(|entity| (range(entity).0, u64::MAX - range(entity).1));
}

/// Finds mentions, commands, hashtags and links, as the server does in a text without markup.
pub fn detect_entities(text: &str) -> Vec<Value> {
    let mut entities = Vec::new();
    let mut offset = 0;
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    for word in text.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end_matches(|letter: char| {
            letter.is_whitespace() || matches!(letter, '.' | ',' | '!' | '?' | ':' | ';' | ')')
        });
        let rest = || bare.chars().skip(1);
        let kind = match bare.chars().next() {
            Some('@') if rest().count() >= 4 && rest().all(is_word) => Some("mention"),
            Some('#') if rest().count() >= 1 && rest().all(is_word) => Some("hashtag"),
            Some('/') if rest().count() >= 1 && rest().all(|l| is_word(l) || l == '@') => {
                Some("bot_command")
            }
            _ if bare.starts_with("http://") || bare.starts_with("https://") => Some("url"),
            _ => None,
        };
        if let Some(kind) = kind {
            entities.push(json!({"type": kind, "offset": offset, "length": utf16_len(bare)}));
        }
        offset += utf16_len(word);
    }
    entities
}
