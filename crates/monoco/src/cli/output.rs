//! What commands print: data on stdout, in the form that was asked for.
//!
//! What strangers wrote is data. It passes [`display_name`] or [`json`] before it reaches
//! a terminal, so that it can't move the cursor, ring the bell, change the colours
//! or turn the text around.

use std::ffi::OsString;
use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table};
use serde_json::Value;

use super::failure::CliError;

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// Columns, for people
    #[default]
    Table,
    /// JSON, for programs
    Json,
    /// One line for each, with tabs between
    Compact,
    /// Only the ids, one on each line
    Id,
}

/// Prints a list. `columns` are names and the paths of their values; the first one
/// is the id.
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
        note(&format!("more: --cursor {}", shown(cursor)));
    }
    Ok(())
}

/// Prints one thing as names and values; `id` is the path of its id.
pub fn one(
    format: OutputFormat,
    thing: &Value,
    id: &str,
    fields: &[(&str, &str)],
) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => print(&json(thing)),
        OutputFormat::Id => print(&cell("", at(thing, id))),
        OutputFormat::Compact => {
            let cells: Vec<_> =
                fields.iter().map(|(name, path)| cell(name, at(thing, path))).collect();
            print(&cells.join("\t"))
        }
        OutputFormat::Table => {
            let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, path) in fields {
                let value = at(thing, path);
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

/// A value as a cell. Times are shown as people read them.
fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if is_time(name) => local_time(text),
        Value::String(text) => shown(text),
        Value::Number(number) if is_time(name) => time(number.as_i64()),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| cell(name, item)).collect();
            items.join(", ")
        }
        other => shown(&other.to_string()),
    }
}

fn is_time(name: &str) -> bool {
    matches!(name, "at" | "created" | "updated" | "due" | "until" | "started" | "next try")
}

/// An RFC 3339 time in the local time zone. Other text is returned as it is.
fn local_time(text: &str) -> String {
    match monoco_core::time::Timestamp::from_rfc3339(text) {
        Ok(at) => time(Some(at.ms())),
        Err(_) => shown(text),
    }
}

fn time(ms: Option<i64>) -> String {
    let at = ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(String::new, |at| {
        at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
    })
}

/// Text of strangers, made harmless for a line on a terminal.
pub fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_harmful(c) => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Text of strangers over several lines: its own line breaks stay.
pub fn shown_lines(text: &str) -> String {
    text.lines().map(shown).collect::<Vec<_>>().join("\n")
}

/// JSON that is harmless on a terminal and still means the same.
pub fn json(value: &Value) -> String {
    escape_json(&format!("{value:#}"))
}

/// JSON on one line, harmless on a terminal.
pub fn json_line(value: &Value) -> String {
    escape_json(&value.to_string())
}

/// Such characters only stand inside strings, where JSON has an escape for them.
fn escape_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && is_harmful(c) {
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

/// Whether a terminal would do something else than show it.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Marks, embeddings, overrides and isolates that turn text around.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Separators that break lines for some programs and not for others.
            | '\u{2028}' | '\u{2029}'
            // Invisible characters that make two words look the same.
            | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{180e}' | '\u{ad}'
            // Tags: a whole hidden alphabet.
            | '\u{e0000}'..='\u{e007f}')
}

/// Prints a line of data.
pub fn print(line: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    match written {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// Says something to the person at the terminal.
pub fn note(line: &str) {
    // If nobody can hear it, it need not be said.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Reports that the command line was not understood. It repeats what was typed, or what a
/// script took from elsewhere and passed on.
pub fn misunderstood(error: &clap::Error) {
    let harmful = |arg: OsString| arg.to_string_lossy().chars().any(is_harmful);
    if std::env::args_os().any(harmful) {
        note(shown_lines(&error.render().to_string()).trim_end());
    } else {
        let _ = error.print();
    }
}

/// Reports a failure.
pub fn fail(failure: &CliError) {
    let mut stderr = anstream::stderr().lock();
    let message = shown_lines(&failure.message);
    let _ = writeln!(stderr, "\u{1b}[1;31merror:\u{1b}[0m {message}");
    if let Some(hint) = &failure.hint {
        let _ = writeln!(stderr, "\u{1b}[1m hint:\u{1b}[0m {}", shown_lines(hint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "a\u{1b}[31m\u{7}\u{9b}2J\u{202e}x\u{2028}\u{0}\r\n\u{feff}\u{e0041}é漢🙂";

    #[test]
    fn hostile_text_is_shown_and_does_nothing() {
        assert_eq!(
            shown(HOSTILE),
            "a\\u{1b}[31m\\u{7}\\u{9b}2J\\u{202e}x\\u{2028}\\u{0}\\r\\n\\u{feff}\\u{e0041}é漢🙂"
        );
        assert_eq!(shown_lines("a\nb\u{1b}\n"), "a\nb\\u{1b}");
    }

    #[test]
    fn harmless_json_means_the_same() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE] });
        for text in [json(&value), json_line(&value)] {
            assert!(!text.chars().any(|c| c != '\n' && is_harmful(c)), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
