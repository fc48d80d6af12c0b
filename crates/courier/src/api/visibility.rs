//! Which messages an agent may see, and a record of the Mails that it has read.
//!
//! Every route and tool that shows an agent text of a Mail records it: the whole text
//! ([`read_mail`]), and titles, names, previews and snippets of Mails of strangers in lists
//! ([`record_shown`]). A preview is long enough for an instruction.
//!
//! An agent sees Mails, and the messages in its own boxes. With the scope operate it sees all
//! messages. What it may not see does not exist for it: the response is 404. The owner sees all,
//! and nothing is recorded.

use monoco_core::claim::{MailLocation, Workspace};
use monoco_core::letter::ChainDirection;
use monoco_core::mail::{MailId, Trust};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::token::{AgentToken, Scope};
use monoco_store::{LetterRow, MailRow, MessageTrace, SearchHit, StoreError};

use super::Api;
use super::caller::Caller;
use super::error::ApiError;

/// Checks that the caller may see a Mail, and records that an agent has read it. An agent gets
/// no text when its read cannot be recorded.
///
/// # Errors
///
/// 404 for a Mail of a sender that is not accepted yet: agents do not read those.
pub async fn read_mail(api: &Api, caller: &Caller, row: &MailRow) -> Result<(), ApiError> {
    check_mail(caller, row)?;
    Ok(record_reads(api, caller, vec![row.entry.seq]).await?)
}

/// Records that an agent has read the Mails with these numbers, which [`check_mail`] has checked.
/// An agent gets no text when this cannot be recorded.
///
/// # Errors
///
/// When the store fails.
pub async fn record_reads(api: &Api, caller: &Caller, mails: Vec<i64>) -> Result<(), StoreError> {
    match caller.agent() {
        Some(token) => api.store.record_reads(&token.name, mails, api.clock.now()).await,
        None => Ok(()),
    }
}

/// Records that an agent was shown parts of Mails of strangers. An agent gets no text when this
/// cannot be recorded.
///
/// # Errors
///
/// When the store fails.
pub async fn record_shown(
    api: &Api,
    caller: &Caller,
    rows: impl IntoIterator<Item = &MailRow>,
) -> Result<(), StoreError> {
    let untrusted = rows.into_iter().filter(|row| row.entry.trust == Trust::Untrusted);
    record_reads(api, caller, untrusted.map(|row| row.entry.seq).collect()).await
}

/// Checks that the caller may see a Mail.
///
/// # Errors
///
/// 404 for a Mail of a sender that is not accepted yet.
pub fn check_mail(caller: &Caller, row: &MailRow) -> Result<(), StoreError> {
    if row.location == MailLocation::Held && !caller.has_scope(Scope::Operate) {
        return Err(StoreError::Missing { what: "Mail", key: row.entry.id.to_string() });
    }
    Ok(())
}

/// Checks that the caller may see a message, and records that an agent has read it when it is a
/// Mail.
///
/// # Errors
///
/// 404 for a message that is no Mail, in no box of the agent, and neither held for the agent nor in
/// the outbound chain.
pub async fn read_message(
    api: &Api,
    caller: &Caller,
    trace: &MessageTrace,
) -> Result<(), ApiError> {
    let Some(token) = caller.agent() else { return Ok(()) };
    if let Some(mail) = &trace.mail {
        return read_mail(api, caller, &find_mail(api, &mail.id).await?).await;
    }
    if can_see(token, trace) {
        return Ok(());
    }
    // A held message is in no box yet. Its author can see what became of it.
    let approval = api.store.approval_of(trace.msg_id).await?;
    if approval.is_some_and(|approval| approval.author == token.did) {
        return Ok(());
    }
    Err(StoreError::Missing { what: "message", key: trace.msg_id.to_string() }.into())
}

/// Checks that the caller may see a letter, with the letters that it was merged into and the
/// message that it became.
///
/// # Errors
///
/// 404 for a letter that the agent has not submitted.
pub async fn read_letter(
    api: &Api,
    caller: &Caller,
    letters: &[LetterRow],
    message: Option<&MessageTrace>,
) -> Result<(), ApiError> {
    let Some(token) = caller.agent() else { return Ok(()) };
    let is_own = letters.iter().all(|row| row.letter.from == token.did.as_str());
    if !is_own && !token.scopes.contains(Scope::Operate) {
        let key = letters.first().map(|row| row.id.to_string()).unwrap_or_default();
        return Err(StoreError::Missing { what: "letter", key }.into());
    }
    match message {
        Some(message) => read_message(api, caller, message).await,
        None => Ok(()),
    }
}

/// Checks that the caller may get an object. `asked` is the id in the request.
///
/// # Errors
///
/// 404 when there is no such object, or the agent may not see it.
pub async fn read_object(
    api: &Api,
    caller: &Caller,
    id: ObjId,
    asked: &str,
) -> Result<(), ApiError> {
    let Some(token) = caller.agent() else { return Ok(()) };
    match id.kind() {
        ObjKind::Msg => read_message(api, caller, &api.store.trace(id).await?).await,
        _ if token.scopes.contains(Scope::Operate) => Ok(()),
        // The hash of an attachment is in the message that the agent has read.
        ObjKind::Bytes if asked == id.to_string() => Ok(()),
        ObjKind::Bytes | ObjKind::Receipt => {
            Err(StoreError::Missing { what: "object", key: asked.chars().take(80).collect() }
                .into())
        }
    }
}

/// Records that an agent has read a message of a box that it may use, when it is a Mail.
///
/// # Errors
///
/// When the store fails.
pub async fn record(api: &Api, caller: &Caller, id: ObjId) -> Result<(), ApiError> {
    let Some(token) = caller.agent() else { return Ok(()) };
    Ok(api.store.record_message_read(&token.name, id, api.clock.now()).await?)
}

fn can_see(token: &AgentToken, trace: &MessageTrace) -> bool {
    token.scopes.contains(Scope::Operate)
        || trace.records.iter().any(|record| record.owner == token.did)
        || trace
            .deliveries
            .iter()
            .any(|delivery| delivery.author == token.did || delivery.plan.tunnel_did == token.did)
        || trace.letters.iter().any(|row| {
            // In the outbound chain the message is in no box yet.
            row.direction == ChainDirection::Outbound && row.letter.from == token.did.as_str()
        })
}

/// Whether the caller may see a message that a search has found.
pub fn can_see_hit(caller: &Caller, hit: &SearchHit) -> bool {
    caller.agent().is_none_or(|token| {
        hit.mail.is_some()
            || token.scopes.contains(Scope::Operate)
            || hit.parties.iter().any(|party| party == token.did.as_str())
    })
}

async fn find_mail(api: &Api, id: &MailId) -> Result<MailRow, ApiError> {
    Ok(api.store.mail(id, &Workspace::shared()).await?)
}
