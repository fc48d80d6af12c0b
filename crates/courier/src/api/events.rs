//! The event log: one page as JSON, or a stream of server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use monoco_core::event::Event;
use serde::Deserialize;
use tokio::sync::watch;
#[cfg(test)]
use utoipa::IntoParams;

use super::SharedApi;
use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, QueryParams};
use super::views::events::{EventPage, EventView};

/// Events that a stream reads from the store at once.
const EVENTS_PER_READ: usize = 200;

/// Poll interval of a stream that gets no hint.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// Number of the event to start after; default 0 for a page, the newest for a stream
    after: Option<i64>,
    /// Number of events before the newest to start at, 1 to 1000
    tail: Option<i64>,
    /// Maximum number of events of a page, 1 to 1000; default 100
    limit: Option<i64>,
}

/// List events, oldest first
///
/// With `Accept: text/event-stream` the response is a stream that continues with new events;
/// `Last-Event-ID` resumes it. The token of an agent without the scope operate gets the events of
/// Mails and of its own DID.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/events", operation_id = "list_events",
    tag = "events",
    params(
        EventQuery,
        ("Last-Event-ID" = Option<i64>, Header, description = "Number of the last event of an interrupted stream"),
    ),
    responses((status = 200, description = "A page of events, or a stream of them", content(
        (EventPage = "application/json"),
        (String = "text/event-stream"),
    )))
))]
pub async fn events(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    QueryParams(query): QueryParams<EventQuery>,
) -> Result<Response, ApiError> {
    let wants_stream = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|accept| accept.contains("text/event-stream"));
    let hints = api.store.newest_event();
    let newest = *hints.borrow();
    let after = match (headers.get("last-event-id"), query.after, query.tail) {
        (Some(value), _, _) => {
            Some(parse_number("Last-Event-ID", value.to_str().unwrap_or_default())?)
        }
        (None, after, None) => after,
        (None, None, tail) => {
            let tail = input::count("tail", tail, 1, input::MAX_PAGE)?;
            Some(newest.saturating_sub(i64::try_from(tail).unwrap_or(0)).max(0))
        }
        (None, Some(_), Some(_)) => {
            return Err(ApiError::bad_parameter(
                "tail",
                "found both `after` and `tail`, expected one of them",
            ));
        }
    };
    if after.is_some_and(|after| after < 0) {
        return Err(ApiError::bad_parameter("after", "expected a number from 0"));
    }
    if wants_stream {
        return Ok(stream(api, caller, after.unwrap_or(newest), hints).into_response());
    }
    let after = after.unwrap_or(0);
    let limit = input::count("limit", query.limit, 100, input::MAX_PAGE)?;
    let events = api.store.events(after, limit).await?;
    let last = events.last().map_or(after, |event| event.seq);
    let shown = events.into_iter().filter(|event| can_see(&caller, event));
    let events = shown.map(Into::into).collect();
    Ok(axum::Json(EventPage { events, last }).into_response())
}

/// Whether the caller may see an event. An agent misses the others without a gap: it continues
/// after `last`, or after the id of the last event of its stream.
fn can_see(caller: &Caller, event: &Event) -> bool {
    caller.agent().is_none_or(|token| token.can_see_event(event))
}

fn parse_number(name: &str, text: &str) -> Result<i64, ApiError> {
    text.parse().map_err(|_| ApiError::bad_parameter(name, "expected a number from 0"))
}

fn stream(
    api: SharedApi,
    caller: Caller,
    after: i64,
    hints: watch::Receiver<i64>,
) -> Sse<impl Stream<Item = Result<sse::Event, Infallible>>> {
    struct Reader {
        api: SharedApi,
        caller: Caller,
        after: i64,
        hints: watch::Receiver<i64>,
        read: std::vec::IntoIter<Event>,
    }
    let reader = Reader { api, caller, after, hints, read: Vec::new().into_iter() };
    let events = stream::unfold(reader, async |mut reader| {
        loop {
            if let Some(event) = reader.read.next() {
                reader.after = event.seq;
                if !can_see(&reader.caller, &event) {
                    continue;
                }
                let item = sse::Event::default()
                    .id(event.seq.to_string())
                    .event(event.kind.as_str())
                    .json_data(EventView::from(event));
                // Events always serialise; skip one that does not instead of ending the stream.
                let Ok(item) = item else { continue };
                return Some((Ok(item), reader));
            }
            // Before reading, so that a commit in between is not missed.
            reader.hints.mark_unchanged();
            match reader.api.store.events(reader.after, EVENTS_PER_READ).await {
                Ok(events) if !events.is_empty() => reader.read = events.into_iter(),
                Ok(_) => {
                    let changed = tokio::time::timeout(POLL_INTERVAL, reader.hints.changed());
                    let changed = reader.api.stop.run_until_cancelled(changed).await;
                    if let None | Some(Ok(Err(_))) = changed {
                        // The courier is stopping, or the store is closed.
                        return None;
                    }
                }
                // The client reconnects with `Last-Event-ID` and misses nothing.
                Err(_) => return None,
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}
