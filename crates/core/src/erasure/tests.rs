//! Tables of what an erasure does with each kind of stored text.

use serde_json::json;

use super::*;
use crate::did::EndpointKind;
use crate::inbound::tests::message;
use crate::inbound::{Artifact, ChatSessionKind};
use crate::mail::Trust;
use crate::merge::MailBuilder;

const SECRET: &str = "the secret of ann";

fn authors(dids: &[&str]) -> ErasedAuthors {
    ErasedAuthors(dids.iter().map(|did| did.parse().unwrap()).collect())
}

fn ann() -> ErasedAuthors {
    authors(&["did:web:ann", "did:msgtunnel:ann.user.lark"])
}

fn tunnel() -> TunnelId {
    "lark".parse().unwrap()
}

/// A message with a value in every field that its author chooses.
fn full(id: &str, from: &str, text: &str) -> InboundMessage {
    let person = Participant {
        id: format!("{from}-friend"),
        kind: EndpointKind::User,
        name: Some(text.to_owned()),
    };
    let hash = Some(ObjId::of(ObjKind::Bytes, text.as_bytes()));
    let (name, mime_type) = (text.to_owned(), text.to_owned());
    InboundMessage {
        from: Participant {
            id: from.to_owned(),
            kind: EndpointKind::User,
            name: Some(format!("{text}, name")),
        },
        to: vec![person.clone()],
        cc: vec![person],
        title: Some(format!("{text}, title")),
        mentions: vec![text.to_owned()],
        reply_to: Some(text.to_owned()),
        forwarded_from: Some(text.to_owned()),
        correlation_id: Some(text.to_owned()),
        artifacts: vec![Artifact {
            name,
            mime_type,
            size: Some(1),
            hash,
            url: Some(text.into()),
            ..Artifact::default()
        }],
        ..message(id, from, &format!("{text} @monoco::alpha"))
    }
}

fn mail(messages: Vec<InboundMessage>) -> BuiltMail {
    let (provider, owner) = ("lark".to_owned(), "did:monoco:me".parse().unwrap());
    let (tunnel, trust) = (tunnel(), Trust::Known);
    let builder = MailBuilder { tunnel, provider, owner, binding: None, trust, messages };
    builder.build(Timestamp::from_ms(60_000)).unwrap()
}

/// The action for a Mail with one message of each author, in one letter each.
fn action(names: &[&str], erase: &ErasedAuthors) -> &'static str {
    let messages = names.iter().enumerate().map(|(n, from)| message(&n.to_string(), from, "hi"));
    match erase.action(&mail(messages.collect()).object, true) {
        ErasureAction::Keep => "keep",
        ErasureAction::Tombstone { .. } => "tombstone",
        ErasureAction::Rewrite { .. } => "rewrite",
    }
}

#[test]
fn mail_is_kept_rewritten_or_erased_by_its_authors() {
    for (names, expected) in [
        (&["ann"][..], "tombstone"),
        (&["ann", "ann"], "tombstone"),
        (&["bob"], "keep"),
        (&["bob", "Ann"], "keep"),
        (&["bob", "ann"], "rewrite"),
        (&["ann", "bob", "joe"], "rewrite"),
    ] {
        assert_eq!(action(names, &ann()), expected, "{names:?}");
    }
    let other_tunnel = authors(&["did:msgtunnel:ann.user.slack", "did:msgtunnel:ann.group.lark"]);
    assert_eq!(action(&["ann"], &other_tunnel), "keep");
    assert_eq!(action(&["ann"], &authors(&["did:web:ann"])), "keep", "the account is not bound");
    assert_eq!(action(&["ann"], &ErasedAuthors::default()), "keep");
}

#[test]
fn message_is_erased_by_its_author_and_not_by_its_recipients() {
    let chat = |from: &str, to: &str| {
        let msg = json!({"from": from, "to": [to], "kind": "chat", "content": {"content": "hi"}});
        ann().action(&MsgObject::from_json(msg).unwrap(), false)
    };
    let erased = ErasureAction::Tombstone { messages: 0 };
    assert_eq!(chat("did:web:ann", "did:web:bob"), erased);
    assert_eq!(chat("did:msgtunnel:ann.user.lark", "did:web:bob"), erased);
    assert_eq!(chat("did:web:bob", "did:web:ann"), ErasureAction::Keep);
    let group = json!({"from": "did:web:team", "source": "did:web:ann", "to": ["did:web:team"],
                       "kind": "group_msg", "content": {"content": "hi"}});
    assert_eq!(ann().action(&MsgObject::from_json(group).unwrap(), false), erased);
    // A dispatched message that looks like a Mail is the text of its author.
    let BuiltMail { object, .. } = mail(vec![message("1", "ann", "hi"), message("2", "bob", "ho")]);
    assert_eq!(ann().action(&object, false), erased);
}

#[test]
fn receipts_are_erased_by_their_reader() {
    let receipt = |reader: &str| {
        let receipt = json!({"msg_id": ObjId::of(ObjKind::Msg, b"1"), "iss": reader,
            "reader": reader, "group_id": null, "at_ms": 1, "status": "rejected", "reason": "no"});
        ann().action_for_receipt(&serde_json::from_value(receipt).unwrap())
    };
    assert_eq!(receipt("did:web:ann"), ErasureAction::Tombstone { messages: 0 });
    assert_eq!(receipt("did:web:bob"), ErasureAction::Keep);
}

#[test]
fn letters_are_erased_by_did_or_address() {
    let joe = authors(&["did:msgtunnel:joe%40example%2Ecom.addr.mail"]);
    let mail: TunnelId = "mail".parse().unwrap();
    for (from, through, wrote) in [
        ("joe@example.com", Some(&mail), true),
        ("Joe@Example.com", Some(&mail), true),
        ("joe@example.com", None, true),
        ("joe@example.com", Some(&tunnel()), false),
        ("ann@example.com", None, false),
        ("did:msgtunnel:joe%40example%2Ecom.addr.mail", None, true),
        ("did:web:joe", None, false),
    ] {
        assert_eq!(joe.wrote_letter(from, through), wrote, "{from} {through:?}");
    }
}

#[test]
fn rewritten_mail_has_nothing_of_the_person_and_all_of_the_others() {
    let messages = vec![full("1", "ann", SECRET), full("2", "bob", "bob's own"), {
        InboundMessage { title: None, ..full("3", "ann", SECRET) }
    }];
    let before = mail(messages);
    let ErasureAction::Rewrite { mail: after, messages: 2 } = ann().action(&before.object, true)
    else {
        panic!("not rewritten");
    };
    for text in [after.object.canonical(), &after.mail.render()] {
        assert!(!text.contains(SECRET), "{text}");
        assert!(text.contains("bob's own @monoco::alpha") && text.contains("bob's own, title"));
        assert_eq!(text.matches(ERASED_TEXT).count() % 2, 0, "each message once per copy");
    }
    let (old, new) = (&before.mail.header, &after.mail.header);
    assert_eq!((&new.id, &new.session, new.received_at), (&old.id, &old.session, old.received_at));
    assert_eq!(
        (new.timestamp, &new.answer_to, new.trust),
        (old.timestamp, &old.answer_to, old.trust)
    );
    let ids: Vec<_> = after.mail.messages.iter().map(|message| message.id.as_str()).collect();
    assert_eq!(ids, ["1", "2", "3"], "the provider's ids stay");
    assert_eq!(after.object.author(), before.object.author());
    assert_ne!(after.object.id(), before.object.id());
    assert_eq!(attachments(after.object.canonical()).collect::<BTreeSet<_>>().len(), 1);

    // The file reproduces the object, so that a rebuild from files works.
    let owner = "did:monoco:me".parse().unwrap();
    assert_eq!(merge::restore(&after.mail.render(), &owner).as_ref(), Ok(&*after));
    // A second erasure changes nothing; that of the other author leaves no text.
    assert_eq!(ann().action(&after.object, true), ErasureAction::Keep);
    let bob = authors(&["did:msgtunnel:bob.user.lark"]);
    assert_eq!(bob.action(&after.object, true), ErasureAction::Tombstone { messages: 1 });
}

#[test]
fn tombstone_of_an_index_entry_keeps_ids_only() {
    let direct = InboundMessage {
        session: ChatSession {
            id: "chat".to_owned(),
            kind: ChatSessionKind::Direct,
            name: Some(SECRET.to_owned()),
            thread_key: Some(SECRET.to_owned()),
        },
        ..full("1", "ann", SECRET)
    };
    let BuiltMail { mail, .. } = mail(vec![direct]);
    let entry = mail.entry(7, &mail.render());
    let at = Timestamp::from_ms(90_000);
    let erased = tombstone_entry(&entry, at);
    let json = json!(erased).to_string();
    assert!(!json.contains(SECRET), "{json}");
    assert_eq!((erased.seq, &erased.id, &erased.file), (7, &entry.id, &entry.file));
    assert_eq!((erased.preview.as_str(), erased.tombstone()), (ERASED_TEXT, Some(at)));
    assert_eq!(entry.tombstone(), None);
    assert_eq!(serde_json::from_str::<MailIndexEntry>(&json).unwrap(), erased);
}

#[test]
fn search_terms_occur_in_everything_that_the_person_wrote() {
    let quoted = r#"a"n\n"#;
    let erase = authors(&["did:web:ann", "did:msgtunnel:a%22n%5Cn.user.lark"]);
    let contains = |text: &str| erase.search_terms().iter().any(|term| text.contains(term));
    let sent = json!({"from": "did:web:ann", "to": ["did:web:b"], "kind": "chat", "content": {}});
    assert!(contains(MsgObject::from_json(sent).unwrap().canonical()));
    let messages = vec![message("1", "bob", "x"), message("2", quoted, "x")];
    assert!(contains(mail(messages).object.canonical()));
    assert!(contains(message("2", quoted, "x").validate().unwrap().json()));
    assert!(!contains(mail(vec![message("1", "bob", "x")]).object.canonical()));
}

#[test]
fn attachments_are_found_in_any_text() {
    let (one, two) = (ObjId::of(ObjKind::Bytes, b"1"), ObjId::of(ObjKind::Bytes, b"2"));
    let text = format!("{{\"hash\":\"{one}\"}} * log.txt {two} sha256:12 sha256:é {}", {
        ObjId::of(ObjKind::Msg, b"3")
    });
    assert_eq!(attachments(&text).collect::<Vec<_>>(), [one, two]);
}
