//! The tables, as Markdown for `docs/benchmarks.md`.

use std::fmt;

use crate::common::Result;
use crate::common::figures::{head, line, machine, thousands};
use crate::contender::sdk_versions;
use crate::plan::Plan;

/// The measured figures as text.
pub struct Report {
    text: String,
}

impl Report {
    pub fn new(plan: &Plan) -> Result<Self> {
        let text = format!(
            "{}; Monoco {}, {}; {} frames per rate, medians of {} rounds; latencies over {} s.\n",
            machine(),
            env!("CARGO_PKG_VERSION"),
            sdk_versions()?,
            thousands(plan.frames as f64),
            plan.repeats,
            plan.latency.as_secs(),
        );
        Ok(Self { text })
    }

    pub fn heading(&mut self, text: &str, columns: &[String]) {
        let mut names = vec!["target".to_owned()];
        names.extend_from_slice(columns);
        self.text += "\n";
        self.text += &head(text, &names);
    }

    /// Adds a row: name, target and figures.
    pub fn row(&mut self, what: &str, target: &str, figures: impl Iterator<Item = String>) {
        let cells: Vec<_> = std::iter::once(target.to_owned()).chain(figures).collect();
        eprintln!("{what}: {}", cells.join(", "));
        self.text += &line(what, &cells);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

pub fn ms(milliseconds: f64) -> String {
    format!("{milliseconds:.1}")
}

pub fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}
