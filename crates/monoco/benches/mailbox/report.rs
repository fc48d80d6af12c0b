//! The tables, as Markdown for `docs/benchmarks.md`.

use std::fmt;

use crate::common::figures::{head, line, machine, thousands};
use crate::plan::Plan;

/// The measured figures, by table and row.
pub struct Report {
    conditions: String,
    sections: Vec<(String, Vec<Row>)>,
}

struct Row {
    what: String,
    target: String,
    figures: [String; 2],
    ratio: String,
}

impl Report {
    pub fn new(plan: &Plan, python: &str) -> Self {
        let conditions = format!(
            "{}; Monoco {}, {python}; messages of about 300 characters. Syncs and claims of Monoco are \
             medians of {}, commands that find nothing new medians of 20; the stream of webhooks \
             and the predecessor are measured once.",
            machine(),
            env!("CARGO_PKG_VERSION"),
            plan.repeats,
        );
        Self { conditions, sections: Vec::new() }
    }

    pub fn heading(&mut self, text: &str) {
        self.sections.push((text.to_owned(), Vec::new()));
    }

    /// Adds a row: name, target, figures of Monoco and of the predecessor, and how many times
    /// better Monoco is.
    pub fn row(&mut self, what: &str, target: &str, figures: [String; 2], ratio: &str) {
        eprintln!("{what}: {} (predecessor {}) {ratio}", figures[0], figures[1]);
        let [what, target, ratio] = [what, target, ratio].map(str::to_owned);
        if let Some((_, rows)) = self.sections.last_mut() {
            rows.push(Row { what, target, figures, ratio });
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.conditions)?;
        for (heading, rows) in &self.sections {
            let names = ["target", "monoco", "predecessor", "times better"].map(str::to_owned);
            f.write_str(&head(heading, &names))?;
            for Row { what, target, figures: [monoco_result, predecessor_result], ratio } in rows {
                let cells = [target, monoco_result, predecessor_result, ratio]
                    .map(|cell| if cell.is_empty() { "–".to_owned() } else { cell.clone() });
                f.write_str(&line(what, &cells))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

pub fn plain(number: u64) -> String {
    thousands(number as f64)
}

/// Seconds as milliseconds, with one decimal below 10.
pub fn ms(seconds: f64) -> String {
    tenths(seconds * 1000.0)
}

pub fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}

/// A rate or a ratio, with one decimal below 10.
pub fn tenths(number: f64) -> String {
    if number < 10.0 { format!("{number:.1}") } else { thousands(number) }
}

pub fn times(ratio: f64) -> String {
    if ratio < 1.0 { format!("{ratio:.2} ×") } else { format!("{} ×", tenths(ratio)) }
}
