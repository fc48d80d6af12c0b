//! Writes blocks of Markdown and of text: code with a language, and tables.

use super::write::{end_line, push_code_block};

/// Appends a block of code in a language, which may be empty and has no spaces and backticks.
pub fn push_code_block_of(out: &mut String, language: &str, code: &str) {
    let mut block = String::new();
    push_code_block(&mut block, code);
    if let Some(fence_end) = block.find('\n') {
        block.insert_str(fence_end, language);
    }
    end_line(out);
    out.push_str(&block);
}

/// Returns a table with aligned columns, for a font in which all characters are equally wide.
pub fn aligned_table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for (at, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        out.push_str(cells.collect::<Vec<_>>().join(" | ").trim_end());
        out.push('\n');
        if at == 0 {
            let lines: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
            out.push_str(&lines.join("-|-"));
            out.push('\n');
        }
    }
    out
}
