//! Handing in: letters as JSON, batches of them, and mails as they are.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use monoco_core::json;
use monoco_core::letter::{InvalidLetter, MAX_DATA, MAX_EXTRA};
use monoco_store::{AcceptResult, LetterSource};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::error::{ApiError, ApiErrorView};
use super::input::{self, QueryParams};
use super::letters::Pairs;
use super::{Api, SharedApi, batch};
use crate::pipeline::sendmail::{self, EnvelopeOptions};

/// Largest body with letters: one with as much data as may be, and room for escapes.
const MAX_LETTERS: usize = 2 * MAX_DATA + 4 * MAX_EXTRA;

/// A letter that is handed in. Keys that are not named here are kept for the workers.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = LetterBody)]
#[expect(dead_code, reason = "only describes what the doorman reads by itself")]
pub struct SubmitBody {
    /// Who sends it: an address or a DID
    from: String,
    /// Whom it is for: addresses or DIDs, 1 to 1000
    to: Vec<String>,
    /// A whole mail (RFC 5322), or text: `extra.content_type` says which
    data: String,
    /// What workers may want to know. `content_type`: `message/rfc822` (the default),
    /// `text/markdown` or `text/plain`; `charset`: `latin-1` when `data` has one character
    /// for each byte of a mail that is not UTF-8; `tunnel`, `subject`, `merge_key`
    #[schema(value_type = Option<Object>)]
    extra: Option<Value>,
}

/// What became of a letter that was handed in.
#[derive(Debug, Serialize, ToSchema)]
pub struct SubmitResult {
    /// The line of a batch, from 1
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// The letter's name
    id: String,
    /// Whether it was handed in before; then nothing was done
    duplicate: bool,
}

/// Hand in a letter
///
/// It is kept before you are told so, and goes through the chain of what goes out. 422
/// `bad_letter` says in `field` what is wrong. With `Content-Type: application/x-ndjson`
/// the body is a batch, one letter per line, and so is the answer: all in one commit, and
/// a line that is refused does not harm the others; an `Idempotency-Key` counts for each
/// line by its number. With `Content-Type: message/rfc822` the body is a mail as it is;
/// whom the parameters do not name, its header does, and then it goes without its Bcc.
#[utoipa::path(
    post, path = "/api/v1/letters", tag = "letters",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "Your own name for this letter"),
        ("from" = Option<String>, Query, description = "Of a mail as it is: who sends it"),
        ("to" = Option<String>, Query, description = "Of a mail as it is: whom it is for; can be repeated"),
        ("tunnel" = Option<String>, Query, description = "Of a mail as it is: the tunnel it goes through"),
    ),
    request_body(content(
        (SubmitBody = "application/json"),
        (String = "application/x-ndjson"),
        (Vec<u8> = "message/rfc822"),
    )),
    responses(
        (status = 202, body = SubmitResult),
        (status = "4XX", body = ApiErrorView),
        (status = "5XX", body = ApiErrorView),
    )
)]
pub async fn hand_in(
    State(api): State<SharedApi>,
    QueryParams(pairs): QueryParams<Pairs>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    let key = key(&headers)?;
    let kind = input::content_type(&headers);
    if kind != Some("message/rfc822")
        && let Some((name, _)) = pairs.first()
    {
        return Err(ApiError::bad_parameter(name, "goes with Content-Type: message/rfc822"));
    }
    let value = match kind {
        Some("application/json") => json::parse(&input::body(request, MAX_LETTERS).await?)?,
        Some("message/rfc822") => {
            let named = named(pairs)?;
            sendmail::letter(&input::body(request, MAX_DATA).await?, named)?
        }
        Some("application/x-ndjson") => {
            let bytes = input::body(request, MAX_LETTERS).await?;
            return hand_in_batch(&api, &bytes, key.as_deref()).await;
        }
        _ => {
            let wanted = "application/json`, `application/x-ndjson` or `message/rfc822";
            return Err(ApiError::wrong_type(wanted));
        }
    };
    let batch = vec![api.pipeline.read(value, key).await?];
    let mut answers = api.entry.submit(&api.store, batch, api.clock.now()).await;
    let answer = handed_in(answers.pop().ok_or_else(batch::no_answer)??, None)?;
    Ok((StatusCode::ACCEPTED, axum::Json(answer)).into_response())
}

async fn hand_in_batch(api: &Api, bytes: &[u8], key: Option<&str>) -> Result<Response, ApiError> {
    let (mut good, mut lines) = (Vec::new(), Vec::new());
    for (number, line) in batch::lines(bytes)? {
        let key = key.map(|key| format!("{key}:{number}"));
        lines.push((number, read(api, line, key).await.map(|origin| good.push(origin))));
    }
    let answers = api.entry.submit(&api.store, good, api.clock.now()).await;
    batch::answer(lines, answers, |number, accepted| handed_in(accepted, Some(number)))
}

async fn read(api: &Api, line: &[u8], key: Option<String>) -> Result<LetterSource, ApiError> {
    Ok(api.pipeline.read(json::parse(line)?, key).await?)
}

fn handed_in(accepted: AcceptResult, line: Option<usize>) -> Result<SubmitResult, ApiError> {
    match accepted {
        AcceptResult::Letter { id, duplicate, .. } => {
            Ok(SubmitResult { line, id: id.to_string(), duplicate })
        }
        // What is handed in becomes a letter or is refused.
        _ => Err(batch::no_answer()),
    }
}

fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    input::idempotency_key(headers).map_err(|why| {
        let (field, why) = ("Idempotency-Key".to_owned(), why.to_owned());
        InvalidLetter { field, why }.into()
    })
}

fn named(pairs: Pairs) -> Result<EnvelopeOptions, ApiError> {
    let mut named = EnvelopeOptions::default();
    for (name, value) in pairs {
        match name.as_str() {
            "from" => named.from = Some(value),
            "to" => named.to.push(value),
            "tunnel" => named.tunnel = Some(value),
            _ => return Err(ApiError::bad_parameter(&name, "want from, to or tunnel")),
        }
    }
    Ok(named)
}
