//! Mails, and where their files belong.
//!
//! A Mail's `seq` numbers it in the order in which Mails became visible, and never
//! changes once it is; its `change` is the number of its last change of place. Files
//! follow both: the index the first, the directories the second.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::claim::{Claim, ClaimState, MailLocation, Workspace};
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::mail::{Mail, MailId, MailIndexEntry};
use monoco_core::retention::{ClockStep, RetentionClock};
use monoco_core::retry::RetryPolicy;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use serde_json::json;
use tokio::sync::watch;

use super::events::{self, EventSubject};
use super::inbound::{self, ClosedWindow};
use super::open::fault;
use super::writer::Tx;
use super::{SqliteStore, claims, contacts, rows};
use crate::{
    ClaimUpdate, FileChange, FileProgress, MailQuery, MailRow, MailStore, MergeContext, Page,
    PageRequest, StoreError, StoreInboundRequest, StoreInboundResult,
};

/// How long a window that could not be merged waits before it is tried again.
const PUT_OFF: Duration = Duration::from_secs(60);

/// Most rows that a search looks at for one page. Few in tests, so that they get there.
const SEARCHED: usize = if cfg!(test) { 5 } else { 10_000 };

/// Most Mails of one stranger that are let in with him.
const LET_IN: usize = 10_000;

const INSERT: &str = "
    INSERT INTO mails (seq, uid, provider, object, author, place, change,
                       received_at, entry)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
";

const COLUMNS: &str = "m.seq, m.entry, m.place, m.change, m.object, m.received_at";

/// A Mail, by rows.
pub(super) struct Found {
    pub(super) seq: i64,
    pub(super) entry: MailIndexEntry,
    pub(super) place: MailLocation,
    pub(super) change: i64,
    pub(super) object: i64,
}

/// A Mail that is to be.
pub(super) struct NewMail<'a> {
    pub(super) mail: &'a Mail,
    pub(super) object: i64,
    pub(super) author: i64,
    pub(super) held: bool,
}

/// Adds a Mail.
pub(super) fn insert(tx: &mut Tx<'_>, new: NewMail<'_>, now: Timestamp) -> Result<(), StoreError> {
    let id = &new.mail.header.id;
    let seq = next(tx.db, "SELECT coalesce(max(seq), 0) + 1 FROM mails")?;
    let change = next_change(tx)?;
    let entry = new.mail.entry(seq, &new.mail.render());
    let place = if new.held { MailLocation::Held } else { MailLocation::Inbound };
    let row = params![
        seq,
        id.uid(),
        id.provider(),
        new.object,
        new.author,
        place.as_str(),
        change,
        now.ms(),
        rows::as_json(&entry)?,
    ];
    tx.db.prepare_cached(INSERT).and_then(|mut s| s.execute(row)).map_err(fault)?;
    Ok(())
}

/// Moves a Mail's file to where it belongs now.
pub(super) fn move_to(
    tx: &mut Tx<'_>,
    mail: &Found,
    place: MailLocation,
    now: Timestamp,
) -> Result<(), StoreError> {
    if mail.place == place {
        return Ok(());
    }
    let change = next_change(tx)?;
    let day = day(tx)?;
    let sql = "UPDATE mails SET place = ?2, change = ?3, rested_on = ?4 WHERE seq = ?1";
    let row = params![mail.seq, place.as_str(), change, day];
    tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
    let about = EventSubject { object: Some(mail.object), ..EventSubject::default() };
    let detail = json!({"mail": mail.entry.id, "from": mail.place.as_str(), "to": place.as_str()});
    events::append(tx, EventKind::Moved, about, &detail, now)
}

/// The day of the hub's life that it is.
pub(super) fn day(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    if let Some(day) = tx.known.day {
        return Ok(day);
    }
    let day = mark(tx.db, "lived_ms")?.unwrap_or(0) / 86_400_000;
    tx.known.day = Some(day);
    Ok(day)
}

/// Makes the held Mails of an author visible: somebody has let him in.
pub(super) fn let_in(tx: &mut Tx<'_>, author: &Did, now: Timestamp) -> Result<(), StoreError> {
    let Some(author) = contacts::peek(tx, author)? else { return Ok(()) };
    let sql = "SELECT seq FROM mails WHERE author = ?1 AND place = 'held' ORDER BY seq LIMIT ?2";
    for seq in rows::seqs(tx.db, sql, params![author, rows::limit(LET_IN)])? {
        let mail = by_seq(tx.db, seq)?;
        let visible = next(tx.db, "SELECT max(seq) + 1 FROM mails")?;
        let entry = MailIndexEntry { seq: visible, ..mail.entry.clone() };
        let sql = "UPDATE mails SET seq = ?2, entry = ?3 WHERE seq = ?1";
        let row = params![seq, visible, rows::as_json(&entry)?];
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
        move_to(tx, &Found { seq: visible, entry, ..mail }, MailLocation::Inbound, now)?;
    }
    Ok(())
}

fn next(db: &Connection, sql: &str) -> Result<i64, StoreError> {
    db.prepare_cached(sql).and_then(|mut s| s.query_row([], |row| row.get(0))).map_err(fault)
}

fn next_change(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let change = next(tx.db, "SELECT coalesce(max(change), 0) + 1 FROM mails")?;
    tx.news.filing = Some(change);
    Ok(change)
}

/// The number of the newest change of a place, 0 when there is none.
pub(super) fn newest(db: &Connection) -> Result<i64, StoreError> {
    next(db, "SELECT coalesce(max(change), 0) FROM mails")
}

fn read(row: &Row<'_>) -> rusqlite::Result<Found> {
    let entry: String = row.get(1)?;
    let place: String = row.get(2)?;
    Ok(Found {
        seq: row.get(0)?,
        entry: serde_json::from_str(&entry).map_err(|_| rows::damaged(1, "unreadable entry"))?,
        place: MailLocation::parse(&place).ok_or_else(|| rows::damaged(2, "no such place"))?,
        change: row.get(3)?,
        object: row.get(4)?,
    })
}

pub(super) fn by_seq(db: &Connection, seq: i64) -> Result<Found, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM mails m WHERE m.seq = ?1");
    db.prepare_cached(&sql).and_then(|mut s| s.query_row([seq], read)).map_err(fault)
}

/// A Mail by its name.
pub(super) fn by_id(db: &Connection, id: &MailId) -> Result<Found, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM mails m WHERE m.uid = ?1 AND m.provider = ?2");
    let found = db
        .prepare_cached(&sql)
        .and_then(|mut s| s.query_row([id.uid(), id.provider()], read).optional())
        .map_err(fault)?;
    found.ok_or_else(|| StoreError::Missing { what: "Mail", key: id.to_string() })
}

/// The Mail that an object is, if it is one.
pub(super) fn of_object(db: &Connection, object: i64) -> Result<Option<Found>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM mails m WHERE m.object = ?1 LIMIT 1");
    db.prepare_cached(&sql).and_then(|mut s| s.query_row([object], read).optional()).map_err(fault)
}

fn mails(db: &Connection, sql: &str, row: &[&dyn ToSql]) -> Result<Vec<Found>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let rows = statement.query_map(row, read).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

fn filing(db: &Connection, mail: Found) -> Result<FileChange, StoreError> {
    let reasons = if mail.place == MailLocation::Deadletter {
        claims::reasons(db, mail.seq)?
    } else {
        Vec::new()
    };
    Ok(FileChange { change: mail.change, entry: mail.entry, place: mail.place, reasons })
}

fn filings(
    db: &Connection,
    which: &str,
    after: i64,
    limit: usize,
) -> Result<Vec<FileChange>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM mails m WHERE {which} LIMIT ?2");
    let found = mails(db, &sql, params![after, rows::limit(limit)])?;
    found.into_iter().map(|mail| filing(db, mail)).collect()
}

/// Mails by number, newest or oldest first.
fn list(
    db: &Connection,
    query: &MailQuery,
    window: &PageRequest,
) -> Result<Page<MailRow>, StoreError> {
    let (beyond, order) = rows::range(window);
    // Claims that are not NEW have rows of their own, and an index.
    let by_claim = query.status.filter(|status| *status != ClaimState::New);
    let sql = match (by_claim, &query.provider) {
        (Some(_), _) => format!(
            "SELECT {COLUMNS} FROM claims c JOIN mails m ON m.seq = c.mail
              WHERE c.workspace = ?3 AND c.state = ?4 AND c.mail {beyond} ?1
              ORDER BY c.mail {order} LIMIT ?2"
        ),
        (None, Some(_)) => format!(
            "SELECT {COLUMNS} FROM mails m
              WHERE m.provider = ?5 AND m.seq {beyond} ?1 ORDER BY m.seq {order} LIMIT ?2"
        ),
        (None, None) => format!(
            "SELECT {COLUMNS} FROM mails m WHERE m.seq {beyond} ?1 ORDER BY m.seq {order} LIMIT ?2"
        ),
    };
    let workspace = query.workspace.as_str();
    let state = by_claim.map(ClaimState::as_str);
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let start = rows::start(window);
    let looked = rows::limit(SEARCHED);
    let values: [&dyn ToSql; 5] = [&start, &looked, &workspace, &state, &query.provider];
    let used = statement.parameter_count();
    let mut rows = statement.query(&values[..used]).map_err(fault)?;

    let wanted = query.text.as_ref().map(|text| text.to_lowercase());
    let mut entries = Vec::new();
    let (mut seen, mut last) = (0, None);
    while let Some(row) = rows.next().map_err(fault)? {
        if entries.len() == window.limit {
            return Ok(Page { entries, next: last });
        }
        seen += 1;
        last = Some(row.get(0).map_err(fault)?);
        // A Mail that was let in late is behind newer ones, so the first that is too
        // old is not the last.
        let received_at = Timestamp::from_ms(row.get(5).map_err(fault)?);
        if query.since.is_some_and(|since| received_at < since) {
            continue;
        }
        let mail = read(row).map_err(fault)?;
        let claim = claims::find(db, &mail, &query.workspace)?;
        let state = claim.as_ref().map_or(ClaimState::New, |claim| claim.claiming.state.name());
        let listed = !matches!(mail.place, MailLocation::Held)
            && query.status.is_none_or(|status| status == state)
            && query.provider.as_ref().is_none_or(|provider| provider == mail.entry.id.provider())
            && wanted.as_ref().is_none_or(|wanted| mentions(&mail.entry, wanted));
        if listed {
            entries.push(MailRow { entry: mail.entry, place: mail.place, claim });
        }
    }
    // As many as one page looks at; there may be more behind them.
    Ok(Page { entries, next: last.filter(|_| seen >= SEARCHED) })
}

/// Whether a text in lower case occurs in what a list shows.
fn mentions(entry: &MailIndexEntry, wanted: &str) -> bool {
    let people = entry.participants.from.iter();
    let shown =
        [Some(entry.preview.as_str()), entry.title.as_deref(), entry.session.name.as_deref()];
    shown
        .into_iter()
        .flatten()
        .chain(people.map(|person| person.display_name()))
        .any(|text| text.to_lowercase().contains(wanted))
}

/// A single number.
pub(super) fn mark(db: &Connection, name: &str) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT value FROM marks WHERE name = ?1";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    statement.query_row([name], |row| row.get(0)).optional().map_err(fault)
}

fn set_mark(db: &Connection, name: &str, value: i64) -> Result<(), StoreError> {
    let sql = "
        INSERT INTO marks (name, value) VALUES (?1, ?2)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value
    ";
    db.prepare_cached(sql).and_then(|mut s| s.execute(params![name, value])).map_err(fault)?;
    Ok(())
}

/// When the oldest Mail came that nobody has claimed.
pub(super) fn oldest_unclaimed(db: &Connection) -> Result<Option<Timestamp>, StoreError> {
    let sql = "
        SELECT received_at
          FROM mails m
         WHERE place = 'inbound' AND NOT EXISTS (SELECT 1 FROM claims c WHERE c.mail = m.seq)
         ORDER BY seq
         LIMIT 1
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let at = statement.query_row([], |row| row.get(0)).optional().map_err(fault)?;
    Ok(at.map(Timestamp::from_ms))
}

/// Lets the hub live on.
fn live(tx: &mut Tx<'_>, now: Timestamp) -> Result<(RetentionClock, ClockStep), StoreError> {
    let noted = match (mark(tx.db, "lived_at")?, mark(tx.db, "lived_ms")?) {
        (Some(at), Some(lived_ms)) => RetentionClock { noted_at: Timestamp::from_ms(at), lived_ms },
        _ => RetentionClock::start(now),
    };
    let (life, step) = noted.advance(now);
    set_mark(tx.db, "lived_at", life.noted_at.ms())?;
    set_mark(tx.db, "lived_ms", life.lived_ms)?;
    tx.known.day = None;
    let sql = "
        INSERT INTO days (day, event) VALUES (?1, ?2)
            ON CONFLICT (day) DO UPDATE SET event = excluded.event
    ";
    let row = params![life.day(), events::newest(tx.db)?];
    tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
    Ok((life, step))
}

/// No lease runs longer than a day, and nobody waits longer than two hours for his
/// next try. What is scheduled for later waits in WAIT, and stays; so do letters that a
/// worker of ours keeps, and what is booked.
fn distrust_future(tx: &mut Tx<'_>, now: Timestamp) -> Result<usize, StoreError> {
    const LEASE: i64 = 86_400_000;
    const WAIT: i64 = 7_200_000;
    let now = now.ms();
    let mut changed = 0;
    for (sql, latest) in [
        ("UPDATE claims SET lease_until = ?1 WHERE state = 'CLAIMED' AND lease_until > ?2", LEASE),
        ("UPDATE claims SET due_at = ?1 WHERE state = 'NEW' AND due_at > ?2", WAIT),
        ("UPDATE records SET lease_until = ?1 WHERE state = 'READING' AND lease_until > ?2", LEASE),
        (
            "UPDATE deliveries SET lease_until = ?1 WHERE state = 'SENDING' AND lease_until > ?2",
            LEASE,
        ),
        ("UPDATE deliveries SET due_at = ?1 WHERE state = 'FAILED' AND due_at > ?2", WAIT),
        ("UPDATE windows SET closes_at = ?1 WHERE closes_at > ?2", WAIT),
        (
            "UPDATE letters SET due_at = ?1, revision = revision + 1
              WHERE state = 'WAITING' AND desk > '' AND due_at > ?2",
            WAIT,
        ),
        (
            "UPDATE letters SET until = ?1, revision = revision + 1
              WHERE state = 'AWAY' AND until > ?2",
            LEASE,
        ),
    ] {
        let row = params![now, now.saturating_add(latest)];
        changed += tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
    }
    Ok(changed)
}

fn retire(tx: &mut Tx<'_>, day: i64, limit: usize, now: Timestamp) -> Result<usize, StoreError> {
    // Somebody who claimed it late still reads it.
    let sql = "
        SELECT seq FROM mails m
         WHERE place = 'archive' AND rested_on <= ?1
           AND NOT EXISTS (SELECT 1 FROM claims c
                            WHERE c.mail = m.seq AND c.state IN ('NEW', 'CLAIMED'))
         ORDER BY rested_on LIMIT ?2
    ";
    let seqs = rows::seqs(tx.db, sql, params![day, rows::limit(limit)])?;
    for seq in &seqs {
        let mail = by_seq(tx.db, *seq)?;
        move_to(tx, &mail, MailLocation::Removed, now)?;
    }
    Ok(seqs.len())
}

fn forget_events(tx: &mut Tx<'_>, day: i64, limit: usize) -> Result<usize, StoreError> {
    // The newest stays, so that no number is given twice.
    let sql = "
        DELETE FROM events WHERE seq IN (
            SELECT seq FROM events
             WHERE seq <= (SELECT coalesce(max(event), 0) FROM days WHERE day <= ?1)
               AND seq < (SELECT max(seq) FROM events)
             ORDER BY seq LIMIT ?2)
    ";
    let row = params![day, rows::limit(limit)];
    tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)
}

#[async_trait]
impl MailStore for SqliteStore {
    async fn store_inbound(
        &self,
        batch: Vec<StoreInboundRequest>,
        now: Timestamp,
    ) -> Vec<Result<StoreInboundResult, StoreError>> {
        let count = batch.len();
        let answers = self
            .writer
            .run(move |tx| tx.each(&batch, |tx, keep| inbound::keep(tx, keep, now)))
            .await;
        answers.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn merge(
        &self,
        merging: Arc<MergeContext>,
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let over = if merging.all { Timestamp::from_ms(i64::MAX) } else { now };
        let mut windows = self.read(move |db| inbound::due(db, over, limit)).await?;
        let mut merged = 0;
        let mut files = HashSet::new();
        // Twice at most: what was too large for a row is a file the second time.
        while !windows.is_empty() {
            let (these, merging, kept) = (windows.clone(), Arc::clone(&merging), files.clone());
            let closed = self
                .writer
                .run(move |tx| {
                    tx.each(&these, |tx, window| inbound::close(tx, *window, &merging, &kept, now))
                })
                .await?;
            let mut large = Vec::new();
            for (window, closed) in windows.into_iter().zip(closed) {
                match closed {
                    Ok(ClosedWindow::Merged) => merged += 1,
                    Ok(ClosedWindow::Large(object)) => {
                        self.keep_large(object.id(), object.canonical().as_bytes()).await?;
                        files.insert(object.id());
                        large.push(window);
                    }
                    Err(error) => {
                        tracing::error!(window, %error, "a burst can't be merged");
                        self.writer
                            .run(move |tx| inbound::put_off(tx, window, now + PUT_OFF))
                            .await?;
                    }
                }
            }
            windows = large;
        }
        Ok(merged)
    }

    async fn next_merge(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(inbound::next_due).await
    }

    async fn claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        holder: Holder,
        term: LeaseDuration,
        retry: RetryPolicy,
        now: Timestamp,
    ) -> Result<Claim, StoreError> {
        let (id, workspace) = (id.clone(), workspace.clone());
        self.writer
            .run(move |tx| claims::claim(tx, &id, &workspace, &holder, term, &retry, now))
            .await
    }

    async fn update_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        guard: LeaseProof,
        step: ClaimUpdate,
        now: Timestamp,
    ) -> Result<Claim, StoreError> {
        let (id, workspace) = (id.clone(), workspace.clone());
        self.writer.run(move |tx| claims::settle(tx, &id, &workspace, &guard, &step, now)).await
    }

    async fn expire_claims(
        &self,
        retry: RetryPolicy,
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        // Looking costs nothing; a commit does.
        if !self.read(move |db| claims::any_ended(db, now)).await? {
            return Ok(0);
        }
        self.writer.run(move |tx| claims::sweep(tx, &retry, limit, now)).await
    }

    async fn retry_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        now: Timestamp,
    ) -> Result<Claim, StoreError> {
        let (id, workspace) = (id.clone(), workspace.clone());
        self.writer.run(move |tx| claims::revive(tx, &id, &workspace, now)).await
    }

    async fn drop_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        now: Timestamp,
    ) -> Result<Claim, StoreError> {
        let (id, workspace) = (id.clone(), workspace.clone());
        self.writer.run(move |tx| claims::lay_to_rest(tx, &id, &workspace, now)).await
    }

    async fn dead_claims(&self, limit: usize) -> Result<Vec<Claim>, StoreError> {
        self.read(move |db| claims::list(db, "c.state = 'DEADLETTER'", limit)).await
    }

    async fn open_claims(&self, limit: usize) -> Result<Vec<Claim>, StoreError> {
        self.read(move |db| claims::list(db, "c.state IN ('NEW', 'CLAIMED')", limit)).await
    }

    async fn mail(&self, id: &MailId, workspace: &Workspace) -> Result<MailRow, StoreError> {
        let (id, workspace) = (id.clone(), workspace.clone());
        self.read(move |db| {
            let mail = by_id(db, &id)?;
            let claim = claims::find(db, &mail, &workspace)?;
            Ok(MailRow { entry: mail.entry, place: mail.place, claim })
        })
        .await
    }

    async fn claims(&self, id: &MailId) -> Result<Vec<Claim>, StoreError> {
        let id = id.clone();
        self.read(move |db| claims::of_mail(db, &by_id(db, &id)?)).await
    }

    async fn mails(
        &self,
        query: MailQuery,
        window: PageRequest,
    ) -> Result<Page<MailRow>, StoreError> {
        self.read(move |db| list(db, &query, &window)).await
    }

    async fn list_index_entries(
        &self,
        after: i64,
        limit: usize,
    ) -> Result<Vec<FileChange>, StoreError> {
        let which = "m.seq > ?1 AND m.place <> 'held' ORDER BY m.seq";
        self.read(move |db| filings(db, which, after, limit)).await
    }

    async fn list_file_changes(
        &self,
        after: i64,
        limit: usize,
    ) -> Result<Vec<FileChange>, StoreError> {
        self.read(move |db| filings(db, "m.change > ?1 ORDER BY m.change", after, limit)).await
    }

    async fn file_progress(&self) -> Result<FileProgress, StoreError> {
        self.read(|db| {
            let number = |name| Ok::<_, StoreError>(mark(db, name)?.unwrap_or(0));
            Ok(FileProgress {
                change: number("filed_change")?,
                index_bytes: u64::try_from(number("filed_index_bytes")?).unwrap_or(0),
                index_seq: number("filed_index_seq")?,
                generation: number("filed_generation")?,
            })
        })
        .await
    }

    async fn set_file_progress(&self, filed: FileProgress) -> Result<(), StoreError> {
        self.writer
            .run(move |tx| {
                set_mark(tx.db, "filed_change", filed.change)?;
                set_mark(tx.db, "filed_index_bytes", rows::signed(filed.index_bytes))?;
                set_mark(tx.db, "filed_index_seq", filed.index_seq)?;
                set_mark(tx.db, "filed_generation", filed.generation)
            })
            .await
    }

    fn newest_file_change(&self) -> watch::Receiver<i64> {
        self.board.filing.subscribe()
    }

    async fn last_clock_reading(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(|db| {
            let sql = "SELECT at FROM events ORDER BY seq DESC LIMIT 1";
            let event: Option<i64> = db
                .prepare_cached(sql)
                .and_then(|mut s| s.query_row([], |row| row.get(0)).optional())
                .map_err(fault)?;
            Ok(event.max(mark(db, "lived_at")?).map(Timestamp::from_ms))
        })
        .await
    }

    async fn expire_future_leases(&self, now: Timestamp) -> Result<usize, StoreError> {
        self.writer.run(move |tx| distrust_future(tx, now)).await
    }

    async fn advance_retention_clock(
        &self,
        now: Timestamp,
    ) -> Result<(RetentionClock, ClockStep), StoreError> {
        self.writer.run(move |tx| live(tx, now)).await
    }

    async fn purge_archived_mails(
        &self,
        day: i64,
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        self.writer.run(move |tx| retire(tx, day, limit, now)).await
    }

    async fn purge_events(&self, day: i64, limit: usize) -> Result<usize, StoreError> {
        self.writer.run(move |tx| forget_events(tx, day, limit)).await
    }
}
