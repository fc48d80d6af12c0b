//! `subject`: rewrites subjects by a template.

use std::sync::Arc;

use monoco_core::config::InvalidConfig;
use monoco_core::did::Did;
use monoco_core::letter::{Letter, WorkerResult, WorkerStep};
use monoco_core::time::Timestamp;

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, changed, downcast};

pub const KIND: WorkerKind =
    WorkerKind { name: "subject", built_in: true, keys: &["template"], parse };

/// Longest subject and longest template, in bytes.
const MAX_SUBJECT_BYTES: usize = 998;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectConfig(Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Literal(String),
    Field(TemplateField),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateField {
    Subject,
    From,
    To,
    Tunnel,
    Date,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let template = section.keys.required("template")?;
    Ok(Arc::new(template.checked(SubjectConfig::new)?))
}

impl Worker for SubjectConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, letter: &Letter, now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        WorkerStep::Decided(self.apply(letter, now))
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new) = downcast::<Self>(new) else { return vec!["kind"] };
        changed(&[("template", self != new)])
    }
}

impl SubjectConfig {
    /// Parses a template: text with the fields `{subject}`, `{from}`, `{to}` (the first
    /// recipient), `{tunnel}` and `{date}`. `{{` and `}}` are braces.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the template.
    pub fn new(template: &str) -> Result<Self, String> {
        if template.trim().is_empty() {
            return Err("is empty; expected text such as [Team] {subject}".to_owned());
        }
        if template.len() > MAX_SUBJECT_BYTES || template.chars().any(char::is_control) {
            return Err(format!("expected one line of at most {MAX_SUBJECT_BYTES} bytes"));
        }
        parse_template(template).map(Self)
    }

    /// Rewrites the subject of a letter. The text at the start of the template marks
    /// rewritten subjects: they, and replies to them, are not rewritten again.
    pub fn apply(&self, letter: &Letter, now: Timestamp) -> WorkerResult {
        let mail = letter.is_mail().then(|| letter.bytes());
        if mail.as_ref().is_some_and(|mail| mail.is_empty()) {
            return WorkerResult::skip("has an empty mail");
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
        if after == before || self.has_rewritten(&before) {
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

    /// Tells whether a subject is the result of this template, or a reply to one: it contains
    /// the text at the start of the template, and not in the middle of a word.
    fn has_rewritten(&self, subject: &str) -> bool {
        let [TemplatePart::Literal(mark), TemplatePart::Field(_), ..] = &self.0[..] else {
            return false;
        };
        let keeps_subject = self.0.contains(&TemplatePart::Field(TemplateField::Subject));
        // Rendered subjects have single spaces. The space at the end of the mark is missing in
        // a subject that is nothing but the mark, so one is appended below.
        let mark = one_line(mark) + if mark.ends_with(char::is_whitespace) { " " } else { "" };
        let subject = format!("{subject} ");
        let at_word_start = |at: usize| !subject[..at].ends_with(char::is_alphanumeric);
        keeps_subject
            && !mark.trim().is_empty()
            && subject.match_indices(&mark).any(|(at, _)| at_word_start(at))
    }

    fn render(&self, letter: &Letter, subject: &str, now: Timestamp) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Literal(literal) => text.push_str(literal),
                TemplatePart::Field(TemplateField::Subject) => text.push_str(subject),
                TemplatePart::Field(TemplateField::From) => {
                    text.push_str(&display_address(&letter.from));
                }
                TemplatePart::Field(TemplateField::To) => {
                    text.push_str(
                        &letter.to.first().map_or_else(String::new, |to| display_address(to)),
                    );
                }
                TemplatePart::Field(TemplateField::Tunnel) => text.push_str(&tunnel(letter)),
                TemplatePart::Field(TemplateField::Date) => {
                    text.push_str(now.rfc3339().split('T').next().unwrap_or_default());
                }
            }
        }
        let text = one_line(&text);
        text[..text.floor_char_boundary(MAX_SUBJECT_BYTES)].trim_end().to_owned()
    }
}

fn parse_template(template: &str) -> Result<Vec<TemplatePart>, String> {
    let mut parts = Vec::new();
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
            return Err(format!("unpaired {brace}; write {brace}{brace} for a literal brace"));
        };
        if !literal.is_empty() {
            parts.push(TemplatePart::Literal(std::mem::take(&mut literal)));
        }
        parts.push(TemplatePart::Field(field(name)?));
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(TemplatePart::Literal(literal));
    }
    Ok(parts)
}

fn field(name: &str) -> Result<TemplateField, String> {
    Ok(match name {
        "subject" => TemplateField::Subject,
        "from" => TemplateField::From,
        "to" => TemplateField::To,
        "tunnel" => TemplateField::Tunnel,
        "date" => TemplateField::Date,
        _ => {
            return Err(format!(
                "unknown field {{{name}}}; known fields are {{subject}}, {{from}}, {{to}}, {{tunnel}} \
                 and {{date}}"
            ));
        }
    })
}

/// Returns the account of a DID of an external endpoint, and any other address unchanged.
fn display_address(address: &str) -> String {
    let endpoint = address.parse::<Did>().ok().and_then(|did| did.endpoint());
    endpoint.map_or_else(|| address.to_owned(), |endpoint| endpoint.account)
}

/// Returns the tunnel that the letter names, or else the one of its first recipient.
fn tunnel(letter: &Letter) -> String {
    if let Some(tunnel) = letter.extra("tunnel") {
        return tunnel.to_owned();
    }
    let did = letter.to.first().and_then(|to| to.parse::<Did>().ok());
    let endpoint = did.and_then(|did| did.endpoint());
    endpoint.map_or_else(String::new, |endpoint| endpoint.tunnel.as_str().to_owned())
}

/// Replaces each run of white space and control characters by one space.
fn one_line(text: &str) -> String {
    let gap = |c: char| c.is_whitespace() || c.is_control();
    text.split(gap).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
