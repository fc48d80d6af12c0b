//! Texts: read_mail, read_thread and read_attachment.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use monoco_core::claim::Workspace;
use monoco_core::did::Did;
use monoco_core::inbound::Artifact;
use monoco_core::mail::{Mail, MailId, Trust};
use monoco_core::object::ObjId;
use monoco_core::record::BoxKind;
use monoco_core::token::Scope;
use monoco_store::{PageRequest, RecordFilter, SessionEntry, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ToolContext, mail_id};
use crate::api::visibility;
use crate::center::reply;
use crate::mcp::budget::{MAX_TEXT_TOKENS, cut, estimate_tokens, shorten};
use crate::mcp::result::{ToolError, ToolResult, UntrustedImage};

/// Tokens of a text when the caller sets no limit.
const DEFAULT_TOKENS: usize = 4_000;

/// Fewest tokens of a text that a caller can ask for.
const MIN_TOKENS: usize = 100;

/// Messages of a conversation when the caller sets no limit.
const DEFAULT_MESSAGES: usize = 20;

/// Most messages of a conversation.
const MAX_MESSAGES: usize = 50;

/// Most attachments that are listed with a Mail.
const MAX_ATTACHMENTS: usize = 20;

/// Longest name in the head of a text, in characters.
const MAX_NAME_CHARS: usize = 120;

/// Largest attachment that is read as text, in bytes.
const MAX_TEXT_BYTES: u64 = 8 << 20;

/// Largest image that is returned, in bytes.
const MAX_IMAGE_BYTES: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadMailArgs {
    id: String,
    max_tokens: Option<usize>,
    #[serde(default)]
    offset: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadThreadArgs {
    id: Option<String>,
    session: Option<String>,
    limit: Option<usize>,
    max_tokens: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadAttachmentArgs {
    mail: String,
    hash: String,
    max_tokens: Option<usize>,
    #[serde(default)]
    offset: usize,
}

impl ReadMailArgs {
    /// The first part of a Mail, as a resource shows it.
    pub const fn whole(id: String) -> Self {
        Self { id, max_tokens: Some(MAX_TEXT_TOKENS), offset: 0 }
    }
}

impl ReadThreadArgs {
    /// The last messages with another party, as a resource shows them.
    pub fn of_session(session: String) -> Self {
        Self { session: Some(session), ..Self::default() }
    }
}

impl ReadAttachmentArgs {
    /// The first part of an attachment, as a resource shows it.
    pub const fn whole(mail: String, hash: String) -> Self {
        Self { mail, hash, max_tokens: Some(MAX_TEXT_TOKENS), offset: 0 }
    }
}

/// Reads one part of the text of a Mail.
pub async fn read_mail(
    context: ToolContext<'_>,
    args: ReadMailArgs,
) -> Result<ToolResult, ToolError> {
    let ReadMailArgs { id, max_tokens, offset } = args;
    let max_tokens = token_limit(max_tokens)?;
    let id = mail_id(context, &id).await?;
    let mail = load(context, &id).await?;
    let header = &mail.header;
    let attached: Vec<_> = header.artifacts.iter().take(MAX_ATTACHMENTS).collect();
    let head = if offset == 0 { head(&mail, &attached) } else { String::new() };
    // The head counts too, so that the part behind it is not cut.
    let left = MAX_TEXT_TOKENS.saturating_sub(estimate_tokens(&head) + 1);
    let (part, next) = part(&mail.text, offset, max_tokens.min(left))?;
    let mut facts = json!({
        "id": id,
        "msg_id": mail.msg_id,
        "trust": header.trust,
        "received_at": header.received_at.rfc3339(),
        "tokens": estimate_tokens(&mail.text),
    });
    if !attached.is_empty() {
        let hashes = attached.iter().filter_map(|it| it.hash);
        facts["attachments"] = hashes.map(|hash| hash.to_string()).collect();
    }
    if let Some(next) = next {
        facts["next_offset"] = next.into();
    }
    let text = if offset == 0 { format!("{head}\n{part}") } else { part.to_owned() };
    Ok(ToolResult::with_text(facts, header.trust, text))
}

/// The names, subject and attachments of a Mail, as lines above its text.
fn head(mail: &Mail, attached: &[&Artifact]) -> String {
    let header = &mail.header;
    let name = |text: &str| shorten(text, MAX_NAME_CHARS);
    let authors = header.participants.from.iter().take(MAX_ATTACHMENTS);
    let authors: Vec<_> = authors.map(|author| name(author.display_name())).collect();
    let session = header.session.name.as_deref().unwrap_or(&header.session.id);
    let mut lines = format!("from: {}\nsession: {}\n", authors.join(", "), name(session));
    if let Some(title) = &header.title {
        lines.push_str(&format!("title: {}\n", name(title)));
    }
    for artifact in attached {
        let what = format!("{} ({})", name(&artifact.name), name(&artifact.mime_type));
        let place = match (&artifact.hash, &artifact.missing) {
            (Some(hash), _) => hash.to_string(),
            (None, Some(why)) => format!("not fetched: {}", name(why)),
            (None, None) => "a link".to_owned(),
        };
        lines.push_str(&format!("attachment: {what} {place}\n"));
    }
    lines
}

/// Reads a Mail that the agent may see, records that, and reports one that was erased.
async fn load(context: ToolContext<'_>, id: &MailId) -> Result<Mail, ToolError> {
    let store = &context.api.store;
    let row = store.mail(id, &Workspace::shared()).await?;
    visibility::read_mail(context.api, &context.agent.caller, &row).await?;
    if let Some(at) = row.entry.tombstone() {
        return Err(StoreError::Erased { key: id.to_string(), at, by: None }.into());
    }
    Ok(reply::read_mail(store, id).await?)
}

/// The part of a text from `offset` on, and where the next part starts.
fn part(text: &str, offset: usize, tokens: usize) -> Result<(&str, Option<usize>), ToolError> {
    let rest = text.get(offset..).ok_or_else(|| {
        ToolError::argument("offset", "behind the end; use next_offset of the previous part")
    })?;
    let part = cut(rest, tokens);
    let next = offset + part.len();
    Ok((part, (next < text.len()).then_some(next)))
}

fn token_limit(asked: Option<usize>) -> Result<usize, ToolError> {
    match asked.unwrap_or(DEFAULT_TOKENS) {
        limit @ MIN_TOKENS..=MAX_TEXT_TOKENS => Ok(limit),
        _ => Err(ToolError::argument(
            "max_tokens",
            format_args!("expected {MIN_TOKENS} to {MAX_TEXT_TOKENS}"),
        )),
    }
}

/// Reads the last messages of a conversation: those that the owner has received and sent, and
/// those that the agent has sent.
pub async fn read_thread(
    context: ToolContext<'_>,
    args: ReadThreadArgs,
) -> Result<ToolResult, ToolError> {
    let ReadThreadArgs { id, session, limit, max_tokens } = args;
    let max_tokens = token_limit(max_tokens)?;
    let limit = limit.unwrap_or(DEFAULT_MESSAGES);
    if !(1..=MAX_MESSAGES).contains(&limit) {
        return Err(ToolError::argument("limit", format_args!("expected 1 to {MAX_MESSAGES}")));
    }
    let peer = match (id, session) {
        (Some(id), None) => {
            let id = mail_id(context, &id).await?;
            peer_of(context, &id).await?
        }
        (None, Some(did)) => {
            did.parse::<Did>().map_err(|error| ToolError::argument("session", error))?
        }
        _ => return Err(ToolError::argument("id", "expected either id or session")),
    };
    let mut entries = messages_with(context, &peer, limit).await?;
    entries.truncate(limit);
    let (mut facts, mut lines, mut used) = (Vec::new(), Vec::new(), 0);
    for entry in &entries {
        let line = thread_line(entry);
        used += estimate_tokens(&line);
        if used > max_tokens && !lines.is_empty() {
            break;
        }
        visibility::record(context.api, &context.agent.caller, entry.record.msg_id).await?;
        facts.push(thread_facts(entry));
        lines.push(line);
    }
    // Read from the newest on, shown from the oldest on.
    facts.reverse();
    lines.reverse();
    let left_out = entries.len() - facts.len();
    let facts = json!({"messages": facts, "left_out": left_out});
    Ok(ToolResult::with_text(facts, Trust::Untrusted, lines.join("\n")))
}

/// The other party of the conversation that a Mail belongs to.
async fn peer_of(context: ToolContext<'_>, id: &MailId) -> Result<Did, ToolError> {
    #[derive(Deserialize)]
    struct Author {
        from: Did,
    }
    let mail = load(context, id).await?;
    let object = context.api.store.object(mail.msg_id).await?;
    let author: Author = serde_json::from_slice(&object).map_err(|error| StoreError::Damaged {
        what: "message",
        detail: format!("{}: {error}", mail.msg_id),
    })?;
    Ok(author.from)
}

/// The newest messages with `peer`, newest first: in the boxes of the owner and of the agent, and of
/// a group in its own box.
async fn messages_with(
    context: ToolContext<'_>,
    peer: &Did,
    limit: usize,
) -> Result<Vec<SessionEntry>, ToolError> {
    let owner = context.api.config.borrow().owner.clone();
    let owners = BTreeSet::from([owner, context.agent.did.clone()]);
    let mut entries = group_messages(context, peer, limit).await?;
    let mut seen: BTreeSet<_> = entries.iter().map(|entry| entry.record.msg_id).collect();
    for owner in owners {
        let request = PageRequest { beyond: None, limit, newest_first: true };
        match context.api.store.session(&owner, peer, request).await {
            // A subscriber has the same message as its group.
            Ok(page) => {
                let new = page.entries.into_iter().filter(|it| seen.insert(it.record.msg_id));
                entries.extend(new);
            }
            Err(StoreError::Missing { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // As everywhere, an agent sees Mails and the messages of its own boxes.
    let sees_all = context.agent.has_scope(Some(Scope::Operate));
    entries.retain(|entry| sees_all || entry.record.owner == context.agent.did || is_mail(entry));
    if entries.is_empty() {
        // Without the DID: it can contain text of others.
        return Err(ToolError::new("not_found", "there is no such conversation; see list_mails"));
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.record.created_at));
    Ok(entries)
}

/// The newest messages in the box of a group, which has no conversations.
async fn group_messages(
    context: ToolContext<'_>,
    group: &Did,
    limit: usize,
) -> Result<Vec<SessionEntry>, ToolError> {
    let store = &context.api.store;
    let request = PageRequest { beyond: None, limit, newest_first: true };
    let all = RecordFilter::default();
    let page = store.records(group, BoxKind::GroupInbox, &all, request).await?;
    let mut entries = Vec::with_capacity(page.entries.len());
    for record in page.entries {
        let body = store.object(record.msg_id).await.ok();
        let body = body.and_then(|body| String::from_utf8(body).ok());
        entries.push(SessionEntry { record, body, delivery: None });
    }
    Ok(entries)
}

/// Whether a message is a Mail of a sender that is accepted.
fn is_mail(entry: &SessionEntry) -> bool {
    let body = entry.body.as_deref().unwrap_or_default();
    entry.record.box_kind != BoxKind::RequestBox && Mail::read(entry.record.msg_id, body).is_ok()
}

fn thread_facts(entry: &SessionEntry) -> Value {
    let mut facts = json!({
        "at": entry.record.created_at.rfc3339(),
        "direction": direction(entry),
        "msg_id": entry.record.msg_id,
    });
    if let Some(state) = entry.delivery {
        facts["state"] = state.as_str().into();
    }
    facts
}

fn direction(entry: &SessionEntry) -> &'static str {
    if entry.record.box_kind == BoxKind::Outbox { "out" } else { "in" }
}

/// One message as text: direction, time, author and text.
fn thread_line(entry: &SessionEntry) -> String {
    let body = entry.body.as_deref().unwrap_or_default();
    let (author, text) = match Mail::read(entry.record.msg_id, body) {
        Ok(mail) => {
            let authors = mail.header.participants.from.iter();
            let authors: Vec<_> = authors.map(|author| author.display_name()).collect();
            (shorten(&authors.join(", "), MAX_NAME_CHARS), mail.text)
        }
        Err(_) => {
            let body: Value = serde_json::from_str(body).unwrap_or_default();
            let author = body["source"].as_str().or(body["from"].as_str()).unwrap_or_default();
            let text = body["content"]["content"].as_str().unwrap_or("[cannot be shown]");
            (author.to_owned(), text.to_owned())
        }
    };
    format!("[{}] {} {author}: {text}", entry.record.created_at.rfc3339(), direction(entry))
}

/// Reads an attachment of a Mail: a text in parts, or an image.
pub async fn read_attachment(
    context: ToolContext<'_>,
    args: ReadAttachmentArgs,
) -> Result<ToolResult, ToolError> {
    let ReadAttachmentArgs { mail, hash, max_tokens, offset } = args;
    let max_tokens = token_limit(max_tokens)?;
    let id = mail_id(context, &mail).await?;
    let hash: ObjId = hash.parse().map_err(|error| ToolError::argument("hash", error))?;
    let mail = load(context, &id).await?;
    let attached = mail.header.artifacts.iter().find(|it| it.hash == Some(hash));
    let attached = attached.ok_or_else(|| {
        ToolError::argument("hash", format_args!("{id} has no such attachment; see read_mail"))
    })?;
    let size = context.api.store.open_blob(hash).await?.size();
    let mut facts = json!({"mail": id, "hash": hash, "bytes": size});
    let too_large = |limit: u64| {
        let why = format!("the attachment has {size} bytes, and {limit} is the most that is shown");
        ToolError::new("too_large", why)
    };
    if size > MAX_TEXT_BYTES {
        return Err(too_large(MAX_TEXT_BYTES));
    }
    let bytes = context.api.store.object(hash).await?;
    if let Some(mime_type) = image_type(&bytes) {
        if size > MAX_IMAGE_BYTES {
            return Err(too_large(MAX_IMAGE_BYTES));
        }
        let image = UntrustedImage { mime_type, base64: BASE64_STANDARD.encode(&bytes) };
        return Ok(ToolResult { facts, text: None, image: Some(image) });
    }
    let Some(text) = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')) else {
        let why = format!("the attachment is not text or an image ({size} bytes)");
        return Err(ToolError::new("not_text", why));
    };
    let name = format!("attachment: {}\n\n", shorten(&attached.name, MAX_NAME_CHARS));
    let left = MAX_TEXT_TOKENS.saturating_sub(estimate_tokens(&name));
    let (part, next) = part(&text, offset, max_tokens.min(left))?;
    facts["tokens"] = estimate_tokens(&text).into();
    if let Some(next) = next {
        facts["next_offset"] = next.into();
    }
    Ok(ToolResult::with_text(facts, mail.header.trust, format!("{name}{part}")))
}

/// The type of an image by its first bytes. What the sender says is not used.
fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_text_without_gaps() {
        let text = "grüße, 世界. ".repeat(200);
        let (mut at, mut read) = (Some(0), String::new());
        while let Some(offset) = at {
            let (part, next) = part(&text, offset, 100).unwrap();
            read.push_str(part);
            at = next;
        }
        assert_eq!(read, text);
        assert_eq!(part(&text, text.len(), 100).unwrap(), ("", None));
        for invalid in [text.len() + 1, 3] {
            assert_eq!(part(&text, invalid, 100).unwrap_err().code, "bad_argument", "{invalid}");
        }
    }

    #[test]
    fn type_of_an_image_is_read_from_its_bytes() {
        assert_eq!(image_type(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(image_type(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(image_type(b"GIF89a"), Some("image/gif"));
        assert_eq!(image_type(b"RIFF\0\0\0\0WEBPVP8 "), Some("image/webp"));
        assert_eq!(image_type(b"<svg onload=alert(1)>"), None);
    }
}
