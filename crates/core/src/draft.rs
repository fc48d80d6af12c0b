//! What somebody wants to send, as a file: Markdown with a YAML front matter.
//!
//! ```text
//! ---
//! to: user:ann
//! tunnel: lark-main
//! title: Build
//! ---
//!
//! It is green again.
//! ```
//!
//! People write it by hand, scripts write it slowly, and `monoco mailbox send` writes
//! it for those who do not want to. So it is read with patience (byte order marks, line
//! ends of other systems) and checked with none: what is not understood is refused by
//! name, and nothing of it is sent.
//!
//! The same draft under the same uid makes the same object, however often it is tried:
//! after a crash it is posted again, and sent once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::did::{Did, Endpoint, EndpointKind, TunnelId};
use crate::mail::{Mail, MailId, from_yaml, front_matter};
use crate::object::{MAX_TARGETS, MsgObject, ObjId};
use crate::time::Timestamp;

mod read;

/// Largest file of a draft, in bytes.
pub const MAX_DRAFT: usize = 1 << 20;

/// Longest text of a draft, in bytes.
pub const MAX_TEXT: usize = 512 << 10;

/// What somebody wants to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// To whom: DIDs, `user:`, `group:`, `channel:` or `addr:` and an account, or an
    /// account alone.
    pub to: Vec<String>,
    /// Who else is to know.
    pub cc: Vec<String>,
    /// Who else, unknown to the others.
    pub bcc: Vec<String>,
    /// The provider, where the draft says one.
    pub provider: Option<String>,
    /// The tunnel that accounts are on.
    pub tunnel: Option<TunnelId>,
    /// The Mail it answers.
    pub reply_to: Option<MailId>,
    /// The thread it belongs to.
    pub thread_key: Option<String>,
    /// Its subject.
    pub title: Option<String>,
    /// The MIME type of its text.
    pub format: String,
    /// What is to be said.
    pub text: String,
    /// What goes with it.
    pub artifacts: Vec<DraftAttachment>,
    /// How it is to be sent.
    pub options: DraftOptions,
    /// What the sender files it under.
    pub correlation_id: Option<String>,
    /// The sender's own name for this send.
    pub idempotency_key: Option<String>,
}

/// What goes with a draft. The bytes are in the dropzone or in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftAttachment {
    /// What the receiver is to call it. Never a path.
    pub name: String,
    /// Its MIME type.
    #[serde(default = "any_bytes")]
    pub mime_type: String,
    /// The bytes, by their hash: `sha256:…`.
    pub hash: ObjId,
}

/// How a draft is to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DraftOptions {
    /// Without a sound, where the provider can.
    pub silent: bool,
    /// With more noise than usual, where the provider can.
    pub urgent: bool,
    /// Not before this.
    #[serde(with = "crate::time::rfc3339_maybe")]
    pub schedule_at: Option<Timestamp>,
}

/// What a draft is sealed with, beyond what it says itself.
#[derive(Clone, Copy, Debug)]
pub struct DraftContext<'a> {
    /// Who sends it.
    pub owner: &'a Did,
    /// Its name, unique for ever.
    pub uid: &'a str,
    /// The provider in whose directory it is.
    pub provider: &'a str,
    /// The tunnels of that provider.
    pub tunnels: &'a [TunnelId],
    /// The Mail that it answers, when it answers one.
    pub answers: Option<&'a Mail>,
    /// How many bytes its artifacts have.
    pub sizes: &'a BTreeMap<ObjId, u64>,
}

/// A draft as it can be posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedDraft {
    /// The message.
    pub msg: MsgObject,
    /// The name of this send: a second one with the same name is not sent.
    pub key: String,
    /// Not to be sent before this.
    pub not_before: Option<Timestamp>,
}

/// Why a draft is not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDraft {
    /// It may still be being written.
    #[error("the front matter is not closed by a line of `---`")]
    Incomplete,
    /// It does not start with a front matter.
    #[error("there is no front matter between two lines of `---` at the start")]
    NoFrontMatter,
    /// The front matter can't be read.
    #[error("{0}")]
    FrontMatter(String),
    /// A key that a draft does not have.
    #[error("unknown key `{key}`{}", .nearest.map(|word| format!(", did you mean `{word}`?")).unwrap_or_default())]
    UnknownKey {
        /// Where it was found.
        key: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A key says something that can't be.
    #[error("{field}: {why}")]
    Field {
        /// Which key.
        field: String,
        /// What is wrong, and what was wanted.
        why: String,
    },
}

impl Draft {
    /// Makes it the message that it is to be.
    ///
    /// # Errors
    ///
    /// When it does not say to whom, or through what, or is too large.
    pub fn into_message(self, facts: &DraftContext<'_>) -> Result<PreparedDraft, InvalidDraft> {
        if let Some(provider) = self.provider.as_deref().filter(|said| *said != facts.provider) {
            let why = format!("{provider:?}, but the draft is in outbound/{}", facts.provider);
            return Err(bad("provider", why));
        }
        let to = self.targets("to", &self.to, facts)?;
        let cc = self.targets("cc", &self.cc, facts)?;
        let bcc = self.targets("bcc", &self.bcc, facts)?;
        let mut everybody = Vec::new();
        let answer_to = facts.answers.filter(|_| to.is_empty()).map(|mail| &mail.header.answer_to);
        for target in answer_to.into_iter().chain(&to).chain(&cc).chain(&bcc) {
            if !everybody.contains(target) {
                everybody.push(target.clone());
            }
        }
        if everybody.is_empty() {
            return Err(bad("to", "nobody to send it to: give `to`, or `reply_to`"));
        }
        if everybody.len() > MAX_TARGETS {
            let why = format!("{} targets; {MAX_TARGETS} is the most", everybody.len());
            return Err(bad("to", why));
        }

        let mut object = json!({
            "from": facts.owner,
            "to": everybody,
            "kind": "chat",
            "nonce": nonce(self.idempotency_key.as_deref().unwrap_or(facts.uid)),
            "content": self.content(facts.sizes),
        });
        // Under a key of the sender's own, a second draft that says the same is the
        // same message, whenever it is written.
        if self.idempotency_key.is_none()
            && let Some(at) = written_at(facts.uid)
        {
            object["created_at_ms"] = json!(at.ms());
        }
        for (key, targets) in [("cc", cc), ("bcc", bcc)] {
            if !targets.is_empty() {
                object[key] = json!(targets);
            }
        }
        if let Some(last) = facts.answers.and_then(|mail| mail.messages.last()) {
            object["in_reply_to"] = json!(last.id);
        }
        let thread = self.thread(facts.answers);
        if !thread.is_empty() {
            object["thread"] = Value::Object(thread);
        }
        let flags = [("silent", self.options.silent), ("urgent", self.options.urgent)];
        let flags: Map<_, _> = flags
            .into_iter()
            .filter(|(_, set)| *set)
            .map(|(name, _)| (name.to_owned(), json!(true)))
            .collect();
        if !flags.is_empty() {
            object["options"] = Value::Object(flags);
        }
        let msg =
            MsgObject::from_json(object).map_err(|error| bad("the message", error.to_string()))?;
        let key = self.idempotency_key.unwrap_or_else(|| format!("draft:{}", facts.uid));
        Ok(PreparedDraft { msg, key, not_before: self.options.schedule_at })
    }

    fn targets(
        &self,
        field: &str,
        targets: &[String],
        facts: &DraftContext<'_>,
    ) -> Result<Vec<Did>, InvalidDraft> {
        targets
            .iter()
            .map(|target| {
                if target.starts_with("did:") {
                    return target.parse().map_err(|error| bad(field, format!("{error}")));
                }
                let (kind, account) = match target.split_once(':') {
                    Some((kind, account)) => match kind.parse() {
                        Ok(kind) => (kind, account),
                        Err(_) => (EndpointKind::User, target.as_str()),
                    },
                    None => (EndpointKind::User, target.as_str()),
                };
                let (account, tunnel) = (account.to_owned(), self.through(facts)?);
                Endpoint { account, kind, tunnel }
                    .did()
                    .map_err(|error| bad(field, format!("{error}")))
            })
            .collect()
    }

    /// The tunnel that accounts are on.
    fn through(&self, facts: &DraftContext<'_>) -> Result<TunnelId, InvalidDraft> {
        let known = || {
            let names: Vec<_> = facts.tunnels.iter().map(TunnelId::as_str).collect();
            names.join(", ")
        };
        if let Some(tunnel) = &self.tunnel {
            if facts.tunnels.contains(tunnel) {
                return Ok(tunnel.clone());
            }
            let why = format!("{} has no {tunnel}; it has {}", facts.provider, known());
            return Err(bad("tunnel", why));
        }
        let answered = facts.answers.map(|mail| &mail.header.tunnel);
        if let Some(tunnel) = answered.filter(|tunnel| facts.tunnels.contains(tunnel)) {
            return Ok(tunnel.clone());
        }
        match facts.tunnels {
            [only] => Ok(only.clone()),
            [] => Err(bad("tunnel", format!("there is none of {}", facts.provider))),
            _ => Err(bad("tunnel", format!("say which one: {}", known()))),
        }
    }

    fn content(&self, sizes: &BTreeMap<ObjId, u64>) -> Value {
        let mut content = json!({"format": self.format, "content": self.text});
        if let Some(title) = &self.title {
            content["title"] = json!(title);
        }
        let refs = self.artifacts.iter().map(|attached| {
            let mut target = json!(attached);
            if let Some(size) = sizes.get(&attached.hash) {
                target["size"] = json!(size);
            }
            json!({"role": "attachment", "target": target, "label": attached.name})
        });
        let refs: Vec<_> = refs.collect();
        if !refs.is_empty() {
            content["refs"] = json!(refs);
        }
        content
    }

    fn thread(&self, answers: Option<&Mail>) -> Map<String, Value> {
        let header = answers.map(|mail| &mail.header);
        let topic = self.thread_key.as_ref();
        let topic = topic.or_else(|| header.and_then(|header| header.session.thread_key.as_ref()));
        let correlation_id = self.correlation_id.as_ref();
        let correlation_id =
            correlation_id.or_else(|| header.and_then(|header| header.correlation_id.as_ref()));
        let fields = [
            ("topic", topic.map(|topic| json!(topic))),
            ("reply_to", answers.map(|mail| json!(mail.msg_id))),
            ("correlation_id", correlation_id.map(|id| json!(id))),
        ];
        let said = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        said.collect()
    }
}

/// The file of a draft with what became of it, in its front matter. What was there
/// stays as it was.
///
/// Where it can't be added, because somebody has damaged the draft meanwhile or has
/// written it in another style, it stands before it in a front matter of its own.
pub fn with_outcome(file: &str, outcome: &Value) -> String {
    let added = front_matter(&[("outcome", outcome.clone())]);
    let Ok((front, _)) = read::split(file) else { return format!("{added}{file}") };
    let lines = added.trim_start_matches("---\n").trim_end_matches("\n---\n\n");
    let (before, after) = file.split_at(front.end);
    let gap = if before.ends_with('\n') { "" } else { "\n" };
    let text = format!("{before}{gap}{lines}\n{after}");
    // A front matter in braces takes no further line.
    if self::outcome(&text).as_ref() == Some(outcome) { text } else { format!("{added}{file}") }
}

/// What became of a draft, when its file says so.
pub fn outcome(file: &str) -> Option<Value> {
    let (front, _) = read::split(file).ok()?;
    let front: Map<String, Value> = from_yaml(&file[front].replace("\r\n", "\n")).ok()?;
    front.get("outcome").cloned()
}

fn any_bytes() -> String {
    "application/octet-stream".to_owned()
}

/// Tells two drafts that say the same apart.
fn nonce(name: &str) -> u64 {
    let hash: [u8; 32] = Sha256::digest(name.as_bytes()).into();
    let (first, _) = hash.split_at(8);
    let number = first.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    // Whole numbers that every reader of JSON agrees on have 53 bits.
    number >> 11
}

/// The time that a uid starts with.
fn written_at(uid: &str) -> Option<Timestamp> {
    let part = |from: usize, to: usize| uid.get(from..to);
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute, second) = (part(9, 11)?, part(11, 13)?, part(13, 15)?);
    let text = format!("{year}-{month}-{day}{}{hour}:{minute}:{second}Z", part(8, 9)?);
    Timestamp::from_rfc3339(&text).ok()
}

fn bad(field: &str, why: impl Into<String>) -> InvalidDraft {
    InvalidDraft::Field { field: field.to_owned(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::inbound::MAX_NAME_BYTES;
    use crate::inbound::tests::message;
    use crate::mail::Trust;
    use crate::merge::MailBuilder;
    use crate::object::ObjKind;

    const UID: &str = "20260206T204500_build_0123456789abcdef";

    fn owner() -> Did {
        "did:monoco:me".parse().unwrap()
    }

    fn tunnels(names: &[&str]) -> Vec<TunnelId> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn mail() -> Mail {
        let mut first = message("evt-1", "u1", "is it green?");
        first.session.thread_key = Some("t-9".to_owned());
        first.correlation_id = Some("case-7".to_owned());
        let second = crate::inbound::InboundMessage { id: "evt-2".to_owned(), ..first.clone() };
        let at = Timestamp::from_ms(5);
        let burst = MailBuilder {
            tunnel: "lark-main".parse().unwrap(),
            provider: "lark".to_owned(),
            owner: owner(),
            binding: None,
            trust: Trust::Untrusted,
            messages: vec![first, second],
        };
        burst.build(at).unwrap().mail
    }

    fn seal_with(file: &str, uid: &str, names: &[&str]) -> Result<PreparedDraft, InvalidDraft> {
        let (owner, mail, tunnels) = (owner(), mail(), tunnels(names));
        let draft = Draft::parse(file)?;
        let answers = draft.reply_to.as_ref().map(|_| &mail);
        let sizes = BTreeMap::from([(ObjId::of(ObjKind::Bytes, b"log"), 3)]);
        let provider = "lark";
        draft.into_message(&DraftContext {
            owner: &owner,
            uid,
            provider,
            tunnels: &tunnels,
            answers,
            sizes: &sizes,
        })
    }

    fn sealed(file: &str) -> Value {
        let sealed = seal_with(file, UID, &["lark-main"]).unwrap();
        serde_json::from_str(sealed.msg.canonical()).unwrap()
    }

    /// A draft with these lines on top, and a text.
    fn draft(front: &str) -> String {
        format!("---\n{front}\n---\n\nhello\n")
    }

    #[test]
    fn a_draft_by_hand_becomes_the_message_it_means() {
        let file = "\u{feff}---\r\nto: [ann, 'group:oc.1']\r\ncc: did:web:bob\r\ntitle: Build\r\n\
                    thread_key: t-1\r\noptions: {silent: true, schedule_at: 2026-03-01T08:00:00Z}\r\n\
                    correlation_id: 42\r\n---\r\n\r\nIt is *green*\r\nagain.\r\n";
        assert_eq!(
            sealed(file),
            json!({
                "from": "did:monoco:me",
                "to": ["did:msgtunnel:ann.user.lark-main", "did:msgtunnel:oc%2E1.group.lark-main",
                       "did:web:bob"],
                "cc": ["did:web:bob"],
                "kind": "chat",
                "created_at_ms": 1_770_410_700_000_i64,
                "nonce": nonce(UID),
                "thread": {"topic": "t-1", "correlation_id": "42"},
                "options": {"silent": true},
                "content": {"title": "Build", "format": "text/markdown",
                            "content": "It is *green*\nagain."},
            })
        );
        let sealed = seal_with(file, UID, &["lark-main"]).unwrap();
        assert_eq!(sealed.key, format!("draft:{UID}"));
        assert_eq!(sealed.not_before.map(Timestamp::rfc3339).as_deref(), {
            Some("2026-03-01T08:00:00.000Z")
        });
    }

    #[test]
    fn an_answer_goes_back_to_exactly_where_the_mail_came_from() {
        let mail = mail();
        let object = sealed(&draft(&format!("reply_to: {}", mail.header.id)));
        assert_eq!(object["to"], json!(["did:msgtunnel:room-7.group.lark-main"]));
        assert_eq!(object["in_reply_to"], "evt-2");
        assert_eq!(
            object["thread"],
            json!({"topic": "t-9", "reply_to": mail.msg_id, "correlation_id": "case-7"})
        );
        let elsewhere = format!("reply_to: {}\nto: ann\nthread_key: other", mail.header.id);
        let object = sealed(&draft(&elsewhere));
        assert_eq!(object["to"], json!(["did:msgtunnel:ann.user.lark-main"]));
        assert_eq!(object["thread"]["topic"], "other");
    }

    #[test]
    fn what_goes_with_it_is_named_by_its_hash() {
        let hash = ObjId::of(ObjKind::Bytes, b"log");
        let object = sealed(&format!(
            "---\nto: ann\nartifacts:\n  - name: ../log.txt\n    hash: {hash}\n---\n"
        ));
        let target = json!({"name": "../log.txt", "mime_type": "application/octet-stream",
                            "hash": hash, "size": 3});
        assert_eq!(
            object["content"]["refs"],
            json!([{"role": "attachment", "target": target, "label": "../log.txt"}])
        );
    }

    #[test]
    fn what_is_wrong_is_said_by_name() {
        let long = format!("title: {}\nto: ann", "x".repeat(MAX_NAME_BYTES + 1));
        let many = format!("to: [{}]", vec!["ann"; MAX_TARGETS + 1].join(", "));
        let object = format!("artifacts: [{{name: a, hash: 'cymsg:{}'}}]\nto: ann", "0".repeat(64));
        for (front, words) in [
            ("to: ann\ntunel: x", "unknown key `tunel`, did you mean `tunnel`?"),
            ("to: ann\noptions: {silnt: true}", "`options.silnt`, did you mean `silent`?"),
            ("to: ann\ncontent: {fromat: x}", "`content.fromat`, did you mean `format`?"),
            ("to: ann\nartifacts: [{nam: x}]", "`artifacts.nam`, did you mean `name`?"),
            ("to: ann\noutcome: {}", "outcome: this draft was sent before"),
            ("to: +49123", "numbers in quotes"),
            ("to: {a: b}", "a text (numbers in quotes), or a list of them"),
            ("to: ann\nto: bob", "duplicate"),
            ("to: ann\ntype: letter", "type: \"letter\"; want message"),
            ("to: ann\ncontent: hi", "content: there is a text here, and another one below"),
            ("to: ann\ncontent: {format: markdown}", "content.format: \"markdown\""),
            ("to: ann\ntunnel: Lark", "tunnel: not a DID"),
            ("to: ann\ntunnel: lark-two", "tunnel: lark has no lark-two; it has lark-main"),
            ("to: ann\nprovider: slack", "provider: \"slack\", but the draft is in outbound/lark"),
            ("to: did:nope", "to: not a DID"),
            ("to: 'user:'", "to: not a DID"),
            ("reply_to: 12", "reply_to: invalid Mail id"),
            ("to: ann\noptions: {schedule_at: tomorrow}", "invalid time"),
            ("to: ann\nidempotency_key: ''", "idempotency_key: 0 bytes"),
            ("title: nobody", "to: nobody to send it to"),
            ("[to, ann]", ""),
            ("to: *x", ""),
            (&long, "title: 1025 bytes"),
            (&many, "to: 1001 targets"),
            (&object, "artifacts.hash: want sha256:"),
        ] {
            let error = seal_with(&draft(front), UID, &["lark-main"]).unwrap_err();
            assert!(error.to_string().contains(words), "{front:.80}: {error}");
            assert_ne!(error, InvalidDraft::Incomplete, "{front:.80}");
        }
        let large = format!("---\nto: ann\n---\n{}", "x".repeat(MAX_TEXT + 1));
        assert!(Draft::parse(&large).unwrap_err().to_string().contains("the text: "));
        let empty = Draft::parse("---\nto: ann\n---\n\n \n").unwrap_err().to_string();
        assert!(empty.contains("nothing is attached"), "{empty}");
        assert_eq!(Draft::parse("to: ann\n"), Err(InvalidDraft::NoFrontMatter));
    }

    #[test]
    fn of_several_tunnels_one_must_be_said() {
        let error = seal_with(&draft("to: ann"), UID, &["lark-a", "lark-b"]).unwrap_err();
        assert_eq!(error.to_string(), "tunnel: say which one: lark-a, lark-b");
        assert!(seal_with(&draft("to: ann\ntunnel: lark-b"), UID, &["lark-a", "lark-b"]).is_ok());
        let error = seal_with(&draft("to: ann"), UID, &[]).unwrap_err();
        assert_eq!(error.to_string(), "tunnel: there is none of lark");
        let did = "to: did:msgtunnel:ann.user.elsewhere";
        assert!(seal_with(&draft(did), UID, &[]).is_ok(), "a DID says it itself");
    }

    #[test]
    fn half_a_front_matter_is_waited_for_wherever_it_breaks_off() {
        let file = "\u{feff}---\r\nto: ann\r\n---\r\nhello";
        let closed = file.find("---\r\nhello").unwrap() + 3;
        for end in (0..file.len()).filter(|end| file.is_char_boundary(*end)) {
            let parsed = Draft::parse(&file[..end]);
            let waited = parsed == Err(InvalidDraft::Incomplete);
            assert_eq!(waited, end < closed, "{:?}: {parsed:?}", &file[..end]);
        }
    }

    #[test]
    fn a_key_makes_two_drafts_one_message_and_a_uid_makes_them_two() {
        let id = |front: &str, uid: &str| {
            seal_with(&draft(front), uid, &["lark-main"]).unwrap().msg.id()
        };
        let other = "20260206T204501_build_ffffffffffffffff";
        assert_ne!(id("to: ann", UID), id("to: ann", other));
        let keyed = "to: ann\nidempotency_key: build-7";
        assert_eq!(id(keyed, UID), id(keyed, other));
        let key = seal_with(&draft(keyed), UID, &["lark-main"]).unwrap().key;
        assert_eq!(key, "build-7");
    }

    #[test]
    fn what_became_of_it_joins_what_it_said() {
        let outcome =
            json!({"msg_id": "x", "deliveries": [{"state": "SENT", "target": "a\n---\n"}]});
        for file in
            ["---\nto: ann\n---\n\nhello\n", "\u{feff}---\r\nto: ann\r\n---\r\nhello", "---\n---"]
        {
            let archived = with_outcome(file, &outcome);
            let (_, body) = read::split(&archived).unwrap();
            assert_eq!(super::outcome(&archived), Some(outcome.clone()), "{archived}");
            assert_eq!(super::outcome(file), None);
            assert!(file.ends_with(&archived[body..]), "{archived}");
            assert!(archived.starts_with(&file[..read::split(file).unwrap().0.end]), "{archived}");
        }
        for other in ["rubbish", "---\n{to: ann}\n---\nhello"] {
            let archived = with_outcome(other, &outcome);
            assert_eq!(super::outcome(&archived), Some(outcome.clone()), "{archived}");
            assert!(archived.ends_with(&format!("---\n\n{other}")), "{archived}");
        }
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(file in "(---\n)?[ -~\n\r\u{feff}é-]{0,120}(---\n)?.{0,40}") {
            let _ = Draft::parse(&file);
            let _ = with_outcome(&file, &json!({"a": 1}));
        }

        /// Whatever is said is what is sent, and it is the same message every time.
        #[test]
        fn the_same_draft_makes_the_same_message(
            text in "\\PC{1,200}|[\u{0}-\u{7f}]{1,80}",
            title in "\\PC{1,40}",
            account in "\\PC{1,40}",
        ) {
            let front = front_matter(&[
                ("to", json!([format!("user:{account}")])),
                ("title", json!(title)),
            ]);
            let text = text.replace('\r', "");
            prop_assume!(!text.trim().is_empty());
            let file = format!("{front}{text}");
            let first = seal_with(&file, UID, &["lark-main"]).unwrap();
            prop_assert_eq!(&first, &seal_with(&file, UID, &["lark-main"]).unwrap());
            let object: Value = serde_json::from_str(first.msg.canonical()).unwrap();
            prop_assert_eq!(object["content"]["content"].as_str(), Some(text.trim_end_matches('\n')));
            prop_assert_eq!(object["content"]["title"].as_str(), Some(title.as_str()));
            prop_assert_eq!(first.msg.to[0].endpoint().map(|to| to.account), Some(account));
            let windows = seal_with(&file.replace('\n', "\r\n"), UID, &["lark-main"]).unwrap();
            prop_assert_eq!(first.msg.id(), windows.msg.id());
        }
    }
}
