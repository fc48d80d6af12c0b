//! Checks submitted letters and determines their tunnel. Errors name the invalid field.

use std::collections::BTreeSet;

use monoco_core::approval::SendOrigin;
use monoco_core::did::{Did, TunnelId};
use monoco_core::letter::{ChainDirection, InvalidLetter, Letter, content_type, parse_submission};
use monoco_store::LetterSource;
use serde_json::{Value, json};

use super::config::PipelineConfig;

/// Longest idempotency key, in bytes.
pub const MAX_KEY_BYTES: usize = 256;

/// Parses and checks a letter, except for its tunnel.
///
/// # Errors
///
/// Names the first field that is not valid.
pub fn parse_letter(value: Value, key: Option<&str>) -> Result<Letter, InvalidLetter> {
    let invalid = |field: &str, why: String| InvalidLetter { field: field.to_owned(), why };
    if key.is_some_and(|key| key.is_empty() || key.len() > MAX_KEY_BYTES) {
        return Err(invalid("Idempotency-Key", format!("expected 1 to {MAX_KEY_BYTES} bytes")));
    }
    let mut letter = parse_submission(value)?;
    if letter.extra("charset") == Some("latin-1") {
        let wide = letter.data.chars().find(|c| u32::from(*c) > 0xff);
        if let Some(wide) = wide {
            let why = format!("contains {wide:?}, which is not Latin-1 as in extra.charset");
            return Err(invalid("data", why));
        }
        // Bytes that are valid UTF-8 are stored as text.
        letter.set_bytes(letter.bytes().into_owned());
    }
    if letter.is_mail() {
        let checked = monoco_mime::check(&letter.bytes());
        checked.map_err(|error| invalid("data", error.to_string()))?;
    } else if letter.data.contains('\0') {
        return Err(invalid("data", "contains a NUL character".to_owned()));
    }
    Ok(letter)
}

/// Adds the fields of `extra` that the pipeline sets, and returns the source of a new letter.
pub fn into_source(
    mut letter: Letter,
    tunnel: Option<TunnelId>,
    key: Option<String>,
    origin: SendOrigin,
) -> LetterSource {
    let content_type = content_type(&letter.extra).to_owned();
    letter.extra.insert("content_type".to_owned(), content_type.into());
    letter.extra.insert("direction".to_owned(), json!(ChainDirection::Outbound));
    if let Some(tunnel) = &tunnel {
        letter.extra.insert("tunnel".to_owned(), json!(tunnel));
    }
    LetterSource::Submitted { letter, tunnel, key, origin }
}

/// Returns the tunnel of a letter: the one it names, the one of its addresses, or the default
/// one. `None` when its addresses belong to several tunnels.
///
/// # Errors
///
/// Fails when an address needs a tunnel and none is named, and when the named one is not in
/// `tunnels`.
pub fn find_tunnel(
    letter: &Letter,
    config: &PipelineConfig,
    tunnels: &BTreeSet<TunnelId>,
) -> Result<Option<TunnelId>, InvalidLetter> {
    let invalid = |why: String| InvalidLetter { field: "extra.tunnel".to_owned(), why };
    let named: Option<TunnelId> = letter.extra("tunnel").and_then(|name| name.parse().ok());
    if let Some(tunnel) = named {
        if !tunnels.contains(&tunnel) {
            return Err(invalid(format!("there is no tunnel {tunnel}")));
        }
        return Ok(Some(tunnel));
    }
    let own = |address: &String| address.parse::<Did>().ok()?.endpoint().map(|it| it.tunnel);
    let mut found: BTreeSet<Option<TunnelId>> = letter.to.iter().map(own).collect();
    let is_plain = |address: &String| !address.starts_with("did:");
    if letter.to.iter().chain([&letter.from]).any(is_plain) {
        let why = "missing: name the tunnel of these addresses here, or one for all letters in \
                   courier.pipeline.workers.send.tunnel";
        let default = config.default_tunnel().ok_or_else(|| invalid(why.to_owned()))?;
        if !tunnels.contains(default) {
            let why = format!("courier.pipeline.workers.send.tunnel: there is no tunnel {default}");
            return Err(invalid(why));
        }
        found.remove(&None);
        found.insert(Some(default.clone()));
    }
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        _ => Ok(None),
    }
}
