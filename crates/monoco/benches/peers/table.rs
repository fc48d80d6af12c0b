//! The tables, as Markdown for `docs/benchmarks.md`.

use crate::common::figures::{head, line, thousands};
use crate::common::resources::IdleCost;
use crate::contender::Cell;

/// Rates by contender and cell.
pub struct Table {
    cells: Vec<Cell>,
    rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Table {
    pub fn new(cells: &[Cell]) -> Self {
        Self { cells: cells.to_vec(), rows: Vec::new() }
    }

    /// Sets a rate. The first rate of a contender adds its row.
    pub fn set(&mut self, name: &str, cell: &Cell, rate: Option<f64>) {
        let Some(column) = self.cells.iter().position(|have| have == cell) else { return };
        let row = match self.rows.iter().position(|(have, _)| have == name) {
            Some(row) => row,
            None => {
                self.rows.push((name.to_owned(), vec![None; self.cells.len()]));
                self.rows.len() - 1
            }
        };
        self.rows[row].1[column] = rate;
    }

    /// Table of messages per second, with the ratio of deep to small backlog.
    pub fn rates(&self) -> String {
        let mut text = self.head("messages/s", "deep ÷ small backlog");
        for (name, rates) in &self.rows {
            let mut row: Vec<String> = rates.iter().map(|rate| or_dash(*rate, thousands)).collect();
            row.push(or_dash(self.depth(rates), times));
            text += &line(name, &row);
        }
        text
    }

    /// Every row divided by each yardstick that was measured.
    pub fn ratios(&self, yardsticks: &[&str]) -> String {
        let mut text = String::new();
        for yardstick in yardsticks {
            let Some((_, by)) = self.rows.iter().find(|(name, _)| name == yardstick) else {
                continue;
            };
            for (name, rates) in self.rows.iter().filter(|(name, _)| name != yardstick) {
                let row: Vec<String> = rates
                    .iter()
                    .zip(by)
                    .map(|(rate, by)| or_dash(rate.zip(*by).map(|(rate, by)| rate / by), times))
                    .collect();
                text += &line(&format!("{name} ÷ {yardstick}"), &row);
            }
        }
        if text.is_empty() { text } else { self.head("ratio", "") + &text }
    }

    fn head(&self, corner: &str, last: &str) -> String {
        let mut names: Vec<String> = self.cells.iter().map(Cell::to_string).collect();
        if !last.is_empty() {
            names.push(last.to_owned());
        }
        head(corner, &names)
    }

    /// Rate with the deep backlog divided by the rate with the small one.
    fn depth(&self, rates: &[Option<f64>]) -> Option<f64> {
        let mut takes = self
            .cells
            .iter()
            .zip(rates)
            .filter(|(cell, _)| matches!(cell, Cell::TakeFinish { .. }))
            .map(|(_, rate)| *rate);
        let (small, deep) = (takes.next()??, takes.next()??);
        Some(deep / small)
    }
}

/// Table of the resources of idle servers.
pub fn idle_cost(rows: &[(&str, IdleCost)]) -> String {
    let mut text = String::from(
        "| empty and idle | memory, MiB | of it not from files, MiB | CPU, ms per s | one command, ms |\n\
         |---|--:|--:|--:|--:|\n",
    );
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for (name, rest) in rows {
        let figures = [
            mib(rest.resident_bytes),
            mib(rest.anonymous_bytes),
            format!("{:.1}", rest.cpu_share * 1000.0),
            format!("{:.1}", rest.command.as_secs_f64() * 1000.0),
        ];
        text += &line(name, &figures);
    }
    text
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2}")
}

fn or_dash(figure: Option<f64>, show: fn(f64) -> String) -> String {
    figure.map_or_else(|| "–".to_owned(), show)
}
