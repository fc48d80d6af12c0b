//! Handing in: letters as JSON, batches of them, and mails as they are.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use monoco_core::json;
use monoco_core::letter::{BadLetter, MAX_DATA, MAX_EXTRA};
use monoco_store::{Accepted, Origin, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Api;
use super::input::{self, Query};
use super::letters::Pairs;
use super::problem::{Problem, ProblemView};
use crate::postoffice::sendmail::{self, Named};

/// Largest body with letters: one with as much data as may be, and room for escapes.
const MAX_LETTERS: usize = 2 * MAX_DATA + 4 * MAX_EXTRA;

/// Most letters of one batch.
const MAX_LINES: usize = 1_000;

/// A letter that is handed in. Keys that are not named here are kept for the workers.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = LetterBody)]
#[expect(dead_code, reason = "only describes what the doorman reads by itself")]
pub struct LetterBody {
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
pub struct HandedIn {
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
        (LetterBody = "application/json"),
        (String = "application/x-ndjson"),
        (Vec<u8> = "message/rfc822"),
    )),
    responses(
        (status = 202, body = HandedIn),
        (status = "4XX", body = ProblemView),
        (status = "5XX", body = ProblemView),
    )
)]
pub async fn hand_in(
    State(api): State<Api>,
    Query(pairs): Query<Pairs>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let key = key(&headers)?;
    let kind = input::content_type(&headers);
    if kind != Some("message/rfc822")
        && let Some((name, _)) = pairs.first()
    {
        return Err(Problem::bad_parameter(name, "goes with Content-Type: message/rfc822"));
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
            return Err(Problem::wrong_type(wanted));
        }
    };
    let mut answers = api.center.hand_in(vec![api.office.read(value, key).await?]).await;
    let answer = handed_in(answers.pop(), None)?;
    Ok((StatusCode::ACCEPTED, axum::Json(answer)).into_response())
}

async fn hand_in_batch(api: &Api, bytes: &[u8], key: Option<&str>) -> Result<Response, Problem> {
    let lines: Vec<_> = bytes
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.trim_ascii().is_empty())
        .collect();
    if lines.len() > MAX_LINES {
        let why = format!("{} lines; {MAX_LINES} is the most", lines.len());
        return Err(Problem::bad_field("body", why));
    }
    let read = async |at: usize, line: &[u8]| -> Result<Origin, Problem> {
        let key = key.map(|key| format!("{key}:{}", at + 1));
        Ok(api.office.read(json::parse(line)?, key).await?)
    };
    let (mut good, mut refused) = (Vec::new(), Vec::with_capacity(lines.len()));
    for (at, line) in lines {
        match read(at, line).await {
            Ok(origin) => {
                good.push(origin);
                refused.push((at, None));
            }
            Err(problem) => refused.push((at, Some(problem))),
        }
    }
    let mut answers = api.center.hand_in(good).await.into_iter();
    let mut text = Vec::new();
    for (at, refused) in refused {
        let answer = match refused {
            None => handed_in(answers.next(), Some(at + 1)),
            Some(problem) => Err(problem),
        };
        let written = match answer {
            Ok(answer) => serde_json::to_writer(&mut text, &answer),
            Err(problem) => serde_json::to_writer(&mut text, &problem.line(at + 1)),
        };
        written.map_err(|error| Problem::wrong_shape(&error))?;
        text.push(b'\n');
    }
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], text).into_response())
}

fn handed_in(
    answer: Option<Result<Accepted, StoreError>>,
    line: Option<usize>,
) -> Result<HandedIn, Problem> {
    match answer {
        Some(Ok(Accepted::Letter { id, duplicate, .. })) => {
            Ok(HandedIn { line, id: id.to_string(), duplicate })
        }
        Some(Err(error)) => Err(error.into()),
        // What is handed in becomes a letter or is refused.
        Some(Ok(_)) | None => {
            Err(StoreError::Unavailable("the store gave no answer".to_owned()).into())
        }
    }
}

fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let key = headers.get("idempotency-key").map(|value| value.to_str().map(str::to_owned));
    key.transpose().map_err(|_| {
        let (field, why) = ("Idempotency-Key".to_owned(), "want plain ASCII".to_owned());
        BadLetter { field, why }.into()
    })
}

fn named(pairs: Pairs) -> Result<Named, Problem> {
    let mut named = Named::default();
    for (name, value) in pairs {
        match name.as_str() {
            "from" => named.from = Some(value),
            "to" => named.to.push(value),
            "tunnel" => named.tunnel = Some(value),
            _ => return Err(Problem::bad_parameter(&name, "want from, to or tunnel")),
        }
    }
    Ok(named)
}
