//! What the doorman checks of a letter that is handed in.

use core::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value};

use super::{Letter, MAX_DATA, MAX_EXTRA, RFC822};
use crate::did::{Did, TunnelId};
use crate::object::MAX_TARGETS;
use crate::unsafe_text::is_unsafe_in_address;

/// The letter is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidLetter {
    /// What is wrong.
    pub field: String,
    /// Why.
    pub why: String,
}

/// What `data` is: a mail unless `extra` says otherwise.
pub fn content_type(extra: &Map<String, Value>) -> &str {
    extra.get("content_type").and_then(Value::as_str).unwrap_or(RFC822)
}

/// Reads a letter that is handed in. The syntax of a mail is checked by the caller.
///
/// # Errors
///
/// The first field that is wrong.
pub fn parse_submission(value: Value) -> Result<Letter, InvalidLetter> {
    let Value::Object(mut fields) = value else { return Err(bad("letter", "want an object")) };
    for key in ["id", "processed", "last_worker", "result", "note"] {
        if fields.contains_key(key) {
            return Err(bad(key, "is for the post office and its workers to say"));
        }
    }
    let from = match fields.remove("from") {
        Some(Value::String(from)) => from,
        Some(_) => return Err(bad("from", "want one address")),
        None => return Err(bad("from", "is missing")),
    };
    check_address(&from).map_err(|why| bad("from", why))?;
    let to = match fields.remove("to") {
        Some(Value::Array(list)) => recipients(&list)?,
        Some(_) => return Err(bad("to", "want a list of addresses")),
        None => return Err(bad("to", "is missing")),
    };
    let data = match fields.remove("data") {
        Some(Value::String(data)) => data,
        Some(_) => return Err(bad("data", "want a string")),
        None => return Err(bad("data", "is missing")),
    };
    if data.len() > MAX_DATA {
        return Err(bad("data", format!("{} bytes; {MAX_DATA} is the most", data.len())));
    }
    let extra = match fields.remove("extra") {
        Some(Value::Object(extra)) => extra,
        Some(Value::Null) | None => Map::new(),
        Some(_) => return Err(bad("extra", "want an object")),
    };
    check_extra(&extra)?;
    check_charset(&data, &extra).map_err(|why| bad("data", why))?;
    let size =
        |map: &Map<String, Value>| serde_json::to_string(map).map_or(usize::MAX, |t| t.len());
    for (name, map) in [("extra", &extra), ("letter", &fields)] {
        if size(map) > MAX_EXTRA {
            return Err(bad(name, "more than 64 KiB beyond `data`"));
        }
    }
    Ok(Letter { from, to, data, extra, rest: fields })
}

fn recipients(list: &[Value]) -> Result<Vec<String>, InvalidLetter> {
    if list.is_empty() {
        return Err(bad("to", "want at least one recipient"));
    }
    if list.len() > MAX_TARGETS {
        return Err(bad("to", format!("{} recipients; {MAX_TARGETS} is the most", list.len())));
    }
    let mut to: Vec<String> = Vec::with_capacity(list.len());
    for (at, one) in list.iter().enumerate() {
        let field = format!("to[{at}]");
        let Some(address) = one.as_str() else { return Err(bad(field, "want an address")) };
        check_address(address).map_err(|why| bad(field, why))?;
        if !to.iter().any(|known| known == address) {
            to.push(address.to_owned());
        }
    }
    Ok(to)
}

/// Checks what the post office itself reads of `extra`.
pub(super) fn check_extra(extra: &Map<String, Value>) -> Result<(), InvalidLetter> {
    for key in ["content_type", "charset", "tunnel", "subject", "merge_key"] {
        let field = || format!("extra.{key}");
        let Some(value) = extra.get(key) else { continue };
        let Some(text) = value.as_str() else { return Err(bad(field(), "want a string")) };
        let why = match key {
            "content_type" if ![RFC822, "text/markdown", "text/plain"].contains(&text) => {
                "want message/rfc822, text/markdown or text/plain"
            }
            "charset" if text != "latin-1" => {
                "want latin-1: the mail's bytes, one character for each; UTF-8 needs no charset"
            }
            "tunnel" if text.parse::<TunnelId>().is_err() => "not the name of a tunnel",
            "subject" | "merge_key" if text.len() > 998 || text.chars().any(char::is_control) => {
                "want one line of at most 998 bytes"
            }
            _ => continue,
        };
        return Err(bad(field(), why));
    }
    Ok(())
}

/// Checks that data which is said to be bytes is nothing else.
pub(super) fn check_charset(data: &str, extra: &Map<String, Value>) -> Result<(), &'static str> {
    let bytes = extra.get("charset").and_then(Value::as_str) == Some("latin-1");
    if bytes && data.chars().any(|c| c > '\u{ff}') {
        return Err("has characters that are no bytes, and `extra.charset` is latin-1");
    }
    Ok(())
}

/// Checks one address: an e-mail address without a name and brackets, or a DID.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_address(text: &str) -> Result<(), String> {
    if text.starts_with("did:") {
        return text.parse::<Did>().map(|_| ()).map_err(|error| error.to_string());
    }
    let (local, domain) = text.rsplit_once('@').ok_or("want name@domain or a DID")?;
    if text.len() > 254 || local.is_empty() || local.len() > 64 {
        return Err("want 1 to 64 bytes before the @, and at most 254 in all".to_owned());
    }
    let odd = |c: char| c.is_whitespace() || "<>()[],;:\\\"@".contains(c);
    if let Some(c) = local.chars().find(|c| odd(*c) || is_unsafe_in_address(*c)) {
        return Err(format!("{c:?} can't be in an address here"));
    }
    if local.starts_with('.') || local.ends_with('.') || local.contains("..") {
        return Err("a dot at the start, at the end or twice".to_owned());
    }
    let literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let good = match literal {
        Some(literal) => is_ip(literal),
        None => domain.split('.').all(is_label),
    };
    if good { Ok(()) } else { Err("its domain is none".to_owned()) }
}

/// Whether it is an IP address as mail writes it, between brackets.
fn is_ip(text: &str) -> bool {
    match text.strip_prefix("IPv6:") {
        Some(six) => six.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Whether it can be part of a domain. Of those that are not ASCII only what is surely
/// none is refused: which ones exist is for the registries to say.
fn is_label(label: &str) -> bool {
    let good = |c: char| match c {
        '-' => true,
        _ if c.is_ascii() => c.is_ascii_alphanumeric(),
        _ => !c.is_whitespace() && !is_unsafe_in_address(c),
    };
    (1..=63).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.chars().all(good)
}

/// The domain of an address, in lower case: what a limit per domain counts by. For an
/// endpoint on an outside network, the tunnel.
pub fn address_domain(address: &str) -> String {
    if let Ok(did) = address.parse::<Did>() {
        let Some(endpoint) = did.endpoint() else { return "did".to_owned() };
        return match endpoint.account.rsplit_once('@') {
            Some((_, domain)) => domain.to_lowercase(),
            None => endpoint.tunnel.as_str().to_owned(),
        };
    }
    address.rsplit_once('@').map_or_else(String::new, |(_, domain)| domain.to_lowercase())
}

fn bad(field: impl Into<String>, why: impl Into<String>) -> InvalidLetter {
    InvalidLetter { field: field.into(), why: why.into() }
}

#[cfg(test)]
mod tests;
