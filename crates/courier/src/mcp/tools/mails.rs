//! Lists of Mails: list_mails, search, and wait_for_mail.

use std::time::Duration;

use monoco_core::claim::ClaimState;
use monoco_core::filter::{FilterInput, FilterSet};
use monoco_core::mail::{Mail, Trust};
use monoco_core::time::Timestamp;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_store::{MailQuery, MailRow, PageRequest, SearchHit};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{ToolContext, summary};
use crate::api::error::ApiError;
use crate::api::input::{self, PagingQuery};
use crate::api::visibility;
use crate::center::search::{self, SearchOrder, SearchRequest};
use crate::mcp::budget::estimate_tokens;
use crate::mcp::result::{ToolError, ToolResult};
use crate::mcp::rpc::object;

/// Most Mails of one list.
const MAX_LISTED: i64 = 50;

/// Mails of a list when the caller sets no limit.
const DEFAULT_LISTED: i64 = 20;

/// Mails that one search returns.
const MAX_FOUND: usize = 20;

/// Mails that are read at once when a filter selects some of them.
const SCAN_PAGE: usize = 200;

/// Pages that one list reads with a filter. `next_cursor` continues behind them.
const MAX_SCAN_PAGES: usize = 10;

/// Tokens of one list. A list that is longer ends early, with a cursor.
const MAX_LIST_TOKENS: usize = 8_000;

/// How many of the newest Mails are searched for one that can be claimed.
const CLAIMABLE_WINDOW: i64 = 10_000;

/// Longest wait of one call. Some clients end calls after 60 s.
const MAX_WAIT_S: u64 = 50;

/// How often a wait looks at all Mails again, for claims that have expired or are due.
const RESCAN_INTERVAL: Duration = Duration::from_secs(5);

/// Shortest time between two looks, however many events there are.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListMailsArgs {
    status: Option<String>,
    since: Option<String>,
    session: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchToolParams {
    query: String,
    from: Option<String>,
    session: Option<String>,
    since: Option<String>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitArguments {
    timeout_s: Option<u64>,
    filter: Option<Value>,
}

/// Lists Mails with their status for the workspace of the agent.
pub async fn list(context: ToolContext<'_>, args: ListMailsArgs) -> Result<ToolResult, ToolError> {
    let ListMailsArgs { status, since, session, limit, cursor } = args;
    let status = status.map(|word| {
        ClaimState::parse(&word).ok_or_else(|| {
            let known = ClaimState::ALL.map(ClaimState::as_str).join(", ");
            ToolError::argument("status", format_args!("expected one of {known}"))
        })
    });
    let query = MailQuery {
        workspace: context.agent.workspace.clone(),
        status: status.transpose()?,
        provider: None,
        since: parse_since(since)?,
        unclaimed: false,
    };
    let limit = limit.unwrap_or(DEFAULT_LISTED);
    if !(1..=MAX_LISTED).contains(&limit) {
        return Err(ToolError::argument("limit", format_args!("expected 1 to {MAX_LISTED}")));
    }
    let conditions = session.iter().map(|name| json!({"type": "session", "value": name}));
    page(context, query, all_of(conditions.collect())?, limit, cursor).await
}

/// Searches Mails for words in their titles, texts, names and files.
pub async fn search(
    context: ToolContext<'_>,
    args: SearchToolParams,
) -> Result<ToolResult, ToolError> {
    let ToolContext { api, agent } = context;
    let request = SearchRequest {
        cursor: args.cursor.clone(),
        query: search_query(args)?,
        order: SearchOrder::Newest,
        limit: MAX_FOUND,
        workspace: agent.workspace.clone(),
    };
    let is_visible = |hit: &SearchHit| {
        hit.mail.as_ref().is_some_and(|row| visibility::check_mail(&agent.caller, row).is_ok())
    };
    let now = api.clock.now();
    let found = search::search(&api.store, &api.search, &request, now, is_visible).await;
    let found = found.map_err(ApiError::from)?;
    let rows = found.messages.iter().filter_map(|message| message.hit.mail.as_ref());
    visibility::record_shown(api, &agent.caller, rows).await?;
    let (mut facts, mut text, mut trust) = (Vec::new(), String::new(), Trust::Known);
    for message in &found.messages {
        let Some(row) = &message.hit.mail else { continue };
        facts.push(row_facts(row));
        if row.entry.trust == Trust::Untrusted {
            trust = Trust::Untrusted;
        }
        text.push_str(&summary(&row.entry));
        text.push_str(&message.snippet.text);
        text.push('\n');
    }
    let mut result = object([("mails", facts.into()), ("complete", found.is_complete.into())]);
    if let Some(next) = found.next_cursor {
        result["next_cursor"] = next.into();
    }
    Ok(match text.is_empty() {
        true => ToolResult::new(result),
        false => ToolResult::with_text(result, trust, text),
    })
}

/// The query with the other parameters as its filters.
fn search_query(args: SearchToolParams) -> Result<String, ToolError> {
    let SearchToolParams { mut query, from, session, since, .. } = args;
    for (name, filter, value) in [("from", "from", from), ("session", "in", session)] {
        let Some(value) = value else { continue };
        if value.contains('"') {
            return Err(ToolError::argument(name, "contains a quote; expected a name or an id"));
        }
        query.push_str(&format!(" {filter}:\"{value}\""));
    }
    if let Some(since) = parse_since(since)? {
        query.push_str(&format!(" since:{}", since.rfc3339()));
    }
    Ok(query)
}

fn parse_since(text: Option<String>) -> Result<Option<Timestamp>, ToolError> {
    let since = text.map(|text| Timestamp::from_rfc3339(&text));
    since.transpose().map_err(|error| ToolError::argument("since", error))
}

/// A filter that all conditions must match; `None` without conditions.
fn all_of(conditions: Vec<Value>) -> Result<Option<FilterSet>, ToolError> {
    if conditions.is_empty() {
        return Ok(None);
    }
    parse_filter(Some(json!({"type": "all", "conditions": conditions})))
}

/// Parses a filter in the form of a workspace's config.
pub fn parse_filter(filter: Option<Value>) -> Result<Option<FilterSet>, ToolError> {
    let filter = filter.map(|filter| FilterSet::parse(&json!([filter])));
    filter.transpose().map_err(|error| ToolError::argument("filter", error))
}

/// One page of Mails: facts of each, and their authors, titles and previews.
async fn page(
    context: ToolContext<'_>,
    query: MailQuery,
    filter: Option<FilterSet>,
    limit: i64,
    cursor: Option<String>,
) -> Result<ToolResult, ToolError> {
    let scope = format!("mcp {}", query.workspace.as_str());
    let paging = PagingQuery { cursor, limit: Some(limit), order: None };
    let request = paging.page_request(&scope)?;
    let (rows, mut next) = select(context, &query, filter.as_ref(), &request).await?;
    let (mut facts, mut text, mut used) = (Vec::new(), String::new(), 0);
    let mut trust = Trust::Known;
    for (at, row) in rows.iter().enumerate() {
        let (fact, lines) = (row_facts(row), summary(&row.entry));
        used += estimate_tokens(&fact.to_string()) + estimate_tokens(&lines);
        if used > MAX_LIST_TOKENS && at > 0 {
            next = Some(rows[at - 1].entry.seq);
            break;
        }
        if row.entry.trust == Trust::Untrusted {
            trust = Trust::Untrusted;
        }
        facts.push(fact);
        text.push_str(&lines);
        text.push('\n');
    }
    let shown = rows.iter().take(facts.len());
    visibility::record_shown(context.api, &context.agent.caller, shown).await?;
    let mut result = object([("mails", facts.into())]);
    if let Some(next) = input::next_cursor(&scope, &request, next) {
        result["next_cursor"] = next.into();
    }
    Ok(match text.is_empty() {
        true => ToolResult::new(result),
        false => ToolResult::with_text(result, trust, text),
    })
}

/// Reads the rows of one page, and where the next one starts.
async fn select(
    context: ToolContext<'_>,
    query: &MailQuery,
    filter: Option<&FilterSet>,
    request: &PageRequest,
) -> Result<(Vec<MailRow>, Option<i64>), ToolError> {
    let store = &context.api.store;
    let Some(filter) = filter else {
        let page = store.mails(query.clone(), request.clone()).await?;
        return Ok((page.entries, page.next));
    };
    let (mut found, mut beyond) = (Vec::new(), request.beyond);
    for _ in 0..MAX_SCAN_PAGES {
        let scanned = PageRequest { beyond, limit: SCAN_PAGE, ..request.clone() };
        let page = store.mails(query.clone(), scanned).await?;
        for row in page.entries {
            if !is_match(context, filter, &row).await {
                continue;
            }
            let seq = row.entry.seq;
            found.push(row);
            if found.len() == request.limit {
                return Ok((found, Some(seq)));
            }
        }
        beyond = page.next;
        if beyond.is_none() {
            break;
        }
    }
    Ok((found, beyond))
}

/// Whether a Mail matches. Its text is read only when a filter needs it.
async fn is_match(context: ToolContext<'_>, filter: &FilterSet, row: &MailRow) -> bool {
    let mut needs_text = false;
    let is_match = filter.pull(&mut FilterInput::new(&row.entry, &mut || {
        needs_text = true;
        None
    }));
    if !needs_text {
        return is_match;
    }
    let text = read_text(context, row).await;
    filter.pull(&mut FilterInput::new(&row.entry, &mut || text.clone()))
}

/// The text of a Mail; `None` when its object cannot be read.
async fn read_text(context: ToolContext<'_>, row: &MailRow) -> Option<String> {
    let object = context.api.store.object(row.entry.msg_id).await.ok()?;
    let mail = Mail::read(row.entry.msg_id, &String::from_utf8(object).ok()?).ok()?;
    Some(mail.text)
}

/// What the courier knows of a Mail, without any text from outside.
fn row_facts(row: &MailRow) -> Value {
    let state = row.claim.as_ref().map_or(ClaimState::New, |claim| claim.claiming.state.name());
    let mut facts = json!({
        "id": row.entry.id,
        "trust": row.entry.trust,
        "received_at": row.entry.received_at.rfc3339(),
        "status": state.as_str(),
    });
    if let Some(tokens) = row.entry.tokens {
        facts["tokens"] = tokens.into();
    }
    let Some(claim) = row.claim.as_ref().map(ClaimInfo::from) else { return facts };
    if let (Some(agent), Some(until)) = (claim.agent_id, claim.expires_at) {
        facts["claim"] = json!({"agent": agent, "expires_at": until.rfc3339()});
    }
    facts
}

/// Facts and summary of one Mail, which the agent has read then.
pub async fn describe(
    context: ToolContext<'_>,
    row: &MailRow,
) -> Result<(Value, String), ToolError> {
    visibility::record_shown(context.api, &context.agent.caller, [row]).await?;
    Ok((row_facts(row), summary(&row.entry)))
}

/// Waits until the workspace of the agent can claim a Mail, and returns the oldest.
pub async fn wait(context: ToolContext<'_>, args: WaitArguments) -> Result<ToolResult, ToolError> {
    let WaitArguments { timeout_s, filter } = args;
    let timeout_s = timeout_s.unwrap_or(MAX_WAIT_S);
    if timeout_s > MAX_WAIT_S {
        return Err(ToolError::argument("timeout_s", format_args!("expected 0 to {MAX_WAIT_S}")));
    }
    let deadline = Instant::now() + Duration::from_secs(timeout_s);
    let mut hints = context.api.store.newest_event();
    let mut mails = ClaimableMails::open(context, parse_filter(filter)?).await?;
    loop {
        let rescan_at = Instant::now() + RESCAN_INTERVAL;
        mails.rewind();
        // New Mails are behind those that were seen, so that a hint costs one short read.
        while Instant::now() < rescan_at {
            hints.mark_unchanged();
            if let Some(row) = mails.next(context).await? {
                let (facts, text) = describe(context, &row).await?;
                return Ok(ToolResult::with_text(json!({"mail": facts}), row.entry.trust, text));
            }
            let seen_at = Instant::now();
            if seen_at >= deadline {
                let next = "no Mail within the time; call wait_for_mail again";
                return Ok(ToolResult::new(json!({"mail": null, "next": next})));
            }
            let changed = tokio::time::timeout_at(deadline.min(rescan_at), hints.changed());
            if context.api.stop.run_until_cancelled(changed).await.is_none() {
                let next = "the courier is stopping; call wait_for_mail again later";
                return Ok(ToolResult::new(json!({"mail": null, "next": next})));
            }
            tokio::time::sleep_until(deadline.min(seen_at + MIN_SCAN_INTERVAL)).await;
        }
    }
}

/// The Mails that the workspace of an agent can claim, oldest first: among the newest 10,000, and
/// not older than Mails are kept for agents.
pub struct ClaimableMails {
    query: MailQuery,
    filter: Option<FilterSet>,
    /// Mails up to this number are too old.
    start: Option<i64>,
    /// Mails up to this number were read.
    position: Option<i64>,
    read: std::vec::IntoIter<MailRow>,
    has_more: bool,
}

impl ClaimableMails {
    pub async fn open(
        context: ToolContext<'_>,
        filter: Option<FilterSet>,
    ) -> Result<Self, ToolError> {
        let api = context.api;
        let kept_days = api.config.borrow().retention.inbound_days;
        let kept_ms = i64::from(kept_days).saturating_mul(24 * 60 * 60 * 1_000);
        let since = Timestamp::from_ms(api.clock.now().ms().saturating_sub(kept_ms));
        let workspace = context.agent.workspace.clone();
        let mut query =
            MailQuery { workspace, status: None, provider: None, since: None, unclaimed: false };
        let newest = PageRequest { beyond: None, limit: 1, newest_first: true };
        let newest = api.store.mails(query.clone(), newest).await?;
        let start = newest.entries.first().map(|row| row.entry.seq - CLAIMABLE_WINDOW);
        query.status = Some(ClaimState::New);
        query.since = Some(since);
        let start = start.filter(|start| *start > 0);
        let read = Vec::new().into_iter();
        Ok(Self { query, filter, start, position: start, read, has_more: true })
    }

    /// Starts again with the oldest Mail.
    pub fn rewind(&mut self) {
        self.position = self.start;
        self.read = Vec::new().into_iter();
        self.has_more = true;
    }

    /// Returns the next Mail that can be claimed now; `None` when there is none yet.
    pub async fn next(&mut self, context: ToolContext<'_>) -> Result<Option<MailRow>, ToolError> {
        self.has_more = true;
        loop {
            for row in self.read.by_ref() {
                self.position = Some(row.entry.seq);
                let now = context.api.clock.now();
                let is_due = row.claim.as_ref().is_none_or(|it| ClaimInfo::from(it).claimable(now));
                let is_wanted = match &self.filter {
                    Some(filter) if is_due => is_match(context, filter, &row).await,
                    _ => is_due,
                };
                if is_wanted {
                    return Ok(Some(row));
                }
            }
            if !self.has_more {
                return Ok(None);
            }
            let request =
                PageRequest { beyond: self.position, limit: SCAN_PAGE, newest_first: false };
            let page = context.api.store.mails(self.query.clone(), request).await?;
            self.has_more = page.next.is_some();
            self.position = page.next.or(self.position);
            self.read = page.entries.into_iter();
        }
    }
}
