//! Approvals: edits of held messages, and the replay of decisions with another policy.

use std::collections::HashMap;
use std::convert::Infallible;

use monoco_core::approval::policy::{self, ApprovalPolicy, SendDecision, SendFacts, text_of};
use monoco_core::approval::{Approval, ApprovalId};
use monoco_core::letter::RFC822;
use monoco_core::object::{InvalidObject, MsgObject, ObjId};
use monoco_core::time::Timestamp;
use monoco_store::{SharedStore, StoreError, StoreResult, StoredDecision};
use serde_json::Value;

/// Decisions that one replay reads.
const MAX_REPLAYED: usize = 10_000;

/// Decisions that are read at once.
const DECISIONS_PER_PAGE: usize = 200;

/// The new text of a held message. What is missing stays as it is.
#[derive(Clone, Debug, Default)]
pub struct MessageEditRequest {
    pub text: Option<String>,
    pub title: Option<String>,
}

/// Why a held message was not edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Invalid(#[from] InvalidObject),
    #[error("expected another text or title; approve the message to send it unchanged")]
    Unchanged,
    #[error("the message is an encoded mail, which cannot be edited; reject it instead")]
    Encoded,
}

/// One decision and what another policy decides.
pub struct ReplayedSend {
    pub stored: StoredDecision,
    pub now: SendDecision,
}

/// The result of a replay.
#[derive(Default)]
pub struct ReplayResult {
    pub sends: Vec<ReplayedSend>,
    /// Messages whose text was erased or is damaged.
    pub skipped: usize,
    /// Whether there are more decisions than one replay reads.
    pub truncated: bool,
}

/// Reads a message.
///
/// # Errors
///
/// The store's error, among them that the text was erased.
pub async fn read_message(store: &SharedStore, id: ObjId) -> StoreResult<MsgObject> {
    let damaged = |detail: String| StoreError::Damaged { what: "object", detail };
    let body = store.object(id).await?;
    let value = serde_json::from_slice(&body).map_err(|error| damaged(error.to_string()))?;
    MsgObject::from_json_up_to(value, usize::MAX).map_err(|error| damaged(error.to_string()))
}

/// The title and the text of a message.
pub fn shown_text(msg: &MsgObject) -> (Option<String>, Option<String>) {
    let object: Value = serde_json::from_str(msg.canonical()).unwrap_or_default();
    let part = |key: &str| object["content"][key].as_str().map(str::to_owned);
    (part("title"), part("content"))
}

/// Sends an edited message in place of a held one.
///
/// # Errors
///
/// When the text is not another one or the approval was answered before. Nothing is sent then.
pub async fn edit(
    store: &SharedStore,
    id: ApprovalId,
    request: MessageEditRequest,
    by: &str,
    revision: Option<i64>,
    now: Timestamp,
) -> Result<Approval, EditError> {
    let approval = store.approval(id).await?;
    let held = read_message(store, approval.msg_id).await?;
    let edited = edited_message(&held, request)?;
    Ok(store.edit_approval(id, edited, by, revision, now).await?)
}

fn edited_message(held: &MsgObject, request: MessageEditRequest) -> Result<MsgObject, EditError> {
    let mut object: Value = serde_json::from_str(held.canonical()).unwrap_or_default();
    if object["content"]["format"].as_str() == Some(RFC822) {
        return Err(EditError::Encoded);
    }
    for (key, text) in [("content", request.text), ("title", request.title)] {
        if let Some(text) = text {
            object["content"][key] = Value::String(text);
        }
    }
    // The author has not signed the new text.
    if let Some(fields) = object.as_object_mut() {
        fields.remove("proof");
    }
    let edited = MsgObject::from_json(object)?;
    if edited.id() == held.id() {
        return Err(EditError::Unchanged);
    }
    Ok(edited)
}

/// Decides again about all messages since a time, with another policy.
///
/// # Errors
///
/// The store's error.
pub async fn replay(
    store: &SharedStore,
    policy: &ApprovalPolicy,
    since: Timestamp,
) -> StoreResult<ReplayResult> {
    let mut result = ReplayResult::default();
    let mut sent = SentByRule::default();
    let mut beyond = None;
    loop {
        let page = store.decisions(since, beyond, DECISIONS_PER_PAGE).await?;
        for stored in page.entries {
            let msg = match read_message(store, stored.msg_id).await {
                Ok(msg) => msg,
                Err(StoreError::Erased { .. } | StoreError::Damaged { .. }) => {
                    result.skipped += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            // A halt of that time is no part of the policy.
            let facts = SendFacts { halt: None, ..stored.facts.clone() };
            let now = decide_again(policy, &facts, &msg, stored.at, &mut sent);
            result.sends.push(ReplayedSend { stored, now });
        }
        beyond = page.next;
        result.truncated = beyond.is_some() && result.sends.len() >= MAX_REPLAYED;
        if beyond.is_none() || result.truncated {
            return Ok(result);
        }
    }
}

/// The messages that the rules with a rate have sent in the replay, by agent and rule.
#[derive(Default)]
struct SentByRule(HashMap<(String, String), Vec<Timestamp>>);

fn decide_again(
    policy: &ApprovalPolicy,
    facts: &SendFacts,
    msg: &MsgObject,
    at: Timestamp,
    sent: &mut SentByRule,
) -> SendDecision {
    let agent = facts.origin.agent().unwrap_or_default().to_owned();
    let key = |rule: &str| (agent.clone(), rule.to_owned());
    let sent_before = |rule: &str, since: Timestamp| {
        let times = sent.0.get(&key(rule)).map(Vec::as_slice).unwrap_or_default();
        let count = times.iter().filter(|time| **time > since).count();
        Ok::<_, Infallible>(u32::try_from(count).unwrap_or(u32::MAX))
    };
    let decided = policy::decide(policy, facts, text_of(msg).as_deref(), at, sent_before);
    let decision = match decided {
        Ok(decision) => decision,
        Err(never) => match never {},
    };
    if let SendDecision::Send { rule } = &decision {
        sent.0.entry(key(rule)).or_default().push(at);
    }
    decision
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(content: Value) -> MsgObject {
        let object = json!({
            "from": "did:monoco:a", "to": ["did:monoco:b"], "kind": "chat", "nonce": 7,
            "proof": "signed", "content": content,
        });
        MsgObject::from_json(object).unwrap()
    }

    #[test]
    fn edit_changes_the_text_only_and_drops_the_signature() {
        let held = message(json!({"title": "Hi", "format": "text/markdown", "content": "one"}));
        let request = MessageEditRequest { text: Some("two".to_owned()), title: None };
        let edited = edited_message(&held, request).unwrap();
        let object: Value = serde_json::from_str(edited.canonical()).unwrap();
        assert_eq!(
            object,
            json!({
                "from": "did:monoco:a", "to": ["did:monoco:b"], "kind": "chat", "nonce": 7,
                "content": {"title": "Hi", "format": "text/markdown", "content": "two"},
            })
        );
    }

    #[test]
    fn unchanged_and_encoded_messages_cannot_be_edited() {
        let unsigned = MsgObject::from_json(json!({
            "from": "did:monoco:a", "to": ["did:monoco:b"], "kind": "chat",
            "content": {"content": "one"},
        }));
        let request = || MessageEditRequest { text: Some("one".to_owned()), title: None };
        let unchanged = edited_message(&unsigned.unwrap(), request());
        assert!(matches!(unchanged, Err(EditError::Unchanged)), "{unchanged:?}");
        let mail = message(json!({"format": "message/rfc822", "content": "From: a"}));
        assert!(matches!(edited_message(&mail, request()), Err(EditError::Encoded)));
    }
}
