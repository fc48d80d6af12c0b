//! The tables, as Markdown for `docs/benchmarks.md`.

use std::fmt;

use crate::common::Result;
use crate::common::figures::{head, line, machine, thousands};
use crate::common::server::version;
use crate::peers::PEERS;
use crate::plan::Plan;

/// The measured figures as text.
pub struct Report {
    text: String,
}

impl Report {
    pub fn new(plan: &Plan) -> Result<Self> {
        let mut programs = format!("Dovecot {}", version("dovecot", "--version")?);
        for peer in &PEERS {
            programs += ", ";
            programs += &peer.version()?;
        }
        let text = format!(
            "{}; Monoco {}, {programs}; medians of {} first fetches and of {} polls.\n",
            machine(),
            env!("CARGO_PKG_VERSION"),
            plan.repeats,
            plan.polls,
        );
        Ok(Self { text })
    }

    /// Begins the table of all contenders.
    pub fn contenders(&mut self, title: &str, peers: &[&str]) {
        let mut columns = vec!["target", "monoco, store", "monoco, Mail files"];
        columns.extend(peers);
        self.heading(title, &columns);
    }

    pub fn heading(&mut self, title: &str, columns: &[&str]) {
        let names: Vec<_> = columns.iter().map(|name| (*name).to_owned()).collect();
        self.text += "\n";
        self.text += &head(title, &names);
    }

    /// Adds a row: name, target and figures.
    pub fn row(&mut self, what: &str, target: &str, figures: impl Iterator<Item = String>) {
        let target = if target.is_empty() { "–" } else { target };
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

pub fn rate(mails: usize, seconds: f64) -> String {
    per_second(mails as f64 / seconds)
}

pub fn per_second(rate: f64) -> String {
    measured(rate, thousands(rate))
}

pub fn ratio(ratio: f64) -> String {
    measured(ratio, format!("{ratio:.2}"))
}

pub fn ms(seconds: f64) -> String {
    measured(seconds, format!("{:.1}", seconds * 1000.0))
}

pub fn seconds(seconds: f64) -> String {
    format!("{seconds:.2}")
}

/// Whole mebibytes; nothing when the memory was not measured.
pub fn mib(bytes: u64) -> String {
    match bytes {
        0 => "–".to_owned(),
        bytes => format!("{:.0}", bytes as f64 / f64::from(1 << 20)),
    }
}

fn measured(figure: f64, text: String) -> String {
    if figure.is_nan() { "–".to_owned() } else { text }
}
