//! `footer`: appends lines to the text of a letter.

use std::sync::Arc;

use monoco_core::config::InvalidConfig;
use monoco_core::letter::{
    ChainDirection, Letter, MAX_DATA, WorkerResult, WorkerStep, content_type,
};
use monoco_core::time::Timestamp;

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, changed, downcast};

pub const KIND: WorkerKind =
    WorkerKind { name: "footer", built_in: true, keys: &["text", "html"], parse };

/// Longest footer, in bytes.
const MAX_FOOTER_BYTES: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FooterConfig {
    /// Appended to plain text and Markdown.
    pub text: String,
    /// Appended to HTML; built from `text` when `None`.
    pub html: Option<String>,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let text = section.keys.required("text")?.text()?;
    let html = section.keys.text("html")?;
    let footer = FooterConfig::new(&text, html.as_deref());
    Ok(Arc::new(footer.map_err(|why| section.keys.invalid(why))?))
}

impl Worker for FooterConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        WorkerStep::Decided(self.apply(letter))
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new) = downcast::<Self>(new) else { return vec!["kind"] };
        changed(&[("text", self.text != new.text), ("html", self.html != new.html)])
    }

    fn misplaced_in(&self, direction: ChainDirection) -> Option<&'static str> {
        (direction == ChainDirection::Inbound)
            .then_some("a footer would change the text of the sender")
    }
}

impl FooterConfig {
    /// Checks the lines for plain text and Markdown, and those for HTML.
    ///
    /// # Errors
    ///
    /// Names the key and what is wrong with its value.
    pub fn new(text: &str, html: Option<&str>) -> Result<Self, String> {
        Ok(Self {
            text: check_lines("text", text)?,
            html: html.map(|html| check_lines("html", html)).transpose()?,
        })
    }

    /// Appends the footer, unless the letter has no text, is too large or already has it.
    pub fn apply(&self, letter: &Letter) -> WorkerResult {
        if letter.data.is_empty() {
            return WorkerResult::skip("has no text");
        }
        if letter.is_mail() {
            return self.apply_to_mail(letter);
        }
        let kind = content_type(&letter.extra);
        if !["text/markdown", "text/plain"].contains(&kind) {
            return WorkerResult::skip(format!("is {kind}"));
        }
        if self.is_at_end_of(&letter.data) {
            return WorkerResult::skip("has it already");
        }
        let data = format!("{}\n\n-- \n{}", letter.data, self.text);
        within_limit(Letter { data, ..letter.clone() })
    }

    fn apply_to_mail(&self, letter: &Letter) -> WorkerResult {
        let mail = letter.bytes();
        let plain = |text: &monoco_mime::MailText| text.mime_type == monoco_mime::TextKind::Plain;
        let texts = monoco_mime::texts(&mail);
        if texts.iter().any(|text| plain(text) && self.is_at_end_of(&text.decoded)) {
            return WorkerResult::skip("has it already");
        }
        let (text, html) = (self.text.clone(), self.html.clone());
        match monoco_mime::with_footer(&mail, &monoco_mime::FooterText { text, html }) {
            Ok(mail) => within_limit(letter.with_bytes(mail)),
            Err(untouched) => WorkerResult::skip(untouched.to_string()),
        }
    }

    fn is_at_end_of(&self, text: &str) -> bool {
        let (text, footer) = (text.trim_end(), &self.text);
        // Lines of the text may end in CRLF, so the compared part can be longer than the footer.
        let start = text.len().saturating_sub(2 * footer.len() + 8);
        let tail = text[text.floor_char_boundary(start)..].replace("\r\n", "\n");
        tail.ends_with(&format!("-- \n{footer}"))
    }
}

/// Passes the changed letter on, or skips it when it would be too large.
fn within_limit(letter: Letter) -> WorkerResult {
    if letter.data.len() > MAX_DATA {
        return WorkerResult::skip("has no room for it");
    }
    WorkerResult::changed(letter)
}

/// Checks a footer and normalizes its line ends to LF.
fn check_lines(key: &str, text: &str) -> Result<String, String> {
    let text = text.replace("\r\n", "\n");
    let text = text.trim_end();
    if text.is_empty() {
        return Err(format!("{key}: is empty"));
    }
    if text.len() > MAX_FOOTER_BYTES {
        let found = text.len();
        return Err(format!("{key}: has {found} bytes; the limit is {MAX_FOOTER_BYTES}"));
    }
    if text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
        return Err(format!("{key}: contains control characters"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
