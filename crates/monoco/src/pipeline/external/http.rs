//! A worker behind a URL: a letter is posted to it, signed, and the reply is its answer.
//!
//! Signed as Standard Webhooks say. The `webhook-id` is the letter's id, a dot and the
//! number of the try: a receiver that remembers ids to refuse replays takes the next
//! try, and one that wants to know a letter again finds its id in the letter.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use monoco_adapters::egress::{Egress, EgressTarget};
use monoco_adapters::webhook::wire::Signer;
use monoco_core::letter::LetterId;
use monoco_core::time::Timestamp;
use tokio::time::timeout as within;

use super::{AttemptResult, MAX_ANSWER, refused, seconds, unanswered};

/// Posts a letter, as JSON, and takes the reply for the answer.
#[expect(clippy::too_many_arguments, reason = "each is a fact of this one try")]
pub async fn http(
    egress: &Egress,
    target: &EgressTarget,
    signer: &Signer,
    id: LetterId,
    attempt: u32,
    letter: Vec<u8>,
    timeout: Duration,
    now: Timestamp,
) -> AttemptResult {
    let peer = target.shown();
    let mut headers = signer.sign(&format!("{id}.{attempt}"), now, &letter);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let Ok(reply) = within(timeout, egress.post(target, headers, letter)).await else {
        return AttemptResult::Failed(format!("{peer} did not answer within {}", seconds(timeout)));
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(failure) => return unanswered(&failure),
    };
    if !reply.status.is_success() {
        return refused(&peer, &reply);
    }
    match reply.body.len() {
        0 => AttemptResult::Failed(format!("{peer} answered nothing ({})", reply.status)),
        length if length > MAX_ANSWER => {
            AttemptResult::Failed(format!("{peer} answered more than {MAX_ANSWER} bytes"))
        }
        _ => AttemptResult::Answered(reply.body),
    }
}

#[cfg(test)]
mod tests;
