//! Messages become letters and letters messages, and nothing is lost on the way.

use proptest::prelude::*;

use super::*;
use crate::inbound::tests::hostile;
use crate::inbound::{ChatSession, ChatSessionKind, Participant};
use crate::object::ObjKind;

fn id() -> LetterId {
    LetterId { seq: 7, mark: 0xabc }
}

fn tunnel() -> TunnelId {
    "lark-main".parse().unwrap()
}

fn message() -> InboundMessage {
    let (name, kind) = (Some("Ops".to_owned()), ChatSessionKind::Group);
    let session = ChatSession { id: "oc_42".to_owned(), kind, name, thread_key: None };
    let from = Participant::user("ou_7", Some("Ann".to_owned()));
    InboundMessage {
        at: Some(Timestamp::from_ms(1_000)),
        received_at: Timestamp::from_ms(2_000),
        title: Some("Build".to_owned()),
        ..InboundMessage::new("om_1", session, from, "it is **red**")
    }
}

fn msg(more: Value) -> MsgObject {
    let mut value = json!({
        "from": "did:monoco:me",
        "to": ["did:msgtunnel:oc_42.group.lark-main"],
        "kind": "chat",
        "created_at_ms": 1_000,
        "content": {"format": "text/markdown", "content": "it is **red**", "title": "Build"},
        "proof": "signed",
        "meta": {"unknown": true},
    });
    for (key, field) in more.as_object().unwrap() {
        value[key] = field.clone();
    }
    MsgObject::from_json(value).unwrap()
}

fn fields(msg: &MsgObject) -> Value {
    serde_json::from_str(msg.canonical()).unwrap()
}

fn email() -> InboundMessage {
    let session = ChatSession { id: "Team@Example.com".to_owned(), ..ChatSession::default() };
    let from = Participant::mailbox("ann@example.org", None);
    let title = Some("Build".to_owned());
    InboundMessage { title, ..InboundMessage::new("<1@x>#0", session, from, "it is red") }
}

#[test]
fn inbound_mail_becomes_a_letter_with_its_header() {
    let tunnel: TunnelId = "mail".parse().unwrap();
    let plain = Letter::from_inbound(&email(), &tunnel, "email").unwrap();
    assert_eq!(plain.from, "did:msgtunnel:ann%40example%2Eorg.addr.mail");
    assert_eq!(plain.to, ["did:msgtunnel:Team%40example%2Ecom.addr.mail"], "our own address");
    let mail = b"Subject: Build\r\n\r\nit is red\r\n";
    let letter = plain.clone().with_mail(mail);
    assert!(letter.is_mail() && letter.data.as_bytes() == mail);
    assert_eq!(letter.extra("subject"), Some("Build"));
    let latin1 = plain.clone().with_mail(b"Subject: caf\xe9\r\n\r\n");
    assert_eq!(latin1.extra("charset"), Some("latin-1"));
    assert_eq!(&*latin1.bytes(), b"Subject: caf\xe9\r\n\r\n");
    let large = vec![b'x'; MAX_DATA + 1];
    assert_eq!(plain.clone().with_mail(&large), plain, "falls back to the text");
    let large = vec![0xe9; MAX_DATA / 2 + 1];
    assert_eq!(plain.clone().with_mail(&large), plain, "each byte takes two");
}

#[test]
fn message_of_a_mail_keeps_its_text_and_takes_a_changed_subject() {
    let tunnel: TunnelId = "mail".parse().unwrap();
    let letter = Letter::from_inbound(&email(), &tunnel, "email").unwrap();
    let mut letter = letter.with_mail(b"Subject: Build\r\n\r\nit is red\r\n");
    let finish = |letter: &Letter, header: Option<&str>| {
        let header = header.map(str::to_owned);
        apply_mail_to_inbound(&email(), letter, header).unwrap().into_message()
    };
    assert_eq!(finish(&letter, None), email());
    letter.extra.insert("subject".to_owned(), json!("[ci] Build"));
    letter.data.push_str("-- \r\na footer\r\n");
    let title = Some("[ci] Build".to_owned());
    assert_eq!(finish(&letter, None), InboundMessage { title, ..email() });
    let title = Some("from the header".to_owned());
    assert_eq!(finish(&letter, Some("from the header")), InboundMessage { title, ..email() });
    let long = finish(&letter, Some(&"x".repeat(5000))).title.unwrap();
    assert!(long.ends_with("[cut: 5000 bytes]"), "{long}");
}

#[test]
fn inbound_message_becomes_a_letter() {
    let letter = Letter::from_inbound(&message(), &tunnel(), "lark").unwrap();
    assert_eq!(letter.from, "did:msgtunnel:ou_7.user.lark-main");
    assert_eq!(letter.to, ["did:msgtunnel:oc_42.group.lark-main"]);
    assert_eq!(letter.data, "it is **red**");
    assert_eq!(
        Value::from(letter.extra),
        json!({"content_type": "text/markdown", "direction": "inbound", "tunnel": "lark-main",
               "provider": "lark", "external_id": "om_1", "from_name": "Ann", "subject": "Build",
               "session": {"id": "oc_42", "type": "group", "name": "Ops"}})
    );
    let private = ChatSession { kind: ChatSessionKind::Direct, ..message().session };
    let letter =
        Letter::from_inbound(&InboundMessage { session: private, ..message() }, &tunnel(), "lark")
            .unwrap();
    assert_eq!(letter.to, ["did:msgtunnel:ou_7.user.lark-main"]);
}

#[test]
fn changes_of_workers_apply_to_the_inbound_message() {
    let mut letter = Letter::from_inbound(&message(), &tunnel(), "lark").unwrap();
    letter.data = "it is green".to_owned();
    letter.extra.insert("subject".to_owned(), json!("Good news"));
    letter.extra.insert("spam".to_owned(), json!({"score": 1}));
    let title = Some("Good news".to_owned());
    let want = InboundMessage { text: "it is green".to_owned(), title, ..message() };
    assert_eq!(apply_to_inbound(&message(), &letter).unwrap().into_message(), want);
    letter.data = "x".repeat(crate::inbound::MAX_MESSAGE_BYTES);
    assert!(matches!(apply_to_inbound(&message(), &letter), Err(FinishError::Inbound(_))));
}

#[test]
fn message_becomes_a_letter() {
    let msg = msg(json!({}));
    let letter = Letter::from_message(&msg, ChainDirection::Outbound);
    assert_eq!(letter.from, "did:monoco:me");
    assert_eq!(letter.to, ["did:msgtunnel:oc_42.group.lark-main"]);
    assert_eq!(letter.data, "it is **red**");
    assert_eq!(
        Value::from(letter.extra),
        json!({"content_type": "text/markdown", "direction": "outbound", "msg_id": msg.id(),
               "kind": "chat", "subject": "Build"})
    );
}

#[test]
fn letter_counts_what_its_message_has_beside_text() {
    let entry = json!({"role": "attachment", "target": {"hash": "sha256:00"}});
    let content = json!({"content": "see", "refs": [entry, entry], "machine": {"data": 1}});
    for (content, attached) in [
        (content, Some(json!(3))),
        (json!({"content": "see", "refs": [entry]}), Some(json!(1))),
        (json!({"content": "see", "refs": []}), None),
    ] {
        let letter =
            Letter::from_message(&msg(json!({"content": content})), ChainDirection::Outbound);
        assert_eq!(letter.extra.get("attached"), attached.as_ref());
    }
}

#[test]
fn letter_of_a_group_message_is_from_its_author() {
    let group = json!({"kind": "group_msg", "from": "did:monoco:team", "source": "did:monoco:ann",
                       "to": []});
    let msg = msg(group);
    let mut letter = Letter::from_message(&msg, ChainDirection::Inbound);
    assert_eq!(letter.from, "did:monoco:ann");
    assert!(letter.to.is_empty());
    assert_eq!(apply_to_message(&msg, &letter, id()).unwrap().id(), msg.id());
    letter.from = "did:monoco:eve".to_owned();
    let after = apply_to_message(&msg, &letter, id()).unwrap();
    assert_eq!(
        (after.author().as_str(), after.from.as_str()),
        ("did:monoco:eve", "did:monoco:team")
    );
}

#[test]
fn unchanged_letter_becomes_the_same_message() {
    for direction in ChainDirection::ALL {
        let msg = msg(json!({}));
        let mut letter = Letter::from_message(&msg, direction);
        letter.extra.insert("spam".to_owned(), json!({"score": 1}));
        letter.rest.insert("campaign".to_owned(), json!("autumn"));
        assert_eq!(apply_to_message(&msg, &letter, id()).unwrap(), msg);
    }
}

#[test]
fn changed_message_is_another_one_and_names_its_letter() {
    let msg = msg(json!({}));
    let letter = || Letter::from_message(&msg, ChainDirection::Outbound);
    let mut text = letter();
    text.data.push_str(", still");
    let mut title = letter();
    title.extra.insert("subject".to_owned(), json!("[Team] Build"));
    let mut untitled = letter();
    untitled.extra.remove("subject");
    let mut to = letter();
    to.to = vec!["did:monoco:bob".to_owned()];
    let mut from = letter();
    from.from = "did:monoco:eve".to_owned();
    for (letter, at, want) in [
        (text, "/content/content", json!("it is **red**, still")),
        (title, "/content/title", json!("[Team] Build")),
        (untitled, "/content/title", Value::Null),
        (to, "/to", json!(["did:monoco:bob"])),
        (from, "/from", json!("did:monoco:eve")),
    ] {
        let after = apply_to_message(&msg, &letter, id()).unwrap();
        assert_ne!(after.id(), msg.id());
        let fields = fields(&after);
        assert_eq!(fields.pointer(at).cloned().unwrap_or_default(), want);
        assert_eq!(fields["letter"], json!("ltr_7_00000abc"));
        assert!(fields.get("proof").is_none(), "what was signed is another message");
        assert_eq!(fields["meta"], json!({"unknown": true}), "and the rest is as it was");
    }
}

#[test]
fn invalid_result_is_rejected() {
    let msg = msg(json!({}));
    let mut letter = Letter::from_message(&msg, ChainDirection::Outbound);
    letter.to = vec!["ann@example.com".to_owned()];
    assert!(matches!(apply_to_message(&msg, &letter, id()), Err(FinishError::Object(_))));
    let mut letter = Letter::from_message(&msg, ChainDirection::Outbound);
    letter.data = "x".repeat(crate::object::MAX_OBJECT);
    let error = apply_to_message(&msg, &letter, id()).unwrap_err();
    assert!(matches!(error, FinishError::Object(InvalidObject::TooLarge { .. })), "{error}");
}

fn submitted(content_type: &str) -> Letter {
    Letter {
        from: "sender@example.com".to_owned(),
        to: vec!["ann@example.com".to_owned(), "did:monoco:bob".to_owned()],
        data: "Subject: x\n\nhi".to_owned(),
        extra: json!({"content_type": content_type}).as_object().unwrap().clone(),
        rest: Map::new(),
    }
}

fn sealing(tunnel: Option<&TunnelId>) -> FinishContext<'_> {
    FinishContext {
        id: id(),
        at: Timestamp::from_ms(5_000),
        tunnel,
        bytes: None,
        mail_subject: Some("x"),
    }
}

#[test]
fn submitted_mail_becomes_a_message() {
    let tunnel = "work-mail".parse().unwrap();
    let msg = letter_to_message(&submitted(RFC822), sealing(Some(&tunnel))).unwrap();
    assert_eq!(
        fields(&msg),
        json!({"from": "did:msgtunnel:sender%40example%2Ecom.addr.work-mail",
               "to": ["did:msgtunnel:ann%40example%2Ecom.addr.work-mail", "did:monoco:bob"],
               "kind": "deliver", "created_at_ms": 5_000, "letter": "ltr_7_00000abc",
               "content": {"title": "x", "format": "message/rfc822",
                           "content": "Subject: x\n\nhi"}})
    );
    let mut bytes = submitted(RFC822);
    bytes.set_bytes(b"Subject: x\n\ncaf\xe9".to_vec());
    bytes.extra.insert("subject".to_owned(), json!("what workers say"));
    let content = &fields(&letter_to_message(&bytes, sealing(Some(&tunnel))).unwrap())["content"];
    assert_eq!(content["charset"], "latin-1");
    assert_eq!(content["title"], "what workers say");
}

#[test]
fn submitted_chat_becomes_chat() {
    let tunnel = "work-mail".parse().unwrap();
    let chat = FinishContext { mail_subject: None, ..sealing(Some(&tunnel)) };
    let msg = letter_to_message(&submitted("text/markdown"), chat).unwrap();
    assert_eq!(
        (&fields(&msg)["kind"], &fields(&msg)["content"]["format"]),
        (&json!("chat"), &json!("text/markdown"))
    );
}

#[test]
fn letters_with_the_same_text_are_two_messages() {
    let tunnel = "work-mail".parse().unwrap();
    let one = letter_to_message(&submitted(RFC822), sealing(Some(&tunnel))).unwrap();
    let again = letter_to_message(&submitted(RFC822), sealing(Some(&tunnel))).unwrap();
    assert_eq!(one.id(), again.id(), "one letter is one message, however often it is made");
    let id = LetterId { seq: 8, mark: 0xabc };
    let other =
        letter_to_message(&submitted(RFC822), FinishContext { id, ..sealing(Some(&tunnel)) })
            .unwrap();
    assert_ne!(one.id(), other.id());
}

#[test]
fn address_without_a_tunnel_is_rejected() {
    let error = letter_to_message(&submitted(RFC822), sealing(None)).unwrap_err();
    assert_eq!(error, FinishError::NoTunnel("ann@example.com".to_owned()));
    assert!(error.to_string().contains("extra.tunnel"), "{error}");
    let from = Letter { to: vec!["did:monoco:bob".to_owned()], ..submitted(RFC822) };
    let error = letter_to_message(&from, sealing(None)).unwrap_err();
    assert_eq!(error, FinishError::NoTunnel("sender@example.com".to_owned()));
    let dids = Letter { from: "did:monoco:me".to_owned(), ..from };
    assert!(letter_to_message(&dids, sealing(None)).is_ok(), "DIDs need no tunnel");
}

#[test]
fn large_mail_is_stored_as_an_attachment() {
    let tunnel = "work-mail".parse().unwrap();
    let hash = ObjId::of(ObjKind::Bytes, b"mail");
    let letter = Letter { data: "x".repeat(2 << 20), ..submitted(RFC822) };
    let own = FinishContext { bytes: Some((hash, 2 << 20)), ..sealing(Some(&tunnel)) };
    let content = &fields(&letter_to_message(&letter, own).unwrap())["content"];
    assert!(content.get("content").is_none());
    let target = json!({"hash": hash, "name": "mail.eml", "mime_type": RFC822, "size": 2 << 20});
    assert_eq!(content["refs"], json!([{"role": "attachment", "target": target}]));
    let error = letter_to_message(&letter, sealing(Some(&tunnel))).unwrap_err();
    assert!(matches!(error, FinishError::Object(InvalidObject::TooLarge { .. })), "{error}");
}

proptest! {
    #[test]
    fn unchanged_letter_becomes_the_same_inbound_message(
        text in hostile(), title in prop::option::of(hostile()), name in prop::option::of(hostile()),
        account in "\\PC{1,20}",
    ) {
        let from = Participant::user(account, name);
        let message = InboundMessage { text, title, from, ..message() };
        let letter = Letter::from_inbound(&message, &tunnel(), "lark").unwrap();
        prop_assert_eq!(apply_to_inbound(&message, &letter).unwrap().into_message(), message);
    }

    #[test]
    fn hostile_text_changes_no_message(text in hostile(), title in prop::option::of(hostile())) {
        let msg = msg(json!({"content": {"content": text, "title": title}}));
        for direction in ChainDirection::ALL {
            let letter = Letter::from_message(&msg, direction);
            prop_assert_eq!(apply_to_message(&msg, &letter, id()).unwrap().id(), msg.id());
        }
    }
}
