//! Reads `Content-Type` and similar fields: a word, then parameters.
//!
//! Understands comments, folding, quotes and RFC 2231. Positions are kept, so that one
//! value can be replaced in place.

use std::ops::Range;

use super::charset::{Charset, decode_named};
use super::word;

/// Limit of parameters that are read from one field.
const MAX_PARAMETERS: usize = 200;

/// The value of a field, read.
#[derive(Clone, Debug, Default)]
pub(super) struct ContentType {
    /// The word, in lower case: `text/plain`, `attachment`.
    pub word: String,
    /// Whether only parameters follow the word.
    pub is_clean: bool,
    parameters: Vec<Parameter>,
}

#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// Its name, in lower case.
    name: String,
    /// Its value, without quotes.
    value: Vec<u8>,
    /// Range of the value, with its quotes, relative to the field value.
    pub place: Range<usize>,
    /// Whether all readers see the same value.
    clear: bool,
}

impl ContentType {
    /// Reads the value of a field.
    pub fn read(value: &[u8]) -> Self {
        let mut reader = Reader { value, at: 0 };
        reader.skip_blank();
        let word = reader.word().to_ascii_lowercase();
        let word = String::from_utf8_lossy(&word).into_owned();
        reader.skip_blank();
        let is_clean = matches!(reader.peek(), None | Some(b';'));
        let mut parameters = Vec::new();
        while parameters.len() < MAX_PARAMETERS && reader.skip_to_semicolon() {
            parameters.extend(reader.parameter());
        }
        Self { word, is_clean, parameters }
    }

    /// The parameter in its plain form, without RFC 2231 encoding.
    pub fn plain(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// Whether the parameter exists in any form.
    pub fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|p| p.name.split('*').next() == Some(name))
    }

    /// The value of a parameter: the plain one, else the one of RFC 2231.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        match self.plain(name) {
            Some(parameter) => Some(parameter.value.clone()),
            None => self.extended(name).map(|(_, value)| value),
        }
    }

    /// The text of a parameter, such as a file name: the form of RFC 2231, else the plain one,
    /// in which many senders use encoded words.
    pub fn text(&self, name: &str, hint: Option<Charset>) -> Option<String> {
        if let Some((charset, value)) = self.extended(name) {
            return Some(decode_named(Some(&charset), &value).into_owned());
        }
        Some(word::decode(&self.plain(name)?.value, hint))
    }

    /// Whether the parameter occurs at most once.
    pub fn is_single(&self, name: &str) -> bool {
        let same = self.parameters.iter().filter(|p| p.name.split('*').next() == Some(name));
        same.count() < 2 || self.plain(name).is_none()
    }

    /// Whether all readers agree on the parameter.
    pub fn is_clear(&self, name: &str) -> bool {
        self.is_single(name) && self.plain(name).is_none_or(|parameter| parameter.clear)
    }

    /// `name*=utf-8''…`, or `name*0=…; name*1*=…`, put together, after its charset.
    fn extended(&self, name: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        let marked = |suffix: &str| {
            self.parameters.iter().find(|p| {
                p.name.strip_prefix(name).and_then(|rest| rest.strip_prefix('*')) == Some(suffix)
            })
        };
        if let Some(whole) = marked("") {
            let (charset, value) = split_charset(&whole.value);
            return Some((charset.to_vec(), percent(value)));
        }
        let mut charset = Vec::new();
        let mut joined = Vec::new();
        for number in 0..MAX_PARAMETERS {
            if let Some(piece) = marked(&number.to_string()) {
                joined.extend_from_slice(&piece.value);
            } else if let Some(piece) = marked(&format!("{number}*")) {
                let mut value = piece.value.as_slice();
                if number == 0 {
                    let (name, rest) = split_charset(value);
                    (charset, value) = (name.to_vec(), rest);
                }
                joined.extend(percent(value));
            } else {
                break;
            }
        }
        Some((charset, joined)).filter(|(_, joined)| !joined.is_empty())
    }
}

/// Splits `utf-8'en'text` into charset and text. The language is not used.
fn split_charset(value: &[u8]) -> (&[u8], &[u8]) {
    let mut pieces = value.splitn(3, |byte| *byte == b'\'');
    match (pieces.next(), pieces.next(), pieces.next()) {
        (Some(charset), Some(_), Some(text)) => (charset, text),
        _ => (&[], value),
    }
}

fn percent(value: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(value.len());
    let mut at = 0;
    while let Some(&byte) = value.get(at) {
        let code = value.get(at + 1..at + 3).filter(|_| byte == b'%').and_then(hex);
        plain.push(code.unwrap_or(byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    plain
}

/// The byte that two hexadecimal digits name.
pub(super) fn hex(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

/// Whether a word may have this byte without quotes.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&byte)
}

/// Position in a field value.
struct Reader<'v> {
    value: &'v [u8],
    at: usize,
}

impl<'v> Reader<'v> {
    fn peek(&self) -> Option<u8> {
        self.value.get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Skips white space and comments. Comments nest, so they are counted.
    fn skip_blank(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'(' => depth += 1,
                b')' if depth > 0 => depth -= 1,
                b'\\' if depth > 0 => self.at += 1,
                _ if depth > 0 || byte.is_ascii_whitespace() => {}
                _ => return,
            }
            self.at += 1;
        }
        self.at = self.at.min(self.value.len());
    }

    /// Reads up to the next white space, comment or semicolon.
    fn word(&mut self) -> &'v [u8] {
        let start = self.at;
        while let Some(byte) = self.peek() {
            if byte.is_ascii_whitespace() || matches!(byte, b';' | b'(') {
                break;
            }
            self.at += 1;
        }
        &self.value[start..self.at]
    }

    /// Skips to after the next semicolon, if there is one.
    fn skip_to_semicolon(&mut self) -> bool {
        loop {
            self.skip_blank();
            match self.peek() {
                None => return false,
                Some(b';') => {
                    self.at += 1;
                    return true;
                }
                Some(b'"') => drop(self.quoted()),
                Some(_) => self.at += 1,
            }
        }
    }

    fn parameter(&mut self) -> Option<Parameter> {
        let before = self.at;
        self.skip_blank();
        let start = self.at;
        while self.peek().is_some_and(|b| !b.is_ascii_whitespace() && !b"=;(\"".contains(&b)) {
            self.at += 1;
        }
        let name = String::from_utf8_lossy(&self.value[start..self.at]).to_ascii_lowercase();
        self.skip_blank();
        if name.is_empty() || self.peek() != Some(b'=') {
            return None;
        }
        self.at += 1;
        self.skip_blank();
        let start = self.at;
        let (value, mut clear) = match self.peek() {
            Some(b'"') => self.quoted(),
            _ => {
                let word = self.word();
                (word.to_vec(), word.iter().all(|byte| is_token(*byte)))
            }
        };
        let place = start..self.at;
        self.skip_spaces();
        // `b (or so)` is one value for some readers, and a value with a comment for
        // others.
        clear &= matches!(self.peek(), None | Some(b';'));
        clear &= !self.value[before..start].contains(&b'(');
        Some(Parameter { name, value, place, clear })
    }

    /// Reads a quoted string. Returns whether all readers see it as one.
    fn quoted(&mut self) -> (Vec<u8>, bool) {
        let (mut value, mut clear) = (Vec::new(), true);
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'"' => return (value, clear),
                b'\\' => {
                    clear &= matches!(self.peek(), Some(b'"' | b'\\'));
                    value.extend(self.peek());
                    self.at = self.value.len().min(self.at + 1);
                }
                // Folding is not part of the value.
                b'\r' | b'\n' => {}
                _ => value.push(byte),
            }
        }
        (value, false)
    }
}
