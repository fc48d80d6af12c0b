//! Figures: how many events of a kind happened per minute.

use axum::extract::State;
use monoco_core::figures::{FIGURES_KEPT, step_minutes, time_of};
use monoco_core::time::Timestamp;
use serde::Deserialize;
#[cfg(test)]
use utoipa::IntoParams;

use super::SharedApi;
use super::error::ApiError;
use super::input::QueryParams;
use super::views::figures::{FigureList, FigureView};

/// Most counters of one response.
const MAX_FIGURES: usize = 20_000;

/// Period of a request without `since`.
const DEFAULT_PERIOD_MS: i64 = 3_600_000;

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct FigureQuery {
    /// Start of the period, RFC 3339; default one hour ago, at most 8 days
    since: Option<String>,
}

/// List figures: events per minute
///
/// Counts the kinds received, merged, claimed, completed, sent, failed, dead and uncertain by tunnel,
/// and verdict by worker. A long period has intervals of several minutes. New events are counted
/// within some seconds. `waiting` has the age of the oldest waiting delivery of each tunnel, and of
/// the oldest letter of each external worker.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/figures", operation_id = "list_figures",
    tag = "health", params(FigureQuery),
    responses((status = 200, body = FigureList))
))]
pub async fn list(
    State(api): State<SharedApi>,
    QueryParams(FigureQuery { since }): QueryParams<FigureQuery>,
) -> Result<axum::Json<FigureList>, ApiError> {
    let now = api.clock.now();
    let since = match since {
        Some(text) => Timestamp::from_rfc3339(&text)
            .map_err(|error| ApiError::bad_parameter("since", error))?,
        None => Timestamp::from_ms(now.ms() - DEFAULT_PERIOD_MS),
    };
    let period = now.since(since).min(FIGURES_KEPT);
    let step = step_minutes(period);
    let since = since.max(Timestamp::from_ms(
        now.ms() - i64::try_from(FIGURES_KEPT.as_millis()).unwrap_or(i64::MAX),
    ));
    let figures = api.store.figures(since, step, MAX_FIGURES).await?;
    let figures = figures.into_iter().map(FigureView::from).collect();
    let waiting = api.store.waiting_ages(since, step, MAX_FIGURES).await?;
    let waiting = waiting.into_iter().map(Into::into).collect();
    let first = monoco_core::figures::minute_of(since) / step * step;
    Ok(axum::Json(FigureList {
        since: time_of(first).rfc3339(),
        until: now.rfc3339(),
        step_minutes: step,
        figures,
        waiting,
    }))
}
