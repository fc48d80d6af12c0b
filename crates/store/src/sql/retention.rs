//! The retention clock, and what is purged by age.

use std::time::Duration;

use async_trait::async_trait;
use monoco_core::claim::MailLocation;
use monoco_core::retention::{ClockStep, RetentionClock};
use monoco_core::time::Timestamp;

use super::db::{Db, params};
use super::mails::StoredMail;
use super::writer::Tx;
use super::{SqlStore, approvals, events, mails, rows, tokens};
use crate::{RetentionStore, StoreResult};

// Names of rows in the table `progress`.
const CLOCK_AT: &str = "retention_clock_at";
const ELAPSED_MS: &str = "retention_elapsed_ms";

/// The longest lease that can be taken.
const MAX_LEASE_MS: i64 = 86_400_000;

/// The longest wait for a retry, and the longest merge window.
const MAX_WAIT_MS: i64 = 7_200_000;

/// Damaged Mails that one transaction passes over.
const MAX_DAMAGED_MAILS: usize = 1_000;

/// Reads one number of the table `progress`.
pub(super) fn progress(db: &Db, name: &str) -> StoreResult<Option<i64>> {
    rows::optional(db, "SELECT value FROM progress WHERE name = ?1", [name], |row| row.get(0))
}

/// Writes one number of the table `progress`.
pub(super) fn set_progress(db: &Db, name: &str, value: i64) -> StoreResult<()> {
    let sql = "
        INSERT INTO progress (name, value) VALUES (?1, ?2)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value
    ";
    rows::execute(db, sql, params![name, value])?;
    Ok(())
}

/// The current day of the retention clock.
pub(super) fn day(tx: &mut Tx<'_>) -> StoreResult<i64> {
    if let Some(day) = tx.cache.day {
        return Ok(day);
    }
    let day = progress(tx.db, ELAPSED_MS)?.unwrap_or(0) / 86_400_000;
    tx.cache.day = Some(day);
    Ok(day)
}

/// Updates at most `limit` Mails, and returns their number. `sql` selects the numbers of Mails in a
/// fixed order, and selects no Mail again that was updated; its parameters are `day`, the limit and
/// an offset. Damaged Mails are passed over.
fn update_mails(
    tx: &mut Tx<'_>,
    sql: &str,
    day: i64,
    limit: usize,
    update: impl Fn(&mut Tx<'_>, &StoredMail) -> StoreResult<()>,
) -> StoreResult<usize> {
    let (mut updated, mut damaged) = (0, 0);
    while updated < limit && damaged < MAX_DAMAGED_MAILS {
        // Of the Mails so far, only the damaged ones are still selected.
        let page = params![day, rows::limit(limit - updated), rows::limit(damaged)];
        let seqs = rows::numbers(tx.db, sql, page)?;
        if seqs.is_empty() {
            break;
        }
        for seq in seqs {
            let mail = mails::by_seq(tx.db, seq);
            if let Some(mail) = tx.db.unless_damaged("Mail", seq, mail)? {
                update(tx, &mail)?;
                updated += 1;
            } else {
                damaged += 1;
            }
        }
    }
    Ok(updated)
}

#[async_trait]
impl RetentionStore for SqlStore {
    async fn last_clock_reading(&self) -> StoreResult<Option<Timestamp>> {
        self.read(|db| {
            let sql = "SELECT at FROM events ORDER BY seq DESC LIMIT 1";
            let event: Option<i64> = rows::optional(db, sql, [], |row| row.get(0))?;
            Ok(event.max(progress(db, CLOCK_AT)?).map(Timestamp::from_ms))
        })
        .await
    }

    /// Deliveries in WAIT, held letters and reservations stay: they can be scheduled for any
    /// time.
    async fn expire_future_leases(&self, now: Timestamp) -> StoreResult<usize> {
        self.writer
            .run(move |tx| {
                let now = now.ms();
                let mut changed = 0;
                for (sql, longest) in [
                    (
                        "UPDATE claims SET lease_until = ?1
                          WHERE state = 'CLAIMED' AND lease_until > ?2",
                        MAX_LEASE_MS,
                    ),
                    (
                        "UPDATE claims SET due_at = ?1 WHERE state = 'NEW' AND due_at > ?2",
                        MAX_WAIT_MS,
                    ),
                    (
                        "UPDATE records SET lease_until = ?1
                          WHERE state = 'READING' AND lease_until > ?2",
                        MAX_LEASE_MS,
                    ),
                    (
                        "UPDATE deliveries SET lease_until = ?1
                          WHERE state = 'SENDING' AND lease_until > ?2",
                        MAX_LEASE_MS,
                    ),
                    (
                        "UPDATE deliveries SET due_at = ?1, ready_at = ?1
                          WHERE state = 'FAILED' AND due_at > ?2",
                        MAX_WAIT_MS,
                    ),
                    ("UPDATE merge_windows SET closes_at = ?1 WHERE closes_at > ?2", MAX_WAIT_MS),
                    ("UPDATE inbound_files SET due_at = ?1 WHERE due_at > ?2", MAX_WAIT_MS),
                    (
                        "UPDATE letters SET due_at = ?1, revision = revision + 1
                          WHERE state = 'WAITING' AND worker > '' AND due_at > ?2",
                        MAX_WAIT_MS,
                    ),
                    (
                        "UPDATE email_tasks SET due_at = ?1, revision = revision + 1
                          WHERE holder IS NOT NULL AND due_at > ?2",
                        MAX_LEASE_MS,
                    ),
                    (
                        "UPDATE email_tasks SET due_at = ?1, revision = revision + 1
                          WHERE holder IS NULL AND due_at IS NOT NULL AND due_at > ?2",
                        MAX_WAIT_MS,
                    ),
                    (
                        "UPDATE letters SET until = ?1, revision = revision + 1
                          WHERE state = 'AWAY' AND until > ?2",
                        MAX_LEASE_MS,
                    ),
                ] {
                    changed += rows::changed_rows(tx.db, sql, [now, now.saturating_add(longest)])?;
                }
                Ok(changed)
            })
            .await
    }

    async fn advance_retention_clock(
        &self,
        now: Timestamp,
    ) -> StoreResult<(RetentionClock, ClockStep)> {
        self.writer
            .run(move |tx| {
                let stored = match (progress(tx.db, CLOCK_AT)?, progress(tx.db, ELAPSED_MS)?) {
                    (Some(at), Some(lived_ms)) => {
                        RetentionClock { noted_at: Timestamp::from_ms(at), elapsed_ms: lived_ms }
                    }
                    _ => RetentionClock::start(now),
                };
                let (clock, step) = stored.advance(now);
                set_progress(tx.db, CLOCK_AT, clock.noted_at.ms())?;
                set_progress(tx.db, ELAPSED_MS, clock.elapsed_ms)?;
                tx.cache.day = None;
                let sql = "
                    INSERT INTO event_days (day, event) VALUES (?1, ?2)
                        ON CONFLICT (day) DO UPDATE SET event = excluded.event
                ";
                rows::execute(tx.db, sql, params![clock.day(), events::newest(tx.db)?])?;
                Ok((clock, step))
            })
            .await
    }

    async fn expire_unclaimed_mails(
        &self,
        day: i64,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize> {
        self.writer
            .run(move |tx| {
                let sql = "
                    SELECT seq FROM mails m
                     WHERE location = 'inbound' AND day <= ?1
                       AND NOT EXISTS (SELECT 1 FROM claims c WHERE c.mail = m.seq)
                     ORDER BY day, seq LIMIT ?2 OFFSET ?3
                ";
                update_mails(tx, sql, day, limit, |tx, mail| mails::expire(tx, mail, now))
            })
            .await
    }

    async fn purge_archived_mails(
        &self,
        day: i64,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize> {
        self.writer
            .run(move |tx| {
                // A workspace can claim an archived Mail late; then it still reads the file.
                let sql = "
                    SELECT seq FROM mails m
                     WHERE location = 'archive' AND day <= ?1
                       AND NOT EXISTS (SELECT 1 FROM claims c
                                        WHERE c.mail = m.seq AND c.state IN ('NEW', 'CLAIMED'))
                     ORDER BY day, seq LIMIT ?2 OFFSET ?3
                ";
                update_mails(tx, sql, day, limit, |tx, mail| {
                    tokens::delete_reads(tx, mail)?;
                    mails::move_to(tx, mail, MailLocation::Removed, now)
                })
            })
            .await
    }

    async fn delete_purged_files(&self, min_age: Duration) -> StoreResult<usize> {
        self.remove_purged_files(min_age).await
    }

    async fn purge_events(&self, day: i64, limit: usize) -> StoreResult<usize> {
        self.writer
            .run(move |tx| {
                // The newest event stays, so that no number is used twice.
                let sql = "
                    DELETE FROM events WHERE seq IN (
                        SELECT seq FROM events
                         WHERE seq <= (SELECT coalesce(max(event), 0) FROM event_days
                                        WHERE day <= ?1)
                           AND seq < (SELECT max(seq) FROM events)
                         ORDER BY seq LIMIT ?2)
                ";
                let purged = rows::changed_rows(tx.db, sql, params![day, rows::limit(limit)])?;
                approvals::purge(tx, limit)?;
                Ok(purged)
            })
            .await
    }
}
