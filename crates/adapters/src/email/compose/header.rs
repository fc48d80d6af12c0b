//! Writes the fields of a header: encoded, folded, and without line breaks in their values.

use std::fmt::Write as _;

use monoco_core::unsafe_text::is_unsafe;
use monoco_mime::{encoded_words, header_field};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Longest line that is written, unless one word is longer (RFC 5322 recommends 78).
const LINE: usize = 76;

/// Characters of one line of a parameter value.
const PARAMETER_LINE: usize = 60;

/// Bytes that are escaped in parameters: all but letters, digits, `-`, `.`, `_` and `~`.
const ESCAPED_IN_PARAMETER: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A header that is being written.
#[derive(Clone, Debug, Default)]
pub struct HeaderWriter(Vec<u8>);

impl HeaderWriter {
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Writes a field of free text. Text that is not ASCII is encoded; control characters
    /// become spaces.
    pub fn text(&mut self, name: &str, value: &str) {
        self.0.extend(header_field(name.as_bytes(), value, b"\r\n"));
        self.0.extend_from_slice(b"\r\n");
    }

    /// Writes a field of words that must not be changed, such as message ids.
    pub fn tokens(&mut self, name: &str, tokens: &[String]) {
        let mut line = format!("{name}:");
        for (at, token) in tokens.iter().enumerate() {
            if at > 0 && line.len() + 1 + token.len() > LINE {
                self.0.extend_from_slice(line.as_bytes());
                self.0.extend_from_slice(b"\r\n");
                line.clear();
            }
            line.push(' ');
            line.push_str(token);
        }
        self.0.extend_from_slice(line.as_bytes());
        self.0.extend_from_slice(b"\r\n");
    }

    /// Writes a list of names and addresses. The addresses are valid.
    pub fn mailboxes(&mut self, name: &str, boxes: &[(Option<&str>, String)]) {
        let mut tokens = Vec::new();
        for (at, (name, address)) in boxes.iter().enumerate() {
            let comma = if at + 1 < boxes.len() { "," } else { "" };
            let phrase = name.map(phrase).unwrap_or_default();
            if phrase.is_empty() {
                tokens.push(format!("{address}{comma}"));
            } else {
                tokens.extend(phrase);
                tokens.push(format!("<{address}>{comma}"));
            }
        }
        self.tokens(name, &tokens);
    }
}

/// Writes a display name: in quotes, or encoded when quotes are not enough.
fn phrase(name: &str) -> Vec<String> {
    let name = one_line(name);
    if name.is_empty() {
        return Vec::new();
    }
    if name.is_ascii() && !name.contains("=?") && name.len() <= PARAMETER_LINE {
        return vec![quoted(&name)];
    }
    encoded_words("", &name).iter().map(|word| word.trim_start().to_owned()).collect()
}

/// Replaces control and invisible characters by spaces.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if is_unsafe(c) { ' ' } else { c }).collect();
    line.trim().to_owned()
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

/// Makes a name of a file out of any text: one line, and no path.
pub fn file_name(name: &str) -> String {
    let name = one_line(name).replace(['/', '\\'], "_");
    if name.is_empty() { "attachment".to_owned() } else { name }
}

/// Writes the parameter `name` of a field, each line folded: as it is, or by RFC 2231 when it is
/// long or not ASCII.
pub fn parameter(name: &str, value: &str) -> String {
    let is_plain =
        value.is_ascii() && value.len() <= PARAMETER_LINE && !value.contains(['%', '\'']);
    if is_plain && !value.contains("=?") {
        return format!(";\r\n {name}={}", quoted(value));
    }
    let mut lines = vec![String::new()];
    for c in value.chars() {
        let escaped =
            utf8_percent_encode(c.encode_utf8(&mut [0; 4]), ESCAPED_IN_PARAMETER).to_string();
        match lines.last_mut().filter(|line| line.len() + escaped.len() <= PARAMETER_LINE) {
            Some(line) => line.push_str(&escaped),
            None => lines.push(escaped),
        }
    }
    if let [line] = lines.as_slice() {
        return format!(";\r\n {name}*=UTF-8''{line}");
    }
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        let charset = if at == 0 { "UTF-8''" } else { "" };
        let _ = write!(out, ";\r\n {name}*{at}*={charset}{line}");
    }
    out
}
