//! The activity of an agent: the Mails it has read and the messages it has posted.

use axum::extract::State;
use monoco_core::time::Timestamp;
use monoco_core::token::AgentName;
use serde::Deserialize;
#[cfg(test)]
use utoipa::IntoParams;

use super::SharedApi;
use super::error::ApiError;
use super::input::{self, PathParams, QueryParams};
use super::views::activity::{AgentActivityList, AgentActivityView};

/// Most entries of one response.
const MAX_ACTIVITIES: usize = 500;

/// Period of a request without `since`: 7 days.
const DEFAULT_PERIOD_MS: i64 = 7 * 24 * 3_600_000;

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ActivityQuery {
    /// Start of the period, RFC 3339; default 7 days ago
    since: Option<String>,
    /// Maximum number of entries, 1 to 500; default 100
    limit: Option<i64>,
}

/// List what an agent has done
///
/// The Mails that it has read, and the messages that it has posted with their approvals, newest
/// first. Reads are kept as long as the Mails, messages as long as the events.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/tokens/{name}/activity", operation_id = "list_agent_activity",
    tag = "tokens",
    params(("name" = String, Path, description = "Name of the agent"), ActivityQuery),
    responses((status = 200, body = AgentActivityList))
))]
pub async fn list(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(ActivityQuery { since, limit }): QueryParams<ActivityQuery>,
) -> Result<axum::Json<AgentActivityList>, ApiError> {
    let agent: AgentName = path.parse("name")?;
    let limit = input::count("limit", limit, 100, MAX_ACTIVITIES)?;
    let since = match since {
        Some(text) => Timestamp::from_rfc3339(&text)
            .map_err(|error| ApiError::bad_parameter("since", error))?,
        None => Timestamp::from_ms(api.clock.now().ms() - DEFAULT_PERIOD_MS),
    };
    // One more than asked for says whether there are more.
    let most = limit.saturating_add(1);
    let reads = api.store.agent_reads(&agent, since, most).await?;
    let mut found: Vec<_> =
        reads.iter().map(|read| (read.at, AgentActivityView::of_read(read))).collect();
    for decision in api.store.decisions_of(&agent, since, most).await? {
        let approval = match decision.held {
            true => api.store.approval_of(decision.msg_id).await?,
            false => None,
        };
        found.push((decision.at, AgentActivityView::of_decision(decision, approval.as_ref())));
    }
    found.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    let truncated = found.len() > limit;
    let activities = found.into_iter().take(limit).map(|(_, activity)| activity).collect();
    let (agent, since) = (agent.to_string(), since.rfc3339());
    Ok(axum::Json(AgentActivityList { agent, since, activities, truncated }))
}
