//! How many entries there are, by box and state.
//!
//! Counted with every commit: counting a million rows takes half a second and
//! whatever memory the sorting takes, at every start.

use std::borrow::Cow;
use std::collections::BTreeMap;

use monoco_core::delivery::SendState;
use monoco_core::letter::LetterState;
use monoco_core::record::{BoxKind, ReadState};
use rusqlite::{Connection, params};

use super::open::fault;
use crate::{LetterCounts, StoreCounts, StoreError};

const COUNT: &str = "
    INSERT INTO counts (box, state, entries)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (box, state) DO UPDATE SET entries = entries + excluded.entries
";

/// How the counts change.
#[derive(Debug, Default)]
pub(super) struct RowCounts(BTreeMap<(&'static str, Cow<'static, str>), i64>);

/// Letters by state. Not a box, but counted like one.
const LETTERS: &str = "LETTER";

/// Letters under way by desk, those apart that are kept.
const DESKS: &str = "DESK";

/// Those of them that are away.
const AWAY: &str = "AWAY";

/// Letters that are kept, by who keeps them.
const KEPT: &str = "KEPT";

/// Where a letter counts.
pub(super) struct LetterCountKey<'a> {
    pub(super) state: LetterState,
    pub(super) desk: &'a str,
    pub(super) kept_by: Option<&'a str>,
}

impl RowCounts {
    pub(super) fn record(&mut self, box_kind: BoxKind, state: ReadState, by: i64) {
        *self.0.entry((box_kind.as_str(), state.as_str().into())).or_default() += by;
    }

    pub(super) fn delivery(&mut self, state: SendState, by: i64) {
        let outbox = BoxKind::TunnelOutbox.as_str();
        *self.0.entry((outbox, state.as_str().into())).or_default() += by;
    }

    pub(super) fn letter(&mut self, place: &LetterCountKey<'_>, by: i64) {
        *self.0.entry((LETTERS, place.state.as_str().into())).or_default() += by;
        if !matches!(place.state, LetterState::Waiting | LetterState::Away) {
            return;
        }
        let (what, name) = match place.kept_by {
            Some(worker) => (KEPT, worker),
            None => (DESKS, place.desk),
        };
        *self.0.entry((what, name.to_owned().into())).or_default() += by;
        if place.state == LetterState::Away {
            *self.0.entry((AWAY, place.desk.to_owned().into())).or_default() += by;
        }
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
pub(super) fn figures(db: &Connection) -> Result<StoreCounts, StoreError> {
    let mut figures = StoreCounts::default();
    let sql = "
        SELECT box, state, entries
          FROM counts
         WHERE entries <> 0 AND box NOT IN (?1, ?2, ?3, ?4)
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let mut rows = statement.query([LETTERS, DESKS, AWAY, KEPT]).map_err(fault)?;
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

/// What there is of letters, but for since when they wait.
pub(super) fn letter_figures(db: &Connection) -> Result<LetterCounts, StoreError> {
    let count = |what: &str| -> Result<Vec<(String, i64)>, StoreError> {
        let sql = "SELECT state, entries FROM counts WHERE box = ?1 AND entries <> 0";
        let mut statement = db.prepare_cached(sql).map_err(fault)?;
        let rows = statement.query_map([what], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.and_then(Iterator::collect::<rusqlite::Result<_>>).map_err(fault)
    };
    let mut states = BTreeMap::new();
    for (state, entries) in count(LETTERS)? {
        let Some(state) = LetterState::parse(&state) else {
            let detail = format!("letters have no {state}");
            return Err(StoreError::Damaged { what: "count", detail });
        };
        states.insert(state, entries);
    }
    let by_name = |what: &str| count(what).map(|counts| counts.into_iter().collect());
    let (desks, away, kept) = (by_name(DESKS)?, by_name(AWAY)?, by_name(KEPT)?);
    Ok(LetterCounts { states, waiting: desks, away, held: kept, oldest_due: None })
}
