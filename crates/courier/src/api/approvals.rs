//! Approvals: list, answer and edit held messages, and explain the policy.

use axum::extract::State;
use monoco_core::approval::policy::{SendDecision, text_of};
use monoco_core::approval::{Approval, ApprovalId, ApprovalState, ApprovalStep, MAX_REASON_BYTES};
use monoco_core::object::ObjId;
use monoco_core::time::Timestamp;
use monoco_core::token::Scope;
use monoco_store::StoreError;
use serde::Deserialize;
#[cfg(test)]
use utoipa::ToSchema;

use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, JsonBody, OptionalJsonBody, PagingQuery, PathParams, QueryParams};
use super::letters::{QueryPairs, parse_time};
use super::views::approvals::{
    ApprovalPage, ApprovalSummary, ApprovalView, DecisionView, PolicyReplay, ReplayedDecision,
};
use super::{Api, SharedApi, ids};
use crate::center::approvals::{self, EditError, MessageEditRequest, ReplayedSend};

/// Characters of the text in a list.
const PREVIEW_CHARS: usize = 200;

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AnswerBody {
    /// `revision` of the approval as it was shown; another one is answered with 409
    revision: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RejectBody {
    /// Why the message is not sent, at most 500 bytes; the sender can read it
    reason: Option<String>,
    /// `revision` of the approval as it was shown; another one is answered with 409
    revision: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EditBody {
    /// New text; default: unchanged
    text: Option<String>,
    /// New title; default: unchanged
    title: Option<String>,
    /// `revision` of the approval as it was shown; another one is answered with 409
    revision: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayPolicyBody {
    /// Earliest time of the decisions, RFC 3339
    since: String,
}

/// List approvals, newest first
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/approvals", operation_id = "list_approvals",
    tag = "approvals",
    params(
        ("state" = Option<String>, Query, description =
            "States to list, separated by commas or repeated: PENDING, APPROVED, REPLACED, REJECTED, WITHDRAWN, EXPIRED"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
        ("limit" = Option<i64>, Query, description = "Maximum number of approvals, 1 to 1000; default 50"),
    ),
    responses((status = 200, body = ApprovalPage))
))]
pub async fn list(
    State(api): State<SharedApi>,
    QueryParams(pairs): QueryParams<QueryPairs>,
) -> Result<axum::Json<ApprovalPage>, ApiError> {
    let mut states = Vec::new();
    let mut paging = PagingQuery { cursor: None, limit: None, order: None };
    for (name, value) in pairs {
        let bad = |why: String| ApiError::bad_parameter(&name, why);
        match name.as_str() {
            "state" => {
                for word in value.split(',') {
                    states.push(ApprovalState::parse(word.trim()).ok_or_else(|| {
                        let known = ApprovalState::ALL.map(ApprovalState::as_str).join(", ");
                        bad(format!("expected one of {known}"))
                    })?);
                }
            }
            "cursor" => paging.cursor = Some(value),
            "limit" => {
                let limit = value.parse().map_err(|_| bad("expected a number".to_owned()))?;
                paging.limit = Some(limit);
            }
            _ => {
                let known = "state, cursor or limit";
                return Err(bad(format!("unknown parameter; expected {known}")));
            }
        }
    }
    let request = paging.page_request("approvals")?;
    let page = api.store.approvals(&states, request.clone()).await?;
    let mut approvals = Vec::with_capacity(page.entries.len());
    for approval in &page.entries {
        let mut view = view(&api, approval).await?;
        let cut = |text: String| text.chars().take(PREVIEW_CHARS).collect();
        view.text = view.text.map(cut);
        approvals.push(view);
    }
    let next_cursor = input::next_cursor("approvals", &request, page.next);
    Ok(axum::Json(ApprovalPage { approvals, next_cursor }))
}

/// Get an approval with the whole text of its message
///
/// An agent without the scope approve gets only those of its own messages.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/approvals/{id}", operation_id = "get_approval",
    tag = "approvals",
    params(("id" = String, Path, description = "Id of the approval, `apr_…`, or its number")),
    responses((status = 200, body = ApprovalView))
))]
pub async fn show(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
) -> Result<axum::Json<ApprovalView>, ApiError> {
    let approval = api.store.approval(approval_id(&path)?).await?;
    if !caller.has_scope(Scope::Approve) {
        check_own(&caller, &approval)?;
    }
    let mut view = view(&api, &approval).await?;
    let decision = api.store.decision_of(approval.msg_id).await?;
    view.after_untrusted = decision.map(|decision| decision.facts.after_untrusted);
    Ok(axum::Json(view))
}

/// Approve a message: it is sent to all its targets
///
/// The first answer counts. The same answer again changes nothing; another one is rejected with
/// 409 `already_answered`, which names the first one.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/approvals/{id}/approve", operation_id = "approve",
    tag = "approvals", request_body = Option<AnswerBody>,
    params(("id" = String, Path, description = "Id of the approval, `apr_…`, or its number")),
    responses((status = 200, body = ApprovalView))
))]
pub async fn approve(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    OptionalJsonBody(AnswerBody { revision }): OptionalJsonBody<AnswerBody>,
) -> Result<axum::Json<ApprovalView>, ApiError> {
    answer(&api, &caller, &path, ApprovalStep::Approve, revision).await
}

/// Reject a message: it is not sent
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/approvals/{id}/reject", operation_id = "reject",
    tag = "approvals", request_body = Option<RejectBody>,
    params(("id" = String, Path, description = "Id of the approval, `apr_…`, or its number")),
    responses((status = 200, body = ApprovalView))
))]
pub async fn reject(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    OptionalJsonBody(RejectBody { reason, revision }): OptionalJsonBody<RejectBody>,
) -> Result<axum::Json<ApprovalView>, ApiError> {
    let cut = |mut reason: String| {
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        reason
    };
    answer(&api, &caller, &path, ApprovalStep::Reject { reason: reason.map(cut) }, revision).await
}

/// Withdraw a message: its sender takes it back
///
/// An agent can withdraw only its own messages.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/approvals/{id}/withdraw", operation_id = "withdraw",
    tag = "approvals", request_body = Option<AnswerBody>,
    params(("id" = String, Path, description = "Id of the approval, `apr_…`, or its number")),
    responses((status = 200, body = ApprovalView))
))]
pub async fn withdraw(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    OptionalJsonBody(AnswerBody { revision }): OptionalJsonBody<AnswerBody>,
) -> Result<axum::Json<ApprovalView>, ApiError> {
    let approval = withdraw_own(&api, &caller, approval_id(&path)?, revision).await?;
    Ok(axum::Json(view(&api, &approval).await?))
}

/// Withdraws a message that the caller has sent.
pub async fn withdraw_own(
    api: &Api,
    caller: &Caller,
    id: ApprovalId,
    revision: Option<i64>,
) -> Result<Approval, ApiError> {
    check_own(caller, &api.store.approval(id).await?)?;
    let (step, now) = (ApprovalStep::Withdraw, api.clock.now());
    Ok(api.store.answer_approval(id, step, caller.name(), revision, now).await?)
}

/// Send an edited message in place of a held one
///
/// The new message goes to the same targets. The held one is archived and never sent.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/approvals/{id}/edit", operation_id = "edit_approval",
    tag = "approvals", request_body = EditBody,
    params(("id" = String, Path, description = "Id of the approval, `apr_…`, or its number")),
    responses((status = 200, body = ApprovalView))
))]
pub async fn edit(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(EditBody { text, title, revision }): JsonBody<EditBody>,
) -> Result<axum::Json<ApprovalView>, ApiError> {
    let (id, now) = (approval_id(&path)?, api.clock.now());
    let request = MessageEditRequest { text, title };
    let edited = approvals::edit(&api.store, id, request, caller.name(), revision, now).await;
    let approval = edited.map_err(|error| match error {
        EditError::Store(error) => error.into(),
        EditError::Invalid(error) => error.into(),
        EditError::Unchanged | EditError::Encoded => ApiError::bad_field("text", error),
    })?;
    Ok(axum::Json(view(&api, &approval).await?))
}

/// Explain what the approval policy decided about a message
///
/// The facts are those of the time when the message was posted, the rules those of now.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/decisions/{id}", operation_id = "explain_approval",
    tag = "approvals",
    params(("id" = String, Path, description =
        "Id of the message, `cymsg:…`, which can be shortened, or of its approval, `apr_…`")),
    responses((status = 200, body = DecisionView))
))]
pub async fn explain(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<DecisionView>, ApiError> {
    let text = path.text("id");
    let id: ObjId = if text.starts_with("apr_") {
        api.store.approval(approval_id(&path)?).await?.msg_id
    } else {
        let expected = "expected the id of a message, cymsg:…, or of its approval, apr_…";
        ids::resolve(&api, text, |_| ApiError::bad_parameter("id", expected)).await?
    };
    let missing =
        || StoreError::Missing { what: "decision of the policy about", key: id.to_string() };
    let decision = api.store.decision_of(id).await?.ok_or_else(missing)?;
    let msg = approvals::read_message(&api.store, id).await?;
    let policy = api.store.approval_policy();
    let rules = policy.explain(&decision.facts, text_of(&msg).as_deref());
    let approval = api.store.approval_of(id).await?;
    Ok(axum::Json(DecisionView {
        msg_id: id.to_string(),
        decision: was(decision.held).into(),
        rule: decision.rule,
        at: decision.at.rfc3339(),
        by: decision.facts.origin.to_string(),
        rules: rules.into_iter().map(Into::into).collect(),
        approval: approval.as_ref().map(ApprovalSummary::from),
    }))
}

/// Show what the policy in the config file would have decided
///
/// Reads the config file as it is now, without applying it. At most 10,000 decisions, oldest first.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/approvals/replay", operation_id = "replay_approvals",
    tag = "approvals", request_body = ReplayPolicyBody,
    responses((status = 200, body = PolicyReplay))
))]
pub async fn replay(
    State(api): State<SharedApi>,
    JsonBody(ReplayPolicyBody { since }): JsonBody<ReplayPolicyBody>,
) -> Result<axum::Json<PolicyReplay>, ApiError> {
    let since = parse_time(&since).map_err(|why| ApiError::bad_field("since", why))?;
    let source = api.source.clone();
    let config = tokio::task::spawn_blocking(move || source.load()).await;
    let config = config.map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let config = config.map_err(|error| ApiError::invalid_config(&error))?;
    let replayed = approvals::replay(&api.store, &config.approvals, since).await?;
    let count = |name: &str| replayed.sends.iter().filter(|send| send.now.name() == name).count();
    let is_changed = |send: &&ReplayedSend| was(send.stored.held) != send.now.name();
    Ok(axum::Json(PolicyReplay {
        decisions: replayed.sends.len(),
        skipped: replayed.skipped,
        truncated: replayed.truncated,
        sent: count("send"),
        held: count("hold"),
        refused: count("refuse"),
        changed: replayed.sends.iter().filter(is_changed).map(replayed_view).collect(),
    }))
}

const fn was(held: bool) -> &'static str {
    if held { "hold" } else { "send" }
}

fn replayed_view(ReplayedSend { stored, now }: &ReplayedSend) -> ReplayedDecision {
    let (SendDecision::Send { rule }
    | SendDecision::Hold { rule, .. }
    | SendDecision::Refuse { rule, .. }) = now;
    ReplayedDecision {
        msg_id: stored.msg_id.to_string(),
        at: stored.at.rfc3339(),
        by: stored.facts.origin.to_string(),
        was: was(stored.held).into(),
        now: now.name().into(),
        rule: rule.clone(),
        why: now.why().to_owned(),
    }
}

async fn answer(
    api: &Api,
    caller: &Caller,
    path: &PathParams,
    step: ApprovalStep,
    revision: Option<i64>,
) -> Result<axum::Json<ApprovalView>, ApiError> {
    let (id, now): (ApprovalId, Timestamp) = (approval_id(path)?, api.clock.now());
    let approval = api.store.answer_approval(id, step, caller.name(), revision, now).await?;
    Ok(axum::Json(view(api, &approval).await?))
}

/// Rejects an agent that has not sent the message.
fn check_own(caller: &Caller, approval: &Approval) -> Result<(), ApiError> {
    match caller.agent() {
        Some(token) if approval.origin != caller.origin() => {
            Err(ApiError::not_own_approval(&token.name, approval.id))
        }
        _ => Ok(()),
    }
}

/// The view of an approval with the text of its message. An erased message has none.
async fn view(api: &Api, approval: &Approval) -> Result<ApprovalView, ApiError> {
    let (title, text) = match approvals::read_message(&api.store, approval.msg_id).await {
        Ok(msg) => approvals::shown_text(&msg),
        Err(StoreError::Erased { .. } | StoreError::Damaged { .. }) => (None, None),
        Err(error) => return Err(error.into()),
    };
    Ok(ApprovalView::new(approval, title, text))
}

/// The id in the path. Text that is not an id is reported as an approval that does not exist.
fn approval_id(path: &PathParams) -> Result<ApprovalId, ApiError> {
    let text = path.text("id");
    let key = || text.chars().take(80).collect();
    text.parse().map_err(|_| StoreError::Missing { what: "approval", key: key() }.into())
}
