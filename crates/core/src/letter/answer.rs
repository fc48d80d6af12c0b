//! Parsing of a worker's answer, checked against the letter that the worker got.

use std::fmt;

use serde_json::{Map, Value};

use super::submission::{check_charset, check_extra};
use super::{
    Letter, LetterId, MAX_DATA, MAX_EXTRA, Verdict, WorkerName, WorkerResult, WorkerVerdict,
    check_address,
};
use crate::json;
use crate::object::MAX_TARGETS;

/// Keys of `extra` that the hub sets: workers cannot change them.
pub const RESERVED_EXTRA_KEYS: [&str; 9] = [
    "content_type",
    "direction",
    "tunnel",
    "provider",
    "msg_id",
    "external_id",
    "kind",
    "attempt",
    "attached",
];

/// Keys of `extra` that are content of the letter: only a verdict `pass` can change them.
const CONTENT_EXTRA_KEYS: [&str; 2] = ["subject", "charset"];

/// Maximum length of an error about an answer, in characters. It can quote the answer.
const MAX_ERROR_CHARS: usize = 300;

/// A letter as an external worker gets it in one attempt.
#[derive(Clone, Copy, Debug)]
pub struct WorkerRequest<'a> {
    pub id: LetterId,
    pub worker: &'a WorkerName,
    /// Different for each attempt. An answer repeats it, so that an answer to an earlier
    /// attempt, or of an earlier worker, is recognised.
    pub nonce: &'a str,
    /// Number of this attempt, from 1.
    pub attempt: u32,
    pub letter: &'a Letter,
    /// Whether the worker may change addresses.
    pub may_readdress: bool,
}

/// Why an answer is invalid. It counts as a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid answer: {0}")]
pub struct InvalidWorkerAnswer(pub String);

impl InvalidWorkerAnswer {
    fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string().chars().take(MAX_ERROR_CHARS).collect())
    }
}

impl WorkerRequest<'_> {
    /// Returns the JSON that the worker gets. `had` are the verdicts so far.
    pub fn to_json(&self, had: &[WorkerVerdict]) -> Value {
        let mut letter = self.letter.to_json(self.id, had);
        letter["nonce"] = self.nonce.into();
        letter["extra"]["attempt"] = self.attempt.into();
        letter
    }

    /// Parses the answer of the worker.
    ///
    /// Fields that the answer does not have stay unchanged. A worker can change addresses
    /// only with `may_readdress`, and cannot remove keys from `extra`. With the verdicts
    /// `skip` and `trash`, only `extra` can change.
    ///
    /// # Errors
    ///
    /// [`InvalidWorkerAnswer`] with a message for the developer of the worker.
    pub fn parse_answer(&self, bytes: &[u8]) -> Result<WorkerResult, InvalidWorkerAnswer> {
        let value = json::parse(bytes).map_err(InvalidWorkerAnswer::new)?;
        let Value::Object(mut fields) = value else {
            return Err(InvalidWorkerAnswer::new("expected a JSON object"));
        };
        let letter_id =
            text(&mut fields, "id")?.ok_or_else(|| InvalidWorkerAnswer::new("`id` is missing"))?;
        if letter_id != self.id.to_string() {
            return Err(InvalidWorkerAnswer::new("`id` is the id of another letter"));
        }
        if let Some(nonce) = text(&mut fields, "nonce")?
            && nonce != self.nonce
        {
            return Err(InvalidWorkerAnswer::new("`nonce` is the nonce of another attempt"));
        }
        if let Some(name) = text(&mut fields, "last_worker")?
            && name != self.worker.as_str()
        {
            let start: String = name.chars().take(64).collect();
            return Err(InvalidWorkerAnswer::new(format!(
                "`last_worker` is {start:?}, this is {}",
                self.worker
            )));
        }
        let (verdict, given) = (verdict(&mut fields)?, self.letter);
        let note = text(&mut fields, "note")?.map(|note| note.chars().take(500).collect());
        fields.remove("processed");
        let extra = extra(&mut fields, &given.extra, verdict)?;
        let letter = letter(fields, given, self.may_readdress)?;
        let letter = if verdict == Verdict::Pass { letter } else { given.clone() };
        if letter.data != given.data || extra.get("charset") != given.extra.get("charset") {
            check_charset(&letter.data, &extra)
                .map_err(|why| InvalidWorkerAnswer::new(format!("`data` {why}")))?;
        }
        let letter = Letter { extra, ..letter };
        Ok(WorkerResult { verdict, note, letter: (letter != *given).then_some(letter) })
    }
}

fn verdict(fields: &mut Map<String, Value>) -> Result<Verdict, InvalidWorkerAnswer> {
    match text(fields, "result")?.as_deref() {
        Some("pass") => Ok(Verdict::Pass),
        Some("skip") => Ok(Verdict::Skip),
        Some("trash") => Ok(Verdict::Trash),
        Some(other) => {
            let start: String = other.chars().take(64).collect();
            Err(InvalidWorkerAnswer::new(format!("`result` is {start:?}, not pass, skip or trash")))
        }
        None => Err(InvalidWorkerAnswer::new("`result` is missing; expected pass, skip or trash")),
    }
}

/// The letter of the answer, without `extra`.
fn letter(
    mut fields: Map<String, Value>,
    given: &Letter,
    may_readdress: bool,
) -> Result<Letter, InvalidWorkerAnswer> {
    let from = text(&mut fields, "from")?.unwrap_or_else(|| given.from.clone());
    let to = to(&mut fields, &given.to)?;
    let data = text(&mut fields, "data")?.unwrap_or_else(|| given.data.clone());
    if !may_readdress && (from != given.from || to != given.to) {
        return Err(InvalidWorkerAnswer::new(
            "`from` or `to` was changed; set `readdress: true` for this worker to allow it",
        ));
    }
    if from != given.from {
        check_address(&from).map_err(|why| InvalidWorkerAnswer::new(format!("`from`: {why}")))?;
    }
    if data.len() > MAX_DATA {
        let size = data.len();
        return Err(InvalidWorkerAnswer::new(format!(
            "`data` has {size} bytes; {MAX_DATA} is the most"
        )));
    }
    let mut rest = given.rest.clone();
    rest.extend(fields);
    if size(&rest) > MAX_EXTRA {
        return Err(InvalidWorkerAnswer::new("unknown keys of more than 64 KiB"));
    }
    Ok(Letter { from, to, data, rest, extra: Map::new() })
}

fn text(fields: &mut Map<String, Value>, key: &str) -> Result<Option<String>, InvalidWorkerAnswer> {
    match fields.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(InvalidWorkerAnswer::new(format!("`{key}` is not a string"))),
    }
}

fn to(
    fields: &mut Map<String, Value>,
    given: &[String],
) -> Result<Vec<String>, InvalidWorkerAnswer> {
    let Some(value) = fields.remove("to") else { return Ok(given.to_vec()) };
    let list = value.as_array().and_then(|list| {
        list.iter().map(|one| one.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    });
    // Unchanged is always valid: a message to a group can have no target.
    let fits = |to: &Vec<String>| *to == given || (1..=MAX_TARGETS).contains(&to.len());
    let to = list
        .filter(fits)
        .ok_or_else(|| InvalidWorkerAnswer::new("`to` is not a list of 1 to 1,000 addresses"))?;
    for address in to.iter().filter(|address| !given.contains(address)) {
        check_address(address).map_err(|why| InvalidWorkerAnswer::new(format!("`to`: {why}")))?;
    }
    Ok(to)
}

/// The old keys, and those that the worker wrote, without reserved keys.
fn extra(
    fields: &mut Map<String, Value>,
    given: &Map<String, Value>,
    result: Verdict,
) -> Result<Map<String, Value>, InvalidWorkerAnswer> {
    let mut written = match fields.remove("extra") {
        None => return Ok(given.clone()),
        Some(Value::Object(written)) => written,
        Some(_) => return Err(InvalidWorkerAnswer::new("`extra` is not an object")),
    };
    let keeps = |key: &str| {
        RESERVED_EXTRA_KEYS.contains(&key)
            || (result != Verdict::Pass && CONTENT_EXTRA_KEYS.contains(&key))
    };
    written.retain(|key, value| !keeps(key) && given.get(key) != Some(value));
    // Unchanged values are not checked: an inbound message can exceed the limits of a
    // submission.
    if written.is_empty() {
        return Ok(given.clone());
    }
    check_extra(&written)
        .map_err(|bad| InvalidWorkerAnswer::new(format!("`{}`: {}", bad.field, bad.why)))?;
    let mut extra = given.clone();
    extra.extend(written);
    if size(&extra) > MAX_EXTRA {
        return Err(InvalidWorkerAnswer::new("`extra` is larger than 64 KiB"));
    }
    Ok(extra)
}

fn size(map: &Map<String, Value>) -> usize {
    serde_json::to_string(map).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests;
