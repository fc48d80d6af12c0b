//! Prints the output of commands: data on stdout in the selected format, messages on stderr.
//!
//! Untrusted text passes [`escape_line`], [`escape_lines`] or [`print_json`] before it is printed,
//! so that it cannot control the terminal or change the direction of the text.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use comfy_table::{ColumnConstraint, ContentArrangement, Table};
use monoco_core::claim::ClaimState;
use monoco_core::mail::MailId;
use monoco_core::time::Timestamp;
pub use monoco_core::unsafe_text::escape_line;
use monoco_core::unsafe_text::is_unsafe;
use serde::Serialize;
use serde_json::Value;

use super::failure::{CliError, CliExit};

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
    /// Formats the value without escapes; `None` if there is none.
    fn cell(&self) -> Option<String>;

    /// Formats an RFC 3339 time in the local time zone.
    fn time(&self) -> Option<String> {
        self.cell().map(|text| local_time(&text))
    }
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
        OutputFormat::Table => print(&table(rows, columns).trim_fmt()),
        OutputFormat::Compact => {
            rows.iter().try_for_each(|row| print(&cells(row, columns).join("\t")))
        }
        OutputFormat::Id => {
            let id = columns.get(..1).unwrap_or_default();
            rows.iter().try_for_each(|row| print(&cells(row, id).join("")))
        }
    }
}

/// Prints rows as a table that fits the terminal, or 80 columns when stdout is not a
/// terminal. Cells that are too long are cut, except in the first column.
pub fn narrow_table<T>(rows: &[T], columns: &[Column<T>]) -> Result<(), CliError> {
    if rows.is_empty() {
        return Ok(());
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let width = size.map(|size| size.ws_col).filter(|width| *width > 0).unwrap_or(80);
    let mut table = table(rows, columns);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width).set_truncation_indicator("…");
    if let Some(first) = table.column_mut(0) {
        first.set_constraint(ColumnConstraint::ContentWidth);
    }
    for row in table.row_iter_mut() {
        row.max_height(1);
    }
    print(&table.trim_fmt())
}

fn table<T>(rows: &[T], columns: &[Column<T>]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|(name, _)| name.to_uppercase()));
    for row in rows {
        table.add_row(cells(row, columns));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    table
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
        note(&format!("more entries: --cursor {}", escape_line(cursor)));
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
            print(&format!("{name:width$}  {}", escape_line(value)))?;
        }
    }
    Ok(())
}

fn cells<T>(row: &T, columns: &[Column<T>]) -> Vec<String> {
    let cell = |(_, value): &Column<T>| escape_line(&value(row).unwrap_or_default());
    columns.iter().map(cell).collect()
}

/// Formats an RFC 3339 time in the local time zone. Other text is returned unchanged.
pub fn local_time(text: &str) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(at) => {
            at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        Err(_) => text.to_owned(),
    }
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
        for text in [format!("{value:#}"), value.to_string()].map(|text| escape_json(&text)) {
            assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
