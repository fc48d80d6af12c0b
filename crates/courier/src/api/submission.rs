//! Submission of letters: JSON, batches of JSON lines, and whole e-mails.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use monoco_core::did::Did;
use monoco_core::json;
use monoco_core::letter::{InvalidLetter, MAX_DATA, MAX_EXTRA};
use monoco_core::token::TokenViolation;
use monoco_store::{AcceptResult, LetterSource};
use serde_json::Value;

use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, API_BODIES, QueryParams};
use super::letters::QueryPairs;
use super::views::letters::SubmitResultView;
#[cfg(test)]
use super::views::schemas::{BytesSchema, SubmitBodySchema};
use super::{Api, SharedApi, batch};
use crate::pipeline::sendmail::{self, EnvelopeOptions};

/// Largest body: one letter of maximum size, with space for JSON escapes.
const MAX_BODY: usize = 2 * MAX_DATA + 4 * MAX_EXTRA;

/// Submit a letter
///
/// The letter is stored before the response is sent, and then passes the outbound chain. 422
/// `bad_letter` names the invalid `field`. With `Content-Type: application/x-ndjson` the body
/// is a batch with one letter per line, and the response has one line for each. All are stored
/// in one commit; a rejected line does not affect the others. An `Idempotency-Key` is combined
/// with the number of the line. With `Content-Type: message/rfc822` the body is an e-mail.
/// Without the parameters `from` and `to`, its header fields are used, and Bcc is removed.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/letters", operation_id = "submit_letter",
    tag = "letters",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "Idempotency key of this letter"),
        ("from" = Option<String>, Query, description = "For an e-mail: its sender"),
        ("to" = Option<String>, Query, description = "For an e-mail: a recipient; can be repeated"),
        ("tunnel" = Option<String>, Query, description = "For an e-mail: the tunnel to send it through"),
    ),
    request_body(content(
        (SubmitBodySchema = "application/json"),
        (String = "application/x-ndjson"),
        (BytesSchema = "message/rfc822"),
    )),
    responses((status = 202, description = "The letter is stored", content(
        (SubmitResultView = "application/json"),
        (String = "application/x-ndjson"),
    )))
))]
pub async fn submit(
    State(api): State<SharedApi>,
    caller: Caller,
    QueryParams(pairs): QueryParams<QueryPairs>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    let key = key(&headers)?.map(|key| caller.own_key(key));
    let kind = input::content_type(&headers);
    if kind != Some("message/rfc822")
        && let Some((name, _)) = pairs.first()
    {
        return Err(ApiError::bad_parameter(
            name,
            "only allowed with Content-Type: message/rfc822",
        ));
    }
    let value = match kind {
        Some("application/json") => {
            json::parse(&input::body(request.into_body(), MAX_BODY, &API_BODIES).await?)?
        }
        Some("message/rfc822") => {
            let envelope = parse_envelope(pairs)?;
            sendmail::letter(
                &input::body(request.into_body(), MAX_DATA, &API_BODIES).await?,
                envelope,
            )?
        }
        Some("application/x-ndjson") => {
            let bytes = input::body(request.into_body(), MAX_BODY, &API_BODIES).await?;
            return submit_batch(&api, &caller, &bytes, key.as_deref()).await;
        }
        _ => {
            let expected = "application/json`, `application/x-ndjson` or `message/rfc822";
            return Err(ApiError::wrong_type(expected));
        }
    };
    let batch = vec![parse(&api, &caller, value, key).await?];
    let mut results = api.entry.submit(&api.store, batch, api.clock.now()).await;
    let result = submit_result(results.pop().ok_or_else(batch::no_result)??, None)?;
    Ok((StatusCode::ACCEPTED, axum::Json(result)).into_response())
}

async fn submit_batch(
    api: &Api,
    caller: &Caller,
    bytes: &[u8],
    key: Option<&str>,
) -> Result<Response, ApiError> {
    let (mut letters, mut lines) = (Vec::new(), Vec::new());
    for (number, line) in batch::lines(bytes)? {
        let key = key.map(|key| format!("{key}:{number}"));
        let letter = match json::parse(line) {
            Ok(value) => parse(api, caller, value, key).await,
            Err(error) => Err(error.into()),
        };
        lines.push((number, letter.map(|letter| letters.push(letter))));
    }
    let results = api.entry.submit(&api.store, letters, api.clock.now()).await;
    batch::respond(lines, results, |number, accepted| submit_result(accepted, Some(number)))
}

/// Parses a letter. Its sender must be the agent, when the caller is one.
async fn parse(
    api: &Api,
    caller: &Caller,
    mut value: Value,
    key: Option<String>,
) -> Result<LetterSource, ApiError> {
    caller.fill_sender(&mut value);
    let source = api.pipeline.parse_submission(value, key, caller.origin()).await?;
    if let (Some(token), LetterSource::Submitted { letter, .. }) = (caller.agent(), &source) {
        if letter.is_mail() {
            return Err(TokenViolation::WholeMail { agent: token.name.clone() }.into());
        }
        let from: Did = letter.from.parse().map_err(|_| token.forged_sender(&letter.from))?;
        token.check_sender(&from)?;
    }
    Ok(source)
}

fn submit_result(
    accepted: AcceptResult,
    line: Option<usize>,
) -> Result<SubmitResultView, ApiError> {
    match accepted {
        AcceptResult::Letter { id, duplicate, .. } => {
            Ok(SubmitResultView { line, id: id.to_string(), duplicate })
        }
        // A submission always becomes a letter or is rejected.
        _ => Err(batch::no_result()),
    }
}

fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    input::idempotency_key(headers).map_err(|why| {
        let (field, why) = ("Idempotency-Key".to_owned(), why.to_owned());
        InvalidLetter { field, why }.into()
    })
}

fn parse_envelope(pairs: QueryPairs) -> Result<EnvelopeOptions, ApiError> {
    let mut envelope = EnvelopeOptions::default();
    for (name, value) in pairs {
        match name.as_str() {
            "from" => envelope.from = Some(value),
            "to" => envelope.to.push(value),
            "tunnel" => envelope.tunnel = Some(value),
            _ => {
                return Err(ApiError::bad_parameter(
                    &name,
                    "unknown parameter; expected from, to or tunnel",
                ));
            }
        }
    }
    Ok(envelope)
}
