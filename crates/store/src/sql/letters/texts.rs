//! The texts of letters as JSON: serialised, stored and parsed.

use std::time::Duration;

use monoco_core::approval::SendOrigin;
use monoco_core::inbound::ValidInboundMessage;
use monoco_core::letter::Letter;
use monoco_core::merge::Debounce;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::rows::{LetterHead, LetterWithTexts};
use crate::sql::rows::as_json;
use crate::sql::{SqlStore, objects};
use crate::{
    DispatchRequest, LetterRow, LetterSource, LetterSourceKind, ObjectStore, SendRequest,
    StoreError, StoreInboundRequest, StoreResult,
};

/// A text as it is stored.
#[derive(Clone, Debug)]
pub(in crate::sql) enum StoredText {
    Inline(String),
    /// In a file with this hash.
    File(ObjId),
}

impl StoredText {
    /// The values of the columns `hash` and `body`.
    pub(super) fn columns(&self) -> (Option<&[u8; 32]>, Option<&str>) {
        match self {
            Self::Inline(body) => (None, Some(body)),
            Self::File(id) => (Some(id.hash()), None),
        }
    }
}

/// A stored text with its SHA-256.
pub(in crate::sql) struct HashedText {
    pub(super) text: StoredText,
    pub(super) digest: [u8; 32],
}

impl HashedText {
    pub(super) fn new(text: StoredText) -> Self {
        let digest = match &text {
            StoredText::Inline(body) => *ObjId::of(ObjKind::Bytes, body.as_bytes()).hash(),
            StoredText::File(id) => *id.hash(),
        };
        Self { text, digest }
    }
}

#[derive(Serialize)]
struct LetterOut<'a> {
    from: &'a str,
    to: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
    extra: &'a Map<String, Value>,
    rest: &'a Map<String, Value>,
    /// Only in the source of a letter. Absent: the owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a SendOrigin>,
}

#[derive(Deserialize)]
struct LetterIn {
    from: String,
    to: Vec<String>,
    /// Missing when the message that the letter became contains it.
    data: Option<String>,
    extra: Map<String, Value>,
    rest: Map<String, Value>,
}

#[derive(Serialize)]
struct InboundOut<'a> {
    provider: &'a str,
    window_ms: u64,
    max_wait_ms: u64,
    message: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    mail: Option<String>,
    /// Whether `mail` has one character for each byte, because the mail is not UTF-8.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    latin1: bool,
}

#[derive(Deserialize)]
struct InboundIn {
    provider: String,
    window_ms: u64,
    max_wait_ms: u64,
    message: Box<RawValue>,
    mail: Option<String>,
    #[serde(default)]
    latin1: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct DispatchText {
    external_id: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
struct SendText {
    key: Option<String>,
    not_before: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "SendOrigin::is_owner")]
    origin: SendOrigin,
}

/// The part of a submitted letter's text that workers do not see.
#[derive(Deserialize)]
struct SubmissionText {
    #[serde(default)]
    origin: SendOrigin,
}

pub(super) fn letter_text(letter: &Letter) -> StoreResult<String> {
    submitted_text(letter, &SendOrigin::Owner)
}

/// The text of a submitted letter with its origin.
pub(super) fn submitted_text(letter: &Letter, origin: &SendOrigin) -> StoreResult<String> {
    let Letter { from, to, data, extra, rest } = letter;
    let origin = Some(origin).filter(|origin| !origin.is_owner());
    as_json(&LetterOut { from, to, data: Some(data), extra, rest, origin })
}

/// The text of a letter whose `data` is in the message that it becomes.
pub(super) fn letter_text_without_data(letter: &Letter) -> StoreResult<String> {
    let Letter { from, to, extra, rest, .. } = letter;
    as_json(&LetterOut { from, to, data: None, extra, rest, origin: None })
}

pub(super) fn inbound_text(request: &StoreInboundRequest) -> StoreResult<String> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mail = request.mail.as_ref().map(|mail| Letter::default().with_bytes(mail.clone()));
    let latin1 = mail.as_ref().is_some_and(|mail| mail.extra.contains_key("charset"));
    as_json(&InboundOut {
        provider: &request.provider,
        window_ms: ms(request.debounce.window),
        max_wait_ms: ms(request.debounce.max_wait),
        message: parse(request.message.json())?,
        mail: mail.map(|mail| mail.data),
        latin1,
    })
}

/// Returns `None` when there is nothing to store beyond the object.
pub(super) fn dispatch_text(request: &DispatchRequest) -> StoreResult<Option<String>> {
    let external_id = request.external_id.clone();
    external_id.is_some().then(|| as_json(&DispatchText { external_id })).transpose()
}

/// Returns `None` when there is nothing to store beyond the object.
pub(super) fn send_text(request: &SendRequest) -> StoreResult<Option<String>> {
    let SendRequest { key, not_before, origin, .. } = request.clone();
    let any = key.is_some() || not_before.is_some() || !origin.is_owner();
    any.then(|| as_json(&SendText { key, not_before, origin })).transpose()
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> StoreResult<T> {
    serde_json::from_str(text).map_err(|error| damaged(error.to_string()))
}

fn damaged(detail: String) -> StoreError {
    StoreError::Damaged { what: "letter", detail }
}

/// Parses a letter. Returns also whether it has its `data`.
pub(super) fn parse_letter(text: &str) -> StoreResult<(Letter, bool)> {
    let LetterIn { from, to, data, extra, rest } = parse(text)?;
    let has_data = data.is_some();
    Ok((Letter { from, to, data: data.unwrap_or_default(), extra, rest }, has_data))
}

pub(super) fn parse_inbound(text: &str, head: &LetterHead) -> StoreResult<StoreInboundRequest> {
    let InboundIn { provider, window_ms, max_wait_ms, message, mail, latin1 } = parse(text)?;
    let mail = mail.map(|data| {
        let charset = latin1.then(|| ("charset".to_owned(), Value::from("latin-1")));
        let letter = Letter { data, extra: charset.into_iter().collect(), ..Letter::default() };
        letter.bytes().into_owned()
    });
    let message = ValidInboundMessage::from_stored_json(Box::<str>::from(message).into())
        .map_err(|error| damaged(error.to_string()))?;
    let debounce = Debounce {
        window: Duration::from_millis(window_ms),
        max_wait: Duration::from_millis(max_wait_ms),
    };
    let tunnel = head.tunnel.clone();
    let tunnel = tunnel.ok_or_else(|| damaged("inbound letter without a tunnel".to_owned()))?;
    let attachments = Vec::new();
    Ok(StoreInboundRequest { tunnel, provider, message, attachments, debounce, mail })
}

impl SqlStore {
    /// Writes a text to a file when it is too large for a row.
    pub(super) async fn put_text(&self, text: String) -> StoreResult<StoredText> {
        if text.len() <= objects::MAX_INLINE_BYTES {
            return Ok(StoredText::Inline(text));
        }
        let id = ObjId::of(ObjKind::Bytes, text.as_bytes());
        self.put_file(id, text.into_bytes()).await?;
        Ok(StoredText::File(id))
    }

    /// Reads the texts of a letter.
    ///
    /// # Errors
    ///
    /// [`StoreError::Damaged`] when one of them is damaged or missing, [`StoreError::Erased`] when
    /// they were erased.
    pub(super) async fn read_letter(&self, letter: LetterWithTexts) -> StoreResult<LetterRow> {
        let LetterWithTexts { head, source, change, object, became } = letter;
        if let Some(at) = head.erased_at {
            return Err(StoreError::Erased { key: head.id.to_string(), at, by: None });
        }
        let text = match source {
            Some(text) => self.read_text(text).await?,
            None => "{}".to_owned(),
        };
        let source = match head.source {
            LetterSourceKind::Submitted => {
                let (letter, tunnel) = (parse_letter(&text)?.0, head.tunnel.clone());
                let SubmissionText { origin } = parse(&text)?;
                LetterSource::Submitted { letter, tunnel, key: None, origin }
            }
            LetterSourceKind::Inbound => LetterSource::Inbound(parse_inbound(&text, &head)?),
            LetterSourceKind::Dispatch => {
                let DispatchText { external_id } = parse(&text)?;
                let (msg, tunnel) = (self.read_message(object).await?, head.tunnel.clone());
                LetterSource::Dispatch(DispatchRequest { msg, tunnel, external_id })
            }
            LetterSourceKind::Send => {
                let SendText { key, not_before, origin } = parse(&text)?;
                let msg = self.read_message(object).await?;
                LetterSource::Send(SendRequest { msg, key, not_before, origin })
            }
        };
        let letter = match change {
            Some(text) => {
                let (mut letter, has_data) = parse_letter(&self.read_text(text).await?)?;
                if !has_data {
                    letter.data = self.data_of_message(became).await?;
                }
                letter
            }
            None => source.letter().map_err(|error| damaged(error.to_string()))?,
        };
        Ok(head.into_row(source, letter, became))
    }

    /// Like [`Self::read_letter`], but returns a damaged or erased letter with empty texts.
    pub(super) async fn show_letter(&self, letter: LetterWithTexts) -> StoreResult<LetterRow> {
        let (head, became) = (letter.head.clone(), letter.became);
        match self.read_letter(letter).await {
            Err(error @ (StoreError::Damaged { .. } | StoreError::Erased { .. })) => {
                if head.erased_at.is_none() {
                    tracing::error!(letter = %head.id, %error, "cannot read damaged letter");
                }
                let letter = Letter::default();
                let origin = SendOrigin::Owner;
                let source = LetterSource::Submitted { letter, tunnel: None, key: None, origin };
                Ok(head.into_row(source, Letter::default(), became))
            }
            row => row,
        }
    }

    /// The content of the message that a letter became.
    async fn data_of_message(&self, became: Option<ObjId>) -> StoreResult<String> {
        let id = became.ok_or_else(|| damaged("the letter became no message".to_owned()))?;
        let body = self.object(id).await?;
        let mut msg: Value =
            serde_json::from_slice(&body).map_err(|error| damaged(error.to_string()))?;
        match msg.pointer_mut("/content/content").map(Value::take) {
            Some(Value::String(content)) => Ok(content),
            _ => Err(damaged(format!("{id} has no content"))),
        }
    }

    pub(super) async fn read_text(&self, text: StoredText) -> StoreResult<String> {
        match text {
            StoredText::Inline(body) => Ok(body),
            StoredText::File(id) => self.verified_text(id, None).await,
        }
    }

    async fn read_message(
        &self,
        object: Option<(ObjId, Option<Vec<u8>>)>,
    ) -> StoreResult<MsgObject> {
        let (id, body) = object.ok_or_else(|| damaged("the letter has no object".to_owned()))?;
        self.message(id, body).await
    }
}
