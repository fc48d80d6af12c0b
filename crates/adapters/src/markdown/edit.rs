//! Changes parts of a Markdown text, and leaves the rest as its author wrote it.

use std::ops::Range;

/// Returns the text with each range replaced. Ranges are in the order of a parser; one inside of a
/// replaced one is skipped.
pub fn replace_ranges(markdown: &str, edits: Vec<(Range<usize>, String)>) -> String {
    let mut out = String::with_capacity(markdown.len() + 64);
    let mut end = 0;
    for (range, replacement) in edits {
        if range.start < end {
            continue;
        }
        out.push_str(&markdown[end..range.start]);
        out.push_str(&replacement);
        end = range.end;
    }
    out.push_str(&markdown[end..]);
    out
}

/// Returns a table as a block of code, for providers that show its lines as one.
pub fn table_as_code(table: &str) -> String {
    let lines = table.trim_end_matches('\n');
    let longest = lines.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let after = if table.ends_with('\n') { "\n" } else { "" };
    format!("{fence}\n{lines}\n{fence}{after}")
}
