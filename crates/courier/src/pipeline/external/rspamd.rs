//! Asks rspamd about a letter, after the rules of the `spam` worker have passed it.
//!
//! The request headers carry what is not in the mail: the envelope, as far as it has e-mail
//! addresses, and the id of the letter for the log of rspamd. A letter that is not a mail is
//! wrapped in a minimal one with all mandatory headers except `Date`, whose absence costs one
//! point.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use monoco_adapters::egress::{Egress, EgressResponse, EgressTarget};
use monoco_core::config::{InvalidConfig, Secret};
use monoco_core::did::Did;
use monoco_core::letter::{Letter, LetterId, Verdict, WorkerResult, WorkerStep, check_address};
use serde_json::{Map, Value, json};
use tokio::time::timeout as within;

use super::{
    AttemptResult, ExternalWorkerConfig, WorkerTransport, error_status, no_response, parallel,
    seconds, target,
};
use crate::pipeline::workers::spam::{SpamConfig, with_spam};
use crate::pipeline::workers::{Worker, WorkerAction, WorkerSection, changed};

/// Kind that the API shows for a `spam` worker with rspamd.
pub const KIND_NAME: &str = "rspamd";

/// Number of requests at the same time, by default.
const DEFAULT_PARALLEL: usize = 4;

/// Total size of recipients in the request header, in bytes. rspamd closes the connection
/// when the header is longer than 80 KiB.
const MAX_RECIPIENTS_BYTES: usize = 32 << 10;

/// Longest response, in bytes. Usual ones have a few KiB.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Address of senders and recipients without an e-mail address.
const PLACEHOLDER_ADDRESS: &str = "unknown@monoco.invalid";

/// Maximum number and length of the names of symbols that are stored.
const MAX_SYMBOLS: usize = 20;
const MAX_SYMBOL_CHARS: usize = 100;

const RCPT: HeaderName = HeaderName::from_static("rcpt");
const QUEUE_ID: HeaderName = HeaderName::from_static("queue-id");
const PASSWORD: HeaderName = HeaderName::from_static("password");

/// An rspamd, and the rules that are applied before it is asked.
#[derive(Clone, Debug)]
pub struct RspamdTransport {
    /// Address of the worker process of rspamd, without a path.
    pub target: EgressTarget,
    pub password: Option<Secret>,
    pub rules: SpamConfig,
}

/// Reads the section of a `spam` worker that has the key `rspamd`.
///
/// # Errors
///
/// Fails when the URL or the password is not valid.
pub fn parse(
    section: &WorkerSection<'_>,
    rules: SpamConfig,
) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let keys = &section.keys;
    let text = keys.required("rspamd")?.text()?;
    // The normalized form: an origin has one spelling.
    let origin = EgressTarget::parse(&text, true).map(|target| target.shown()).unwrap_or_default();
    let local = is_local(&origin);
    if origin.starts_with("http://") && !local {
        let why = "http:// is only allowed for an rspamd on this machine; use https://";
        return Err(keys.invalid_key("rspamd", why));
    }
    let has_path = text.split_once("://").is_none_or(|(_, rest)| {
        rest.strip_suffix('/').unwrap_or(rest).contains(['/', '\\', '?', '#'])
    });
    if !origin.is_empty() && has_path {
        let why = "expected only a host and a port, such as http://127.0.0.1:11333";
        return Err(keys.invalid_key("rspamd", why));
    }
    let allow_private = keys.flag("allow_private")?.unwrap_or(local);
    let target = target(keys, "rspamd", allow_private)?;
    let password = keys.secret("password")?;
    if !password.expose().bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        let why = "expected printable ASCII: the password is sent as a header";
        return Err(keys.invalid_key("password", why));
    }
    let password = Some(password).filter(|password| !password.expose().is_empty());
    let transport = WorkerTransport::Rspamd(RspamdTransport { target, password, rules });
    ExternalWorkerConfig::parse(keys, transport, parallel(keys, DEFAULT_PARALLEL)?)
}

/// Tells whether an origin such as `http://127.0.0.1:11333` is on this machine.
fn is_local(origin: &str) -> bool {
    let place = origin.split_once("://").map_or(origin, |(_, place)| place);
    let host = match place.split_once(']') {
        Some((host, _)) => host.trim_start_matches('['),
        None => place.split_once(':').map_or(place, |(host, _)| host),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl RspamdTransport {
    pub fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        changed(&[
            ("threshold or rules", self.rules != new.rules),
            ("rspamd", self.target != new.target),
            ("password", self.password != new.password),
        ])
    }

    /// Applies the rules. A letter that they pass is handed over to rspamd.
    pub fn work(&self, letter: &Letter) -> WorkerStep<WorkerAction<'static>> {
        let result = self.rules.apply(letter);
        match result.verdict {
            Verdict::Trash => WorkerStep::Decided(result),
            _ => WorkerStep::Needs(WorkerAction::HandOver),
        }
    }
}

/// Asks rspamd about a letter.
pub async fn check(
    client: &Egress,
    rspamd: &RspamdTransport,
    letter: &Letter,
    id: LetterId,
    timeout: Duration,
) -> AttemptResult {
    let peer = rspamd.target.shown();
    let mut headers = envelope(letter, id);
    if let Some(password) = &rspamd.password {
        let Ok(mut value) = HeaderValue::from_str(password.expose()) else {
            let why = "the password cannot be sent as a header: expected printable ASCII";
            return AttemptResult::Down(why.to_owned());
        };
        value.set_sensitive(true);
        headers.insert(PASSWORD, value);
    }
    let body = if letter.is_mail() { letter.bytes().into_owned() } else { as_mail(letter, id) };
    let target = rspamd.target.below("checkv2");
    match within(timeout, client.post(&target, headers, body)).await {
        Err(_) => {
            AttemptResult::Failed(format!("{peer} did not answer within {}", seconds(timeout)))
        }
        Ok(Err(failure)) => no_response(&failure),
        Ok(Ok(reply)) => read_response(&peer, &reply, letter),
    }
}

fn read_response(peer: &str, reply: &EgressResponse, letter: &Letter) -> AttemptResult {
    if reply.status.as_u16() != 200 {
        return error_status(peer, reply);
    }
    if reply.body.len() > MAX_RESPONSE_BYTES {
        let limit = MAX_RESPONSE_BYTES >> 20;
        return AttemptResult::Failed(format!("{peer} answered more than {limit} MiB"));
    }
    let result = serde_json::from_slice(&reply.body)
        .map_err(|error| format!("not JSON: {error}"))
        .and_then(|value| parse_response(&value, letter));
    match result {
        Ok(result) => AttemptResult::Decided(result),
        Err(why) => AttemptResult::Failed(format!("{peer} gave an invalid answer: {why}")),
    }
}

/// Parses the response to `/checkv2`.
///
/// The actions `reject`, `discard` and `quarantine` trash the letter. With any other action
/// the letter passes, and `extra.spam` has the findings for later workers: greylisting and
/// added headers only make sense for SMTP servers.
///
/// # Errors
///
/// Fails when `score` or `action` is missing.
pub fn parse_response(reply: &Value, letter: &Letter) -> Result<WorkerResult, String> {
    let score = reply.get("score").filter(|score| score.is_number());
    let action = reply.get("action").and_then(Value::as_str);
    let (Some(score), Some(action)) = (score, action) else {
        return Err(
            "not a response of rspamd: expected a number `score` and a string `action`".to_owned()
        );
    };
    let action: String = action.chars().take(50).collect();
    let required = reply.get("required_score").filter(|score| score.is_number());
    let symbols = strongest_symbols(reply);
    let mut findings = Map::new();
    findings.insert("score".to_owned(), score.clone());
    findings.extend(required.map(|required| ("required".to_owned(), required.clone())));
    findings.insert("action".to_owned(), json!(action));
    findings.insert("symbols".to_owned(), json!(symbols));
    let letter = with_spam(letter, findings.into());
    if !["reject", "discard", "quarantine"].contains(&action.as_str()) {
        return Ok(WorkerResult { letter, ..WorkerResult::PASS });
    }
    let of = required.map_or_else(String::new, |required| format!(" of {required}"));
    let first = symbols[..symbols.len().min(5)].join(", ");
    let note = format!("rspamd: {action}, {score} points{of}: {first}");
    Ok(WorkerResult { letter, ..WorkerResult::trash(note) })
}

/// Returns the names of the symbols with the largest absolute score.
fn strongest_symbols(reply: &Value) -> Vec<String> {
    let weight = |symbol: &Value| symbol["score"].as_f64().unwrap_or_default().abs();
    let symbols = reply.get("symbols").and_then(Value::as_object).into_iter().flatten();
    let mut symbols: Vec<_> = symbols.map(|(name, symbol)| (weight(symbol), name)).collect();
    symbols.sort_by(|(a, name), (b, other)| b.total_cmp(a).then_with(|| name.cmp(other)));
    symbols
        .into_iter()
        .take(MAX_SYMBOLS)
        .map(|(_, name)| name.chars().take(MAX_SYMBOL_CHARS).collect())
        .collect()
}

/// Returns the request headers.
fn envelope(letter: &Letter, id: LetterId) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mail = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, mail);
    let mut put = |name: HeaderName, text: String| {
        // Checked addresses and letter ids are printable ASCII.
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.append(name, value);
        }
    };
    put(QUEUE_ID, id.to_string());
    if let Some(address) = mail_address(&letter.from) {
        put(header::FROM, address);
    }
    let mut room = MAX_RECIPIENTS_BYTES;
    for address in letter.to.iter().filter_map(|address| mail_address(address)) {
        let Some(left) = room.checked_sub(address.len()) else { break };
        room = left;
        put(RCPT, address);
    }
    headers
}

/// Returns the e-mail address of an address or DID, if it has one in ASCII: rspamd gives points
/// for headers that are not ASCII.
fn mail_address(text: &str) -> Option<String> {
    let address = match text.parse::<Did>() {
        Ok(did) => did.endpoint()?.account,
        Err(_) => text.to_owned(),
    };
    let plain = address.bytes().all(|byte| byte.is_ascii_graphic());
    let mail = check_address(&address).is_ok() && !address.starts_with("did:");
    (plain && mail).then_some(address)
}

/// Wraps a letter that is not a mail.
fn as_mail(letter: &Letter, id: LetterId) -> Vec<u8> {
    // The last line must end: rspamd overlooks GTUBE in an unterminated line.
    let end = if letter.data.ends_with('\n') { "" } else { "\r\n" };
    let mail = format!(
        "Message-ID: <{id}@monoco.invalid>\r\n\
         MIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\
         Content-Transfer-Encoding: 8bit\r\n\
         \r\n\
         {}{end}",
        letter.data
    );
    let from = mail_address(&letter.from).unwrap_or_else(|| PLACEHOLDER_ADDRESS.to_owned());
    // The header has one recipient; the envelope has all.
    let to = letter.to.iter().find_map(|address| mail_address(address));
    let mail = monoco_mime::with_header(mail.as_bytes(), "From", &from);
    let mail = monoco_mime::with_header(&mail, "To", to.as_deref().unwrap_or(PLACEHOLDER_ADDRESS));
    monoco_mime::with_subject(&mail, letter.extra("subject").unwrap_or("Message"))
}

#[cfg(test)]
mod tests;
