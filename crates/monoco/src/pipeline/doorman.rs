//! Takes letters in: reads them, checks them, and names the way they will go.
//!
//! What the doorman takes is kept before anybody is told so. What he refuses he says,
//! field by field, so that the sender still has it.

use std::collections::BTreeSet;

use monoco_core::did::{Did, TunnelId};
use monoco_core::letter::{ChainDirection, InvalidLetter, Letter, content_type, parse_submission};
use monoco_store::LetterSource;
use serde_json::{Value, json};

use super::config::{PipelineConfig, WorkerConfig};

/// Longest idempotency key, in bytes.
pub const MAX_KEY: usize = 256;

/// Reads and checks a letter, but for its way.
///
/// # Errors
///
/// The first field that is wrong.
pub fn read(value: Value, key: Option<&str>) -> Result<Letter, InvalidLetter> {
    let bad = |field: &str, why: String| InvalidLetter { field: field.to_owned(), why };
    if key.is_some_and(|key| key.is_empty() || key.len() > MAX_KEY) {
        return Err(bad("Idempotency-Key", format!("want 1 to {MAX_KEY} bytes")));
    }
    let mut letter = parse_submission(value)?;
    if letter.extra("charset") == Some("latin-1") {
        let odd = letter.data.chars().find(|c| u32::from(*c) > 0xff);
        if let Some(odd) = odd {
            return Err(bad("data", format!("{odd:?} is no byte, and extra.charset is latin-1")));
        }
        // Bytes that are text after all travel as text.
        letter.set_bytes(letter.bytes().into_owned());
    }
    if letter.is_mail() {
        let checked = monoco_mime::check(&letter.bytes());
        checked.map_err(|error| bad("data", error.to_string()))?;
    } else if letter.data.contains('\0') {
        return Err(bad("data", "has a NUL".to_owned()));
    }
    Ok(letter)
}

/// The letter as it is taken in, with what the post office itself knows of it.
pub fn addressed(
    mut letter: Letter,
    tunnel: Option<TunnelId>,
    key: Option<String>,
) -> LetterSource {
    let content_type = content_type(&letter.extra).to_owned();
    letter.extra.insert("content_type".to_owned(), content_type.into());
    letter.extra.insert("direction".to_owned(), json!(ChainDirection::Outbound));
    if let Some(tunnel) = &tunnel {
        letter.extra.insert("tunnel".to_owned(), json!(tunnel));
    }
    LetterSource::Submitted { letter, tunnel, key }
}

/// The tunnel that a letter goes through: the one it names, the one its addresses name,
/// or the one for all letters. No guess. `tunnels` are those there are.
///
/// # Errors
///
/// When it names none, or one that there is not.
pub fn way(
    letter: &Letter,
    settings: &PipelineConfig,
    tunnels: &BTreeSet<TunnelId>,
) -> Result<Option<TunnelId>, InvalidLetter> {
    let bad = |why: String| InvalidLetter { field: "extra.tunnel".to_owned(), why };
    let named: Option<TunnelId> = letter.extra("tunnel").and_then(|name| name.parse().ok());
    if let Some(tunnel) = named {
        if !tunnels.contains(&tunnel) {
            return Err(bad(format!("there is no tunnel {tunnel}")));
        }
        return Ok(Some(tunnel));
    }
    let own = |address: &String| address.parse::<Did>().ok()?.endpoint().map(|it| it.tunnel);
    let mut ways: BTreeSet<Option<TunnelId>> = letter.to.iter().map(own).collect();
    let plain = |address: &String| !address.starts_with("did:");
    if letter.to.iter().chain([&letter.from]).any(plain) {
        let all = settings.workers.values().find_map(|worker| match worker {
            WorkerConfig::Send { tunnel } => tunnel.clone(),
            _ => None,
        });
        let why = "name the tunnel that these addresses are behind, here or for all letters in \
                   courier.pipeline.workers.send.tunnel";
        let all = all.ok_or_else(|| bad(why.to_owned()))?;
        if !tunnels.contains(&all) {
            return Err(bad(format!("there is no tunnel {all}, which the config names")));
        }
        ways.remove(&None);
        ways.insert(Some(all));
    }
    let mut ways = ways.into_iter();
    match (ways.next(), ways.next()) {
        (Some(one), None) => Ok(one),
        _ => Ok(None),
    }
}
