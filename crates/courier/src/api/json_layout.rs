//! Formats the JSON of generated documents. Used by tests only.

use serde_json::Value;

/// Formats a value, with values on one line where they fit in `max_line` bytes, so that
/// differences are easy to read.
pub fn format(value: &Value, max_line: usize) -> String {
    let mut text = String::new();
    write(value, 0, max_line, &mut text);
    text.push('\n');
    text
}

fn write(value: &Value, indent: usize, max_line: usize, text: &mut String) {
    let line = value.to_string();
    let (open, close, entries): (_, _, Vec<(String, &Value)>) = match value {
        Value::Object(map) if indent + line.len() > max_line => {
            ('{', '}', map.iter().map(|(key, value)| (format!("{key:?}: "), value)).collect())
        }
        Value::Array(list) if indent + line.len() > max_line => {
            ('[', ']', list.iter().map(|value| (String::new(), value)).collect())
        }
        _ => return text.push_str(&line),
    };
    text.push(open);
    for (at, (key, value)) in entries.into_iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        text.push_str(&format!("{comma}\n{:1$}{key}", "", indent + 2));
        write(value, indent + 2, max_line, text);
    }
    text.push_str(&format!("\n{:1$}{close}", "", indent));
}
