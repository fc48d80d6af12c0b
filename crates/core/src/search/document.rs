//! What the index stores of a message.

use super::query::{SearchMark, SearchPhrase, SearchQuery};
use super::tokens::{SearchToken, joined_tokens, tokens};
use crate::did::Did;
use crate::inbound::{ChatSession, Participant};
use crate::mail::{Mail, MailIndexEntry, Participants};
use crate::object::ObjId;
use crate::outgoing::OutgoingMessage;

/// Bytes of the text of one message that are searched. The rest is not found.
const MAX_INDEXED_BYTES: usize = 1 << 20;

/// The searchable parts of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchDocument {
    pub title: Option<String>,
    pub text: String,
    /// The names of its attachments.
    pub files: Vec<String>,
    /// Names and ids of the authors; the first one is shown.
    pub authors: Vec<String>,
    /// Name, id and thread of the chat, and the recipients; the first one is shown.
    pub chat: Vec<String>,
    pub marks: Vec<SearchMark>,
}

/// The tokens of a message, one text per column of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchColumns {
    pub title: String,
    pub text: String,
    pub files: String,
    pub authors: String,
    pub chat: String,
}

impl SearchDocument {
    /// Reads a message from the canonical JSON of its object. Returns `None` when it is damaged.
    pub fn read(id: ObjId, canonical: &str) -> Option<Self> {
        if let Ok(mail) = Mail::read(id, canonical) {
            return Some(Self::of_mail(mail));
        }
        OutgoingMessage::parse(canonical).ok().map(Self::of_message)
    }

    /// What the index of Mails has of a Mail, and its text. Names of files are not in the index.
    pub fn of_entry(entry: &MailIndexEntry, text: String) -> Self {
        let MailIndexEntry { title, session, participants, .. } = entry.clone();
        Self {
            marks: marks(&text, false, false),
            title,
            files: Vec::new(),
            chat: chat_names(session, &participants),
            authors: names(&participants.from),
            text,
        }
    }

    /// Whether the document meets phrases and filters of a query, except tunnel, time and status.
    pub fn matches(&self, query: &SearchQuery) -> bool {
        let (title, files) = (self.title.as_deref().unwrap_or_default(), self.files.join(" "));
        let (authors, chat) = (self.authors.join(" "), self.chat.join(" "));
        let [title, text, files, authors, chat] =
            [title, &self.text, &files, &authors, &chat].map(|text| tokens(text, usize::MAX));
        let has = |column: &[SearchToken], phrase: &SearchPhrase| {
            (0..column.len()).any(|at| phrase.is_start_of(&column[at..]))
        };
        let all = [&title, &text, &files, &authors, &chat];
        query.phrases.iter().all(|phrase| all.iter().any(|column| has(column, phrase)))
            && query.from.iter().all(|phrase| has(&authors, phrase))
            && query.chat.iter().all(|phrase| has(&chat, phrase))
            && query.has.iter().all(|mark| self.marks.contains(mark))
    }

    fn of_mail(mail: Mail) -> Self {
        let (header, text) = (mail.header, mail.text);
        let is_image = header.artifacts.iter().any(|it| it.mime_type.starts_with("image/"));
        Self {
            marks: marks(&text, !header.artifacts.is_empty(), is_image),
            title: header.title,
            files: header.artifacts.into_iter().map(|artifact| artifact.name).collect(),
            authors: names(&header.participants.from),
            chat: chat_names(header.session, &header.participants),
            text,
        }
    }

    fn of_message(message: OutgoingMessage) -> Self {
        // The bytes of an e-mail in its transfer encoding are not a text.
        let text = match message.charset {
            Some(_) => String::new(),
            None => message.text,
        };
        let is_image = message.attachments.iter().any(|it| it.mime_type.starts_with("image/"));
        let targets = message.to.iter().chain(&message.cc).map(Did::to_string);
        Self {
            marks: marks(&text, !message.attachments.is_empty(), is_image),
            title: message.title,
            files: message.attachments.into_iter().map(|attachment| attachment.name).collect(),
            authors: vec![message.author],
            chat: targets.chain(message.topic).collect(),
            text,
        }
    }

    /// Returns the tokens that the index stores.
    pub fn columns(&self) -> SearchColumns {
        let tokens = |text: &str| joined_tokens(text, MAX_INDEXED_BYTES);
        SearchColumns {
            title: self.title.as_deref().map(tokens).unwrap_or_default(),
            text: tokens(&self.text),
            files: tokens(&self.files.join(" ")),
            authors: tokens(&self.authors.join(" ")),
            chat: tokens(&self.chat.join(" ")),
        }
    }
}

/// Names and ids of people, the names first.
fn names(people: &[Participant]) -> Vec<String> {
    people.iter().flat_map(|it| it.name.iter().chain([&it.id])).cloned().collect()
}

/// Name, id and thread of a chat, and the recipients beside it.
fn chat_names(session: ChatSession, people: &Participants) -> Vec<String> {
    let chat = session.name.into_iter().chain([session.id]).chain(session.thread_key);
    let recipients = [&people.to, &people.cc, &people.bcc].into_iter().flat_map(|it| names(it));
    chat.chain(recipients).collect()
}

fn marks(text: &str, has_attachment: bool, has_image: bool) -> Vec<SearchMark> {
    let has_link = ["http://", "https://"].iter().any(|scheme| text.contains(scheme));
    let marks = [
        has_attachment.then_some(SearchMark::Attachment),
        has_image.then_some(SearchMark::Image),
        has_link.then_some(SearchMark::Link),
    ];
    marks.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::MsgObject;
    use crate::time::Timestamp;

    #[test]
    fn sent_message_has_text_targets_and_files() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let target = json!({"hash": hash, "name": "plan.png", "mime_type": "image/png"});
        let message = json!({
            "from": "did:web:me", "to": ["did:web:ann"], "kind": "chat",
            "thread": {"topic": "release"},
            "content": {
                "title": "Plan", "content": "see https://x.example 部署",
                "refs": [{"role": "attachment", "target": target}],
            },
        });
        let message = MsgObject::from_json(message).unwrap();
        let document = SearchDocument::read(message.id(), message.canonical()).unwrap();
        assert_eq!(document.marks, SearchMark::ALL);
        let columns = document.columns();
        assert_eq!(
            columns,
            SearchColumns {
                title: "plan".to_owned(),
                text: "see https x example 部署 署".to_owned(),
                files: "plan png".to_owned(),
                authors: "did web me".to_owned(),
                chat: "did web ann release".to_owned(),
            }
        );
        assert_eq!(SearchDocument::read(message.id(), "{}"), None);
        for (text, expected) in [
            ("plan 部署", true),
            ("png from:me in:release has:link", true),
            ("from:ann", false),
            ("in:me", false),
            ("nothing", false),
        ] {
            let query = SearchQuery::parse(text, Timestamp::from_ms(0)).unwrap();
            assert_eq!(document.matches(&query), expected, "{text}");
        }
    }
}
