//! Full-text search in received and sent messages.

use axum::extract::State;
use monoco_store::SearchHit;
use serde::Deserialize;
#[cfg(test)]
use utoipa::IntoParams;

use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, MAX_PAGE, QueryParams};
use super::mails::parse_workspace;
use super::views::search::{SearchPageView, SearchRebuildView};
use super::{SharedApi, visibility};
use crate::center::search::{SearchOrder, SearchRequest, search as search_messages};

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct SearchParams {
    /// Words, `"phrases"`, `pref*`, and the filters `from:`, `in:`, `since:`, `has:`, `tunnel:` and
    /// `status:`; at most 4096 bytes
    q: String,
    /// Workspace whose claims count for `status:`; default `shared`
    workspace: Option<String>,
    /// `next_cursor` of the previous page of the same search
    cursor: Option<String>,
    /// Maximum number of messages, 1 to 1000; default 50
    limit: Option<i64>,
    /// `newest` (default), `oldest`, or `relevance`, which ranks the newest 2000 hits
    order: Option<String>,
}

/// Search received and sent messages
///
/// A message is found when it meets all words and filters. A page examines at most 5000 hits, so
/// that it can be short and still have `next_cursor`. `docs/search.md` describes the queries. 400
/// `bad_parameter` names the place of an error in the query. An agent finds Mails and the messages
/// of its own boxes, and Mails that it finds count as read.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/search", operation_id = "search",
    tag = "mails", params(SearchParams),
    responses((status = 200, body = SearchPageView))
))]
pub async fn search(
    State(api): State<SharedApi>,
    caller: Caller,
    QueryParams(asked): QueryParams<SearchParams>,
) -> Result<axum::Json<SearchPageView>, ApiError> {
    let SearchParams { q, workspace, cursor, limit, order } = asked;
    let order = match order.as_deref() {
        None | Some("newest") => SearchOrder::Newest,
        Some("oldest") => SearchOrder::Oldest,
        Some("relevance") => SearchOrder::Relevance,
        Some(_) => {
            let expected = "expected newest, oldest or relevance";
            return Err(ApiError::bad_parameter("order", expected));
        }
    };
    let workspace =
        parse_workspace(workspace).map_err(|error| ApiError::bad_parameter("workspace", error))?;
    let request = SearchRequest {
        query: q,
        order,
        cursor,
        limit: input::count("limit", limit, 50, MAX_PAGE)?,
        workspace: caller.shown_workspace(workspace)?,
    };
    let is_visible = |hit: &SearchHit| visibility::can_see_hit(&caller, hit);
    let now = api.clock.now();
    let found = search_messages(&api.store, &api.search, &request, now, is_visible).await?;
    let rows = found.messages.iter().filter_map(|found| found.hit.mail.as_ref());
    visibility::record_shown(&api, &caller, rows).await?;
    Ok(axum::Json(found.into()))
}

/// Build the search index again
///
/// Empties the index and answers at once. The courier indexes all messages in the background;
/// until then searches answer with `complete: false`.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/search/rebuild", operation_id = "rebuild_search",
    tag = "mails",
    responses((status = 200, body = SearchRebuildView))
))]
pub async fn rebuild(
    State(api): State<SharedApi>,
) -> Result<axum::Json<SearchRebuildView>, ApiError> {
    api.search.rebuild().await?;
    Ok(axum::Json(SearchRebuildView { rebuilding: true }))
}
