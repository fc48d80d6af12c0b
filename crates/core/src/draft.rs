//! Drafts: messages to send, as files of Markdown with a YAML front matter.
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
//! Drafts are written by people, by scripts and by `monoco mailbox send`. Byte order marks
//! and CRLF line ends are accepted. Unknown keys and invalid values are rejected with the
//! name of the key, and nothing is sent.
//!
//! The same draft with the same uid always becomes the same object: after a crash it is
//! submitted again and sent once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::did::{Did, EMAIL_PROVIDER, Endpoint, EndpointKind, TunnelId};
use crate::mail::{Mail, MailId, from_yaml, front_matter};
use crate::object::{MAX_TARGETS, MsgObject, ObjId};
use crate::time::Timestamp;

mod read;

/// Maximum size of a draft's file, in bytes.
pub const MAX_DRAFT: usize = 1 << 20;

/// Maximum size of a draft's text, in bytes.
pub const MAX_TEXT: usize = 512 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// DIDs, accounts with `user:`, `group:`, `channel:` or `addr:` before them, or accounts.
    pub to: Vec<String>,
    pub cc: Vec<String>,
    pub bcc: Vec<String>,
    pub provider: Option<String>,
    /// The tunnel of the accounts.
    pub tunnel: Option<TunnelId>,
    /// The Mail that the draft answers.
    pub reply_to: Option<MailId>,
    pub thread_key: Option<String>,
    pub title: Option<String>,
    /// The MIME type of the text.
    pub format: String,
    pub text: String,
    pub artifacts: Vec<DraftAttachment>,
    pub options: DraftOptions,
    /// The sender's id for related messages.
    pub correlation_id: Option<String>,
    /// The sender's key: a second draft with the same key is not sent.
    pub idempotency_key: Option<String>,
}

/// An attachment of a draft. Its bytes are in the dropzone or in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftAttachment {
    /// The name for the recipient. Never a path.
    pub name: String,
    #[serde(default = "any_bytes")]
    pub mime_type: String,
    /// The hash of the bytes: `sha256:…`.
    pub hash: ObjId,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DraftOptions {
    /// Without a notification sound, if the provider supports it.
    pub silent: bool,
    /// With an urgent notification, if the provider supports it.
    pub urgent: bool,
    /// The earliest time of sending.
    #[serde(with = "crate::time::rfc3339_maybe")]
    pub schedule_at: Option<Timestamp>,
}

/// What is needed to convert a draft, beyond the draft itself.
#[derive(Clone, Copy, Debug)]
pub struct DraftContext<'a> {
    pub owner: &'a Did,
    /// The unique id of the draft.
    pub uid: &'a str,
    /// The provider, from the directory of the draft.
    pub provider: &'a str,
    /// The tunnels of that provider.
    pub tunnels: &'a [TunnelId],
    /// The Mail that the draft answers, if any.
    pub answers: Option<&'a Mail>,
    /// The sizes of its attachments.
    pub sizes: &'a BTreeMap<ObjId, u64>,
}

/// A draft that is ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedDraft {
    pub msg: MsgObject,
    /// The idempotency key: a second send with the same key is not sent.
    pub key: String,
    /// The earliest time of sending.
    pub not_before: Option<Timestamp>,
}

/// Why a draft is not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDraft {
    /// The file may be incomplete.
    #[error("the front matter is not closed by a line of `---`")]
    Incomplete,
    #[error("no front matter; expected it between two lines of `---` at the start")]
    NoFrontMatter,
    #[error("{0}")]
    FrontMatter(String),
    #[error("unknown key `{key}`{}", .nearest.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default())]
    UnknownKey { key: String, nearest: Option<&'static str> },
    #[error("{field}: {why}")]
    Field { field: String, why: String },
}

impl Draft {
    /// Converts the draft into a message.
    ///
    /// # Errors
    ///
    /// [`InvalidDraft`] when it has no recipient or no tunnel, or is too large.
    pub fn into_message(self, context: &DraftContext<'_>) -> Result<PreparedDraft, InvalidDraft> {
        if let Some(provider) = self.provider.as_deref().filter(|named| *named != context.provider)
        {
            let why = format!("{provider:?}, but the draft is in outbound/{}", context.provider);
            return Err(invalid("provider", why));
        }
        let to = self.targets("to", &self.to, context)?;
        let cc = self.targets("cc", &self.cc, context)?;
        let bcc = self.targets("bcc", &self.bcc, context)?;
        let mut all_targets = Vec::new();
        let answer_to =
            context.answers.filter(|_| to.is_empty()).map(|mail| &mail.header.answer_to);
        for target in answer_to.into_iter().chain(&to).chain(&cc).chain(&bcc) {
            if !all_targets.contains(target) {
                all_targets.push(target.clone());
            }
        }
        if all_targets.is_empty() {
            return Err(invalid("to", "no recipient; set `to` or `reply_to`"));
        }
        if all_targets.len() > MAX_TARGETS {
            let why = format!("{} targets; {MAX_TARGETS} is the most", all_targets.len());
            return Err(invalid("to", why));
        }

        let mut object = json!({
            "from": context.owner,
            "to": all_targets,
            "kind": "chat",
            "nonce": nonce(self.idempotency_key.as_deref().unwrap_or(context.uid)),
            "content": self.content(context),
        });
        // With a key of the sender, a second draft with the same content is the same message
        // at any time.
        if self.idempotency_key.is_none()
            && let Some(at) = written_at(context.uid)
        {
            object["created_at_ms"] = json!(at.ms());
        }
        for (key, targets) in [("cc", cc), ("bcc", bcc)] {
            if !targets.is_empty() {
                object[key] = json!(targets);
            }
        }
        if let Some(last) = context.answers.and_then(|mail| mail.messages.last()) {
            // The provider does not know the id of an edit.
            object["in_reply_to"] = json!(last.corrects.as_ref().unwrap_or(&last.id));
        }
        let thread = self.thread(context.answers);
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
        let msg = MsgObject::from_json(object)
            .map_err(|error| invalid("the message", error.to_string()))?;
        let key = self.idempotency_key.unwrap_or_else(|| format!("draft:{}", context.uid));
        Ok(PreparedDraft { msg, key, not_before: self.options.schedule_at })
    }

    fn targets(
        &self,
        field: &str,
        targets: &[String],
        context: &DraftContext<'_>,
    ) -> Result<Vec<Did>, InvalidDraft> {
        targets
            .iter()
            .map(|target| {
                if target.starts_with("did:") {
                    return target.parse().map_err(|error| invalid(field, format!("{error}")));
                }
                let (kind, account) = match target.split_once(':') {
                    Some((kind, account)) => match kind.parse() {
                        Ok(kind) => (kind, account),
                        Err(_) => (EndpointKind::User, target.as_str()),
                    },
                    None => (EndpointKind::User, target.as_str()),
                };
                if context.provider == EMAIL_PROVIDER && !account.contains('@') {
                    let why = format!("{account:?} is not an e-mail address");
                    return Err(invalid(field, why));
                }
                Endpoint::at_provider(context.provider, kind, account, self.through(context)?)
                    .did()
                    .map_err(|error| invalid(field, format!("{error}")))
            })
            .collect()
    }

    /// The tunnel of the accounts.
    fn through(&self, context: &DraftContext<'_>) -> Result<TunnelId, InvalidDraft> {
        let known = || {
            let names: Vec<_> = context.tunnels.iter().map(TunnelId::as_str).collect();
            names.join(", ")
        };
        if let Some(tunnel) = &self.tunnel {
            if context.tunnels.contains(tunnel) {
                return Ok(tunnel.clone());
            }
            let why = format!("{} has no {tunnel}; it has {}", context.provider, known());
            return Err(invalid("tunnel", why));
        }
        let answered = context.answers.map(|mail| &mail.header.tunnel);
        if let Some(tunnel) = answered.filter(|tunnel| context.tunnels.contains(tunnel)) {
            return Ok(tunnel.clone());
        }
        match context.tunnels {
            [only] => Ok(only.clone()),
            [] => {
                Err(invalid("tunnel", format!("no tunnel of {} is configured", context.provider)))
            }
            _ => Err(invalid(
                "tunnel",
                format!("several tunnels; set `tunnel` to one of {}", known()),
            )),
        }
    }

    fn content(&self, context: &DraftContext<'_>) -> Value {
        let mut content = json!({"format": self.format, "content": self.text});
        let answered = context.answers.filter(|_| context.provider == EMAIL_PROVIDER);
        let answered = answered.and_then(|mail| mail.header.title.as_deref()).map(reply_subject);
        if let Some(title) = self.title.clone().or(answered) {
            content["title"] = json!(title);
        }
        let refs = self.artifacts.iter().map(|attached| {
            let mut target = json!(attached);
            if let Some(size) = context.sizes.get(&attached.hash) {
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
        let fields = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        fields.collect()
    }
}

/// Returns the subject of an answer. Mail programs show an answer in its thread only when its
/// subject is that of the thread.
fn reply_subject(subject: &str) -> String {
    let is_answer = subject.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("re:"));
    if is_answer { subject.to_owned() } else { format!("Re: {subject}") }
}

/// Returns the file of a draft with its outcome added to the front matter.
///
/// When the front matter is damaged or written in braces, the outcome is put before the file
/// in a front matter of its own.
pub fn with_outcome(file: &str, outcome: &Value) -> String {
    let added = front_matter(&[("outcome", outcome.clone())]);
    let Ok((front, _)) = read::split(file) else { return format!("{added}{file}") };
    let lines = added.trim_start_matches("---\n").trim_end_matches("\n---\n\n");
    let (before, after) = file.split_at(front.end);
    let gap = if before.ends_with('\n') { "" } else { "\n" };
    let text = format!("{before}{gap}{lines}\n{after}");
    // A front matter in braces cannot have another line.
    if self::outcome(&text).as_ref() == Some(outcome) { text } else { format!("{added}{file}") }
}

/// Returns the outcome in the file of a draft, if it has one.
pub fn outcome(file: &str) -> Option<Value> {
    let (front, _) = read::split(file).ok()?;
    let front: Map<String, Value> = from_yaml(&file[front].replace("\r\n", "\n")).ok()?;
    front.get("outcome").cloned()
}

fn any_bytes() -> String {
    "application/octet-stream".to_owned()
}

/// Distinguishes drafts with the same content.
fn nonce(name: &str) -> u64 {
    let hash: [u8; 32] = Sha256::digest(name.as_bytes()).into();
    let (first, _) = hash.split_at(8);
    let number = first.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    // JSON numbers are exact up to 53 bits.
    number >> 11
}

/// The time at the start of a uid.
fn written_at(uid: &str) -> Option<Timestamp> {
    let part = |from: usize, to: usize| uid.get(from..to);
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute, second) = (part(9, 11)?, part(11, 13)?, part(13, 15)?);
    let text = format!("{year}-{month}-{day}{}{hour}:{minute}:{second}Z", part(8, 9)?);
    Timestamp::from_rfc3339(&text).ok()
}

fn invalid(field: &str, why: impl Into<String>) -> InvalidDraft {
    InvalidDraft::Field { field: field.to_owned(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::inbound::tests::message;
    use crate::inbound::{ChatSession, InboundMessage, MAX_NAME_BYTES, Participant};
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
        let second = InboundMessage { id: "evt-2".to_owned(), ..first.clone() };
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

    fn convert_with(file: &str, uid: &str, names: &[&str]) -> Result<PreparedDraft, InvalidDraft> {
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

    fn converted(file: &str) -> Value {
        let sealed = convert_with(file, UID, &["lark-main"]).unwrap();
        serde_json::from_str(sealed.msg.canonical()).unwrap()
    }

    /// A draft with these lines of front matter, and a text.
    fn draft(front: &str) -> String {
        format!("---\n{front}\n---\n\nhello\n")
    }

    #[test]
    fn draft_becomes_a_message() {
        let file = "\u{feff}---\r\nto: [ann, 'group:oc.1']\r\ncc: did:web:bob\r\ntitle: Build\r\n\
                    thread_key: t-1\r\noptions: {silent: true, schedule_at: 2026-03-01T08:00:00Z}\r\n\
                    correlation_id: 42\r\n---\r\n\r\nIt is *green*\r\nagain.\r\n";
        assert_eq!(
            converted(file),
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
        let sealed = convert_with(file, UID, &["lark-main"]).unwrap();
        assert_eq!(sealed.key, format!("draft:{UID}"));
        assert_eq!(sealed.not_before.map(Timestamp::rfc3339).as_deref(), {
            Some("2026-03-01T08:00:00.000Z")
        });
    }

    #[test]
    fn recipient_of_an_e_mail_tunnel_is_an_address_with_a_lower_case_domain() {
        let to = |to: &str| {
            let (owner, tunnels) = (owner(), tunnels(&["mail"]));
            let context = DraftContext {
                owner: &owner,
                uid: UID,
                provider: "email",
                tunnels: &tunnels,
                answers: None,
                sizes: &BTreeMap::new(),
            };
            let draft = Draft::parse(&draft(&format!("to: '{to}'"))).unwrap();
            let prepared = draft.into_message(&context).map_err(|error| error.to_string())?;
            Ok::<_, String>(prepared.msg.to[0].to_string())
        };
        for same in ["Joe@Example.COM", "addr:Joe@example.com", "user:Joe@example.COM"] {
            assert_eq!(to(same).as_deref(), Ok("did:msgtunnel:Joe%40example%2Ecom.addr.mail"));
        }
        assert_eq!(to("joe"), Err("to: \"joe\" is not an e-mail address".to_owned()));
    }

    #[test]
    fn answer_goes_to_the_session_of_the_mail() {
        let mail = mail();
        let object = converted(&draft(&format!("reply_to: {}", mail.header.id)));
        assert_eq!(object["to"], json!(["did:msgtunnel:room-7.group.lark-main"]));
        assert_eq!(object["in_reply_to"], "evt-2");
        assert_eq!(
            object["thread"],
            json!({"topic": "t-9", "reply_to": mail.msg_id, "correlation_id": "case-7"})
        );
        let elsewhere = format!("reply_to: {}\nto: ann\nthread_key: other", mail.header.id);
        let object = converted(&draft(&elsewhere));
        assert_eq!(object["to"], json!(["did:msgtunnel:ann.user.lark-main"]));
        assert_eq!(object["thread"]["topic"], "other");
    }

    #[test]
    fn answer_to_an_e_mail_goes_to_its_reply_to_with_its_message_id() {
        let session = ChatSession {
            id: "team@example.com".to_owned(),
            thread_key: Some("<0@example.org>".to_owned()),
            ..ChatSession::default()
        };
        let from = Participant::mailbox("joe@example.org", None);
        let id = "<1@example.org>#0123456789abcdef";
        let mut message = InboundMessage::new(id, session, from, "hello");
        message.answer_to = Some(Participant::mailbox("Help@Example.ORG", None));
        message.title = Some("Invoice 7".to_owned());
        let (owner, tunnels) = (owner(), tunnels(&["mail"]));
        let builder = MailBuilder {
            tunnel: tunnels[0].clone(),
            provider: "email".to_owned(),
            owner: owner.clone(),
            binding: None,
            trust: Trust::Untrusted,
            messages: vec![message],
        };
        let mail = builder.build(Timestamp::from_ms(5)).unwrap().mail;
        let draft = Draft::parse(&draft(&format!("reply_to: {}", mail.header.id))).unwrap();
        let context = DraftContext {
            owner: &owner,
            uid: UID,
            provider: "email",
            tunnels: &tunnels,
            answers: Some(&mail),
            sizes: &BTreeMap::new(),
        };
        let msg = draft.into_message(&context).unwrap().msg;
        let object: Value = serde_json::from_str(msg.canonical()).unwrap();
        assert_eq!(object["to"], json!(["did:msgtunnel:Help%40example%2Eorg.addr.mail"]));
        assert_eq!(object["in_reply_to"], id);
        assert_eq!(object["thread"]["topic"], "<0@example.org>");
        assert_eq!(object["content"]["title"], "Re: Invoice 7");
        assert_eq!(reply_subject("RE: Invoice 7"), "RE: Invoice 7");
        assert_eq!(reply_subject("€"), "Re: €");
    }

    #[test]
    fn attachments_are_referenced_by_hash() {
        let hash = ObjId::of(ObjKind::Bytes, b"log");
        let object = converted(&format!(
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
    fn invalid_key_is_named_in_the_error() {
        let long = format!("title: {}\nto: ann", "x".repeat(MAX_NAME_BYTES + 1));
        let many = format!("to: [{}]", vec!["ann"; MAX_TARGETS + 1].join(", "));
        let object = format!("artifacts: [{{name: a, hash: 'cymsg:{}'}}]\nto: ann", "0".repeat(64));
        for (front, words) in [
            ("to: ann\ntunel: x", "unknown key `tunel`; did you mean `tunnel`?"),
            ("to: ann\noptions: {silnt: true}", "`options.silnt`; did you mean `silent`?"),
            ("to: ann\ncontent: {fromat: x}", "`content.fromat`; did you mean `format`?"),
            ("to: ann\nartifacts: [{nam: x}]", "`artifacts.nam`; did you mean `name`?"),
            ("to: ann\noutcome: {}", "outcome: this draft was sent before"),
            ("to: +49123", "numbers in quotes"),
            ("to: {a: b}", "a text (numbers in quotes), or a list of them"),
            ("to: ann\nto: bob", "duplicate"),
            ("to: ann\ntype: letter", "type: \"letter\"; expected message"),
            ("to: ann\ncontent: hi", "content: there is a text here, and another one below"),
            ("to: ann\ncontent: {format: markdown}", "content.format: \"markdown\""),
            ("to: ann\ntunnel: Lark", "tunnel: invalid DID"),
            ("to: ann\ntunnel: lark-two", "tunnel: lark has no lark-two; it has lark-main"),
            ("to: ann\nprovider: slack", "provider: \"slack\", but the draft is in outbound/lark"),
            ("to: did:nope", "to: invalid DID"),
            ("to: 'user:'", "to: invalid DID"),
            ("reply_to: 12", "reply_to: invalid Mail id"),
            ("to: ann\noptions: {schedule_at: tomorrow}", "invalid time"),
            ("to: ann\nidempotency_key: ''", "idempotency_key: 0 bytes"),
            ("title: nobody", "to: no recipient"),
            ("[to, ann]", ""),
            ("to: *x", ""),
            (&long, "title: 1025 bytes"),
            (&many, "to: 1001 targets"),
            (&object, "artifacts.hash: expected sha256:"),
        ] {
            let error = convert_with(&draft(front), UID, &["lark-main"]).unwrap_err();
            assert!(error.to_string().contains(words), "{front:.80}: {error}");
            assert_ne!(error, InvalidDraft::Incomplete, "{front:.80}");
        }
        let large = format!("---\nto: ann\n---\n{}", "x".repeat(MAX_TEXT + 1));
        assert!(Draft::parse(&large).unwrap_err().to_string().contains("the text: "));
        let empty = Draft::parse("---\nto: ann\n---\n\n \n").unwrap_err().to_string();
        assert!(empty.contains("there is no attachment"), "{empty}");
        assert_eq!(Draft::parse("to: ann\n"), Err(InvalidDraft::NoFrontMatter));
    }

    #[test]
    fn tunnel_is_required_when_there_are_several() {
        let error = convert_with(&draft("to: ann"), UID, &["lark-a", "lark-b"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tunnel: several tunnels; set `tunnel` to one of lark-a, lark-b"
        );
        assert!(
            convert_with(&draft("to: ann\ntunnel: lark-b"), UID, &["lark-a", "lark-b"]).is_ok()
        );
        let error = convert_with(&draft("to: ann"), UID, &[]).unwrap_err();
        assert_eq!(error.to_string(), "tunnel: no tunnel of lark is configured");
        let did = "to: did:msgtunnel:ann.user.elsewhere";
        assert!(convert_with(&draft(did), UID, &[]).is_ok(), "a DID says it itself");
    }

    #[test]
    fn partial_front_matter_is_incomplete() {
        let file = "\u{feff}---\r\nto: ann\r\n---\r\nhello";
        let closed = file.find("---\r\nhello").unwrap() + 3;
        for end in (0..file.len()).filter(|end| file.is_char_boundary(*end)) {
            let parsed = Draft::parse(&file[..end]);
            let waited = parsed == Err(InvalidDraft::Incomplete);
            assert_eq!(waited, end < closed, "{:?}: {parsed:?}", &file[..end]);
        }
    }

    #[test]
    fn same_key_makes_one_message_and_different_uids_make_two() {
        let id = |front: &str, uid: &str| {
            convert_with(&draft(front), uid, &["lark-main"]).unwrap().msg.id()
        };
        let other = "20260206T204501_build_ffffffffffffffff";
        assert_ne!(id("to: ann", UID), id("to: ann", other));
        let keyed = "to: ann\nidempotency_key: build-7";
        assert_eq!(id(keyed, UID), id(keyed, other));
        let key = convert_with(&draft(keyed), UID, &["lark-main"]).unwrap().key;
        assert_eq!(key, "build-7");
    }

    #[test]
    fn outcome_is_added_to_the_front_matter() {
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
        fn any_file_is_parsed_without_a_panic(file in "(---\n)?[ -~\n\r\u{feff}é-]{0,120}(---\n)?.{0,40}") {
            let _ = Draft::parse(&file);
            let _ = with_outcome(&file, &json!({"a": 1}));
        }

        /// The text is sent unchanged, and repeated conversions give the same message.
        #[test]
        fn same_draft_makes_the_same_message(
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
            let first = convert_with(&file, UID, &["lark-main"]).unwrap();
            prop_assert_eq!(&first, &convert_with(&file, UID, &["lark-main"]).unwrap());
            let object: Value = serde_json::from_str(first.msg.canonical()).unwrap();
            prop_assert_eq!(object["content"]["content"].as_str(), Some(text.trim_end_matches('\n')));
            prop_assert_eq!(object["content"]["title"].as_str(), Some(title.as_str()));
            prop_assert_eq!(first.msg.to[0].endpoint().map(|to| to.account), Some(account));
            let windows = convert_with(&file.replace('\n', "\r\n"), UID, &["lark-main"]).unwrap();
            prop_assert_eq!(first.msg.id(), windows.msg.id());
        }
    }
}
