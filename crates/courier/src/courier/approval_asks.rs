//! Asks for approvals in chats: posts the text of held messages with a code, and takes the answers.
//!
//! An answer is a whole message, `yes CODE` or `no CODE reason`, of the account that was asked, in
//! its direct chat. It is taken before messages are merged, so that it never becomes a Mail, and is
//! answered in the same chat.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::approval::chat_answer::{CODE_LETTERS, ChatAnswer, code};
use monoco_core::approval::{Approval, ApprovalState, ApprovalStateData, SendOrigin};
use monoco_core::did::{Did, EMAIL_PROVIDER};
use monoco_core::inbound::ChatSessionKind;
use monoco_core::mail;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use monoco_store::{
    AskRequest, ChatAnswerResult, SendRequest, SharedStore, StoreError, StoreInboundRequest,
    StoreInboundResult, StoreResult,
};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::background::{self, BackgroundTask, NextStep};
use crate::center::approvals::{read_message, shown_text};
use crate::clock::Clock;
use crate::config::Config;

/// The author of questions and of the answers to codes.
const COURIER: &str = "did:monoco:courier";

/// Time between a held message and the question, at most.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Approvals that one step asks about.
const MAX_PER_STEP: usize = 50;

/// Codes that are tried until one is not in use.
const MAX_CODES: usize = 20;

/// Longest part of the held text in a question, in characters.
const MAX_TEXT_CHARS: usize = 3_000;

/// Targets that a question names.
const MAX_SHOWN_TARGETS: usize = 10;

struct AskTask {
    store: SharedStore,
    clock: Clock,
    config: watch::Receiver<Arc<Config>>,
}

impl BackgroundTask for AskTask {
    const NAME: &'static str = "approval questions";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        let ask = self.config.borrow().approvals.ask.clone();
        if ask.is_empty() {
            return Ok(NextStep::After(ASK_INTERVAL));
        }
        let unasked = self.store.unasked_approvals(MAX_PER_STEP).await?;
        for approval in &unasked {
            for target in &ask {
                self.ask(approval, target).await?;
            }
            self.store.mark_asked(approval.id).await?;
        }
        let more = unasked.len() == MAX_PER_STEP;
        Ok(if more { NextStep::Now } else { NextStep::After(ASK_INTERVAL) })
    }
}

impl AskTask {
    /// Posts the question to one account. An account that cannot be reached is left out: the
    /// approval can be answered elsewhere.
    async fn ask(&self, approval: &Approval, target: &Did) -> StoreResult<()> {
        let held = match read_message(&self.store, approval.msg_id).await {
            Ok(held) => held,
            Err(StoreError::Erased { .. } | StoreError::Damaged { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        for _ in 0..MAX_CODES {
            let code = random_code()?;
            let request = AskRequest {
                approval: approval.id,
                target: target.clone(),
                msg: question(approval, &held, target, &code)?,
                code,
            };
            match self.store.ask_approval(request, self.clock.now()).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error @ (StoreError::UnresolvableTargets(_) | StoreError::Expired(_))) => {
                    tracing::warn!(approval = %approval.id, %target, %error, "cannot ask for approval");
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Unavailable("no code is free for a question about an approval".to_owned()))
    }
}

/// Asks about held messages until `stop` is cancelled.
pub async fn run(
    store: SharedStore,
    clock: Clock,
    config: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) {
    background::run(&mut AskTask { store, clock, config }, &stop).await;
}

fn random_code() -> StoreResult<String> {
    let mut random = [0; CODE_LETTERS];
    for number in &mut random {
        *number = getrandom::u32()
            .map_err(|error| StoreError::Unavailable(format!("no random bytes: {error}")))?;
    }
    Ok(code(random))
}

fn question(
    approval: &Approval,
    held: &MsgObject,
    target: &Did,
    code: &str,
) -> StoreResult<MsgObject> {
    let (title, text) = shown_text(held);
    let text = text.unwrap_or_default();
    let mut shown: String = text.chars().take(MAX_TEXT_CHARS).collect();
    if shown.len() < text.len() {
        shown.push_str("\n[cut; `monoco approve show` has the whole text]");
    }
    let targets: Vec<&str> = approval
        .targets
        .iter()
        .take(MAX_SHOWN_TARGETS)
        .map(|target| target.target.as_str())
        .collect();
    let more = match approval.targets.len().checked_sub(MAX_SHOWN_TARGETS) {
        Some(more @ 1..) => format!(" and {more} more"),
        _ => String::new(),
    };
    let quoted: String = shown.lines().map(|line| format!("> {line}\n")).collect();
    let title = title.map(|title| format!("Title: {title}\n")).unwrap_or_default();
    let (id, origin, why) = (approval.id, &approval.origin, &approval.why);
    let text = format!(
        "Approval {id}: {origin} wants to send this to {}{more} ({why}):\n\n{title}{quoted}\n\
         Answer `yes {code}` to send it, or `no {code}` and a reason.",
        targets.join(", ")
    );
    let expires_at = match approval.state {
        ApprovalStateData::Pending { expires_at } => Some(expires_at),
        _ => None,
    };
    message(target, &text, &format!("ask {id} {code}"), expires_at)
}

/// A message of the courier. The same `key` gives the same message.
fn message(
    target: &Did,
    text: &str,
    key: &str,
    expires_at: Option<Timestamp>,
) -> StoreResult<MsgObject> {
    let hash = ObjId::of(ObjKind::Bytes, key.as_bytes());
    let nonce = hash.hash()[..6].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let object = json!({
        "from": COURIER,
        "to": [target],
        "kind": "notify",
        "nonce": nonce,
        "expires_at_ms": expires_at.map(Timestamp::ms),
        "content": {"format": mail::FORMAT, "content": text},
    });
    MsgObject::from_json(object).map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// Takes a message that answers an approval. Returns `None` when it is an ordinary message.
///
/// # Errors
///
/// The store's error; then the message must be received again.
pub async fn take_answer(
    store: &SharedStore,
    request: &StoreInboundRequest,
    now: Timestamp,
) -> Option<StoreResult<StoreInboundResult>> {
    let (account, answer) = chat_answer(request)?;
    let taken = store.answer_by_code(&account, request.clone(), answer, now).await;
    let reply = match taken {
        Ok(ChatAnswerResult::NotAsked) => return None,
        Ok(ChatAnswerResult::Inbound(result)) => return Some(Ok(result)),
        Ok(result) => reply_text(&result),
        Err(error) => return Some(Err(error)),
    };
    let key = format!("answer {} {}", request.tunnel, request.message.id);
    if let Err(error) = send_reply(store, &account, &reply, &key, now).await {
        // The answer itself is stored.
        tracing::warn!(%account, %error, "cannot confirm an answer to an approval");
    }
    Some(Ok(StoreInboundResult::Stored))
}

/// The account and the answer, when the message has the form of one. A forwarded message, one with
/// files, one in a group and one whose author is not proved are ordinary messages.
fn chat_answer(request: &StoreInboundRequest) -> Option<(Did, ChatAnswer)> {
    let message = &request.message;
    let is_own = message.session.kind == ChatSessionKind::Direct
        && message.artifacts.is_empty()
        && message.forwarded_from.is_none()
        && !message.is_unverified();
    let answer = match request.provider == EMAIL_PROVIDER {
        true => ChatAnswer::parse_mail(&message.text),
        false => ChatAnswer::parse(&message.text),
    };
    let account = message.from.did(&request.tunnel).ok()?;
    answer.filter(|_| is_own).map(|answer| (account, answer))
}

fn reply_text(result: &ChatAnswerResult) -> String {
    match result {
        ChatAnswerResult::Answered(approval) => match approval.state.name() {
            ApprovalState::Approved => format!("{} is approved; the message is sent.", approval.id),
            _ => format!("{} is rejected; nothing is sent.", approval.id),
        },
        ChatAnswerResult::AlreadyAnswered(id, first) => format!("{id}: {first}."),
        ChatAnswerResult::WrongCode { locked_until: None } => {
            "No approval has this code; nothing is sent. `monoco approve list` lists all."
                .to_owned()
        }
        ChatAnswerResult::WrongCode { locked_until: Some(until) }
        | ChatAnswerResult::Locked { until } => format!(
            "Too many wrong codes: answers from here are ignored until {}. Nothing is sent; use \
             `monoco approve`.",
            until.rfc3339()
        ),
        ChatAnswerResult::NotAsked | ChatAnswerResult::Inbound(_) => String::new(),
    }
}

async fn send_reply(
    store: &SharedStore,
    account: &Did,
    text: &str,
    key: &str,
    now: Timestamp,
) -> StoreResult<()> {
    let msg = message(account, text, key, None)?;
    let origin = SendOrigin::Courier;
    store.send(SendRequest { msg, key: None, not_before: None, origin }, now).await?;
    Ok(())
}
