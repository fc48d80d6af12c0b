//! Prints the output of commands: data on stdout in the selected format, messages on stderr.
//!
//! Untrusted text passes [`escape_line`], [`escape_lines`] or [`print_json`] before it is printed,
//! so that it cannot control the terminal or change the direction of the text.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use monoco_core::claim::ClaimState;
use monoco_core::mail::MailId;
use monoco_core::time::Timestamp;
pub use monoco_core::unsafe_text::escape_line;
use monoco_core::unsafe_text::is_unsafe;
use serde::Serialize;
use serde_json::Value;

use super::failure::{CliError, CliExit};
use super::table;

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

/// One column of a table: its name, and the cell of a row. `None` is an empty cell.
pub type Column<T> = (&'static str, fn(&T) -> Option<String>);

/// Values that are printed as one cell.
pub trait ToCell {
    /// Formats the value without escapes; `None` if there is none. Times are RFC 3339 in UTC;
    /// the table format shows them in the local time zone.
    fn cell(&self) -> Option<String>;
}

macro_rules! display_cells {
    ($($type:ty),*) => {$(
        impl ToCell for $type {
            fn cell(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}

display_cells!(str, String, Cow<'_, str>, MailId, bool, i32, i64, u32, u64, usize);

impl<T: ToCell> ToCell for Option<T> {
    fn cell(&self) -> Option<String> {
        self.as_ref().and_then(ToCell::cell)
    }
}

impl<T: ToCell> ToCell for Vec<T> {
    fn cell(&self) -> Option<String> {
        let cells: Vec<_> = self.iter().filter_map(ToCell::cell).collect();
        (!cells.is_empty()).then(|| cells.join(", "))
    }
}

impl ToCell for ClaimState {
    fn cell(&self) -> Option<String> {
        Some(self.as_str().to_owned())
    }
}

impl ToCell for Timestamp {
    fn cell(&self) -> Option<String> {
        Some(self.rfc3339())
    }
}

impl ToCell for Path {
    fn cell(&self) -> Option<String> {
        Some(self.display().to_string())
    }
}

impl ToCell for Value {
    fn cell(&self) -> Option<String> {
        match self {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

/// Prints rows as a table, or `answer` as JSON. The first column is the id.
pub fn list<T>(
    format: OutputFormat,
    answer: &impl Serialize,
    rows: &[T],
    columns: &[Column<T>],
) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => print_json(answer),
        OutputFormat::Table if rows.is_empty() => Ok(()),
        OutputFormat::Table => {
            let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
            let rows: Vec<_> = rows.iter().map(|row| cells(row, columns)).collect();
            table::lines(&names, &rows).iter().try_for_each(|line| print_styled(line))
        }
        OutputFormat::Compact => {
            rows.iter().try_for_each(|row| print(&cells(row, columns).join("\t")))
        }
        OutputFormat::Id => {
            let id = columns.get(..1).unwrap_or_default();
            rows.iter().try_for_each(|row| print(&cells(row, id).join("")))
        }
    }
}

/// Prints one page of a list, and how to get the next one.
pub fn page<T>(
    format: OutputFormat,
    answer: &impl Serialize,
    rows: &[T],
    columns: &[Column<T>],
    next_cursor: Option<&str>,
) -> Result<(), CliError> {
    list(format, answer, rows, columns)?;
    if let Some(cursor) = next_cursor.filter(|_| format != OutputFormat::Json) {
        let (count, cursor) = (rows.len(), escape_line(cursor));
        note(&format!("showing {count} entries, there are more: use --limit or --cursor {cursor}"));
    }
    Ok(())
}

/// Prints one object as names and values, without those that have no value.
pub fn one<T: Serialize>(
    format: OutputFormat,
    object: &T,
    id: &str,
    fields: &[Column<T>],
) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => print_json(object),
        OutputFormat::Id => print(&escape_line(id)),
        OutputFormat::Compact => print(&cells(object, fields).join("\t")),
        OutputFormat::Table => print_fields(object, fields),
    }
}

/// Prints one entry of a stream: a line with its values, or JSON on one line. The first column
/// is the id.
pub fn stream_entry<T: Serialize>(
    format: OutputFormat,
    entry: &T,
    columns: &[Column<T>],
) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => print_json_line(entry),
        OutputFormat::Table => print(&table::line(&cells(entry, columns))),
        OutputFormat::Compact | OutputFormat::Id => {
            list(format, &(), std::slice::from_ref(entry), columns)
        }
    }
}

/// Prints names and values, without those that have no value.
pub fn print_fields<T>(object: &T, fields: &[Column<T>]) -> Result<(), CliError> {
    let values: Vec<_> = fields.iter().map(|(name, value)| (*name, value(object))).collect();
    print_values(&values)
}

/// Prints names and values, without those that have no value.
pub fn print_values(values: &[(&str, Option<String>)]) -> Result<(), CliError> {
    let width = values.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in values {
        if let Some(value) = value {
            print(&format!("{name:width$}  {}", escape_line(&table::local_time(value))))?;
        }
    }
    Ok(())
}

fn cells<T>(row: &T, columns: &[Column<T>]) -> Vec<String> {
    let cell = |(_, value): &Column<T>| escape_line(&value(row).unwrap_or_default());
    columns.iter().map(cell).collect()
}

/// Escapes unsafe characters of several lines; line breaks stay.
pub fn escape_lines(text: &str) -> String {
    text.lines().map(escape_line).collect::<Vec<_>>().join("\n")
}

/// Prints JSON on several lines, with unsafe characters as JSON escapes.
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    print(&escape_json(&format!("{:#}", to_value(value)?)))
}

/// Prints JSON on one line, with unsafe characters as JSON escapes.
pub fn print_json_line(value: &impl Serialize) -> Result<(), CliError> {
    print(&escape_json(&to_value(value)?.to_string()))
}

fn to_value(value: &impl Serialize) -> Result<Value, CliError> {
    serde_json::to_value(value).map_err(|error| {
        CliError::new(CliExit::NotPossible, format!("cannot format the output: {error}"))
    })
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
    write_line(io::stdout().lock(), line)
}

/// Writes bytes to stdout, unless it is a terminal, which could interpret them.
pub fn print_bytes(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() {
        let message = "bytes are not printed to a terminal";
        return Err(CliError::new(CliExit::NotPossible, message).hint("redirect them to a file"));
    }
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Prints a line with colours, which are removed unless stdout is a terminal. NO_COLOR and
/// CLICOLOR_FORCE change that.
fn print_styled(line: &str) -> Result<(), CliError> {
    write_line(anstream::stdout().lock(), line)
}

fn write_line(mut out: impl Write, line: &str) -> Result<(), CliError> {
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// Reports a change that has no object to show: a message on stderr, or `answer` as JSON.
pub fn done(format: OutputFormat, message: &str, answer: &Value) -> Result<(), CliError> {
    if format == OutputFormat::Json {
        return print_json(answer);
    }
    note(message);
    Ok(())
}

/// Prints a message for the user to stderr. A write error is ignored.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints a usage error. The error repeats the arguments, which can contain untrusted text.
pub fn print_usage_error(error: &clap::Error, json: bool) {
    if json {
        let text = error.render().to_string();
        let (message, hint) = text.trim_end().split_once("\n\n").unwrap_or((text.trim_end(), ""));
        let failure = CliError::usage(message.trim_start_matches("error: ")).hint(hint);
        return print_error(OutputFormat::Json, &failure);
    }
    let has_unsafe = |arg: OsString| arg.to_string_lossy().chars().any(is_unsafe);
    if std::env::args_os().any(has_unsafe) {
        note(escape_lines(&error.render().to_string()).trim_end());
    } else {
        let _ = error.print();
    }
}

/// Prints an error and its hint to stderr, as JSON on one line if JSON was requested.
pub fn print_error(format: OutputFormat, failure: &CliError) {
    if format == OutputFormat::Json {
        let CliError { code, message, hint, .. } = failure;
        let error = serde_json::json!({"code": code, "message": message, "hint": hint});
        return note(&escape_json(&error.to_string()));
    }
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
        for text in [format!("{value:#}"), value.to_string()].map(|text| escape_json(&text)) {
            assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
