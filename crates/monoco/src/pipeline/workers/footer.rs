//! `footer`: adds some lines at the end of what is said.

use monoco_core::letter::{Letter, MAX_DATA, content_type};

use super::WorkerResult;

/// Longest footer, in bytes.
const MAX_FOOTER: usize = 16 << 10;

/// What is added: made by [`Footer::new`], which checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FooterConfig {
    /// To plain text and Markdown.
    pub text: String,
    /// To HTML; made of the text when there is none.
    pub html: Option<String>,
}

impl FooterConfig {
    /// A footer: lines for plain text and Markdown, and what HTML gets. Without that,
    /// HTML gets the lines.
    ///
    /// # Errors
    ///
    /// What is wrong, and with which of the two.
    pub fn new(text: &str, html: Option<&str>) -> Result<Self, String> {
        Ok(Self {
            text: lines("text", text)?,
            html: html.map(|html| lines("html", html)).transpose()?,
        })
    }

    /// Looks at one letter.
    pub fn work(&self, letter: &Letter) -> WorkerResult {
        if letter.data.is_empty() {
            return WorkerResult::skip("has no text");
        }
        if letter.is_mail() {
            return self.on_mail(letter);
        }
        let kind = content_type(&letter.extra);
        if !["text/markdown", "text/plain"].contains(&kind) {
            return WorkerResult::skip(format!("is {kind}"));
        }
        if self.ends(&letter.data) {
            return WorkerResult::skip("has it already");
        }
        let data = format!("{}\n\n-- \n{}", letter.data, self.text);
        fitting(Letter { data, ..letter.clone() })
    }

    fn on_mail(&self, letter: &Letter) -> WorkerResult {
        let mail = letter.bytes();
        let plain = |text: &monoco_mime::MailText| text.mime_type == monoco_mime::TextKind::Plain;
        if monoco_mime::texts(&mail).iter().any(|text| plain(text) && self.ends(&text.decoded)) {
            return WorkerResult::skip("has it already");
        }
        let (text, html) = (self.text.clone(), self.html.clone());
        match monoco_mime::with_footer(&mail, &monoco_mime::FooterText { text, html }) {
            Ok(mail) => fitting(letter.with_bytes(mail)),
            Err(untouched) => WorkerResult::skip(untouched.to_string()),
        }
    }

    /// Whether a text has this footer.
    fn ends(&self, text: &str) -> bool {
        let (text, footer) = (text.trim_end(), &self.text);
        // Line ends may be CRLF, so what is compared may be longer than the footer.
        let far = text.len().saturating_sub(2 * footer.len() + 8);
        let tail = text[text.floor_char_boundary(far)..].replace("\r\n", "\n");
        tail.ends_with(&format!("-- \n{footer}"))
    }
}

/// The letter with its footer, unless it is too large with it.
fn fitting(letter: Letter) -> WorkerResult {
    if letter.data.len() > MAX_DATA {
        return WorkerResult::skip("has no room for it");
    }
    WorkerResult::changed(letter)
}

/// Checked lines that end in LF, but for the last, which is not empty.
fn lines(field: &str, text: &str) -> Result<String, String> {
    let text = text.replace("\r\n", "\n");
    let text = text.trim_end();
    if text.is_empty() {
        return Err(format!("{field}: is empty"));
    }
    if text.len() > MAX_FOOTER {
        return Err(format!("{field}: {} bytes; {MAX_FOOTER} is the most", text.len()));
    }
    if text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
        return Err(format!("{field}: has control characters in it"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
