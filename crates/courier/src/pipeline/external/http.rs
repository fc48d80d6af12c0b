//! Sends letters to an HTTP service in signed POST requests; the response is the answer.
//!
//! Requests are signed as specified by Standard Webhooks. The `webhook-id` is the id of the
//! letter, a dot and the nonce of the attempt: a receiver that rejects repeated ids accepts the
//! next attempt, and one that detects repeated letters finds the id in the letter.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use monoco_adapters::egress::{Egress, EgressTarget};
use monoco_adapters::webhook::wire::Signer;
use monoco_adapters::webhook::{InvalidWebhookConfig, WebhookVerification};
use monoco_core::config::{InvalidConfig, Secret};
use monoco_core::letter::LetterId;
use monoco_core::time::Timestamp;
use tokio::time::timeout as within;

use super::{
    AttemptResult, ExternalWorkerConfig, MAX_ANSWER, WorkerTransport, error_status, no_response,
    parallel, seconds, target,
};
use crate::pipeline::workers::{Worker, WorkerKind, WorkerSection, changed};

pub const KIND: WorkerKind = WorkerKind {
    name: "http",
    built_in: false,
    keys: &[
        "url",
        "secret",
        "secret_file",
        "allow_private",
        "timeout_s",
        "retries",
        "when_down",
        "readdress",
        "parallel",
    ],
    parse,
};

/// Number of requests at the same time, by default.
const DEFAULT_PARALLEL: usize = 4;

#[derive(Clone, Debug)]
pub struct HttpTransport {
    pub target: EgressTarget,
    /// Secret of the signatures.
    pub secret: Secret,
}

/// One attempt for one letter.
pub struct LetterRequest {
    pub id: LetterId,
    pub nonce: String,
    pub body: Vec<u8>,
    /// Wall-clock time, which the receiver compares with its own clock.
    pub now: Timestamp,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let keys = &section.keys;
    let allow_private = keys.flag("allow_private")?.unwrap_or(false);
    let target = target(keys, "url", allow_private)?;
    let secret = keys.secret("secret")?;
    if secret.expose().is_empty() {
        let why = "missing or empty; set it to the secret that the worker verifies signatures with";
        return Err(keys.invalid_key("secret", why));
    }
    signer(&secret).map_err(|error| keys.invalid(error.to_string()))?;
    let transport = WorkerTransport::Http(HttpTransport { target, secret });
    ExternalWorkerConfig::parse(keys, transport, parallel(keys, DEFAULT_PARALLEL)?)
}

/// Returns the signer of a secret.
///
/// # Errors
///
/// Fails when the secret is not one of Standard Webhooks.
pub fn signer(secret: &Secret) -> Result<Signer, InvalidWebhookConfig> {
    Signer::new(&WebhookVerification::Standard, secret)
}

impl HttpTransport {
    pub fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        changed(&[("url", self.target != new.target), ("secret", self.secret != new.secret)])
    }
}

/// Posts a letter as JSON. The body of a successful response is the answer.
pub async fn post_letter(
    client: &Egress,
    target: &EgressTarget,
    signer: &Signer,
    request: LetterRequest,
    timeout: Duration,
) -> AttemptResult {
    let LetterRequest { id, nonce, body, now } = request;
    let peer = target.shown();
    let mut headers = signer.sign(&format!("{id}.{nonce}"), now, &body);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let Ok(reply) = within(timeout, client.post(target, headers, body)).await else {
        return AttemptResult::Failed(format!("{peer} did not answer within {}", seconds(timeout)));
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(failure) => return no_response(&failure),
    };
    if !reply.status.is_success() {
        return error_status(&peer, &reply);
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
