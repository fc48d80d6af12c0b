//! The tables, in Markdown, ready for the documentation.

use std::fmt;

use crate::common::drive::median;
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
             that wait {SMALL} B; {} s per rate after {} s of warm-up, medians of {} rounds.\n",
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

/// Rates of some contenders that took turns. A slow minute of the machine hits all of a
/// round, so they are compared round by round.
pub struct Rounds<const N: usize>(Vec<[f64; N]>);

impl<const N: usize> Default for Rounds<N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<const N: usize> Rounds<N> {
    /// Adds a round.
    pub fn add(&mut self, rates: [f64; N]) {
        self.0.push(rates);
    }

    /// The usual rate of one of them.
    pub fn rate(&self, of: usize) -> f64 {
        self.usual(|rates| rates[of])
    }

    /// How often the rate of one usually is that of another.
    pub fn ratio(&self, of: usize, by: usize) -> f64 {
        self.usual(|rates| rates[of] / rates[by])
    }

    fn usual(&self, figure: impl Fn(&[f64; N]) -> f64) -> f64 {
        median(self.0.iter().map(figure).collect()).unwrap_or_default()
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
