//! Cuts the values of a message to the limits, for providers that allow larger ones.
//!
//! A mail with 500 recipients or a text of 50 MB is delivered with shorter values, each of which
//! says that it was cut. The adapter attaches the original.

use crate::inbound::{
    Artifact, InboundMessage, MAX_ACCOUNT_BYTES, MAX_LIST_ENTRIES, MAX_MESSAGE_BYTES,
    MAX_NAME_BYTES, MAX_URL_BYTES, Participant, RFC3339_RANGE,
};

/// Maximum size of a message that was cut, in bytes of its JSON. The rest of
/// [`MAX_MESSAGE_BYTES`] is for attachments that are added when it is stored.
const MAX_CUT_BYTES: usize = MAX_MESSAGE_BYTES - (64 << 10);

/// Maximum size of everything but the text, in bytes of JSON.
const MAX_HEADER_BYTES: usize = MAX_CUT_BYTES / 2;

/// Space for the note at the end of a value that was cut, in bytes.
const NOTE_BYTES: usize = 64;

impl InboundMessage {
    /// Returns the message with all values within the limits, and the names of the fields that
    /// were cut. Only an id that is empty or too long is left for [`InboundMessage::validate`].
    ///
    /// A list that was cut ends with an entry such as `[cut: 3 more]`, a text with
    /// `[cut: 5000 bytes]`.
    #[must_use]
    pub fn cut_to_limits(mut self) -> (Self, Vec<&'static str>) {
        let mut cut = Vec::new();
        let mut note = |field: &'static str, was_cut: bool| {
            if was_cut && !cut.contains(&field) {
                cut.push(field);
            }
        };
        note("session.id", cut_text(&mut self.session.id, MAX_ACCOUNT_BYTES));
        note("from.id", cut_text(&mut self.from.id, MAX_ACCOUNT_BYTES));
        if let Some(answer_to) = &mut self.answer_to {
            note("answer_to", cut_text(&mut answer_to.id, MAX_ACCOUNT_BYTES));
            note("answer_to", cut_name(&mut answer_to.name));
        }
        note("session.name", cut_name(&mut self.session.name));
        note("session.thread_key", cut_name(&mut self.session.thread_key));
        note("from.name", cut_name(&mut self.from.name));
        note("title", cut_name(&mut self.title));
        note("reply_to", cut_name(&mut self.reply_to));
        note("corrects", cut_name(&mut self.corrects));
        note("forwarded_from", cut_name(&mut self.forwarded_from));
        note("correlation_id", cut_name(&mut self.correlation_id));
        for (field, people) in [("to", &mut self.to), ("cc", &mut self.cc)] {
            note(field, cut_list(people, MAX_LIST_ENTRIES, more_people));
            for person in people {
                note(field, cut_text(&mut person.id, MAX_NAME_BYTES));
                note(field, cut_name(&mut person.name));
            }
        }
        note("mentions", cut_list(&mut self.mentions, MAX_LIST_ENTRIES, more));
        for mention in &mut self.mentions {
            note("mentions", cut_text(mention, MAX_NAME_BYTES));
        }
        note("attachments", cut_list(&mut self.artifacts, MAX_LIST_ENTRIES, more_artifacts));
        for artifact in &mut self.artifacts {
            note("attachments", cut_artifact(artifact));
        }
        if self.at.is_some_and(|at| !RFC3339_RANGE.contains(&at.ms())) {
            self.at = None;
            note("at", true);
        }
        // Names of control characters are six times as long in JSON.
        let text = std::mem::take(&mut self.text);
        let mut entries = MAX_LIST_ENTRIES;
        while self.json_bytes() > MAX_HEADER_BYTES && entries > 1 {
            entries /= 2;
            note("to", cut_list(&mut self.to, entries, more_people));
            note("cc", cut_list(&mut self.cc, entries, more_people));
            note("mentions", cut_list(&mut self.mentions, entries, more));
            note("attachments", cut_list(&mut self.artifacts, entries, more_artifacts));
        }
        let room = MAX_CUT_BYTES.saturating_sub(self.json_bytes() + NOTE_BYTES);
        self.text = text;
        let kept = json_prefix(&self.text, room);
        if kept < self.text.len() {
            let size = self.text.len();
            self.text.truncate(kept);
            self.text.push_str(&format!("\n\n[cut: {size} bytes]"));
            note("text", true);
        }
        (self, cut)
    }

    fn json_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(usize::MAX, |json| json.len())
    }
}

/// Cuts a text to at most `max` bytes. Returns whether it was longer.
fn cut_text(text: &mut String, max: usize) -> bool {
    if text.len() <= max {
        return false;
    }
    let note = format!(" [cut: {} bytes]", text.len());
    text.truncate(text.floor_char_boundary(max - note.len()));
    text.push_str(&note);
    true
}

fn cut_name(name: &mut Option<String>) -> bool {
    name.as_mut().is_some_and(|name| cut_text(name, MAX_NAME_BYTES))
}

/// Cuts a list to at most `max` entries, the last of which says how many are missing. Returns
/// whether it was longer.
fn cut_list<T>(list: &mut Vec<T>, max: usize, note: fn(String) -> T) -> bool {
    let Some(missing) = list.len().checked_sub(max).filter(|missing| *missing > 0) else {
        return false;
    };
    list.truncate(max - 1);
    list.push(note(format!("[cut: {} more]", missing + 1)));
    true
}

fn more(note: String) -> String {
    note
}

fn more_people(note: String) -> Participant {
    Participant::user(note, None)
}

fn more_artifacts(name: String) -> Artifact {
    Artifact { name, ..Artifact::default() }
}

fn cut_artifact(artifact: &mut Artifact) -> bool {
    let mut cut = cut_text(&mut artifact.name, MAX_NAME_BYTES);
    if artifact.mime_type.len() > MAX_NAME_BYTES {
        artifact.mime_type = "application/octet-stream".to_owned();
        cut = true;
    }
    // A part of a link leads to another place.
    if artifact.url.as_ref().is_some_and(|url| url.len() > MAX_URL_BYTES) {
        artifact.url = None;
        cut = true;
    }
    cut | cut_name(&mut artifact.missing)
}

/// Returns the length of the longest start of `text` that takes at most `room` bytes in JSON.
fn json_prefix(text: &str, mut room: usize) -> usize {
    for (at, character) in text.char_indices() {
        let size = match character {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..'\u{20}' => 6,
            _ => character.len_utf8(),
        };
        let Some(left) = room.checked_sub(size) else { return at };
        room = left;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::inbound::tests::{any_message, message};
    use crate::time::Timestamp;

    #[test]
    fn long_values_are_cut_and_say_so() {
        let mut mail = message("1", "ann@example.com", "hi");
        mail.title = Some("é".repeat(1000));
        mail.from.name = Some("x".repeat(MAX_NAME_BYTES + 1));
        mail.answer_to = Some(Participant::mailbox(&"j".repeat(300), None));
        mail.to = (0..250).map(|n| Participant::user(n.to_string(), None)).collect();
        mail.at = Some(Timestamp::from_ms(i64::MAX));
        let (cut, fields) = mail.cut_to_limits();
        assert_eq!(fields, ["answer_to", "from.name", "title", "to", "at"]);
        let title = cut.title.clone().unwrap();
        assert!(title.starts_with("éé") && title.ends_with("é [cut: 2000 bytes]"), "{title}");
        assert_eq!(cut.to.len(), MAX_LIST_ENTRIES);
        assert_eq!((cut.to[98].id.as_str(), cut.to[99].id.as_str()), ("98", "[cut: 151 more]"));
        assert_eq!(cut.at, None);
        assert!(cut.answer_to.as_ref().unwrap().id.ends_with(" [cut: 300 bytes]"), "no address");
        assert!(cut.validate().is_ok());
    }

    #[test]
    fn long_text_is_cut_to_what_fits_into_a_message() {
        for (text, kept) in
            [("x", MAX_CUT_BYTES), ("\n", MAX_CUT_BYTES / 2), ("\u{1}", MAX_CUT_BYTES / 6)]
        {
            let (cut, fields) = message("1", "ann", &text.repeat(2 << 20)).cut_to_limits();
            assert_eq!(fields, ["text"]);
            assert!(cut.text.ends_with("\n\n[cut: 2097152 bytes]"));
            assert!((kept - 1000..kept).contains(&cut.text.len()), "{} of {kept}", cut.text.len());
            let json = cut.validate().unwrap().json().len();
            assert!(json <= MAX_CUT_BYTES, "{json}");
        }
        let short = message("1", "ann", &"x".repeat(MAX_CUT_BYTES - 1000));
        assert_eq!(short.clone().cut_to_limits(), (short, Vec::new()));
    }

    #[test]
    fn hostile_names_leave_room_for_the_text() {
        let mut mail = message("1", "ann", &"x".repeat(2 << 20));
        let name = "\u{1}".repeat(5000);
        mail.to = vec![Participant::user(name.clone(), Some(name.clone())); 300];
        mail.cc = mail.to.clone();
        mail.mentions = vec![name; 300];
        let (cut, fields) = mail.cut_to_limits();
        assert_eq!(fields, ["to", "cc", "mentions", "text"]);
        assert!(cut.text.len() > MAX_HEADER_BYTES - 1000);
        assert!(cut.validate().is_ok());
    }

    proptest! {
        #[test]
        fn message_within_the_limits_is_not_changed(message in any_message()) {
            prop_assert_eq!(message.clone().cut_to_limits(), (message, Vec::new()));
        }

        #[test]
        fn any_message_is_valid_when_it_was_cut(message in any_message(), times in 1..3000_usize) {
            let long = |text: &mut String| *text = text.repeat(times);
            let mut message = message;
            for text in [&mut message.session.id, &mut message.from.id, &mut message.text] {
                long(text);
            }
            for text in [&mut message.title, &mut message.session.name, &mut message.reply_to] {
                text.as_mut().into_iter().for_each(long);
            }
            message.mentions = vec![message.mentions; times / 10].concat();
            message.to = vec![message.to; times / 10].concat();
            let (cut, _) = message.cut_to_limits();
            prop_assert!(cut.validate().is_ok());
        }
    }
}
