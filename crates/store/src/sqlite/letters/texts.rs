//! What letters say, as JSON: how it is written, kept, and read again.

use std::time::Duration;

use monoco_core::inbound::ValidInboundMessage;
use monoco_core::letter::Letter;
use monoco_core::merge::Debounce;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::rows::{LetterHead, LetterWithTexts};
use crate::sqlite::rows::as_json;
use crate::sqlite::{SqliteStore, objects};
use crate::{
    BoxStore, DispatchRequest, LetterRow, LetterSource, LetterSourceKind, SendRequest, StoreError,
    StoreInboundRequest,
};

/// A text of a letter, as a row has it.
#[derive(Clone, Debug)]
pub(super) enum StoredText {
    /// In the row.
    Inline(String),
    /// In a file.
    File(ObjId),
}

impl StoredText {
    /// What stands in the row: the hash, and the body.
    pub(super) fn columns(&self) -> (Option<&[u8; 32]>, Option<&str>) {
        match self {
            Self::Inline(body) => (None, Some(body)),
            Self::File(id) => (Some(id.hash()), None),
        }
    }
}

/// A text, and what names it: the hash of what it says.
pub(super) struct HashedText {
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
}

#[derive(Deserialize)]
struct LetterIn {
    from: String,
    to: Vec<String>,
    /// Missing: the message it became says so.
    data: Option<String>,
    extra: Map<String, Value>,
    rest: Map<String, Value>,
}

#[derive(Serialize)]
struct HeardOut<'a> {
    provider: &'a str,
    window_ms: u64,
    max_wait_ms: u64,
    message: &'a RawValue,
}

#[derive(Deserialize)]
struct HeardIn {
    provider: String,
    window_ms: u64,
    max_wait_ms: u64,
    message: Box<RawValue>,
}

#[derive(Default, Serialize, Deserialize)]
struct DispatchText {
    external_id: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
struct PostText {
    key: Option<String>,
    not_before: Option<Timestamp>,
}

pub(super) fn letter_text(letter: &Letter) -> Result<String, StoreError> {
    let Letter { from, to, data, extra, rest } = letter;
    as_json(&LetterOut { from, to, data: Some(data), extra, rest })
}

/// A letter without its `data`, which the message it becomes has.
pub(super) fn letter_around(letter: &Letter) -> Result<String, StoreError> {
    let Letter { from, to, extra, rest, .. } = letter;
    as_json(&LetterOut { from, to, data: None, extra, rest })
}

pub(super) fn heard_text(keep: &StoreInboundRequest) -> Result<String, StoreError> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    as_json(&HeardOut {
        provider: &keep.provider,
        window_ms: ms(keep.debounce.window),
        max_wait_ms: ms(keep.debounce.max_wait),
        message: parsed(keep.message.json())?,
    })
}

/// `None`: there is nothing to say beyond the object.
pub(super) fn dispatch_text(dispatch: &DispatchRequest) -> Result<Option<String>, StoreError> {
    let external_id = dispatch.external_id.clone();
    external_id.is_some().then(|| as_json(&DispatchText { external_id })).transpose()
}

/// `None`: there is nothing to say beyond the object.
pub(super) fn post_text(post: &SendRequest) -> Result<Option<String>, StoreError> {
    let (key, not_before) = (post.key.clone(), post.not_before);
    let any = key.is_some() || not_before.is_some();
    any.then(|| as_json(&PostText { key, not_before })).transpose()
}

fn parsed<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| damaged(error.to_string()))
}

fn damaged(detail: String) -> StoreError {
    StoreError::Damaged { what: "letter", detail }
}

fn read_letter(text: &str) -> Result<(Letter, bool), StoreError> {
    let LetterIn { from, to, data, extra, rest } = parsed(text)?;
    let whole = data.is_some();
    Ok((Letter { from, to, data: data.unwrap_or_default(), extra, rest }, whole))
}

fn read_heard(text: &str, stub: &LetterHead) -> Result<StoreInboundRequest, StoreError> {
    let HeardIn { provider, window_ms, max_wait_ms, message } = parsed(text)?;
    let message = ValidInboundMessage::from_stored_json(Box::<str>::from(message).into())
        .map_err(|error| damaged(error.to_string()))?;
    let debounce = Debounce {
        window: Duration::from_millis(window_ms),
        max_wait: Duration::from_millis(max_wait_ms),
    };
    let tunnel = stub.tunnel.clone().ok_or_else(|| damaged("heard of no tunnel".to_owned()))?;
    Ok(StoreInboundRequest { tunnel, provider, message, debounce })
}

impl SqliteStore {
    /// Keeps a text, in a file when it is too large for a row.
    pub(super) async fn keep_text(&self, text: String) -> Result<StoredText, StoreError> {
        if text.len() <= objects::INLINE {
            return Ok(StoredText::Inline(text));
        }
        let id = ObjId::of(ObjKind::Bytes, text.as_bytes());
        self.keep_large(id, text.as_bytes()).await?;
        Ok(StoredText::File(id))
    }

    /// Keeps a message's object as a file, when it is too large for a row.
    pub(super) async fn keep_msg(&self, msg: &MsgObject) -> Result<(), StoreError> {
        if msg.canonical().len() <= objects::INLINE {
            return Ok(());
        }
        self.keep_large(msg.id(), msg.canonical().as_bytes()).await
    }

    /// A letter with all that it says.
    pub(super) async fn whole(&self, bundle: LetterWithTexts) -> Result<LetterRow, StoreError> {
        let LetterWithTexts { stub, origin, changed, object, became } = bundle;
        let origin = match origin {
            Some(text) => self.read_text(text).await?,
            None => "{}".to_owned(),
        };
        let source = match stub.made {
            LetterSourceKind::Submitted => {
                let (letter, tunnel) = (read_letter(&origin)?.0, stub.tunnel.clone());
                LetterSource::Submitted { letter, tunnel, key: None }
            }
            LetterSourceKind::Inbound => LetterSource::Inbound(read_heard(&origin, &stub)?),
            LetterSourceKind::Dispatch => {
                let DispatchText { external_id } = parsed(&origin)?;
                let (msg, tunnel) = (self.read_msg(object).await?, stub.tunnel.clone());
                LetterSource::Dispatch(DispatchRequest { msg, tunnel, external_id })
            }
            LetterSourceKind::Send => {
                let PostText { key, not_before } = parsed(&origin)?;
                LetterSource::Send(SendRequest {
                    msg: self.read_msg(object).await?,
                    key,
                    not_before,
                })
            }
        };
        let letter = match changed {
            Some(text) => {
                let (mut letter, whole) = read_letter(&self.read_text(text).await?)?;
                if !whole {
                    letter.data = self.said_in(became).await?;
                }
                letter
            }
            None => source.letter().map_err(|error| damaged(error.to_string()))?,
        };
        Ok(stub.row(source, letter, became))
    }

    /// The same; of one whose texts are damaged, what is left.
    pub(super) async fn what_is_left(
        &self,
        bundle: LetterWithTexts,
    ) -> Result<LetterRow, StoreError> {
        let (stub, became) = (bundle.stub.clone(), bundle.became);
        match self.whole(bundle).await {
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::error!(letter = %stub.id, %error, "damaged");
                let letter = Letter::default();
                let source = LetterSource::Submitted { letter, tunnel: None, key: None };
                Ok(stub.row(source, Letter::default(), became))
            }
            whole => whole,
        }
    }

    /// What the message says that a letter became.
    async fn said_in(&self, became: Option<ObjId>) -> Result<String, StoreError> {
        let id = became.ok_or_else(|| damaged("it became no message".to_owned()))?;
        let body = self.object(id).await?;
        let mut msg: Value =
            serde_json::from_slice(&body).map_err(|error| damaged(error.to_string()))?;
        match msg.pointer_mut("/content/content").map(Value::take) {
            Some(Value::String(said)) => Ok(said),
            _ => Err(damaged(format!("{id} says nothing"))),
        }
    }

    async fn read_text(&self, text: StoredText) -> Result<String, StoreError> {
        match text {
            StoredText::Inline(body) => Ok(body),
            StoredText::File(id) => self.utf8(id, None).await,
        }
    }

    async fn read_msg(
        &self,
        object: Option<(ObjId, Option<Vec<u8>>)>,
    ) -> Result<MsgObject, StoreError> {
        let (id, body) = object.ok_or_else(|| damaged("it has no object".to_owned()))?;
        let body = match body {
            Some(body) => body,
            None => self.blob(id).await.map_err(|error| match error {
                StoreError::Missing { .. } => damaged(format!("the file of {id} is gone")),
                other => other,
            })?,
        };
        let value = serde_json::from_slice(&body).map_err(|error| damaged(error.to_string()))?;
        // It was small enough when it came.
        let msg = MsgObject::from_json_up_to(value, usize::MAX)
            .map_err(|error| damaged(error.to_string()))?;
        // Sealing names it anew: what was hashed is what is stored.
        if msg.id() == id {
            return Ok(msg);
        }
        Err(damaged(format!("{id} has another hash")))
    }
}
