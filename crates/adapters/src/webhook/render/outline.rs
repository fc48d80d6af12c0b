//! Renders any JSON as a readable outline: nested lists in Markdown.

use std::fmt::Write as _;

use serde_json::Value;

use super::markdown::inline;

/// Levels that are shown.
const MAX_LEVELS: usize = 5;

/// Entries of one list or object that are shown.
const MAX_ENTRIES: usize = 30;

/// Characters of one text that are shown.
const MAX_CHARS: usize = 500;

/// Returns an outline of at most `max` bytes, and whether it shows everything.
pub(super) fn outline(value: &Value, max: usize) -> (String, bool) {
    let mut outline = Outline { out: String::new(), max, complete: true };
    if is_leaf(value) {
        let text = outline.leaf(value);
        outline.out.push_str(&text);
    } else {
        outline.entries(value, 0);
    }
    (outline.out.trim_end().to_owned(), outline.complete)
}

struct Outline {
    out: String,
    max: usize,
    complete: bool,
}

impl Outline {
    fn entries(&mut self, value: &Value, level: usize) {
        let entries: Vec<(String, &Value)> = match value {
            // Empty values say nothing.
            Value::Object(entries) => entries
                .iter()
                .filter(|(_, value)| !is_empty(value))
                .map(|(key, value)| (format!("**{}**: ", inline(key, 100)), value))
                .collect(),
            Value::Array(items) => items.iter().map(|item| (String::new(), item)).collect(),
            _ => Vec::new(),
        };
        for (n, (label, value)) in entries.iter().enumerate() {
            if n == MAX_ENTRIES || self.out.len() >= self.max {
                self.complete = false;
                let more = entries.len() - n;
                let _ = writeln!(self.out, "{}- … and {more} more", "  ".repeat(level));
                return;
            }
            self.entry(label, value, level);
        }
    }

    fn entry(&mut self, label: &str, value: &Value, level: usize) {
        let indent = "  ".repeat(level);
        if is_leaf(value) {
            let text = self.leaf(value);
            let _ = writeln!(self.out, "{indent}- {label}{text}");
        } else if level + 1 == MAX_LEVELS {
            self.complete = false;
            let _ = writeln!(self.out, "{indent}- {label}…");
        } else {
            let label = if label.is_empty() { "·" } else { label.trim_end() };
            let _ = writeln!(self.out, "{indent}- {label}");
            self.entries(value, level + 1);
        }
    }

    fn leaf(&mut self, value: &Value) -> String {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.complete &= text.chars().count() <= MAX_CHARS;
        inline(&text, MAX_CHARS)
    }
}

fn is_leaf(value: &Value) -> bool {
    match value {
        Value::Object(entries) => entries.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        other => is_leaf(other) && (other.is_array() || other.is_object()),
    }
}
