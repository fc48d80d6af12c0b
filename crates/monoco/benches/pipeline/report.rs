//! The tables, as Markdown for `docs/benchmarks.md`.

use std::fmt;

use crate::common::drive::median;
use crate::common::figures::{head, line, machine};
use crate::letters::{RECIPIENTS, SIZE, SMALL};
use crate::plan::{PRODUCERS, Plan};

/// The measured figures as text.
pub struct Report {
    text: String,
}

impl Report {
    pub fn new(plan: &Plan, beanstalkd: &str) -> Self {
        let text = format!(
            "{}; Monoco {}, {beanstalkd}; mails of {SIZE} B to {RECIPIENTS} recipients, waiting \
             mails {SMALL} B; {} s per rate after {} s of warm-up, medians of {} rounds.\n",
            machine(),
            env!("CARGO_PKG_VERSION"),
            plan.measure.as_secs_f64(),
            plan.warm_up.as_secs_f64(),
            plan.repeats,
        );
        Self { text }
    }

    pub fn heading(&mut self, text: &str, columns: &[String]) {
        let mut names = vec!["target".to_owned()];
        names.extend_from_slice(columns);
        self.text += "\n";
        self.text += &head(text, &names);
    }

    /// Adds a row: name, target and figures.
    pub fn row(&mut self, what: &str, target: &str, figures: impl Iterator<Item = String>) {
        let target = if target.is_empty() { "–" } else { target };
        let cells: Vec<_> = std::iter::once(target.to_owned()).chain(figures).collect();
        eprintln!("{what}: {}", cells.join(", "));
        self.text += &line(what, &cells);
    }

    /// Column names of a table of rates.
    pub fn producers(&self) -> Vec<String> {
        let name = |count| if count == 1 { "producer" } else { "producers" };
        PRODUCERS.iter().map(|count| format!("{count} {}", name(*count))).collect()
    }
}

/// Rates of `N` contenders that run in turns. A slow phase of the machine affects a whole
/// round, so ratios are computed per round.
pub struct Rounds<const N: usize>(Vec<[f64; N]>);

impl<const N: usize> Default for Rounds<N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<const N: usize> Rounds<N> {
    pub fn add(&mut self, rates: [f64; N]) {
        self.0.push(rates);
    }

    /// Median rate of one contender.
    pub fn rate(&self, of: usize) -> f64 {
        self.median_of(|rates| rates[of])
    }

    /// Median of the rate of `of` divided by the rate of `by`.
    pub fn ratio(&self, of: usize, by: usize) -> f64 {
        self.median_of(|rates| rates[of] / rates[by])
    }

    fn median_of(&self, figure: impl Fn(&[f64; N]) -> f64) -> f64 {
        median(self.0.iter().map(figure).collect()).unwrap_or_default()
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

pub fn ms(seconds: f64) -> String {
    format!("{:.1}", seconds * 1000.0)
}

pub fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}
