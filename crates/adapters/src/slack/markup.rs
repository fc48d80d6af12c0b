//! Writes Markdown from Slack's texts, and collects the accounts that they mention.

use std::cell::RefCell;
use std::collections::BTreeSet;

pub(super) use crate::markdown::{
    end_line, end_paragraph, push_code, push_code_block, push_link, push_text, quoted,
};

/// Gives names to ids while a text is converted.
pub(super) struct TextContext<'a> {
    find: &'a dyn Fn(&str) -> Option<String>,
    missing: RefCell<BTreeSet<String>>,
    mentions: RefCell<Vec<String>>,
}

impl<'a> TextContext<'a> {
    /// `find` returns the name of an account, a chat or a group of accounts.
    pub fn new(find: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { find, missing: RefCell::default(), mentions: RefCell::default() }
    }

    /// Returns the name of `id`, or `None` and remembers that it is missing.
    pub fn name(&self, id: &str) -> Option<String> {
        let name = (self.find)(id);
        if name.is_none() {
            self.missing.borrow_mut().insert(id.to_owned());
        }
        name
    }

    /// Returns the text for a mentioned account. `label` is the name that the payload has.
    pub fn mention(&self, id: &str, label: Option<&str>) -> String {
        let label = label.map(|label| label.trim_start_matches('@').to_owned());
        let name = label.filter(|label| !label.is_empty()).or_else(|| self.name(id));
        let name = name.unwrap_or_else(|| id.to_owned());
        self.add_mention(&name);
        format!("@{name}")
    }

    /// Returns the text for a mentioned chat.
    pub fn chat(&self, id: &str, label: Option<&str>) -> String {
        let label = label.map(str::to_owned).filter(|label| !label.is_empty());
        format!("#{}", label.or_else(|| self.name(id)).unwrap_or_else(|| id.to_owned()))
    }

    /// Returns the text for a mention of many accounts, such as `@here`.
    pub fn broadcast(&self, range: &str) -> String {
        self.add_mention(range);
        format!("@{range}")
    }

    fn add_mention(&self, name: &str) {
        let mut mentions = self.mentions.borrow_mut();
        if !mentions.iter().any(|known| known == name) {
            mentions.push(name.to_owned());
        }
    }

    pub fn take_mentions(&self) -> Vec<String> {
        self.mentions.take()
    }

    /// Returns the ids without a name.
    pub fn take_missing(&self) -> BTreeSet<String> {
        self.missing.take()
    }
}

/// Replaces Slack's three escapes.
pub(super) fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
