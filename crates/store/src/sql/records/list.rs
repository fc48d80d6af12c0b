//! Pages of records that match a filter.

use monoco_core::did::Did;
use monoco_core::record::{BoxKind, MsgRecord, ReadState};

use super::rows::{COLUMNS, TABLES, read};
use crate::sql::contacts;
use crate::sql::damage;
use crate::sql::db::{Db, Row, ToParam, params};
use crate::sql::rows;
use crate::{Page, PageRequest, RecordFilter, StoreResult};

/// Lists a page of records that match a filter.
pub(super) fn list(
    db: &Db,
    owner: i64,
    box_kind: BoxKind,
    filter: &RecordFilter,
    page: &PageRequest,
) -> StoreResult<Page<MsgRecord>> {
    let (beyond, order) = rows::direction(page);
    let (start, limit) = (rows::start(page), page.limit.saturating_add(1));
    let (kind, states) = (box_kind.as_str(), &filter.states);
    let read = |row: &Row<'_>| read(row).map(|record| (record.seq, record));
    let group = filter.tag.as_ref().and_then(|tag| tag.strip_prefix("group:"));
    let of_box = "r.owner = ?1 AND r.box = ?2 AND r.seq";
    let (index, rows_of, condition, key): (_, _, _, Box<dyn ToParam>) =
        match (&filter.tag, group, &filter.thread_key) {
            (Some(_), Some(group), _) => {
                ("", of_box, "r.group_id = ?4", Box::new(group_id(db, group)?))
            }
            (Some(tag), None, _) => (
                "record_tags x CROSS JOIN",
                "x.owner = ?1 AND x.box = ?2 AND x.record",
                "x.tag = ?4 AND r.seq = x.record",
                Box::new(tag.clone()),
            ),
            (None, _, Some(thread)) => ("", of_box, "r.thread_key = ?4", Box::new(thread.clone())),
            (None, _, None) => ("", of_box, "r.state = ?4", Box::new(None::<i64>)),
        };
    let seq = if index.is_empty() { "r.seq" } else { "x.record" };
    let sql = format!(
        "SELECT {COLUMNS} FROM {index} {TABLES}
          WHERE {rows_of} {beyond} ?3 AND {condition}
          ORDER BY {seq} {order}"
    );
    let mut entries = Vec::new();
    if filter.tag.is_none() && filter.thread_key.is_none() {
        // One range scan per state: the index starts with the state, so that leasing the next
        // record is a single seek.
        let all = if states.is_empty() { &ReadState::ALL[..] } else { states };
        for state in all {
            let row = params![owner, kind, start, state.as_str()];
            entries.extend(rows::list_undamaged(db, "record", limit, &sql, row, read)?);
        }
        return Ok(rows::page(entries, page));
    }
    rows::scan(db, limit, &sql, params![owner, kind, start, *key], |row| {
        let entry = read(row).map_err(Into::into);
        let Some((seq, record)) = db.unless_damaged("record", damage::key(row), entry)? else {
            return Ok(true);
        };
        let in_state = states.is_empty() || states.contains(&record.reading.state.name());
        let in_thread = filter.thread_key.is_none() || filter.thread_key == record.thread_key;
        if in_state && in_thread {
            entries.push((seq, record));
        }
        Ok(entries.len() < limit)
    })?;
    Ok(rows::page(entries, page))
}

/// The party of the group that a tag `group:<did>` names; 0 when it is unknown.
fn group_id(db: &Db, did: &str) -> StoreResult<i64> {
    let Ok(did) = did.parse::<Did>() else { return Ok(0) };
    Ok(contacts::find(db, &did)?.unwrap_or(0))
}
