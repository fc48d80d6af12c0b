//! Decides what an edit or a recall of a message does.
//!
//! While the message waits in its merge window, the stored message is changed. Later the Mail
//! stays as it is, and a message that names the corrected one follows in the same session. With
//! an inbound chain an edit always follows as a message of its own: workers have seen the old
//! text only.

use std::collections::BTreeSet;

use crate::inbound::{Artifact, InboundMessage, MessageEdit, MessageRecall};

/// Text in place of a message that its author has recalled.
pub const RECALLED_BY_AUTHOR: &str = "[recalled by its author]";

/// Text in place of a message that another account has removed.
pub const REMOVED_BY_OTHER: &str = "[removed by another account]";

/// What the store has of a message that is corrected: its newest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredVersion<'a> {
    /// The message was never received.
    Unknown,
    /// The message was rejected or erased.
    NotKept,
    /// In an open merge window.
    InWindow(&'a InboundMessage),
    /// A letter whose chain is not finished; `None` when its text cannot be read.
    InPipeline(Option<&'a InboundMessage>),
    /// In a Mail; `None` when its text was erased or is damaged.
    Merged(Option<&'a InboundMessage>),
}

/// What an edit does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditAction {
    /// Nothing: the content is the same, or the message is not wanted.
    Ignore,
    /// The edited message is stored as if it were new.
    StoreAsNew,
    /// The stored message is replaced by this one.
    Replace(Box<InboundMessage>),
    /// This message is stored and names the message that it corrects.
    FollowUp(Box<InboundMessage>),
}

/// What a recall does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecallAction {
    /// Nothing: the message is recalled already, or not wanted.
    Ignore,
    /// The message is not stored when it arrives later.
    RejectLater,
    /// The versions that no reader has yet are removed, and the readers of the others are notified.
    Apply {
        /// One step for each version, in the order of the versions.
        steps: Vec<RecallStep>,
        follow_up: RecallFollowUp,
    },
}

/// What a recall does to one version of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecallStep {
    /// Nothing: the version is in a Mail, or not wanted.
    Keep,
    /// The stored message is replaced by this one.
    Replace(Box<InboundMessage>),
    /// The letter is trashed.
    TrashLetter,
}

/// How the readers of a version that is in a Mail learn about the recall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecallFollowUp {
    /// No version is in a Mail, or a message that was replaced tells them.
    None,
    /// This message is stored and names the message that it corrects.
    Message(Box<InboundMessage>),
    /// Only an event is stored, because the text of the message is gone.
    EventOnly,
}

impl<'a> StoredVersion<'a> {
    fn text(self) -> Option<&'a InboundMessage> {
        match self {
            Self::Unknown | Self::NotKept => None,
            Self::InWindow(message) => Some(message),
            Self::InPipeline(message) | Self::Merged(message) => message,
        }
    }
}

/// Decides about an edit. `has_chain`: messages of the tunnel go through an inbound chain.
pub fn decide_edit(stored: StoredVersion<'_>, edit: &MessageEdit, has_chain: bool) -> EditAction {
    let previous = match stored {
        StoredVersion::Unknown => return EditAction::StoreAsNew,
        StoredVersion::NotKept => return EditAction::Ignore,
        StoredVersion::InWindow(previous) => Some(previous),
        StoredVersion::InPipeline(previous) | StoredVersion::Merged(previous) => previous,
    };
    // An edit that arrives after the recall must not bring the text back.
    let is_stale = |previous| is_recalled(previous) || !is_changed(previous, &edit.message);
    if previous.is_some_and(is_stale) {
        return EditAction::Ignore;
    }
    match stored {
        StoredVersion::InWindow(previous) if !has_chain => {
            EditAction::Replace(Box::new(replaced(previous, &edit.message)))
        }
        _ => EditAction::FollowUp(Box::new(correction(previous, edit))),
    }
}

/// Decides about a recall. `versions`: the message and the messages that corrected it, oldest
/// first; none when the message was never received.
///
/// With an inbound chain several versions can be on their way at the same time, and none of them
/// may be delivered.
pub fn decide_recall(versions: &[StoredVersion<'_>], recall: &MessageRecall) -> RecallAction {
    if versions.is_empty() {
        return RecallAction::RejectLater;
    }
    let newest = versions.iter().rev().find_map(|version| version.text());
    if newest.is_some_and(is_recalled) {
        return RecallAction::Ignore;
    }
    let step = |version: &StoredVersion<'_>| match version {
        StoredVersion::InWindow(message) if !is_recalled(message) => {
            RecallStep::Replace(Box::new(recalled(message, recall)))
        }
        StoredVersion::InPipeline(_) => RecallStep::TrashLetter,
        _ => RecallStep::Keep,
    };
    let steps: Vec<_> = versions.iter().map(step).collect();
    let is_replaced = steps.iter().any(|step| matches!(step, RecallStep::Replace(_)));
    let is_merged = versions.iter().any(|version| matches!(version, StoredVersion::Merged(_)));
    let follow_up = match newest {
        _ if is_replaced || !is_merged => RecallFollowUp::None,
        Some(previous) => RecallFollowUp::Message(Box::new(recall_message(previous, recall))),
        None => RecallFollowUp::EventOnly,
    };
    if follow_up == RecallFollowUp::None && steps.iter().all(|step| *step == RecallStep::Keep) {
        return RecallAction::Ignore;
    }
    RecallAction::Apply { steps, follow_up }
}

/// The message in a merge window after its recall.
fn recalled(previous: &InboundMessage, recall: &MessageRecall) -> InboundMessage {
    InboundMessage {
        title: None,
        text: recall_text(previous, recall).to_owned(),
        mentions: Vec::new(),
        artifacts: Vec::new(),
        ..previous.clone()
    }
}

/// The message that follows a message which is in a Mail.
fn recall_message(previous: &InboundMessage, recall: &MessageRecall) -> InboundMessage {
    let from = recall.by.clone().unwrap_or_else(|| previous.from.clone());
    let (session, text) = (recall.session.clone(), recall_text(previous, recall));
    InboundMessage {
        at: recall.at,
        corrects: Some(recall.message_id.clone()),
        ..InboundMessage::new(&recall.recall_id, session, from, text)
    }
}

/// Whether an edit changes the text or the mentions, or adds a file. A provider reports an edit
/// also when it has added a preview of a link.
fn is_changed(previous: &InboundMessage, edited: &InboundMessage) -> bool {
    let mentions = |message: &InboundMessage| -> BTreeSet<String> {
        message.mentions.iter().cloned().collect()
    };
    previous.text != edited.text
        || mentions(previous) != mentions(edited)
        || new_files(previous, edited).next().is_some()
}

/// The files of the edited message that the previous version does not have.
fn new_files<'m>(
    previous: &'m InboundMessage,
    edited: &'m InboundMessage,
) -> impl Iterator<Item = &'m Artifact> {
    let known: BTreeSet<_> = previous.artifacts.iter().map(|artifact| &artifact.name).collect();
    edited.artifacts.iter().filter(move |artifact| !known.contains(&artifact.name))
}

/// The previous version with the content of the edited message. Its files stay, so that files
/// that are being fetched keep their positions.
fn replaced(previous: &InboundMessage, edited: &InboundMessage) -> InboundMessage {
    let mut artifacts = previous.artifacts.clone();
    artifacts.extend(new_files(previous, edited).cloned());
    InboundMessage {
        title: edited.title.clone(),
        text: edited.text.clone(),
        mentions: edited.mentions.clone(),
        artifacts,
        ..previous.clone()
    }
}

/// The message that follows a message which is not stored any more or is in a Mail.
fn correction(previous: Option<&InboundMessage>, edit: &MessageEdit) -> InboundMessage {
    let edited = &edit.message;
    let artifacts = match previous {
        Some(previous) => new_files(previous, edited).cloned().collect(),
        None => edited.artifacts.clone(),
    };
    InboundMessage {
        id: edit.edit_id.clone(),
        corrects: Some(edited.id.clone()),
        artifacts,
        ..edited.clone()
    }
}

fn is_recalled(message: &InboundMessage) -> bool {
    [RECALLED_BY_AUTHOR, REMOVED_BY_OTHER].contains(&message.text.as_str())
        && message.artifacts.is_empty()
}

fn recall_text(previous: &InboundMessage, recall: &MessageRecall) -> &'static str {
    match &recall.by {
        Some(by) if by.id != previous.from.id && previous.corrects.is_none() => REMOVED_BY_OTHER,
        _ => RECALLED_BY_AUTHOR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbound::Participant;
    use crate::inbound::tests::message;

    fn edit(text: &str) -> MessageEdit {
        MessageEdit { edit_id: "e-1".to_owned(), message: message("1", "ann", text) }
    }

    fn recall(by: Option<&str>) -> MessageRecall {
        MessageRecall {
            recall_id: "r-1".to_owned(),
            message_id: "1".to_owned(),
            session: message("1", "ann", "").session,
            by: by.map(|by| Participant::user(by, None)),
            at: None,
        }
    }

    #[test]
    fn edit_changes_what_waits_and_follows_what_was_merged() {
        use StoredVersion::{InPipeline, InWindow, Merged, NotKept, Unknown};
        let (old, new) = (message("1", "ann", "helo"), edit("hello"));
        let replaced = || EditAction::Replace(Box::new(message("1", "ann", "hello")));
        let follow_up = || {
            let corrects = Some("1".to_owned());
            let message = InboundMessage { corrects, ..message("e-1", "ann", "hello") };
            EditAction::FollowUp(Box::new(message))
        };
        for (stored, has_chain, want) in [
            (Unknown, false, EditAction::StoreAsNew),
            (Unknown, true, EditAction::StoreAsNew),
            (NotKept, false, EditAction::Ignore),
            (InWindow(&old), false, replaced()),
            (InWindow(&old), true, follow_up()),
            (InPipeline(Some(&old)), true, follow_up()),
            (InPipeline(None), true, follow_up()),
            (Merged(Some(&old)), false, follow_up()),
            (Merged(None), false, follow_up()),
            (InWindow(&new.message), false, EditAction::Ignore),
            (InPipeline(Some(&new.message)), true, EditAction::Ignore),
            (Merged(Some(&new.message)), false, EditAction::Ignore),
        ] {
            assert_eq!(decide_edit(stored, &new, has_chain), want, "{stored:?}, {has_chain}");
        }
    }

    #[test]
    fn repeated_mention_is_no_change_and_a_new_mention_is_one() {
        let mut old = message("1", "ann", "hi");
        old.mentions = vec!["bot".to_owned(), "bob".to_owned()];
        let mut same = edit("hi");
        same.message.mentions = vec!["bob".to_owned(), "bot".to_owned(), "bot".to_owned()];
        assert_eq!(
            decide_edit(StoredVersion::Merged(Some(&old)), &same, false),
            EditAction::Ignore
        );
        same.message.mentions.push("eve".to_owned());
        let changed = decide_edit(StoredVersion::Merged(Some(&old)), &same, false);
        assert!(matches!(changed, EditAction::FollowUp(_)), "{changed:?}");
    }

    #[test]
    fn files_stay_and_only_new_ones_are_added() {
        let file = |name: &str| Artifact { name: name.to_owned(), ..Artifact::default() };
        let (mut old, mut new) = (message("1", "ann", "hi"), edit("hi"));
        old.artifacts = vec![file("a")];
        new.message.artifacts = vec![file("b"), file("a")];
        let EditAction::Replace(replaced) = decide_edit(StoredVersion::InWindow(&old), &new, false)
        else {
            panic!("a new file is a change")
        };
        assert_eq!(replaced.artifacts, [file("a"), file("b")]);
        let EditAction::FollowUp(next) =
            decide_edit(StoredVersion::Merged(Some(&old)), &new, false)
        else {
            panic!("a new file is a change")
        };
        assert_eq!(next.artifacts, [file("b")]);
        new.message.artifacts.clear();
        let removed = decide_edit(StoredVersion::InWindow(&old), &new, false);
        assert_eq!(removed, EditAction::Ignore, "an edit removes no file");
    }

    #[test]
    fn edit_does_not_bring_back_a_recalled_text() {
        let recalled = message("1", "ann", RECALLED_BY_AUTHOR);
        for stored in [
            StoredVersion::InWindow(&recalled),
            StoredVersion::InPipeline(Some(&recalled)),
            StoredVersion::Merged(Some(&recalled)),
        ] {
            assert_eq!(decide_edit(stored, &edit("secret"), false), EditAction::Ignore);
        }
    }

    fn apply(steps: Vec<RecallStep>) -> RecallAction {
        RecallAction::Apply { steps, follow_up: RecallFollowUp::None }
    }

    #[test]
    fn recall_replaces_trashes_or_follows() {
        let mut old = message("1", "ann", "secret");
        old.mentions = vec!["bot".to_owned()];
        let mark =
            |text: &str| apply(vec![RecallStep::Replace(Box::new(message("1", "ann", text)))]);
        let by_ann = recall(Some("ann"));
        let in_window = [StoredVersion::InWindow(&old)];
        assert_eq!(decide_recall(&in_window, &by_ann), mark(RECALLED_BY_AUTHOR));
        assert_eq!(decide_recall(&in_window, &recall(None)), mark(RECALLED_BY_AUTHOR));
        let by_admin = decide_recall(&in_window, &recall(Some("admin")));
        assert_eq!(by_admin, mark(REMOVED_BY_OTHER));
        assert_eq!(decide_recall(&[], &by_ann), RecallAction::RejectLater);
        let recalled = message("1", "ann", RECALLED_BY_AUTHOR);
        let (steps, follow_up) = (vec![RecallStep::Keep], RecallFollowUp::EventOnly);
        for (stored, want) in [
            (StoredVersion::NotKept, RecallAction::Ignore),
            (StoredVersion::InPipeline(Some(&old)), apply(vec![RecallStep::TrashLetter])),
            (StoredVersion::InPipeline(None), apply(vec![RecallStep::TrashLetter])),
            (StoredVersion::Merged(None), RecallAction::Apply { steps, follow_up }),
            (StoredVersion::InWindow(&recalled), RecallAction::Ignore),
            (StoredVersion::InPipeline(Some(&recalled)), RecallAction::Ignore),
            (StoredVersion::Merged(Some(&recalled)), RecallAction::Ignore),
        ] {
            assert_eq!(decide_recall(&[stored], &by_ann), want, "{stored:?}");
        }
        let action = decide_recall(&[StoredVersion::Merged(Some(&old))], &recall(None));
        let RecallAction::Apply { follow_up: RecallFollowUp::Message(next), .. } = action else {
            panic!("{action:?}")
        };
        assert_eq!((next.id.as_str(), next.corrects.as_deref()), ("r-1", Some("1")));
        assert_eq!((next.from.id.as_str(), next.text.as_str()), ("ann", RECALLED_BY_AUTHOR));
        assert!(next.mentions.is_empty());
    }

    #[test]
    fn recall_concerns_every_version() {
        use StoredVersion::{InPipeline, InWindow, Merged, NotKept};
        let (old, new) = (message("1", "ann", "secret"), edit("secrets").message);
        let replace = |message: &InboundMessage| {
            let text = RECALLED_BY_AUTHOR.to_owned();
            RecallStep::Replace(Box::new(InboundMessage { text, ..message.clone() }))
        };
        let trash = || RecallStep::TrashLetter;
        for (versions, want) in [
            ([InPipeline(None), InPipeline(Some(&new))], [trash(), trash()]),
            ([InWindow(&old), InPipeline(Some(&new))], [replace(&old), trash()]),
            ([InPipeline(None), InWindow(&new)], [trash(), replace(&new)]),
            ([InPipeline(Some(&old)), NotKept], [trash(), RecallStep::Keep]),
            ([InWindow(&old), InWindow(&new)], [replace(&old), replace(&new)]),
            ([Merged(None), InWindow(&new)], [RecallStep::Keep, replace(&new)]),
        ] {
            let action = decide_recall(&versions, &recall(Some("ann")));
            assert_eq!(action, apply(want.to_vec()), "{versions:?}");
        }
        for newest in [InPipeline(Some(&new)), NotKept] {
            let action = decide_recall(&[Merged(Some(&old)), newest], &recall(Some("ann")));
            let RecallAction::Apply { steps, follow_up } = action else { panic!("{action:?}") };
            let trashed = matches!(newest, InPipeline(_));
            assert_eq!(steps[1], if trashed { trash() } else { RecallStep::Keep });
            assert!(matches!(follow_up, RecallFollowUp::Message(_)), "{follow_up:?}");
        }
    }
}
