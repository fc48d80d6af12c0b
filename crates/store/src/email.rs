//! Watched e-mail accounts: their mails, each with a task, and how far they were read.
//!
//! Document 003's functions are these methods: `RegisterTask` is [`EmailStore::register_mails`],
//! `GetPendingTasks` and `IncrementAttempt` are [`EmailStore::start_tasks`], `UpdateStatus` is
//! [`EmailStore::finish_tasks`], `UpdateLastSeenUID` is part of a registration, and
//! `UpdateLastScannedAt` is [`EmailStore::set_scanned`].

use std::collections::BTreeMap;

use async_trait::async_trait;
use monoco_core::did::TunnelId;
use monoco_core::email::directory::Person;
use monoco_core::email::task::{EmailTask, EmailTaskId, TaskOutcome, TaskStatus};
use monoco_core::email::{EmailAccount, ScanReport};
use monoco_core::inbound::{FetchedMail, RawMail};
use monoco_core::lease::{Holder, LeaseDuration};
use monoco_core::letter::LetterId;
use monoco_core::object::ObjId;
use monoco_core::record::RecordId;
use monoco_core::time::Timestamp;
use tokio::sync::watch;

use crate::{Page, PageRequest, StoreError};

/// A page of mails to register, and the cursor that they advance.
#[derive(Clone, Debug)]
pub struct RegisterMailsRequest {
    pub tunnel: TunnelId,
    /// The stream that the cursor belongs to: the name of the folder.
    pub stream: String,
    /// The cursor after this page; `None` leaves the stored cursor as it is.
    pub cursor: Option<String>,
    pub mails: Vec<FetchedMail>,
}

/// How many mails of a page became tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterMailsResult {
    /// Mails that are processed.
    pub new: usize,
    /// Mails with the bytes of a known mail of the tunnel. Their tasks are not processed.
    pub copies: usize,
    /// Mails that were registered before, under the same folder, UIDVALIDITY and UID.
    pub known: usize,
}

/// A task that was leased, with its mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedTask {
    /// The task after the lease was taken. `progress.epoch` proves the lease.
    pub task: EmailTask,
    /// Small mails as bytes, larger ones by their hash.
    pub raw: RawMail,
}

/// Numbers of tasks that [`EmailStore::settle_forwards`] changed, by their new state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettleCounts {
    /// Tasks whose deliveries were all accepted.
    pub forwarded: usize,
    /// Tasks with a delivery that failed.
    pub failed: usize,
    /// Tasks whose DEAD deliveries are sent again.
    pub retried: usize,
    /// Tasks whose deliveries were dropped by an operator.
    pub skipped: usize,
}

/// Filter for a list of tasks.
#[derive(Clone, Debug, Default)]
pub struct EmailTaskQuery {
    pub tunnel: Option<TunnelId>,
    /// Only tasks with these statuses; empty for all.
    pub statuses: Vec<TaskStatus>,
}

/// Numbers of tasks of one tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmailTaskCounts {
    /// Tasks by status, without copies.
    pub statuses: BTreeMap<TaskStatus, i64>,
    pub copies: i64,
    /// Tasks in `error` that are dead letters.
    pub dead: i64,
}

/// A dead task, and the dead letters that its forward consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadForward {
    pub task: EmailTaskId,
    /// Deliveries that are DEAD or UNCERTAIN.
    pub deliveries: Vec<RecordId>,
    /// The letter that failed in the outbound chain.
    pub letter: Option<LetterId>,
}

/// Stores mails of watched accounts, and leases their tasks.
#[async_trait]
pub trait EmailStore: Send + Sync {
    /// Registers a page of mails and stores the cursor, in one transaction: a task per mail, the
    /// bytes of the mail, and the cursor are stored together or not at all.
    ///
    /// A mail that was registered before is not registered again. A mail with the bytes of an
    /// earlier mail of the same tunnel becomes a copy, also after the earlier one was purged.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`] when the bytes of a [`RawMail::Stored`] are not stored.
    async fn register_mails(
        &self,
        page: RegisterMailsRequest,
        now: Timestamp,
    ) -> Result<RegisterMailsResult, StoreError>;

    /// Returns the stored cursor of a stream of a tunnel.
    async fn cursor(&self, tunnel: &TunnelId, stream: &str) -> Result<Option<String>, StoreError>;

    /// Adds an account, or changes its address and description.
    async fn put_account(
        &self,
        tunnel: &TunnelId,
        address: &str,
        description: Option<&str>,
        now: Timestamp,
    ) -> Result<EmailAccount, StoreError>;

    /// Lists all accounts, ordered by tunnel.
    async fn accounts(&self) -> Result<Vec<EmailAccount>, StoreError>;

    /// Stores the end of a round and what it did.
    async fn set_scanned(
        &self,
        tunnel: &TunnelId,
        report: ScanReport,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Removes an account and the cursors of its folders. Its tasks stay, so that mails that were
    /// processed are recognised when the account is added again.
    async fn remove_account(&self, tunnel: &TunnelId) -> Result<(), StoreError>;

    /// Leases at most `limit` tasks of a tunnel, longest due first: received ones, those in
    /// error whose retry is due, and those whose lease has expired. Returns fewer when their
    /// mails are large.
    ///
    /// A task that was started before is returned alone, so that a mail that stops the courier
    /// does not use up the attempts of others. A task whose mail is damaged ends in error and
    /// is left out.
    async fn start_tasks(
        &self,
        tunnel: &TunnelId,
        holder: Holder,
        term: LeaseDuration,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<StartedTask>, StoreError>;

    /// Returns when the next task of a tunnel can be started, or its forward retried.
    async fn next_task(&self, tunnel: &TunnelId) -> Result<Option<Timestamp>, StoreError>;

    /// Stores the outcomes of tasks with the epochs of their leases, all in one commit. A
    /// rejected outcome does not affect the others.
    ///
    /// # Errors
    ///
    /// [`StoreError::LeaseLost`] when the task was started again meanwhile;
    /// [`StoreError::Missing`] when the message of a forward is not stored.
    async fn finish_tasks(
        &self,
        results: Vec<(EmailTaskId, u64, TaskOutcome)>,
        now: Timestamp,
    ) -> Vec<Result<(), StoreError>>;

    /// Follows the deliveries of forwards, or their letters in the outbound chain, and changes at
    /// most `limit` tasks of a tunnel. A task whose retry is due gets its DEAD deliveries set to
    /// WAIT; nothing is posted.
    ///
    /// One call reads at most 1,000 forwards, and the next call continues behind them.
    async fn settle_forwards(
        &self,
        tunnel: &TunnelId,
        limit: usize,
        now: Timestamp,
    ) -> Result<SettleCounts, StoreError>;

    /// Returns one task by id.
    async fn task(&self, id: EmailTaskId) -> Result<EmailTask, StoreError>;

    /// Lists tasks in the order of registration.
    async fn tasks(
        &self,
        query: EmailTaskQuery,
        page: PageRequest,
    ) -> Result<Page<EmailTask>, StoreError>;

    /// Lists the tasks that a message forwards, at most 100.
    async fn tasks_of(&self, forward: ObjId) -> Result<Vec<EmailTask>, StoreError>;

    /// Lists tasks that are dead letters, oldest first.
    async fn dead_tasks(&self, limit: usize) -> Result<Vec<EmailTask>, StoreError>;

    /// Returns what else is dead of the forwards of the first `limit` dead tasks that have one.
    /// Tasks of which nothing else is dead are left out.
    async fn dead_forwards(&self, limit: usize) -> Result<Vec<DeadForward>, StoreError>;

    /// Retries a task in error, or one that no rule matched, with all attempts. A task with a
    /// forward gets its DEAD deliveries set to WAIT, or its dead or trashed letter back into the
    /// chain. UNCERTAIN deliveries stay as they are.
    async fn retry_task(&self, id: EmailTaskId, now: Timestamp) -> Result<EmailTask, StoreError>;

    /// Drops a task in error: it stays in error, is not retried, and is not listed as a dead
    /// letter any more. [`Self::retry_task`] still retries it.
    async fn drop_task(&self, id: EmailTaskId, now: Timestamp) -> Result<EmailTask, StoreError>;

    /// Returns the numbers of tasks by tunnel.
    async fn task_counts(&self) -> Result<BTreeMap<TunnelId, EmailTaskCounts>, StoreError>;

    /// Returns the mail of a task after checking its hash; a large one by its hash.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`] when the mail was purged.
    async fn raw_mail(&self, id: EmailTaskId) -> Result<RawMail, StoreError>;

    /// Deletes at most `limit` tasks that ended on `day` of the retention clock or before, and
    /// their mails. The hashes of the mails stay, and so do the files of large mails until
    /// [`crate::RetentionStore::delete_purged_files`]. Returns the number of tasks.
    async fn purge_tasks(&self, day: i64, limit: usize) -> Result<usize, StoreError>;

    /// Replaces the directory of people.
    async fn put_directory(&self, people: Vec<Person>) -> Result<(), StoreError>;

    /// Returns the directory of people, in the order of the import.
    async fn directory(&self) -> Result<Vec<Person>, StoreError>;

    /// Returns the secret of this store that proves envelope ids. Creates it at the first call.
    async fn email_secret(&self) -> Result<[u8; 32], StoreError>;

    /// A counter that changes after each commit that makes a task startable.
    fn newest_email_task(&self) -> watch::Receiver<u64>;
}
