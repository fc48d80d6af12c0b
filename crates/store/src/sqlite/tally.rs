//! How many entries there are, by box and state.
//!
//! Counted with every commit: counting a million rows takes half a second and
//! whatever memory the sorting takes, at every start.

use std::collections::BTreeMap;

use monoco_core::delivery::SendState;
use monoco_core::record::{BoxKind, ReadState};
use rusqlite::{Connection, params};

use super::open::fault;
use crate::{Figures, StoreError};

const COUNT: &str = "
    INSERT INTO counts (box, state, entries)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (box, state) DO UPDATE SET entries = entries + excluded.entries
";

/// How the counts change.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<(&'static str, &'static str), i64>);

impl Tally {
    pub(super) fn record(&mut self, box_kind: BoxKind, state: ReadState, by: i64) {
        *self.0.entry((box_kind.as_str(), state.as_str())).or_default() += by;
    }

    pub(super) fn delivery(&mut self, state: SendState, by: i64) {
        *self.0.entry((BoxKind::TunnelOutbox.as_str(), state.as_str())).or_default() += by;
    }

    pub(super) fn add(&mut self, other: Self) {
        for (key, by) in other.0 {
            *self.0.entry(key).or_default() += by;
        }
    }

    /// Writes the change down.
    pub(super) fn save(&self, db: &Connection) -> Result<(), StoreError> {
        for ((box_kind, state), by) in self.0.iter().filter(|(_, by)| **by != 0) {
            db.prepare_cached(COUNT)
                .and_then(|mut s| s.execute(params![box_kind, state, by]))
                .map_err(fault)?;
        }
        Ok(())
    }
}

/// What there is.
pub(super) fn figures(db: &Connection) -> Result<Figures, StoreError> {
    let mut figures = Figures::default();
    let sql = "SELECT box, state, entries FROM counts WHERE entries <> 0";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let mut rows = statement.query([]).map_err(fault)?;
    while let Some(row) = rows.next().map_err(fault)? {
        let (box_kind, state): (String, String) =
            (row.get(0).map_err(fault)?, row.get(1).map_err(fault)?);
        let entries = row.get(2).map_err(fault)?;
        match (BoxKind::parse(&box_kind), ReadState::parse(&state), SendState::parse(&state)) {
            (Some(BoxKind::TunnelOutbox), _, Some(state)) => {
                figures.deliveries.insert(state, entries);
            }
            (Some(box_kind), Some(state), _) => {
                figures.records.insert((box_kind, state), entries);
            }
            _ => {
                let detail = format!("{box_kind} has no {state}");
                return Err(StoreError::Damaged { what: "count", detail });
            }
        }
    }
    Ok(figures)
}
