//! Test helper: compares the state machines with the tables in `docs/states.md`.
//!
//! The test of each machine tries every step from every state and compares the result with
//! its table. `UPDATE_DOCS=1 cargo test -p monoco-core` rewrites the tables, so that a
//! changed machine is a changed table in review.

use std::fmt::Debug;
use std::sync::Mutex;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/states.md");

/// Tests of several machines run in parallel on the same file.
static FILE: Mutex<()> = Mutex::new(());

pub(crate) struct StateTable {
    machine: &'static str,
    text: String,
}

impl StateTable {
    pub(crate) fn new(machine: &'static str) -> Self {
        Self { machine, text: String::new() }
    }

    /// Adds the result of `step` from the state `from`.
    pub(crate) fn row(&mut self, from: &str, step: &str, end: Result<&str, impl Debug>) {
        let end = end.unwrap_or("-");
        self.text.push_str(&format!("{from:<10}  {step:<18}  {end}\n"));
    }

    /// Panics when the table in `docs/states.md` differs.
    pub(crate) fn check(self) {
        let _lock = FILE.lock().unwrap();
        let doc = std::fs::read_to_string(PATH).unwrap();
        let start = format!("<!-- {} -->\n```text\n", self.machine);
        let from = doc.find(&start).expect("docs/states.md has a table for each machine");
        let from = from + start.len();
        let to = from + doc[from..].find("```").expect("the table is fenced");
        if doc[from..to] == self.text {
            return;
        }
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let updated = format!("{}{}{}", &doc[..from], self.text, &doc[to..]);
            std::fs::write(PATH, updated).unwrap();
            return;
        }
        panic!(
            "docs/states.md is stale for {}; UPDATE_DOCS=1 writes it anew. The machine does:\n{}",
            self.machine, self.text
        );
    }
}
