//! Inbound messages: stored once, in the merge window of their session, until they are merged
//! into a Mail.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::claim::MailLocation;
use monoco_core::contact::{AddressBook, StrangerPolicy};
use monoco_core::did::{Did, TunnelId};
use monoco_core::event::EventKind;
use monoco_core::inbound::{ChatPosition, ChatSession, InboundMessage};
use monoco_core::mail::{MailId, MailIndexEntry, Trust};
use monoco_core::merge::{BuiltMail, Debounce, MailBuilder, MergeWindow};
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::bulk_index::RecentEntries;
use super::db::{Db, Row, RowResult, params};
use super::events::{self, EventSubject};
use super::mails::{self, NewMail};
use super::rows::{self, parsed};
use super::writer::{Lookups, Tx};
use super::{SqlStore, address_book, contacts, dispatch, external_ids, objects};
use crate::postgres::encoded_text;
use crate::{
    DispatchOutcome, DispatchRequest, InboundStore, MergeContext, PipelineRouting, StoreError,
    StoreEventResult, StoreInboundEvent, StoreInboundRequest, StoreInboundResult, StoreResult,
};
use files::FileCounts;

mod batch;
mod corrections;
pub(super) mod files;
mod positions;

/// How long a window that cannot be merged waits for the next attempt.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Bytes of inbound messages whose Mails are built at once; one window may have more.
const MAX_BYTES_PER_BATCH: i64 = 4 << 20;

// The newest one, because a window whose merge failed stays open beside it.
const FIND_WINDOW: &str = "
    SELECT id, first_at, last_at, messages, bytes, pending_files
      FROM merge_windows
     WHERE tunnel = ?1 AND session = ?2 AND held = ?3 AND closes_at > ?4
     ORDER BY id DESC
     LIMIT 1
";

// The open windows of a batch, on PostgreSQL only. Sessions are encoded, because any character can be
// part of one.
const FIND_WINDOWS: &str = "
    SELECT w.tunnel, w.session, w.held, w.closes_at, w.id, w.first_at, w.last_at, w.messages,
           w.bytes, w.pending_files
      FROM unnest(CAST(string_to_array(?1, ',') AS BIGINT[]), string_to_array(?2, ','))
           AS k(tunnel, session)
      JOIN merge_windows w
        ON w.tunnel = k.tunnel
       AND w.session = convert_from(decode(substr(k.session, 2), 'hex'), 'UTF8')
     WHERE w.closes_at > ?3
     ORDER BY w.id
";

const INSERT_WINDOW: &str = "
    INSERT INTO merge_windows (tunnel, tunnel_name, provider, session, held, first_at, last_at,
                               messages, bytes, files, pending_files, ready_at, closes_at,
                               revision)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0)
";

const EXTEND_WINDOW: &str = "
    UPDATE merge_windows
       SET last_at = ?2, messages = ?3, bytes = ?4, files = files + ?5, pending_files = ?6,
           ready_at = ?7, closes_at = ?8
     WHERE id = ?1
";

const IS_CLOSED: &str = "closes_at <= ?1";

// Files of the others are fetched after the next start.
const IS_CLOSED_OR_WITHOUT_FILES: &str = "(closes_at <= ?1 OR pending_files = 0)";

const INSERT_MESSAGE: &str = "
    INSERT INTO inbound_messages (merge_window, external_id, message)
    VALUES (?1, ?2, ?3)
";

const MESSAGES: &str = "
    SELECT external_id, message
      FROM inbound_messages
     WHERE merge_window = ?1
     ORDER BY external_id
";

const MESSAGE_IDS: &str = "
    SELECT external_id FROM inbound_messages WHERE merge_window = ?1 ORDER BY external_id
";

// The letters that the messages of a window were.
const SET_LETTERS_BECAME: &str = "
    UPDATE letters
       SET became = ?2
     WHERE external_id IN (SELECT external_id FROM inbound_messages WHERE merge_window = ?1)
";

const SET_EXTERNAL_IDS: &str = "
    UPDATE external_ids
       SET object = ?2
     WHERE seq IN (SELECT external_id FROM inbound_messages WHERE merge_window = ?1)
";

/// Result of checking an inbound message.
pub(super) enum InboundCheck {
    /// A duplicate, or a message of a blocked or dropped author.
    Answered(StoreInboundResult),
    /// A new message whose external id is stored now.
    New(NewInboundRow),
}

/// A new inbound message.
pub(super) struct NewInboundRow {
    /// The row of its external id.
    pub(super) external_id: i64,
    pub(super) author: Did,
    policy: SenderPolicy,
}

/// Checks a message and stores its external id. The message itself is not stored, because it
/// can go through the pipeline first.
pub(super) fn check(
    tx: &mut Tx<'_>,
    request: &StoreInboundRequest,
    now: Timestamp,
) -> StoreResult<InboundCheck> {
    let StoreInboundRequest { tunnel, message, .. } = request;
    if let Some(tunnel_id) = contacts::find_party_id(tx, &tunnel.did())?
        && let known = external_ids::find_in_tx(tx, &message.id, tunnel_id)?
        && let Some(object) = find_repeated(tx.db, known, tunnel_id, message, now)?
    {
        let object = Some(object).filter(|object| *object != 0);
        let subject = EventSubject { object, ..EventSubject::default() };
        let detail = json!({"of": "received", "tunnel": tunnel, "external_id": message.id});
        events::append(tx, EventKind::Duplicate, subject, &detail, now)?;
        return Ok(InboundCheck::Answered(StoreInboundResult::Duplicate));
    }
    let (author, policy) = sender_policy(tx, message, tunnel)?;
    contacts::insert_unknown_tunnel(tx, tunnel, now)?;
    let tunnel_id = contacts::party_id(tx, &tunnel.did())?;
    let external_id = external_ids::insert(tx, tunnel_id, &message.id, 0)?;
    if let Some(body) = &message.body_hash {
        external_ids::insert_body(tx, tunnel_id, body, external_id, now)?;
    }
    if let SenderPolicy::Reject(kind, result) = policy {
        append_event(tx, kind, &author, &event_detail(request), now)?;
        return Ok(InboundCheck::Answered(result));
    }
    Ok(InboundCheck::New(NewInboundRow { external_id, author, policy }))
}

/// Finds the first copy of a message, by its external id, whose rows are `known`, or by its body.
/// Returns the row of its object.
fn find_repeated(
    db: &Db,
    known: Option<(i64, i64)>,
    tunnel: i64,
    message: &InboundMessage,
    now: Timestamp,
) -> StoreResult<Option<i64>> {
    match (known, &message.body_hash) {
        (Some((_, object)), _) => Ok(Some(object)),
        (None, Some(body)) => external_ids::find_body(db, tunnel, body, now),
        (None, None) => Ok(None),
    }
}

/// Whether a message is neither a duplicate nor rejected.
fn is_new(
    db: &Db,
    recent: &RecentEntries,
    tunnel: &TunnelId,
    message: &InboundMessage,
    now: Timestamp,
) -> StoreResult<bool> {
    if let Some(tunnel_id) = contacts::find(db, &tunnel.did())?
        && let known = external_ids::find(db, recent, &message.id, Some(tunnel_id))?
        && find_repeated(db, known, tunnel_id, message, now)?.is_some()
    {
        return Ok(false);
    }
    let author = message.from.did(tunnel).map_err(|error| damaged_message(&error))?;
    let book = address_book::read(db, &author, &[], Some(tunnel))?;
    let unverified = message.sender_verified == Some(false);
    Ok(!matches!(SenderPolicy::of(&author, unverified, tunnel, book), SenderPolicy::Reject(..)))
}

/// Stores a message that has passed the pipeline in its merge window. The policy for its author
/// is evaluated again, because it can have changed.
pub(super) fn store_checked(
    tx: &mut Tx<'_>,
    request: &StoreInboundRequest,
    external_id: i64,
    now: Timestamp,
) -> StoreResult<StoreInboundResult> {
    let (author, policy) = sender_policy(tx, &request.message, &request.tunnel)?;
    if let SenderPolicy::Reject(kind, result) = policy {
        append_event(tx, kind, &author, &event_detail(request), now)?;
        return Ok(result);
    }
    insert_message(tx, request, external_id, policy, now)?;
    Ok(StoreInboundResult::Stored)
}

/// Inserts a message into the merge window of its session.
fn insert_message(
    tx: &mut Tx<'_>,
    request: &StoreInboundRequest,
    external_id: i64,
    policy: SenderPolicy,
    now: Timestamp,
) -> StoreResult<()> {
    let StoreInboundRequest { tunnel, provider, message, debounce, .. } = request;
    let held = policy == SenderPolicy::Hold;
    let tunnel_id = contacts::party_id(tx, &tunnel.did())?;
    let key = WindowKey { tunnel_id, tunnel, provider, session: message.merge_key(held), held };
    let bytes = u32::try_from(message.json().len()).unwrap_or(u32::MAX);
    let files = files::count(tx.db, external_id, message)?;
    let window = join_window(tx, key, bytes, files, debounce, now)?;
    rows::execute(tx.db, INSERT_MESSAGE, params![window, external_id, message.json()])?;
    if files.all > 0 {
        files::enter_window(tx, external_id, window)?;
    }
    tx.effects.inbound = true;
    Ok(())
}

/// What happens to messages of an author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderPolicy {
    /// Accept: the author is a contact.
    Trust,
    /// Accept: the author is a stranger, and the tunnel accepts strangers.
    AcceptStranger,
    /// Hold: the author is a stranger, and the tunnel holds messages of strangers.
    Hold,
    /// Reject with this event and this result.
    Reject(EventKind, StoreInboundResult),
}

impl SenderPolicy {
    /// `unverified`: nothing proves that the author wrote the message.
    fn of(author: &Did, unverified: bool, tunnel: &TunnelId, mut book: AddressBook) -> Self {
        if unverified {
            book.distrust(author);
        }
        if book.blocks(author) {
            return Self::Reject(EventKind::Blocked, StoreInboundResult::Blocked);
        }
        if !book.is_stranger(author) {
            return Self::Trust;
        }
        match book.tunnels.get(tunnel).map(|tunnel| tunnel.strangers) {
            Some(StrangerPolicy::Drop) => {
                Self::Reject(EventKind::Dropped, StoreInboundResult::Dropped)
            }
            Some(StrangerPolicy::Hold) => Self::Hold,
            Some(StrangerPolicy::Accept) | None => Self::AcceptStranger,
        }
    }
}

/// Evaluates the policy for the author of a message, in the writer.
fn sender_policy(
    tx: &mut Tx<'_>,
    message: &InboundMessage,
    tunnel: &TunnelId,
) -> StoreResult<(Did, SenderPolicy)> {
    let author = message.from.did(tunnel).map_err(|error| damaged_message(&error))?;
    let book = address_book::of_parties(tx, &author, &[], Some(tunnel))?;
    let policy = SenderPolicy::of(&author, message.is_unverified(), tunnel, book);
    Ok((author, policy))
}

/// The event detail that identifies an inbound message.
pub(super) fn event_detail(request: &StoreInboundRequest) -> Value {
    json!({"tunnel": request.tunnel, "external_id": request.message.id})
}

/// Appends an event about an inbound message of `author`.
pub(super) fn append_event(
    tx: &mut Tx<'_>,
    kind: EventKind,
    author: &Did,
    detail: &Value,
    now: Timestamp,
) -> StoreResult<()> {
    let owner = contacts::party_id(tx, author)?;
    let subject = EventSubject { owner: Some(owner), ..EventSubject::default() };
    events::append(tx, kind, subject, detail, now)
}

/// Identifies the merge window of a message.
struct WindowKey<'a> {
    tunnel_id: i64,
    tunnel: &'a TunnelId,
    provider: &'a str,
    session: String,
    held: bool,
}

/// The open windows of some sessions, in one transaction: by tunnel, session and whether they are
/// held, in the order of their numbers.
#[derive(Default)]
pub(super) struct KnownWindows(HashMap<(i64, String, bool), Vec<KnownWindow>>);

struct KnownWindow {
    id: i64,
    window: MergeWindow,
    closes_at: Timestamp,
}

impl KnownWindows {
    /// Forgets all, at the end of a transaction and when a command changes windows in another way.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The window of a message that is stored, as far as it is known before.
pub(super) struct WindowLookup {
    tunnel: Did,
    /// Its session, when it is not held, and when it is.
    sessions: [String; 2],
    now: Timestamp,
}

impl WindowLookup {
    fn new(request: &StoreInboundRequest, now: Timestamp) -> Self {
        let sessions = [false, true].map(|held| request.message.merge_key(held));
        Self { tunnel: request.tunnel.did(), sessions, now }
    }
}

/// Looks up the open windows of several messages. The window of one alone is found as fast when it is
/// needed.
pub(super) fn look_up_windows(tx: &mut Tx<'_>, lookups: &[&WindowLookup]) -> StoreResult<()> {
    let Some(oldest) = lookups.iter().map(|it| it.now).min().filter(|_| lookups.len() > 1) else {
        return Ok(());
    };
    let (mut tunnels, mut sessions, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for WindowLookup { tunnel, sessions: both, .. } in lookups {
        let Some(tunnel) = contacts::find_party_id(tx, tunnel)? else { continue };
        for (session, held) in both.iter().zip([false, true]) {
            tunnels.push(tunnel.to_string());
            sessions.push(format!("x{}", encoded_text(session)));
            keys.push((tunnel, session.clone(), held));
        }
    }
    let row = params![tunnels.join(","), sessions.join(","), oldest.ms()];
    let found = rows::list(tx.db, FIND_WINDOWS, row, |row| {
        let key: (i64, String, bool) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let closes_at = Timestamp::from_ms(row.get(3)?);
        Ok((key, KnownWindow { id: row.get(4)?, window: read_window(row, 5)?, closes_at }))
    })?;
    let known = &mut tx.cache.windows.0;
    known.extend(keys.into_iter().map(|key| (key, Vec::new())));
    for (key, window) in found {
        // Two messages of one session find it twice.
        if let Some(known) = known.get_mut(&key)
            && known.last().is_none_or(|last| last.id < window.id)
        {
            known.push(window);
        }
    }
    Ok(())
}

impl Lookups {
    /// What is looked up to store messages.
    fn of_inbound<'r>(
        requests: impl Iterator<Item = &'r StoreInboundRequest>,
        now: Timestamp,
    ) -> Self {
        let mut lookups = Self::default();
        for request in requests {
            lookups.external_ids.push(external_ids::hash_prefix(&request.message.id));
            lookups.windows.push(WindowLookup::new(request, now));
        }
        lookups
    }
}

/// Reads the columns of a window, which start at the column `first`.
fn read_window(row: &Row<'_>, first: usize) -> RowResult<MergeWindow> {
    Ok(MergeWindow {
        first: Timestamp::from_ms(row.get(first)?),
        last: Timestamp::from_ms(row.get(first + 1)?),
        messages: row.get(first + 2)?,
        bytes: row.get(first + 3)?,
        pending_files: row.get(first + 4)?,
    })
}

/// Finds the open window of a session.
fn find_window(
    tx: &Tx<'_>,
    key: &(i64, String, bool),
    now: Timestamp,
) -> StoreResult<Option<(i64, MergeWindow)>> {
    if let Some(known) = tx.cache.windows.0.get(key) {
        let open = known.iter().rev().find(|it| it.closes_at > now);
        return Ok(open.map(|it| (it.id, it.window)));
    }
    let (tunnel, session, held) = key;
    let row = params![tunnel, session, held, now.ms()];
    rows::optional(tx.db, FIND_WINDOW, row, |row| Ok((row.get(0)?, read_window(row, 1)?)))
}

/// Adds a message of `bytes` to the open window of its session, or opens a new one. Returns
/// the window.
fn join_window(
    tx: &mut Tx<'_>,
    key: WindowKey<'_>,
    bytes: u32,
    files: FileCounts,
    debounce: &Debounce,
    now: Timestamp,
) -> StoreResult<i64> {
    let WindowKey { tunnel_id, tunnel, provider, session, held } = key;
    let key = (tunnel_id, session, held);
    let open = find_window(tx, &key, now)?;
    let joined = open.and_then(|(id, window)| Some((id, window.join(debounce, now, bytes)?)));
    let is_open = joined.is_some();
    let (id, window) = joined.unwrap_or_else(|| (0, MergeWindow::open(now, bytes)));
    let window = window.with_files(files.pending);
    let (ready_at, closes_at) = (window.ready_at(debounce), window.closes_at(debounce));
    let id = if is_open {
        let row = params![
            id,
            window.last.ms(),
            window.messages,
            window.bytes,
            files.all,
            window.pending_files,
            ready_at.ms(),
            closes_at.ms(),
        ];
        rows::execute(tx.db, EXTEND_WINDOW, row)?;
        id
    } else {
        let row = params![
            tunnel_id,
            tunnel.as_str(),
            provider,
            key.1,
            held,
            window.first.ms(),
            window.last.ms(),
            window.messages,
            window.bytes,
            files.all,
            window.pending_files,
            ready_at.ms(),
            closes_at.ms(),
        ];
        rows::insert(tx.db, INSERT_WINDOW, row)?
    };
    if let Some(known) = tx.cache.windows.0.get_mut(&key) {
        known.retain(|it| it.id != id);
        known.push(KnownWindow { id, window, closes_at });
    }
    Ok(id)
}

/// Number of messages that are not merged yet.
pub(super) fn count_waiting(db: &Db) -> StoreResult<i64> {
    let sql = "SELECT CAST(coalesce(sum(messages), 0) AS BIGINT) FROM merge_windows";
    rows::one(db, sql, [], |row| row.get(0))
}

/// A window whose Mail was built outside of the writer thread.
struct PreparedMerge {
    window: i64,
    tunnel: TunnelId,
    /// The merge is valid only while no stored message or file of the window has changed.
    revision: i64,
    has_files: bool,
    /// The external ids of its messages. The merge is valid only while the window has exactly
    /// these.
    external_ids: Vec<i64>,
    /// The policy for each author, by id and whether it is unverified. The merge is valid only
    /// while these are unchanged.
    policies: HashMap<(String, bool), (Did, SenderPolicy)>,
    rejected: Vec<RejectedMessage>,
    held: bool,
    /// `None` when all authors are blocked or dropped meanwhile.
    mail: Option<PreparedMail>,
}

struct PreparedMail {
    id: MailId,
    object: MsgObject,
    /// Its index entry; the number is set when it is inserted.
    entry: MailIndexEntry,
    owner: Did,
    messages: usize,
    /// Where the history of its chat is read on, when the adapter reads it.
    position: Option<ChatPosition>,
    /// Whether nothing proves that its author wrote it.
    unverified: bool,
}

/// A message whose author is blocked or dropped meanwhile.
struct RejectedMessage {
    row: i64,
    author: Did,
    external_id: String,
    kind: EventKind,
}

/// Builds the Mail of a window. Returns `None` when the window was merged meanwhile.
fn prepare_merge(
    db: &Db,
    window: i64,
    context: &MergeContext,
    now: Timestamp,
) -> StoreResult<Option<PreparedMerge>> {
    let sql = "
        SELECT tunnel_name, provider, held, files > 0, revision FROM merge_windows WHERE id = ?1
    ";
    let found: Option<(TunnelId, String, bool, bool, i64)> =
        rows::optional(db, sql, [window], |row| {
            Ok((parsed(row, 0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })?;
    let Some((tunnel, provider, mut held, has_files, revision)) = found else { return Ok(None) };
    let mut stored = read_messages(db, window)?;
    if has_files {
        files::apply(db, window, &mut stored)?;
    }
    let mut trust = Trust::Known;
    let (mut external_ids, mut messages, mut rejected) = (Vec::new(), Vec::new(), Vec::new());
    let mut policies: HashMap<(String, bool), (Did, SenderPolicy)> = HashMap::new();
    for (row, message) in stored {
        external_ids.push(row);
        let from = &message.from;
        let key = (from.id.clone(), message.is_unverified());
        let (author, policy) = match policies.get(&key) {
            Some(known) => known.clone(),
            None => {
                let author = from.did(&tunnel).map_err(|error| damaged_message(&error))?;
                let book = address_book::read(db, &author, &[], Some(&tunnel))?;
                let policy = SenderPolicy::of(&author, message.is_unverified(), &tunnel, book);
                policies.insert(key, (author.clone(), policy));
                (author, policy)
            }
        };
        if let SenderPolicy::Reject(kind, _) = policy {
            rejected.push(RejectedMessage { row, author, external_id: message.id, kind });
            continue;
        }
        held &= policy == SenderPolicy::Hold;
        if policy != SenderPolicy::Trust {
            trust = Trust::Untrusted;
        }
        messages.push(message);
    }
    // From the store, not from the config: every courier builds the same Mail.
    let info = address_book::tunnel(db, &tunnel)?;
    let labels = info.as_ref().map(|info| &info.labels);
    let session = messages.first().map(|first| first.session.id.as_str()).unwrap_or_default();
    let binding = labels.and_then(|labels| labels.of(session)).map(str::to_owned);
    let unverified = messages.iter().any(InboundMessage::is_unverified);
    let (owner, count) = (context.owner.clone(), messages.len());
    let reads_history = info.as_ref().is_some_and(|info| info.reads_history);
    let position = if reads_history { positions::of_messages(&messages) } else { None };
    let builder = MailBuilder { tunnel: tunnel.clone(), provider, owner, binding, trust, messages };
    let mail = match builder.mail_id() {
        Some(id) => {
            // An invalid provider makes an id that no file name can have.
            id.to_string().parse::<MailId>().map_err(|error| damaged_message(&error))?;
            let BuiltMail { mail, object } =
                builder.build(now).map_err(|error| damaged_message(&error))?;
            let entry = mail.entry(0, &mail.render());
            let owner = context.owner.clone();
            Some(PreparedMail { id, object, entry, owner, messages: count, position, unverified })
        }
        None => None,
    };
    Ok(Some(PreparedMerge {
        window,
        tunnel,
        revision,
        has_files,
        external_ids,
        policies,
        rejected,
        held,
        mail,
    }))
}

/// Inserts the Mail of a window and deletes its messages. Returns `false` when the window or
/// the policy for an author has changed since the merge was prepared.
fn merge_window(tx: &mut Tx<'_>, merge: &PreparedMerge, now: Timestamp) -> StoreResult<bool> {
    let PreparedMerge { window, tunnel, held, .. } = merge;
    if rows::numbers(tx.db, MESSAGE_IDS, [window])? != merge.external_ids {
        return Ok(false);
    }
    for ((_, unverified), (author, policy)) in &merge.policies {
        let book = address_book::of_parties(tx, author, &[], Some(tunnel))?;
        if SenderPolicy::of(author, *unverified, tunnel, book) != *policy {
            return Ok(false);
        }
    }
    let sql = "DELETE FROM merge_windows WHERE id = ?1 AND revision = ?2";
    if rows::changed_rows(tx.db, sql, [*window, merge.revision])? == 0 {
        return Ok(false);
    }
    for RejectedMessage { row, author, external_id, kind } in &merge.rejected {
        let sql = "DELETE FROM inbound_messages WHERE external_id = ?1";
        rows::execute(tx.db, sql, [row])?;
        let detail = json!({"tunnel": tunnel, "external_id": external_id});
        append_event(tx, *kind, author, &detail, now)?;
    }
    if let Some(mail) = &merge.mail
        && let Some(object) = insert_mail(tx, mail, tunnel, *held, now)?
    {
        for sql in [SET_LETTERS_BECAME, SET_EXTERNAL_IDS] {
            rows::execute(tx.db, sql, [*window, object])?;
        }
        tx.cache.external_ids.clear();
        let subject = EventSubject { object: Some(object), ..EventSubject::default() };
        let detail =
            json!({"mail": mail.id, "messages": mail.messages, "tunnel": tunnel, "held": held});
        events::append(tx, EventKind::Merged, subject, &detail, now)?;
        if let Some(position) = &mail.position {
            positions::put(tx, tunnel, position, object)?;
        }
    }
    rows::execute(tx.db, "DELETE FROM inbound_messages WHERE merge_window = ?1", [window])?;
    if merge.has_files {
        rows::execute(tx.db, "DELETE FROM inbound_files WHERE merge_window = ?1", [window])?;
    }
    Ok(true)
}

/// Puts a Mail into its boxes. Returns the row of its object, or `None` when its author is
/// blocked or dropped there.
fn insert_mail(
    tx: &mut Tx<'_>,
    mail: &PreparedMail,
    tunnel: &TunnelId,
    held: bool,
    now: Timestamp,
) -> StoreResult<Option<i64>> {
    let msg = mail.object.clone();
    let request = DispatchRequest { msg, tunnel: Some(tunnel.clone()), external_id: None };
    match dispatch::dispatch_mail(tx, &request, mail.unverified, now)?.outcome {
        DispatchOutcome::Blocked | DispatchOutcome::Dropped => return Ok(None),
        DispatchOutcome::Delivered { .. } | DispatchOutcome::Chained { .. } => {}
    }
    let object = objects::seq_of(tx.db, tx.indexes.hashes.recent(), &mail.object.id())?;
    let author = contacts::party_id(tx, mail.object.author())?;
    let location = if held { MailLocation::Held } else { MailLocation::Inbound };
    let owner = contacts::party_id(tx, &mail.owner)?;
    let (id, entry) = (&mail.id, &mail.entry);
    mails::insert(tx, NewMail { id, entry, object, author, owner, location })?;
    Ok(Some(object))
}

/// Lists the messages of a window with their rows.
fn read_messages(db: &Db, window: i64) -> StoreResult<Vec<(i64, InboundMessage)>> {
    rows::list(db, MESSAGES, [window], |row| {
        let message = row.get_str(1)?;
        let message =
            serde_json::from_str(message).map_err(|_| rows::damaged(1, "invalid message"))?;
        Ok((row.get(0)?, message))
    })
}

/// Messages are validated before they are stored, so that an invalid one is damaged.
fn damaged_message(error: &dyn std::error::Error) -> StoreError {
    StoreError::Damaged { what: "message", detail: error.to_string() }
}

/// Lists windows to merge with their sizes, the longest closed first.
fn windows_to_merge(
    db: &Db,
    context: &MergeContext,
    limit: usize,
    now: Timestamp,
) -> StoreResult<Vec<(i64, i64)>> {
    let mut condition = if context.all { IS_CLOSED_OR_WITHOUT_FILES } else { IS_CLOSED }.to_owned();
    if let Some(tunnels) = &context.tunnels {
        let mut ids = Vec::with_capacity(tunnels.len());
        for tunnel in tunnels {
            ids.extend(contacts::find(db, &tunnel.did())?.map(|id| id.to_string()));
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        // Row numbers, so that the text of the statement has no foreign text.
        condition = format!("{condition} AND tunnel IN ({})", ids.join(", "));
    }
    let sql = format!(
        "SELECT id, bytes FROM merge_windows WHERE {condition} ORDER BY closes_at, id LIMIT ?2"
    );
    let row = params![now.ms(), rows::limit(limit)];
    rows::list(db, &sql, row, |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Splits windows into batches whose Mails fit into memory together.
fn batches(windows: &[(i64, i64)]) -> Vec<Vec<i64>> {
    let (mut batches, mut bytes) = (Vec::<Vec<i64>>::new(), 0);
    for (window, size) in windows {
        bytes += size;
        match batches.last_mut() {
            Some(batch) if bytes <= MAX_BYTES_PER_BATCH => batch.push(*window),
            _ => {
                batches.push(vec![*window]);
                bytes = *size;
            }
        }
    }
    batches
}

impl SqlStore {
    /// Stores the attachments of a message, unless it is a duplicate or rejected: attachments of
    /// a message that was erased must not come back with its next copy.
    pub(super) async fn put_attachments(
        &self,
        request: &StoreInboundRequest,
        now: Timestamp,
    ) -> StoreResult<()> {
        let StoreInboundRequest { message, attachments, .. } = request;
        if attachments.is_empty() {
            return Ok(());
        }
        let tunnel = request.tunnel.clone();
        let (session, from) = (ChatSession::default(), message.from.clone());
        let body_hash = message.body_hash;
        let sender_verified = message.sender_verified;
        let head = InboundMessage {
            body_hash,
            sender_verified,
            ..InboundMessage::new(&message.id, session, from, "")
        };
        let recent = Arc::clone(&self.recent.external_ids);
        if !self.read(move |db| is_new(db, &recent, &tunnel, &head, now)).await? {
            return Ok(());
        }
        for bytes in attachments {
            self.put_file(ObjId::of(ObjKind::Bytes, bytes), bytes.clone()).await?;
        }
        Ok(())
    }

    /// Merges some windows: the Mails are built here, and inserted by the writer thread.
    async fn merge_batch(
        &self,
        windows: Vec<i64>,
        context: &Arc<MergeContext>,
        now: Timestamp,
    ) -> StoreResult<usize> {
        let _lock = self.erasing.read().await;
        let context = Arc::clone(context);
        let prepare = self.read(move |db| {
            let prepare = |window| (window, prepare_merge(db, window, &context, now));
            Ok(windows.into_iter().map(prepare).collect::<Vec<_>>())
        });
        let (mut merges, mut failed) = (Vec::new(), Vec::new());
        for (window, merge) in prepare.await? {
            match merge {
                Ok(Some(merge)) => {
                    if let Some(mail) = &merge.mail {
                        self.put_large_message(&mail.object).await?;
                    }
                    merges.push(merge);
                }
                Ok(None) => {}
                Err(error) => failed.push((window, error)),
            }
        }
        let merges = Arc::new(merges);
        let shared = Arc::clone(&merges);
        let insert =
            self.writer.run(move |tx| tx.each(&shared, |tx, merge| merge_window(tx, merge, now)));
        let mut merged = 0;
        for (merge, result) in merges.iter().zip(insert.await?) {
            match result {
                // An outdated merge is prepared again by the next call.
                Ok(done) => merged += usize::from(done),
                Err(error) => failed.push((merge.window, error)),
            }
        }
        for (window, error) in failed {
            tracing::error!(window, %error, "cannot merge inbound messages into a Mail");
            // Postponed, so that it does not block the other windows.
            let until = (now + RETRY_DELAY).ms();
            let sql = "UPDATE merge_windows SET closes_at = ?2 WHERE id = ?1";
            self.writer.run(move |tx| rows::execute(tx.db, sql, [window, until])).await?;
        }
        Ok(merged)
    }
}

#[async_trait]
impl InboundStore for SqlStore {
    async fn store_inbound(
        &self,
        batch: Vec<StoreInboundRequest>,
        now: Timestamp,
    ) -> Vec<StoreResult<StoreInboundResult>> {
        let _lock = self.erasing.read().await;
        for request in &batch {
            if let Err(error) = self.put_attachments(request, now).await {
                return vec![Err(error); batch.len()];
            }
        }
        let lookups = Lookups::of_inbound(batch.iter(), now);
        self.writer
            .run_each_on(lookups, batch, move |tx, batch| {
                tx.each(batch, |tx, request| {
                    Ok(batch::store_new(tx, request, false, now)?.0.result)
                })
            })
            .await
    }

    async fn store_events(
        &self,
        batch: Vec<StoreInboundEvent>,
        inbound: Arc<PipelineRouting>,
        now: Timestamp,
    ) -> Vec<StoreResult<StoreEventResult>> {
        self.store_batch(batch, &inbound, now).await
    }

    async fn chat_positions(&self, tunnel: &TunnelId) -> StoreResult<Vec<ChatPosition>> {
        let tunnel = tunnel.clone();
        self.read(move |db| positions::list(db, &tunnel)).await
    }

    async fn merge(
        &self,
        context: Arc<MergeContext>,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize> {
        let of = Arc::clone(&context);
        let windows = self.read(move |db| windows_to_merge(db, &of, limit, now)).await?;
        let mut merged = 0;
        for windows in batches(&windows) {
            merged += self.merge_batch(windows, &context, now).await?;
        }
        Ok(merged)
    }

    async fn next_merge(&self) -> StoreResult<Option<Timestamp>> {
        self.read(|db| {
            let sql = "SELECT closes_at FROM merge_windows ORDER BY closes_at LIMIT 1";
            let at = rows::optional(db, sql, [], |row| row.get(0))?;
            Ok(at.map(Timestamp::from_ms))
        })
        .await
    }

    fn newest_inbound(&self) -> watch::Receiver<u64> {
        self.channels.inbound.subscribe()
    }
}
