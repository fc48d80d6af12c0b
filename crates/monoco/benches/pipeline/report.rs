//! The tables, in Markdown, ready for the documentation.

use std::fmt;

use crate::common::figures::{head, line, machine};
use crate::letters::{RECIPIENTS, SIZE, SMALL};
use crate::plan::{PRODUCERS, Plan};

/// What was measured, table by table.
pub struct Report {
    text: String,
}

impl Report {
    /// An empty one.
    pub fn new(plan: &Plan, beanstalkd: &str) -> Self {
        let text = format!(
            "{}; Monoco {}, {beanstalkd}; mails of {SIZE} B to {RECIPIENTS} recipients, those \
             that wait {SMALL} B; {} s per rate after {} s of warm-up, median of {}.\n",
            machine(),
            env!("CARGO_PKG_VERSION"),
            plan.measure.as_secs_f64(),
            plan.warm_up.as_secs_f64(),
            plan.repeats,
        );
        Self { text }
    }

    /// Begins a table.
    pub fn heading(&mut self, text: &str, columns: &[String]) {
        let mut names = vec!["wanted".to_owned()];
        names.extend_from_slice(columns);
        self.text += "\n";
        self.text += &head(text, &names);
    }

    /// Adds a row: what it is, the goal, and the figures.
    pub fn row(&mut self, what: &str, wanted: &str, figures: impl Iterator<Item = String>) {
        let wanted = if wanted.is_empty() { "–" } else { wanted };
        let cells: Vec<_> = std::iter::once(wanted.to_owned()).chain(figures).collect();
        eprintln!("{what}: {}", cells.join(", "));
        self.text += &line(what, &cells);
    }

    /// The columns of a table of rates.
    pub fn producers(&self) -> Vec<String> {
        let name = |count| if count == 1 { "producer" } else { "producers" };
        PRODUCERS.iter().map(|count| format!("{count} {}", name(*count))).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One figure divided by another.
pub fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// Seconds as milliseconds.
pub fn ms(seconds: f64) -> String {
    format!("{:.1}", seconds * 1000.0)
}

/// Bytes as MiB.
pub fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}
