//! Watched e-mail accounts: mails, tasks and cursors.
//!
//! * [`register`]: stores a page of mails with its cursor
//! * [`tasks`]: starts, finishes, retries and purges tasks
//! * [`forwards`]: follows the deliveries of forwards
//! * [`accounts`]: accounts, cursors, the directory of people and the secret
//! * [`rows`]: how tasks are stored

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use monoco_core::did::TunnelId;
use monoco_core::email::directory::Person;
use monoco_core::email::task::{EmailTask, EmailTaskId, TaskOutcome};
use monoco_core::email::{EmailAccount, ScanReport};
use monoco_core::inbound::RawMail;
use monoco_core::lease::{Holder, LeaseDuration};
use monoco_core::object::ObjId;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio::sync::watch;

use super::writer::Tx;
use super::{SqlStore, contacts, counts, objects};
use crate::{
    DeadForward, EmailStore, EmailTaskCounts, EmailTaskQuery, Page, PageRequest,
    RegisterMailsRequest, RegisterMailsResult, SettleCounts, StartedTask, StoreError,
};

mod accounts;
pub(super) mod forwards;
pub(super) mod register;
mod rows;
pub(super) mod tasks;
#[cfg(test)]
mod tests;

pub(super) use register::has_mail_file;

/// The last task of each tunnel whose forward was read; the next call continues behind it.
#[derive(Debug, Default)]
pub(super) struct ForwardsRead(Mutex<BTreeMap<TunnelId, i64>>);

impl ForwardsRead {
    fn after(&self, tunnel: &TunnelId) -> i64 {
        self.lock().get(tunnel).copied().unwrap_or(0)
    }

    fn set(&self, tunnel: &TunnelId, after: i64) {
        self.lock().insert(tunnel.clone(), after);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TunnelId, i64>> {
        // A panic cannot leave a partial change, because each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tasks of one message that are listed.
const MAX_OF_FORWARD: usize = 100;

/// Deletes the bytes and subjects of mails whose hash starts with `prefix`, because what their
/// author wrote is erased. Their hashes stay, so that they are not registered as new again.
pub(super) fn erase_mail(tx: &Tx<'_>, prefix: &[u8; 8]) -> Result<(), StoreError> {
    let prefix = prefix.as_slice();
    let files = "
        INSERT INTO erased_files (hash)
        SELECT h.hash
          FROM email_hashes h
          JOIN email_mails m ON m.task = h.task
         WHERE substr(h.hash, 1, 8) = ?1 AND m.raw IS NULL
            ON CONFLICT DO NOTHING
    ";
    super::rows::execute(tx.db, files, [prefix])?;
    let of_mail = "SELECT task FROM email_hashes WHERE substr(hash, 1, 8) = ?1";
    let subject = format!("UPDATE email_tasks SET subject = '' WHERE seq IN ({of_mail})");
    super::rows::execute(tx.db, &subject, [prefix])?;
    let bytes = format!("DELETE FROM email_mails WHERE task IN ({of_mail})");
    super::rows::execute(tx.db, &bytes, [prefix])?;
    Ok(())
}

impl SqlStore {
    /// Adds the mails to tasks that were started. Tasks whose mails are damaged end in error and
    /// are left out.
    async fn with_mails(
        &self,
        started: Vec<EmailTask>,
        now: Timestamp,
    ) -> Result<Vec<StartedTask>, StoreError> {
        let blobs = Arc::clone(&self.blobs);
        let read = self.read(move |db| {
            let with_mail = |task: EmailTask| {
                let mail = tasks::mail(db, &blobs, &task);
                (task, mail)
            };
            Ok(started.into_iter().map(with_mail).collect::<Vec<_>>())
        });
        let (mut complete, mut damaged) = (Vec::new(), Vec::new());
        for (task, mail) in read.await? {
            match mail {
                Ok(raw) => complete.push(StartedTask { task, raw }),
                Err(StoreError::Damaged { detail, .. }) => {
                    tracing::error!(task = %task.id, detail, "cannot read damaged mail");
                    let detail = format!("the stored mail is damaged: {detail}");
                    let failure = Failure::Permanent { detail, error_code: None };
                    damaged.push((task.id, task.progress.epoch, TaskOutcome::Failed(failure)));
                }
                Err(error) => return Err(error),
            }
        }
        if !damaged.is_empty() {
            self.finish_tasks(damaged, now).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(complete)
    }
}

#[async_trait]
impl EmailStore for SqlStore {
    async fn register_mails(
        &self,
        page: RegisterMailsRequest,
        now: Timestamp,
    ) -> Result<RegisterMailsResult, StoreError> {
        // The caller frees the mails, see `Writer::run_each`.
        let page = Arc::new(self.prepare_mails(page).await?);
        let shared = Arc::clone(&page);
        self.writer.run(move |tx| register::register(tx, &shared, now)).await
    }

    async fn cursor(&self, tunnel: &TunnelId, stream: &str) -> Result<Option<String>, StoreError> {
        let (tunnel, stream) = (tunnel.did(), stream.to_owned());
        self.read(move |db| match contacts::find(db, &tunnel)? {
            Some(tunnel) => accounts::cursor(db, tunnel, &stream),
            None => Ok(None),
        })
        .await
    }

    async fn put_account(
        &self,
        tunnel: &TunnelId,
        address: &str,
        description: Option<&str>,
        now: Timestamp,
    ) -> Result<EmailAccount, StoreError> {
        let (tunnel, address) = (tunnel.clone(), address.to_owned());
        let description = description.map(str::to_owned);
        self.writer
            .run(move |tx| accounts::put(tx, &tunnel, &address, description.as_deref(), now))
            .await
    }

    async fn accounts(&self) -> Result<Vec<EmailAccount>, StoreError> {
        self.read(accounts::list).await
    }

    async fn set_scanned(
        &self,
        tunnel: &TunnelId,
        report: ScanReport,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let tunnel = tunnel.clone();
        self.writer.run(move |tx| accounts::set_scanned(tx, &tunnel, &report, now)).await
    }

    async fn remove_account(&self, tunnel: &TunnelId) -> Result<(), StoreError> {
        let tunnel = tunnel.clone();
        self.writer.run(move |tx| accounts::remove(tx, &tunnel)).await
    }

    async fn start_tasks(
        &self,
        tunnel: &TunnelId,
        holder: Holder,
        term: LeaseDuration,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<StartedTask>, StoreError> {
        // Ends when a task could be started, or none is due: each turn starts, ends or postpones
        // at least one task.
        loop {
            let (tunnel, holder) = (tunnel.did(), holder.clone());
            let start =
                self.writer.run(move |tx| tasks::start(tx, &tunnel, &holder, term, limit, now));
            let (started, any_due) = start.await?;
            let started = self.with_mails(started, now).await?;
            if !started.is_empty() || !any_due {
                return Ok(started);
            }
        }
    }

    async fn next_task(&self, tunnel: &TunnelId) -> Result<Option<Timestamp>, StoreError> {
        let tunnel = tunnel.did();
        self.read(move |db| match contacts::find(db, &tunnel)? {
            Some(tunnel) => tasks::next_due(db, tunnel),
            None => Ok(None),
        })
        .await
    }

    async fn finish_tasks(
        &self,
        results: Vec<(EmailTaskId, u64, TaskOutcome)>,
        now: Timestamp,
    ) -> Vec<Result<(), StoreError>> {
        self.writer
            .run_each(results, move |tx, results| {
                tx.each(results, |tx, (id, epoch, outcome)| {
                    tasks::finish(tx, *id, *epoch, outcome, now)
                })
            })
            .await
    }

    async fn settle_forwards(
        &self,
        tunnel: &TunnelId,
        limit: usize,
        now: Timestamp,
    ) -> Result<SettleCounts, StoreError> {
        // A read first, because most forwards are still on their way. Each call reads some of
        // them: with many, reading all of them would take longer than processing a mail.
        let (did, after) = (tunnel.did(), self.forwards_read.after(tunnel));
        let find = self.read(move |db| match contacts::find(db, &did)? {
            Some(tunnel) => forwards::changed(db, tunnel, after, limit, now),
            None => Ok((Vec::new(), 0)),
        });
        let (changed, after) = find.await?;
        self.forwards_read.set(tunnel, after);
        if changed.is_empty() {
            return Ok(SettleCounts::default());
        }
        self.writer.run(move |tx| forwards::settle(tx, &changed, now)).await
    }

    async fn task(&self, id: EmailTaskId) -> Result<EmailTask, StoreError> {
        self.read(move |db| rows::find(db, id).map(|row| row.task)).await
    }

    async fn tasks(
        &self,
        query: EmailTaskQuery,
        page: PageRequest,
    ) -> Result<Page<EmailTask>, StoreError> {
        self.read(move |db| tasks::list(db, &query, &page)).await
    }

    async fn tasks_of(&self, forward: ObjId) -> Result<Vec<EmailTask>, StoreError> {
        self.read_by_hash(move |db, recent| match objects::find(db, recent, &forward)? {
            Some(object) => rows::list(db, rows::OF_FORWARD, &[&object], MAX_OF_FORWARD),
            None => Ok(Vec::new()),
        })
        .await
    }

    async fn dead_tasks(&self, limit: usize) -> Result<Vec<EmailTask>, StoreError> {
        self.read(move |db| rows::list(db, rows::DEAD, &[], limit)).await
    }

    async fn dead_forwards(&self, limit: usize) -> Result<Vec<DeadForward>, StoreError> {
        self.read(move |db| forwards::dead(db, limit)).await
    }

    async fn retry_task(&self, id: EmailTaskId, now: Timestamp) -> Result<EmailTask, StoreError> {
        self.writer.run(move |tx| tasks::retry(tx, id, now)).await
    }

    async fn drop_task(&self, id: EmailTaskId, now: Timestamp) -> Result<EmailTask, StoreError> {
        self.writer.run(move |tx| tasks::drop_error(tx, id, now)).await
    }

    async fn task_counts(&self) -> Result<BTreeMap<TunnelId, EmailTaskCounts>, StoreError> {
        self.read(counts::email_tasks).await
    }

    async fn raw_mail(&self, id: EmailTaskId) -> Result<RawMail, StoreError> {
        let blobs = Arc::clone(&self.blobs);
        self.read(move |db| tasks::mail(db, &blobs, &rows::find(db, id)?.task)).await
    }

    async fn purge_tasks(&self, day: i64, limit: usize) -> Result<usize, StoreError> {
        self.writer.run(move |tx| tasks::purge(tx, day, limit)).await
    }

    async fn put_directory(&self, people: Vec<Person>) -> Result<(), StoreError> {
        let people = Arc::new(people);
        self.writer.run(move |tx| accounts::put_directory(tx, &people)).await
    }

    async fn directory(&self) -> Result<Vec<Person>, StoreError> {
        self.read(accounts::directory).await
    }

    async fn email_secret(&self) -> Result<[u8; 32], StoreError> {
        self.writer.run(|tx| accounts::secret(tx)).await
    }

    fn newest_email_task(&self) -> watch::Receiver<u64> {
        self.channels.email_task.subscribe()
    }
}
