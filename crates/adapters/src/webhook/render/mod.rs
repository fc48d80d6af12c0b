//! Renders the JSON of webhooks as Markdown.
//!
//! The template of the tunnel has priority, then the template of a known sender, then an
//! outline. Text from outside is data: every value in a template is escaped, and the filters
//! `quote` and `link` are the only ones that return Markdown. [`markdown`] does both.

use std::sync::LazyLock;

use http::HeaderMap;
use minijinja::value::{Serde, Value as TemplateValue};
use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior};
use serde_json::Value;

use super::FieldMap;
use super::inbound::{cut, header};

mod markdown;
mod outline;
mod senders;

#[cfg(test)]
mod tests;

pub(super) use senders::KnownSender;

/// Bytes of a rendering, as JSON.
const MAX_RENDERED_BYTES: usize = 16 << 10;

/// Characters of one value.
const MAX_VALUE_CHARS: usize = 1000;

/// Characters of a quotation.
const MAX_QUOTE_CHARS: usize = 8000;

/// Instructions of one rendering. The largest built-in one takes 6,000.
const MAX_INSTRUCTIONS: u64 = 100_000;

/// What follows a text that was cut.
pub(super) const CUT_NOTE: &str = "\n\n… (cut; all of it is in the attachment)";

/// The name of the only template in an environment.
const NAME: &str = "template";

/// A template that renders the bodies of one tunnel or one sender.
#[derive(Debug)]
pub(super) struct WebhookTemplate(Environment<'static>);

impl WebhookTemplate {
    /// Compiles a template. The error says what is wrong and in which line.
    pub(super) fn compile(source: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(MAX_INSTRUCTIONS));
        environment.set_undefined_behavior(UndefinedBehavior::Chainable);
        // The results of macros are not escaped again.
        environment.set_auto_escape_callback(|_| AutoEscape::Custom("markdown".into()));
        environment.set_formatter(|out, _, value| {
            if value.is_undefined() || value.is_none() {
                return Ok(());
            }
            let text = match value.as_str() {
                Some(text) if value.is_safe() => text.to_owned(),
                Some(text) => markdown::inline(text, MAX_VALUE_CHARS),
                None => markdown::inline(&value.to_string(), MAX_VALUE_CHARS),
            };
            out.write_str(&text).map_err(Error::from)
        });
        environment.add_filter("quote", |value: TemplateValue| {
            let quote = markdown::quote(&text_of(&value), MAX_QUOTE_CHARS);
            TemplateValue::from_safe_string(quote)
        });
        environment.add_filter("link", |value: TemplateValue| {
            TemplateValue::from_safe_string(markdown::link(&text_of(&value)))
        });
        environment.add_filter("line", |value: TemplateValue| {
            text_of(&value).trim().lines().next().unwrap_or_default().to_owned()
        });
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| error.to_string())?;
        Ok(Self(environment))
    }

    /// Renders JSON. The variables are the keys of the body, `payload` for all of it and
    /// `event_type` for what a header of the sender says. The error says what went wrong.
    fn render(&self, value: &Value, event_type: Option<&str>) -> Result<String, String> {
        let mut variables = value.as_object().cloned().unwrap_or_default();
        variables.insert("payload".to_owned(), value.clone());
        variables.insert("event_type".to_owned(), event_type.into());
        let template = self.0.get_template(NAME).map_err(|error| error.to_string())?;
        template.render(Serde(&variables)).map_err(|error| error.to_string())
    }
}

/// Returns a value as text; nothing for a missing one.
fn text_of(value: &TemplateValue) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_undefined() || value.is_none() => String::new(),
        None => value.to_string(),
    }
}

/// Renders a body as Markdown of at most 16 KiB.
pub(super) fn render(
    own: Option<&WebhookTemplate>,
    sender: Option<&KnownSender>,
    headers: &HeaderMap,
    value: &Value,
) -> String {
    let event_type = sender.and_then(|sender| header(headers, sender.header));
    let event_type = event_type.as_deref();
    let rendered = match (own, sender) {
        (Some(template), _) => Some(template.render(value, event_type)),
        (None, Some(sender)) => {
            Some(sender.template.render(value, event_type).map(|text| tidy(&text)))
        }
        (None, None) => None,
    };
    let (text, note) = match rendered {
        Some(Ok(text)) if !text.trim().is_empty() => (text.trim_end().to_owned(), String::new()),
        Some(Err(error)) => {
            let error = markdown::inline(&error, 300);
            (String::new(), format!("(The template failed: {error}.)\n\n"))
        }
        Some(Ok(_)) | None => Default::default(),
    };
    if text.is_empty() {
        let (outline, complete) = outline::outline(value, MAX_RENDERED_BYTES);
        return format!("{note}{outline}{}", if complete { "" } else { CUT_NOTE });
    }
    let shown = cut(&text, MAX_RENDERED_BYTES);
    format!("{shown}{}", if shown.len() < text.len() { CUT_NOTE } else { "" })
}

/// Puts one empty line between paragraphs, lists and quotations, and none inside of them, so
/// that templates need no control of white space.
fn tidy(text: &str) -> String {
    let mut out = String::new();
    let mut last = "";
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let item = |line: &str| line.starts_with("- ") || line.starts_with("  ");
        let quoted = |line: &str| line.starts_with('>');
        let same = item(line) && item(last) || quoted(line) && quoted(last);
        if !out.is_empty() {
            out.push_str(if same { "\n" } else { "\n\n" });
        }
        out.push_str(line);
        last = line;
    }
    out
}
