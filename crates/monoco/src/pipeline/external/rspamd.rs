//! A spam filter beside us: a letter is posted to rspamd, which says what it thinks.
//!
//! What rspamd learns beside the mail is in the headers of the request: the envelope,
//! as far as it is one of e-mail addresses, and the letter's id for its log. What is
//! not a mail is wrapped in a plain one, which has what every mail has, so that it gets
//! no points for what it is not. Only its `Date` is missing, which costs one point.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use monoco_adapters::Secret;
use monoco_adapters::egress::{Egress, EgressResponse, EgressTarget};
use monoco_core::did::Did;
use monoco_core::letter::{Letter, LetterId, check_address};
use tokio::time::timeout as within;

use super::{AttemptResult, refused, seconds, unanswered};
use crate::pipeline::workers::spam::rspamd_opinion;

/// Most bytes of recipients that rspamd is told. It hangs up on heads over 80 KiB.
const MAX_RECIPIENTS: usize = 32 << 10;

/// Largest answer. One has a few KiB.
const MAX_REPLY: usize = 1 << 20;

/// Whom a message is from or for who has no e-mail address. The name is nobody's.
const SOMEBODY: &str = "somebody@monoco.invalid";

const RCPT: HeaderName = HeaderName::from_static("rcpt");
const QUEUE_ID: HeaderName = HeaderName::from_static("queue-id");
const PASSWORD: HeaderName = HeaderName::from_static("password");

/// Asks rspamd what it thinks of a letter.
pub async fn rspamd(
    egress: &Egress,
    target: &EgressTarget,
    password: Option<&Secret>,
    letter: &Letter,
    id: LetterId,
    timeout: Duration,
) -> AttemptResult {
    let peer = target.shown();
    let mut headers = envelope(letter, id);
    if let Some(password) = password {
        let Ok(mut value) = HeaderValue::from_str(password.expose()) else {
            return AttemptResult::Down(
                "the password can't be sent: want printable ASCII".to_owned(),
            );
        };
        value.set_sensitive(true);
        headers.insert(PASSWORD, value);
    }
    let body = if letter.is_mail() { letter.bytes().into_owned() } else { wrapped(letter, id) };
    let place = target.below("checkv2");
    match within(timeout, egress.post(&place, headers, body)).await {
        Err(_) => {
            AttemptResult::Failed(format!("{peer} did not answer within {}", seconds(timeout)))
        }
        Ok(Err(failure)) => unanswered(&failure),
        Ok(Ok(reply)) => read(&peer, &reply, letter),
    }
}

/// What an answer means.
fn read(peer: &str, reply: &EgressResponse, letter: &Letter) -> AttemptResult {
    if reply.status.as_u16() != 200 {
        return refused(peer, reply);
    }
    if reply.body.len() > MAX_REPLY {
        return AttemptResult::Failed(format!("{peer} answered more than {} MiB", MAX_REPLY >> 20));
    }
    let opinion = serde_json::from_slice(&reply.body)
        .map_err(|error| format!("not JSON: {error}"))
        .and_then(|value| rspamd_opinion(&value, letter));
    match opinion {
        Ok(opinion) => AttemptResult::Opinion(opinion),
        Err(why) => AttemptResult::Failed(format!("{peer} gave a bad answer: {why}")),
    }
}

/// What rspamd is told beside the mail.
fn envelope(letter: &Letter, id: LetterId) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mail = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, mail);
    let mut put = |name: HeaderName, text: String| {
        // Addresses are checked and ids are ours: both are printable ASCII.
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.append(name, value);
        }
    };
    put(QUEUE_ID, id.to_string());
    if let Some(address) = mail_address(&letter.from) {
        put(header::FROM, address);
    }
    let mut room = MAX_RECIPIENTS;
    for address in letter.to.iter().filter_map(|address| mail_address(address)) {
        let Some(left) = room.checked_sub(address.len()) else { break };
        room = left;
        put(RCPT, address);
    }
    headers
}

/// The e-mail address of somebody who has one, in ASCII: rspamd takes any other for
/// broken headers, and gives points for them.
fn mail_address(text: &str) -> Option<String> {
    let address = match text.parse::<Did>() {
        Ok(did) => did.endpoint()?.account,
        Err(_) => text.to_owned(),
    };
    let plain = address.bytes().all(|byte| byte.is_ascii_graphic());
    let mail = check_address(&address).is_ok() && !address.starts_with("did:");
    (plain && mail).then_some(address)
}

/// A message that is no mail, as one.
fn wrapped(letter: &Letter, id: LetterId) -> Vec<u8> {
    // As in any mail the last line ends: rspamd overlooks GTUBE where nothing follows it.
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
    let from = mail_address(&letter.from).unwrap_or_else(|| SOMEBODY.to_owned());
    // The envelope has the others.
    let to = letter.to.iter().find_map(|address| mail_address(address));
    let mail = monoco_mime::with_header(mail.as_bytes(), "From", &from);
    let mail = monoco_mime::with_header(&mail, "To", to.as_deref().unwrap_or(SOMEBODY));
    monoco_mime::with_subject(&mail, letter.extra("subject").unwrap_or("Message"))
}

#[cfg(test)]
mod tests;
