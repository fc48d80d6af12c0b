//! The content of a message by its kind: its text, its files and the message that it quotes.

use serde_json::Value;

use super::{parse_nested, text};

/// Longest quotation before a text, in characters.
const MAX_QUOTE_CHARS: usize = 500;

/// The text and the files of one message.
#[derive(Debug, Default)]
pub(super) struct RobotContent {
    pub(super) text: String,
    pub(super) files: Vec<AnnouncedFile>,
    /// The id of the quoted message.
    pub(super) quoted_id: Option<String>,
    /// Whether text and files have everything that a reader needs.
    pub(super) is_complete: bool,
}

/// A file that is fetched later.
#[derive(Debug)]
pub(super) struct AnnouncedFile {
    pub(super) name: String,
    pub(super) has_own_name: bool,
    pub(super) download_code: String,
}

impl RobotContent {
    /// Reads the content of a payload. A kind without a conversion gets a placeholder.
    pub(super) fn read(payload: &Value) -> Self {
        let kind = text(&payload["msgtype"]).unwrap_or_else(|| "unknown".to_owned());
        // `content` is an object, or a string with an object in it.
        let body = parse_nested(&payload["content"]).unwrap_or_default();
        let mut content = match kind.as_str() {
            "text" => Self::complete(text(&payload["text"]["content"]).unwrap_or_default()),
            "richText" => Self::rich_text(&body),
            "picture" | "audio" | "video" | "file" => {
                let mut content = Self::default();
                content.text = content.add_item(&kind, &body);
                content.is_complete = !content.files.is_empty();
                content
            }
            _ => Self::unknown(&kind, &body),
        };
        content.add_quote(payload, &body);
        if content.text.is_empty() && content.files.is_empty() {
            content.text = format!("[empty message of kind {kind}]");
            content.is_complete = false;
        }
        content
    }

    fn complete(text: String) -> Self {
        Self { text, is_complete: true, ..Self::default() }
    }

    /// Joins the texts of the items. An item that is a file leaves a mark in the text.
    fn rich_text(body: &Value) -> Self {
        let mut content = Self { is_complete: true, ..Self::default() };
        let Some(items) = body["richText"].as_array() else {
            return Self::unknown("richText", body);
        };
        let mut joined = String::new();
        for item in items {
            let kind = text(&item["type"]).unwrap_or_else(|| "text".to_owned());
            match (kind.as_str(), item["text"].as_str()) {
                ("picture" | "audio" | "video" | "file", _) => {
                    let mark = content.add_item(&kind, item);
                    let gap = if joined.is_empty() || joined.ends_with('\n') { "" } else { "\n" };
                    joined.push_str(&format!("{gap}{mark}\n"));
                }
                (_, Some(text)) => joined.push_str(text),
                // A kind such as `skill`, which has no text.
                (kind, None) => {
                    joined.push_str(&format!("[{kind}]"));
                    content.is_complete = false;
                }
            }
        }
        content.text = joined.trim().to_owned();
        content
    }

    /// Adds the file of an item, and returns the text that stands for it.
    fn add_item(&mut self, kind: &str, item: &Value) -> String {
        let own_name = text(&item["fileName"]).map(|name| base_name(&name));
        let number = self.files.len() + 1;
        let name = own_name.clone().unwrap_or_else(|| match text(&item["videoType"]) {
            Some(ending) if kind == "video" && ending.chars().all(char::is_alphanumeric) => {
                format!("{kind}-{number}.{ending}")
            }
            _ => format!("{kind}-{number}"),
        });
        let has_own_name = own_name.is_some() || name.contains('.');
        let code = text(&item["downloadCode"]).or_else(|| text(&item["pictureDownloadCode"]));
        match code {
            Some(download_code) => {
                self.files.push(AnnouncedFile { name: name.clone(), has_own_name, download_code });
            }
            None => self.is_complete = false,
        }
        let recognised = text(&item["recognition"]).filter(|_| kind == "audio");
        let duration = text(&item["duration"]).map(|it| format!(", {}", seconds(&it)));
        recognised.unwrap_or_else(|| match kind {
            "file" => format!("[file: {name}]"),
            _ if number > 1 => format!("[{kind} {number}{}]", duration.unwrap_or_default()),
            _ => format!("[{kind}{}]", duration.unwrap_or_default()),
        })
    }

    /// A kind without a conversion: says so, and repeats the text if there is one.
    fn unknown(kind: &str, body: &Value) -> Self {
        let found = ["text", "content", "title", "unknownMsgType"];
        let found = found.iter().find_map(|key| text(&body[*key]));
        let mut said = format!("[DingTalk message of kind {kind}, see the attached payload.json]");
        if let Some(found) = found {
            said = format!("{said}\n\n{found}");
        }
        Self { text: said, ..Self::default() }
    }

    /// Puts the quoted message before the text.
    fn add_quote(&mut self, payload: &Value, body: &Value) {
        let holders = [&payload["text"], body];
        let Some(holder) = holders.into_iter().find(|holder| holder["isReplyMsg"] == true) else {
            // Set in quotes of the robot's own messages.
            self.quoted_id = text(&payload["originalProcessQueryKey"]);
            return;
        };
        let quoted = parse_nested(&holder["repliedMsg"]).unwrap_or_default();
        let own = text(&payload["originalProcessQueryKey"]);
        self.quoted_id = own.or_else(|| text(&quoted["msgId"]));
        let words = quoted_text(&quoted);
        if words.is_empty() {
            return;
        }
        let lines = words.lines().map(|line| format!("> {line}"));
        let quote = lines.collect::<Vec<_>>().join("\n");
        self.text = format!("{quote}\n\n{}", self.text).trim_end().to_owned();
    }
}

/// Returns the text of a quoted message, cut.
fn quoted_text(quoted: &Value) -> String {
    let kind = text(&quoted["msgType"]).unwrap_or_else(|| "message".to_owned());
    let body = parse_nested(&quoted["content"]).unwrap_or_default();
    let found = match kind.as_str() {
        "richText" => RobotContent::rich_text(&body).text,
        // A string is JSON, or the text itself.
        _ if body.is_null() => text(&quoted["content"]).unwrap_or_default(),
        _ => text(&body["text"]).or_else(|| text(&body["content"])).unwrap_or_default(),
    };
    if found.is_empty() {
        return if quoted.is_object() { format!("[{kind}]") } else { String::new() };
    }
    let cut: String = found.chars().take(MAX_QUOTE_CHARS).collect();
    if cut.len() < found.len() { format!("{cut} […]") } else { cut }
}

/// Returns a duration in seconds. DingTalk states videos in seconds and audio in milliseconds.
fn seconds(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(number) if number >= 1000.0 => format!("{} s", (number / 1000.0).round()),
        Ok(number) => format!("{number} s"),
        Err(_) => text.to_owned(),
    }
}

/// Returns the last part of a name that a sender wrote. A name is never a path.
fn base_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default().trim();
    let last: String = last.chars().filter(|c| !c.is_control()).collect();
    if last.is_empty() || last == "." || last == ".." { "file".to_owned() } else { last }
}
