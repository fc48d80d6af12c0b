//! Validation of submitted letters.

use core::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value};

use super::{Letter, MAX_DATA, MAX_EXTRA, RFC822};
use crate::did::{Did, TunnelId};
use crate::object::MAX_TARGETS;
use crate::unsafe_text::is_unsafe_in_address;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidLetter {
    pub field: String,
    pub why: String,
}

/// The content type of `data`: `extra.content_type`, by default a mail.
pub fn content_type(extra: &Map<String, Value>) -> &str {
    extra.get("content_type").and_then(Value::as_str).unwrap_or(RFC822)
}

/// Parses a submitted letter. The caller checks the syntax of a mail.
///
/// # Errors
///
/// [`InvalidLetter`] with the first invalid field.
pub fn parse_submission(value: Value) -> Result<Letter, InvalidLetter> {
    let Value::Object(mut fields) = value else {
        return Err(invalid("letter", "expected an object"));
    };
    for key in ["id", "nonce", "processed", "last_worker", "result", "note"] {
        if fields.contains_key(key) {
            return Err(invalid(key, "is set by the pipeline; remove it"));
        }
    }
    let from = match fields.remove("from") {
        Some(Value::String(from)) => from,
        Some(_) => return Err(invalid("from", "expected one address")),
        None => return Err(invalid("from", "is missing")),
    };
    check_address(&from).map_err(|why| invalid("from", why))?;
    let to = match fields.remove("to") {
        Some(Value::Array(list)) => recipients(&list)?,
        Some(_) => return Err(invalid("to", "expected a list of addresses")),
        None => return Err(invalid("to", "is missing")),
    };
    let data = match fields.remove("data") {
        Some(Value::String(data)) => data,
        Some(_) => return Err(invalid("data", "expected a string")),
        None => return Err(invalid("data", "is missing")),
    };
    if data.len() > MAX_DATA {
        return Err(invalid("data", format!("{} bytes; {MAX_DATA} is the most", data.len())));
    }
    let extra = match fields.remove("extra") {
        Some(Value::Object(extra)) => extra,
        Some(Value::Null) | None => Map::new(),
        Some(_) => return Err(invalid("extra", "expected an object")),
    };
    check_extra(&extra)?;
    check_charset(&data, &extra).map_err(|why| invalid("data", why))?;
    let size =
        |map: &Map<String, Value>| serde_json::to_string(map).map_or(usize::MAX, |t| t.len());
    for (name, map) in [("extra", &extra), ("letter", &fields)] {
        if size(map) > MAX_EXTRA {
            return Err(invalid(name, "more than 64 KiB beyond `data`"));
        }
    }
    Ok(Letter { from, to, data, extra, rest: fields })
}

fn recipients(list: &[Value]) -> Result<Vec<String>, InvalidLetter> {
    if list.is_empty() {
        return Err(invalid("to", "expected at least one recipient"));
    }
    if list.len() > MAX_TARGETS {
        return Err(invalid("to", format!("{} recipients; {MAX_TARGETS} is the most", list.len())));
    }
    let mut to: Vec<String> = Vec::with_capacity(list.len());
    for (at, one) in list.iter().enumerate() {
        let field = format!("to[{at}]");
        let Some(address) = one.as_str() else { return Err(invalid(field, "expected an address")) };
        check_address(address).map_err(|why| invalid(field, why))?;
        if !to.iter().any(|known| known == address) {
            to.push(address.to_owned());
        }
    }
    Ok(to)
}

/// Checks the keys of `extra` that the pipeline reads.
pub(super) fn check_extra(extra: &Map<String, Value>) -> Result<(), InvalidLetter> {
    for key in ["content_type", "charset", "tunnel", "subject", "merge_key"] {
        let field = || format!("extra.{key}");
        let Some(value) = extra.get(key) else { continue };
        let Some(text) = value.as_str() else { return Err(invalid(field(), "expected a string")) };
        let why = match key {
            "content_type" if ![RFC822, "text/markdown", "text/plain"].contains(&text) => {
                "expected message/rfc822, text/markdown or text/plain"
            }
            "charset" if text != "latin-1" => {
                "expected latin-1: the mail's bytes, one character for each; UTF-8 needs no charset"
            }
            "tunnel" if text.parse::<TunnelId>().is_err() => "not the name of a tunnel",
            "subject" | "merge_key" if text.len() > 998 || text.chars().any(char::is_control) => {
                "expected one line of at most 998 bytes"
            }
            _ => continue,
        };
        return Err(invalid(field(), why));
    }
    Ok(())
}

/// Checks that `data` has only bytes when `extra.charset` is latin-1.
pub(super) fn check_charset(data: &str, extra: &Map<String, Value>) -> Result<(), &'static str> {
    let bytes = extra.get("charset").and_then(Value::as_str) == Some("latin-1");
    if bytes && data.chars().any(|c| c > '\u{ff}') {
        return Err("has characters above U+00FF, but `extra.charset` is latin-1");
    }
    Ok(())
}

/// Checks an address: an e-mail address without name and brackets, or a DID.
///
/// # Errors
///
/// A description of what is invalid.
pub fn check_address(text: &str) -> Result<(), String> {
    if text.starts_with("did:") {
        return text.parse::<Did>().map(|_| ()).map_err(|error| error.to_string());
    }
    let (local, domain) = text.rsplit_once('@').ok_or("expected name@domain or a DID")?;
    if text.len() > 254 || local.is_empty() || local.len() > 64 {
        return Err("expected 1 to 64 bytes before the @, and at most 254 in all".to_owned());
    }
    let odd = |c: char| c.is_whitespace() || "<>()[],;:\\\"@".contains(c);
    if let Some(c) = local.chars().find(|c| odd(*c) || is_unsafe_in_address(*c)) {
        return Err(format!("{c:?} is not allowed in an address"));
    }
    if local.starts_with('.') || local.ends_with('.') || local.contains("..") {
        return Err("a dot at the start, at the end or twice".to_owned());
    }
    let literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let good = match literal {
        Some(literal) => is_ip(literal),
        None => domain.split('.').all(is_label),
    };
    if good { Ok(()) } else { Err("invalid domain".to_owned()) }
}

/// Whether `text` is an IP address as it is written in brackets in e-mail addresses.
fn is_ip(text: &str) -> bool {
    match text.strip_prefix("IPv6:") {
        Some(six) => six.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Whether `label` can be part of a domain. Of non-ASCII labels, only unsafe characters are
/// rejected: registries decide which others exist.
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

/// Returns the key of limits per domain: the domain of an address in lower case, or the
/// tunnel of an external endpoint.
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

fn invalid(field: impl Into<String>, why: impl Into<String>) -> InvalidLetter {
    InvalidLetter { field: field.into(), why: why.into() }
}

#[cfg(test)]
mod tests;
