//! Parses HTML and MarkdownV2 into texts with entities, and rejects what Telegram rejects.
//!
//! The errors name byte offsets of the given text, as Telegram does. Not emulated: custom emoji and
//! the rule that code must not contain other entities.

use serde_json::{Value, json};

use super::format::{SimFormattedText, utf16_len};

/// Characters that MarkdownV2 gives a meaning; elsewhere they must be escaped.
const RESERVED: &str = "_*[]()~`>#+-=|{}.!";

/// An entity whose end was not found yet.
struct OpenEntity {
    /// The tag or mark that opened it.
    mark: String,
    entity: Value,
    /// UTF-16 offset in the parsed text.
    offset: usize,
    /// Byte offset in the given text.
    at: usize,
}

/// A text that grows while entities open and close.
#[derive(Default)]
struct TextBuilder {
    text: String,
    /// Length of the text in UTF-16 code units.
    units: usize,
    open: Vec<OpenEntity>,
    entities: Vec<Value>,
}

impl TextBuilder {
    fn push(&mut self, letter: char) {
        self.text.push(letter);
        self.units += letter.len_utf16();
    }

    fn open(&mut self, mark: &str, entity: Value, at: usize) {
        self.open.push(OpenEntity { mark: mark.to_owned(), entity, offset: self.units, at });
    }

    /// Closes the newest entity; an empty one is dropped.
    fn close(&mut self) {
        let Some(open) = self.open.pop() else { return };
        let length = self.units - open.offset;
        if length > 0 && open.entity.is_object() {
            let mut entity = open.entity;
            entity["offset"] = json!(open.offset);
            entity["length"] = json!(length);
            self.entities.push(entity);
        }
    }

    fn finish(mut self) -> SimFormattedText {
        // Outer entities come first.
        let end = |entity: &Value| std::cmp::Reverse(entity["length"].as_u64());
        self.entities.sort_by_key(|entity| (entity["offset"].as_u64(), end(entity)));
        SimFormattedText { text: self.text, entities: self.entities }
    }
}

/// The entity that an HTML tag stands for; `Null` for a tag that only closes.
fn html_entity(tag: &str, attributes: &[(String, String)]) -> Option<Value> {
    let attribute = |name: &str| attributes.iter().find(|(key, _)| key == name).map(|(_, v)| v);
    let kind = match tag {
        "b" | "strong" => "bold",
        "i" | "em" => "italic",
        "u" | "ins" => "underline",
        "s" | "strike" | "del" => "strikethrough",
        "tg-spoiler" => "spoiler",
        "span" if attribute("class").is_some_and(|class| class == "tg-spoiler") => "spoiler",
        "code" => "code",
        "pre" => "pre",
        "blockquote" if attribute("expandable").is_some() => "expandable_blockquote",
        "blockquote" => "blockquote",
        // Without a usable address the text of a link stays plain.
        "a" => {
            let url = attribute("href").filter(|url| !url.is_empty());
            return Some(match url {
                Some(url) => json!({"type": "text_link", "url": url}),
                None => Value::Null,
            });
        }
        _ => return None,
    };
    Some(json!({"type": kind}))
}

/// Parses HTML as `parse_mode` `HTML` has it. The error is the reason that Telegram shows.
pub fn parse_html(source: &str) -> Result<SimFormattedText, String> {
    let mut built = TextBuilder::default();
    let mut rest = source;
    while let Some(letter) = rest.chars().next() {
        let at = source.len() - rest.len();
        match letter {
            '<' => rest = html_tag(rest, at, &mut built)?,
            '&' => {
                let (decoded, length) = html_reference(rest).unwrap_or(('&', 1));
                built.push(decoded);
                rest = &rest[length..];
            }
            _ => {
                built.push(letter);
                rest = &rest[letter.len_utf8()..];
            }
        }
    }
    match built.open.first() {
        Some(open) => {
            Err(format!("Can't find end tag corresponding to start tag \"{}\"", open.mark))
        }
        None => Ok(built.finish()),
    }
}

/// Reads a tag at the start of `rest`; returns the text behind it.
fn html_tag<'a>(rest: &'a str, at: usize, built: &mut TextBuilder) -> Result<&'a str, String> {
    let Some((inside, behind)) = rest[1..].split_once('>') else {
        return Err(format!("Unclosed start tag at byte offset {at}"));
    };
    if let Some(name) = inside.strip_prefix('/') {
        let name = name.trim().to_lowercase();
        let Some(open) = built.open.last() else {
            return Err(format!("Unexpected end tag at byte offset {at}"));
        };
        if !name.is_empty() && name != open.mark {
            return Err(format!(
                "Unmatched end tag at byte offset {at}, expected \"</{}>\", found \"</{name}>\"",
                open.mark
            ));
        }
        built.close();
        return Ok(behind);
    }
    let (name, attributes) = inside.split_once(char::is_whitespace).unwrap_or((inside, ""));
    let name = name.to_lowercase();
    let attributes = html_attributes(attributes);
    if let Some(language) = code_language(&name, &attributes)
        && let Some(pre) = built.open.last_mut().filter(|open| open.mark == "pre")
    {
        pre.entity["language"] = json!(language);
        built.open(&name, Value::Null, at);
        return Ok(behind);
    }
    let Some(entity) = html_entity(&name, &attributes) else {
        return Err(format!("Unsupported start tag \"{name}\" at byte offset {at}"));
    };
    built.open(&name, entity, at);
    Ok(behind)
}

/// The language that `<code class="language-…">` names.
fn code_language(tag: &str, attributes: &[(String, String)]) -> Option<String> {
    let (_, class) = attributes.iter().find(|(key, _)| tag == "code" && key == "class")?;
    class.strip_prefix("language-").map(str::to_owned)
}

/// Attributes of a tag: names with values in quotes, without quotes, or without a value.
fn html_attributes(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    loop {
        text = text.trim_start();
        let end = text.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(text.len());
        if end == 0 {
            return found;
        }
        let name = text[..end].to_lowercase();
        text = text[end..].trim_start();
        let mut value = String::new();
        if let Some(given) = text.strip_prefix('=') {
            let given = given.trim_start();
            let quote = given.chars().next().filter(|letter| matches!(letter, '"' | '\''));
            let (raw, behind) = match quote {
                Some(quote) => given[1..].split_once(quote).unwrap_or((&given[1..], "")),
                None => given.split_once(char::is_whitespace).unwrap_or((given, "")),
            };
            value = decode_references(raw);
            text = behind;
        }
        found.push((name, value));
    }
}

fn decode_references(mut text: &str) -> String {
    let mut decoded = String::new();
    while let Some(letter) = text.chars().next() {
        let (letter, length) = match letter {
            '&' => html_reference(text).unwrap_or(('&', 1)),
            letter => (letter, letter.len_utf8()),
        };
        decoded.push(letter);
        text = &text[length..];
    }
    decoded
}

/// The character that a reference at the start of `text` stands for, and its length in bytes.
fn html_reference(text: &str) -> Option<(char, usize)> {
    let (name, _) = text[1..].split_once(';').filter(|(name, _)| name.len() < 12)?;
    let decoded = match name {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)?
        }
    };
    Some((decoded, name.len() + 2))
}

/// Marks of MarkdownV2 and the entities that they open; longer marks first.
const MARKS: [(&str, &str); 6] = [
    ("__", "underline"),
    ("||", "spoiler"),
    ("*", "bold"),
    ("_", "italic"),
    ("~", "strikethrough"),
    ("[", "text_link"),
];

/// Parses MarkdownV2. The error is the reason that Telegram shows.
pub fn parse_markdown_v2(source: &str) -> Result<SimFormattedText, String> {
    let mut built = TextBuilder::default();
    let mut rest = source;
    let mut is_line_start = true;
    while let Some(letter) = rest.chars().next() {
        let at = source.len() - rest.len();
        if std::mem::take(&mut is_line_start) {
            rest = quote_line(rest, at, &mut built);
            let ended = rest.len() + at != source.len();
            if ended {
                continue;
            }
        }
        if letter == '\\'
            && let Some(escaped) = rest[1..].chars().next().filter(char::is_ascii_punctuation)
        {
            built.push(escaped);
            rest = &rest[2..];
            continue;
        }
        if letter == '`' {
            rest = code_span(rest, at, &mut built)?;
            continue;
        }
        if letter == ']' && built.open.last().is_some_and(|open| open.mark == "[") {
            rest = link_target(&rest[1..], &mut built);
            continue;
        }
        if let Some((mark, kind)) = MARKS.iter().find(|(mark, _)| rest.starts_with(mark)) {
            if *mark != "[" && built.open.last().is_some_and(|open| open.mark == *mark) {
                built.close();
            } else {
                built.open(mark, json!({"type": kind}), at);
            }
            rest = &rest[mark.len()..];
            continue;
        }
        if RESERVED.contains(letter) {
            return Err(format!(
                "Character '{letter}' is reserved and must be escaped with the preceding '\\'"
            ));
        }
        if letter == '\n' {
            is_line_start = true;
            end_quote(&rest[1..], &mut built);
        }
        built.push(letter);
        rest = &rest[letter.len_utf8()..];
    }
    end_quote("", &mut built);
    match built.open.last() {
        Some(open) => {
            let kind = open.entity["type"].as_str().unwrap_or_default();
            let kind = if kind == "text_link" { "link" } else { kind };
            let (kind, at) = (format!("{kind} entity"), open.at);
            Err(format!("Can't find end of {} at byte offset {at}", title(&kind)))
        }
        None => Ok(built.finish()),
    }
}

fn title(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default()
        + letters.as_str()
}

/// Opens a block quotation at the start of a line; returns the text behind the mark.
fn quote_line<'a>(rest: &'a str, at: usize, built: &mut TextBuilder) -> &'a str {
    let Some(behind) = rest.strip_prefix('>') else { return rest };
    if !built.open.iter().any(|open| open.mark == ">") {
        built.open(">", json!({"type": "blockquote"}), at);
    }
    behind
}

/// Closes a block quotation unless the next line continues it.
fn end_quote(next: &str, built: &mut TextBuilder) {
    if built.open.last().is_some_and(|open| open.mark == ">") && !next.starts_with('>') {
        built.close();
    }
}

/// Reads code between backticks, or a block between three of them with an optional language.
fn code_span<'a>(rest: &'a str, at: usize, built: &mut TextBuilder) -> Result<&'a str, String> {
    let is_block = rest.starts_with("```");
    let fence = if is_block { "```" } else { "`" };
    let inside = &rest[fence.len()..];
    let mut code = String::new();
    let mut behind = inside;
    loop {
        if let Some(end) = behind.strip_prefix(fence) {
            behind = end;
            break;
        }
        let Some(letter) = behind.chars().next() else {
            let kind = if is_block { "Pre" } else { "Code" };
            return Err(format!("Can't find end of {kind} entity at byte offset {at}"));
        };
        let escaped = behind[letter.len_utf8()..].chars().next();
        match escaped.filter(|next| letter == '\\' && next.is_ascii_punctuation()) {
            Some(next) => {
                code.push(next);
                behind = &behind[2..];
            }
            None => {
                code.push(letter);
                behind = &behind[letter.len_utf8()..];
            }
        }
    }
    let mut entity = json!({"type": if is_block { "pre" } else { "code" }});
    let mut text = code.as_str();
    if is_block && let Some((language, lines)) = code.split_once('\n') {
        if !language.is_empty() {
            entity["language"] = json!(language);
        }
        text = lines;
    }
    built.open(fence, entity, at);
    built.text.push_str(text);
    built.units += utf16_len(text);
    built.close();
    Ok(behind)
}

/// Reads the target behind the text of a link; without one the text is the address.
fn link_target<'a>(behind: &'a str, built: &mut TextBuilder) -> &'a str {
    let target = behind.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let Some(open) = built.open.last_mut() else { return behind };
    let (url, behind) = match target {
        Some((url, rest)) => (url.replace('\\', ""), rest),
        None => (String::new(), behind),
    };
    if url.is_empty() {
        open.entity = Value::Null;
    } else {
        open.entity["url"] = json!(url);
    }
    built.close();
    behind
}

/// Parses the old Markdown: no nesting and no reserved characters beside the marks.
pub fn parse_markdown(source: &str) -> Result<SimFormattedText, String> {
    let mut built = TextBuilder::default();
    let mut rest = source;
    while let Some(letter) = rest.chars().next() {
        let at = source.len() - rest.len();
        let escaped = rest[letter.len_utf8()..].chars().next();
        if letter == '\\'
            && let Some(escaped) = escaped.filter(|next| "_*`[".contains(*next))
        {
            built.push(escaped);
            rest = &rest[2..];
            continue;
        }
        let kind = match letter {
            '*' => "bold",
            '_' => "italic",
            '[' => "text_link",
            '`' => {
                rest = code_span(rest, at, &mut built)?;
                continue;
            }
            ']' if built.open.last().is_some_and(|open| open.mark == "[") => {
                rest = link_target(&rest[1..], &mut built);
                continue;
            }
            _ => {
                built.push(letter);
                rest = &rest[letter.len_utf8()..];
                continue;
            }
        };
        let mark = letter.to_string();
        if built.open.last().is_some_and(|open| open.mark == mark) {
            built.close();
        } else if built.open.is_empty() {
            built.open(&mark, json!({"type": kind}), at);
        } else {
            built.push(letter);
        }
        rest = &rest[1..];
    }
    match built.open.last() {
        Some(open) => {
            Err(format!("Can't find end of the entity starting at byte offset {}", open.at))
        }
        None => Ok(built.finish()),
    }
}
