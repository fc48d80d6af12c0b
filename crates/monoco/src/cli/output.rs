//! Prints the output of commands: data on stdout in the selected format, messages on stderr.
//!
//! Untrusted text passes [`escape_line`], [`escape_lines`] or [`json`] before it is printed,
//! so that it cannot control the terminal or change the direction of the text.

use std::ffi::OsString;
use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table};
pub use monoco_core::unsafe_text::escape_line;
use monoco_core::unsafe_text::is_unsafe;
use serde_json::Value;

use super::failure::CliError;

/// Format of the data on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// Aligned columns with a header
    #[default]
    Table,
    /// JSON with all fields
    Json,
    /// One line per entry, columns separated by tabs
    Compact,
    /// Only the ids, one per line
    Id,
}

/// Prints a list. `columns` are names and the paths of their values; the first column is
/// the id.
pub fn list(
    format: OutputFormat,
    answer: &Value,
    key: &str,
    columns: &[(&str, &str)],
) -> Result<(), CliError> {
    let none = Vec::new();
    let rows = answer.get(key).and_then(Value::as_array).unwrap_or(&none);
    match format {
        OutputFormat::Json => return print(&json(answer)),
        OutputFormat::Table if rows.is_empty() => return Ok(()),
        OutputFormat::Table => {
            let mut table = Table::new();
            table.load_style(comfy_table::presets::NOTHING);
            table.set_content_arrangement(ContentArrangement::Disabled);
            table.set_header(columns.iter().map(|(name, _)| name.to_uppercase()));
            for row in rows {
                table.add_row(columns.iter().map(|(name, path)| cell(name, at(row, path))));
            }
            for column in table.column_iter_mut() {
                column.set_padding((0, 1));
            }
            print(&table.trim_fmt())?;
        }
        OutputFormat::Compact => {
            for row in rows {
                let cells: Vec<_> =
                    columns.iter().map(|(name, path)| cell(name, at(row, path))).collect();
                print(&cells.join("\t"))?;
            }
        }
        OutputFormat::Id => {
            for row in rows {
                let (name, path) = columns.first().copied().unwrap_or_default();
                print(&cell(name, at(row, path)))?;
            }
        }
    }
    if let Some(cursor) = answer.get("next_cursor").and_then(Value::as_str) {
        note(&format!("more entries: --cursor {}", escape_line(cursor)));
    }
    Ok(())
}

/// Prints one object as names and values; `id` is the path of its id.
pub fn one(
    format: OutputFormat,
    object: &Value,
    id: &str,
    fields: &[(&str, &str)],
) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => print(&json(object)),
        OutputFormat::Id => print(&cell("", at(object, id))),
        OutputFormat::Compact => {
            let cells: Vec<_> =
                fields.iter().map(|(name, path)| cell(name, at(object, path))).collect();
            print(&cells.join("\t"))
        }
        OutputFormat::Table => {
            let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, path) in fields {
                let value = at(object, path);
                if !value.is_null() {
                    print(&format!("{name:width$}  {}", cell(name, value)))?;
                }
            }
            Ok(())
        }
    }
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, key| value.get(key).unwrap_or(&Value::Null))
}

/// Formats a value as a table cell. Times are shown in the local time zone.
fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if is_time(name) => local_time(text),
        Value::String(text) => escape_line(text),
        Value::Number(number) if is_time(name) => time(number.as_i64()),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| cell(name, item)).collect();
            items.join(", ")
        }
        other => escape_line(&other.to_string()),
    }
}

fn is_time(name: &str) -> bool {
    matches!(name, "at" | "created" | "updated" | "due" | "until" | "started" | "next try")
}

/// An RFC 3339 time in the local time zone. Other text is returned as it is.
fn local_time(text: &str) -> String {
    match monoco_core::time::Timestamp::from_rfc3339(text) {
        Ok(at) => time(Some(at.ms())),
        Err(_) => escape_line(text),
    }
}

fn time(ms: Option<i64>) -> String {
    let at = ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(String::new, |at| {
        at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
    })
}

/// Escapes unsafe characters of several lines; line breaks stay.
pub fn escape_lines(text: &str) -> String {
    text.lines().map(escape_line).collect::<Vec<_>>().join("\n")
}

/// Formats JSON on several lines, with unsafe characters as JSON escapes.
pub fn json(value: &Value) -> String {
    escape_json(&format!("{value:#}"))
}

/// Formats JSON on one line, with unsafe characters as JSON escapes.
pub fn json_line(value: &Value) -> String {
    escape_json(&value.to_string())
}

/// Replaces unsafe characters by JSON escapes. They occur only inside JSON strings.
fn escape_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && is_unsafe(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Prints a line of data to stdout. Exits with 0 when the reader has closed the pipe.
pub fn print(line: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// Prints a message for the user to stderr. A write error is ignored.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints a usage error. The error repeats the arguments, which can contain untrusted text.
pub fn print_usage_error(error: &clap::Error) {
    let has_unsafe = |arg: OsString| arg.to_string_lossy().chars().any(is_unsafe);
    if std::env::args_os().any(has_unsafe) {
        note(escape_lines(&error.render().to_string()).trim_end());
    } else {
        let _ = error.print();
    }
}

/// Prints an error and its hint to stderr.
pub fn print_error(failure: &CliError) {
    let mut stderr = anstream::stderr().lock();
    let message = escape_lines(&failure.message);
    let _ = writeln!(stderr, "\u{1b}[1;31merror:\u{1b}[0m {message}");
    if let Some(hint) = &failure.hint {
        let _ = writeln!(stderr, "\u{1b}[1m hint:\u{1b}[0m {}", escape_lines(hint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "a\u{1b}[31m\u{7}\u{9b}2J\u{202e}x\u{2028}\u{0}\r\n\u{feff}\u{e0041}é漢🙂";

    #[test]
    fn unsafe_characters_are_escaped_in_lines() {
        assert_eq!(
            escape_line(HOSTILE),
            "a\\u{1b}[31m\\u{7}\\u{9b}2J\\u{202e}x\\u{2028}\\u{0}\\r\\n\\u{feff}\\u{e0041}é漢🙂"
        );
        assert_eq!(escape_lines("a\nb\u{1b}\n"), "a\nb\\u{1b}");
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE] });
        for text in [json(&value), json_line(&value)] {
            assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
