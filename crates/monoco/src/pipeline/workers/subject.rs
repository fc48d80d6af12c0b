//! `subject`: rewrites subjects by a template.

use monoco_core::did::Did;
use monoco_core::letter::Letter;
use monoco_core::time::Timestamp;

use super::WorkerResult;

/// Longest subject that comes out, and longest template, in bytes.
const MAX_SUBJECT: usize = 998;

/// The template, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectConfig(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Value(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Subject,
    From,
    To,
    Tunnel,
    Date,
}

impl SubjectConfig {
    /// A template: text with `{subject}`, `{from}`, `{to}` (the first recipient),
    /// `{tunnel}` and `{date}` in it. `{{` and `}}` are braces.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(template: &str) -> Result<Self, String> {
        if template.trim().is_empty() {
            return Err("is empty; want text such as [Team] {subject}".to_owned());
        }
        if template.len() > MAX_SUBJECT || template.chars().any(char::is_control) {
            return Err(format!("want one line of at most {MAX_SUBJECT} bytes"));
        }
        pieces(template).map(Self)
    }

    /// Looks at one letter. What starts a template marks the subjects that it has made:
    /// they, and replies to them, are not rewritten again.
    pub fn work(&self, letter: &Letter, now: Timestamp) -> WorkerResult {
        let mail = letter.is_mail().then(|| letter.bytes());
        if mail.as_ref().is_some_and(|mail| mail.is_empty()) {
            return WorkerResult::skip("has no mail in it");
        }
        let before = match &mail {
            Some(mail) => monoco_mime::subject(mail),
            None => letter.extra("subject").map(str::to_owned),
        };
        if before.is_none() && mail.is_none() {
            return WorkerResult::skip("has no subject");
        }
        let before = one_line(&before.unwrap_or_default());
        let after = self.render(letter, &before, now);
        if after == before || self.made(&before) {
            return WorkerResult::skip("has it already");
        }
        let mut changed = match &mail {
            Some(mail) => letter.with_bytes(monoco_mime::with_subject(mail, &after)),
            None => letter.clone(),
        };
        if mail.is_none() || letter.extra.contains_key("subject") {
            changed.extra.insert("subject".to_owned(), after.into());
        }
        WorkerResult::changed(changed)
    }

    /// Whether a subject has been made by this template, or answers one that was: the
    /// text that it starts with is there, and not in the middle of a word.
    fn made(&self, subject: &str) -> bool {
        let [Piece::Literal(mark), Piece::Value(_), ..] = &self.0[..] else { return false };
        let keeps = self.0.contains(&Piece::Value(Value::Subject));
        // As it comes out of a template: with single spaces, and perhaps one at its end,
        // which a subject that is nothing but the mark lacks.
        let mark = one_line(mark) + if mark.ends_with(char::is_whitespace) { " " } else { "" };
        let subject = format!("{subject} ");
        let free = |at: usize| !subject[..at].ends_with(char::is_alphanumeric);
        keeps && !mark.trim().is_empty() && subject.match_indices(&mark).any(|(at, _)| free(at))
    }

    fn render(&self, letter: &Letter, subject: &str, now: Timestamp) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Value(Value::Subject) => text.push_str(subject),
                Piece::Value(Value::From) => text.push_str(&shown(&letter.from)),
                Piece::Value(Value::To) => {
                    text.push_str(&letter.to.first().map_or_else(String::new, |to| shown(to)));
                }
                Piece::Value(Value::Tunnel) => text.push_str(&tunnel(letter)),
                Piece::Value(Value::Date) => {
                    text.push_str(now.rfc3339().split('T').next().unwrap_or_default());
                }
            }
        }
        let text = one_line(&text);
        text[..text.floor_char_boundary(MAX_SUBJECT)].trim_end().to_owned()
    }
}

/// Reads a template.
fn pieces(template: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            literal.push_str(brace);
            rest = after;
            continue;
        }
        let name = (brace == "{").then(|| rest.split_once('}')).flatten();
        let Some((name, after)) = name else {
            return Err(format!("a {brace} alone; for a brace write {brace}{brace}"));
        };
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(Piece::Value(value(name)?));
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

fn value(name: &str) -> Result<Value, String> {
    Ok(match name {
        "subject" => Value::Subject,
        "from" => Value::From,
        "to" => Value::To,
        "tunnel" => Value::Tunnel,
        "date" => Value::Date,
        _ => {
            return Err(format!(
                "{{{name}}} is none of {{subject}}, {{from}}, {{to}}, {{tunnel}} and {{date}}"
            ));
        }
    })
}

/// An address as people know it: of an endpoint on an outside network, its account.
fn shown(address: &str) -> String {
    let endpoint = address.parse::<Did>().ok().and_then(|did| did.endpoint());
    endpoint.map_or_else(|| address.to_owned(), |endpoint| endpoint.account)
}

/// The tunnel that a letter names, or else the one its first recipient is behind.
fn tunnel(letter: &Letter) -> String {
    if let Some(tunnel) = letter.extra("tunnel") {
        return tunnel.to_owned();
    }
    let did = letter.to.first().and_then(|to| to.parse::<Did>().ok());
    let endpoint = did.and_then(|did| did.endpoint());
    endpoint.map_or_else(String::new, |endpoint| endpoint.tunnel.as_str().to_owned())
}

/// Text without line breaks and other control characters, and with single spaces.
fn one_line(text: &str) -> String {
    let gap = |c: char| c.is_whitespace() || c.is_control();
    text.split(gap).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
