//! Formats figures: numbers with commas, rows of Markdown tables, the machine.

use std::thread::available_parallelism;

/// A whole number with thousands separators.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn line(first: &str, rest: &[String]) -> String {
    format!("| {first} | {} |\n", rest.join(" | "))
}

/// The header row and the separator row of a table.
pub fn head(corner: &str, names: &[String]) -> String {
    line(corner, names) + "|---" + &"|--:".repeat(names.len()) + "|\n"
}

/// Number of cores and kernel version.
pub fn machine() -> String {
    let cores = available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, Linux {}", kernel.trim())
}
