//! Tests of merging: when a window closes, and what the Mail then says.

use proptest::prelude::*;

use super::*;
use crate::inbound::tests::{any_message, any_session, message};
use crate::inbound::{Artifact, MAX_NAME_BYTES, MAX_URL_BYTES, Participant};
use crate::mail::Mail;

fn ms(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

fn at(secs: i64) -> Timestamp {
    ms(secs * 1000)
}

/// Takes the seconds of messages, such as `"0 2 4"`, and returns the second at which the
/// first window closes.
fn closes_at(times: &str) -> i64 {
    let debounce = Debounce::DEFAULT;
    let mut times = times.split(' ').map(|secs| at(secs.parse().unwrap()));
    let mut window = MergeWindow::open(times.next().unwrap(), 1);
    for now in times {
        let Some(joined) = window.join(&debounce, now, 1) else { break };
        window = joined;
    }
    window.closes_at(&debounce).ms() / 1000
}

#[test]
fn window_closes_five_seconds_after_its_last_message() {
    for (times, closed) in [
        ("0", 5),
        ("0 0 0", 5),
        ("0 2 4", 9),
        ("0 4 8", 13),
        // A message after the end opens the next window.
        ("0 5", 5),
        ("0 4 9 10", 9),
        ("0 3600", 5),
        // A clock that was set back neither closes the window nor keeps it open.
        ("10 8", 15),
        ("10 -99", 15),
    ] {
        assert_eq!(closes_at(times), closed, "{times}");
    }
}

#[test]
fn window_closes_after_30_seconds_at_the_latest() {
    assert_eq!(closes_at("0 4 8 12 16 20 24 28"), 30);
    assert_eq!(closes_at("0 4 8 12 16 20 24 28 29 29 29"), 30);
    assert_eq!(closes_at("0 4 8 12 16 20 24 28 30 31"), 30);
}

/// An earlier implementation compared milliseconds with seconds and merged almost nothing.
#[test]
fn windows_are_five_seconds_and_not_five_milliseconds() {
    let window = MergeWindow::open(ms(0), 1);
    for soon in [5, 30, 50, 4_999] {
        assert!(window.closes_at(&Debounce::DEFAULT) > ms(soon), "closed at {soon} ms");
        let joined = window.join(&Debounce::DEFAULT, ms(soon), 1).unwrap();
        assert_eq!(joined.closes_at(&Debounce::DEFAULT), ms(soon + 5_000));
    }
    assert_eq!(window.join(&Debounce::DEFAULT, ms(5_000), 1), None);
}

#[test]
fn window_length_is_configurable_down_to_zero() {
    let debounce = |window, most| Debounce {
        window: Duration::from_millis(window),
        max_wait: Duration::from_millis(most),
    };
    let closes = |debounce: Debounce| MergeWindow::open(ms(7), 1).closes_at(&debounce).ms();
    assert_eq!(closes(debounce(1_000, 30_000)), 1_007);
    assert_eq!(closes(debounce(5_000, 1_000)), 1_007, "the shorter one counts");
    assert_eq!(closes(debounce(0, 30_000)), 7);
    assert_eq!(MergeWindow::open(ms(7), 1).join(&debounce(0, 30_000), ms(7), 1), None);
    assert_eq!(closes(debounce(u64::MAX, u64::MAX)), i64::MAX, "and no sum overflows");
}

#[test]
fn full_window_accepts_no_message() {
    let most = u32::try_from(MAX_MESSAGE_BYTES).unwrap();
    let window = |messages, bytes| MergeWindow {
        first: at(0),
        last: at(0),
        messages,
        bytes,
        pending_files: 0,
    };
    let joins =
        |window: MergeWindow, bytes| window.join(&Debounce::DEFAULT, at(1), bytes).is_some();
    assert!(joins(window(MAX_MESSAGES - 1, 1), 1));
    assert!(!joins(window(MAX_MESSAGES, 1), 1));
    assert!(joins(window(1, MAX_BYTES - 1), 1));
    assert!(!joins(window(1, MAX_BYTES - 1), 2));
    assert!(!joins(window(1, 1), u32::MAX));
    assert!(!joins(window(1, most), most), "each of them fits alone");

    let joined = window(3, 40).join(&Debounce::DEFAULT, at(1), 2).unwrap();
    assert_eq!(
        joined,
        MergeWindow { first: at(0), last: at(1), messages: 4, bytes: 42, pending_files: 0 }
    );
}

fn builder(message: Vec<InboundMessage>) -> MailBuilder {
    let messages = message.into_iter().enumerate();
    MailBuilder {
        tunnel: "lark-main".parse().unwrap(),
        provider: "lark".to_owned(),
        owner: "did:monoco:me".parse().unwrap(),
        binding: Some("alpha".to_owned()),
        trust: Trust::Untrusted,
        messages: messages
            .map(|(n, message)| InboundMessage {
                received_at: at(i64::try_from(n).unwrap()),
                ..message
            })
            .collect(),
    }
}

/// The Mail that is built of these messages a minute later, and its object.
fn merge(message: Vec<InboundMessage>) -> (Mail, MsgObject) {
    let BuiltMail { mail, object } = builder(message).build(at(60)).unwrap();
    assert_eq!(Mail::read(object.id(), object.canonical()).as_ref(), Ok(&mail));
    (mail, object)
}

fn named(mut message: InboundMessage, name: &str) -> InboundMessage {
    message.from.name = Some(name.to_owned());
    message
}

fn timed(mut message: InboundMessage, secs: i64) -> InboundMessage {
    message.at = Some(at(secs));
    message
}

fn file(name: &str, url: &str) -> Artifact {
    Artifact {
        name: name.to_owned(),
        mime_type: "text/plain".to_owned(),
        url: Some(url.to_owned()),
        ..Artifact::default()
    }
}

#[test]
fn window_waits_for_its_files_after_the_last_message() {
    let debounce = Debounce::DEFAULT;
    let window = MergeWindow::open(at(0), 1).with_files(1);
    assert_eq!((window.ready_at(&debounce), window.closes_at(&debounce)), (at(5), at(60)));
    let window = window.join(&debounce, at(40), 1).expect("it is open while it waits for a file");
    assert_eq!((window.ready_at(&debounce), window.closes_at(&debounce)), (at(30), at(90)));
    let busy = window.join(&debounce, at(80), 1).unwrap();
    assert_eq!(busy.closes_at(&debounce), at(90), "a busy chat does not keep it open");
    assert_eq!(busy.join(&debounce, at(90), 1), None);
    let fetched = MergeWindow { pending_files: 0, ..busy };
    assert_eq!(fetched.closes_at(&debounce), at(30));
}

#[test]
fn mail_names_missing_files_and_corrected_messages() {
    let mut message = message("e-1", "ann", "hello");
    message.corrects = Some("1".to_owned());
    let missing = Some("too large:\n200 MB".to_owned());
    message.artifacts = vec![Artifact { url: None, missing, ..file("report.pdf", "") }];
    let (mail, _) = merge(vec![message]);
    let start = "**ann** · ";
    assert!(mail.text.starts_with(start), "{}", mail.text);
    let end = " · corrects 1\n\nhello\n\n* report.pdf (text/plain) not fetched: too large: 200 MB";
    assert!(mail.text.ends_with(end), "{}", mail.text);
    assert_eq!(restore(&mail.render(), &"did:monoco:me".parse().unwrap()).unwrap().mail, mail);
}

#[test]
fn text_of_a_single_message_is_unchanged() {
    let text = "  two  lines \r\n and spaces\n\n";
    assert_eq!(merge(vec![message("1", "ann", text)]).0.text, text);
    let answer = InboundMessage { reply_to: Some("0".to_owned()), ..message("1", "ann", text) };
    let (mail, _) = merge(vec![answer]);
    assert_eq!((mail.text.as_str(), mail.header.reply_to.as_deref()), (text, Some("0")));
    let with_file = |text: &str| {
        let artifacts = vec![file("log.txt", "https://example.com/9")];
        merge(vec![InboundMessage { artifacts, ..message("1", "ann", text) }]).0.text
    };
    assert_eq!(with_file("see"), "see\n\n* log.txt (text/plain) https://example.com/9");
}

#[test]
fn each_of_several_messages_has_a_line_with_its_author() {
    let answer =
        InboundMessage { reply_to: Some("1".to_owned()), ..message("2", "bob", "which?\nthis?") };
    let forward = InboundMessage {
        forwarded_from: Some("Dan".to_owned()),
        artifacts: vec![file("log.txt", "https://example.com/9")],
        ..message("3", "ann", "see")
    };
    let (mail, _) = merge(vec![named(message("1", "ann", "red"), "Ann"), answer, forward.clone()]);
    assert_eq!(
        mail.text,
        "**Ann** · 1970-01-01 00:00:00\n\nred\n\n\
         **bob** · 1970-01-01 00:00:01 · in reply to 1\n\nwhich?\nthis?\n\n\
         **ann** · 1970-01-01 00:00:02 · forwarded from Dan\n\nsee\n\n\
         * log.txt (text/plain) https://example.com/9"
    );
    let alone = merge(vec![forward]).0.text;
    assert!(
        alone.starts_with("**ann** · 1970-01-01 00:00:00 · forwarded from Dan\n\nsee"),
        "{alone}"
    );
}

#[test]
fn name_stays_on_its_line_and_inside_its_emphasis() {
    for (name, shown) in [
        ("Ann", "Ann"),
        ("A\nB\r\n\nC\u{2028}D\tE", "A B C D E"),
        ("** · 2026-02-06 **Boss", "\\*\\* · 2026-02-06 \\*\\*Boss"),
        ("Ann\\", "Ann\\\\"),
        ("\u{1b}[31mred\u{9b}m", "[31mred m"),
        // A blank name is replaced by the id.
        ("  \n ", "ann"),
    ] {
        let (mail, _) =
            merge(vec![named(message("1", "ann", "x"), name), message("2", "bob", "y")]);
        assert_eq!(mail.text.lines().next().unwrap(), format!("**{shown}** · 1970-01-01 00:00:00"));
    }
}

/// The texts of the messages in the order of the Mail, and the second it starts with.
fn order(message: Vec<InboundMessage>) -> (String, i64) {
    let (mail, _) = merge(message);
    (mail.messages.iter().map(|m| m.text.as_str()).collect(), mail.header.timestamp.ms() / 1000)
}

#[test]
fn provider_time_orders_messages_when_all_have_one() {
    let m = |text: &str| message(text, "ann", text);
    assert_eq!(
        order(vec![timed(m("b"), 200), timed(m("a"), 100), timed(m("c"), 300)]),
        ("abc".into(), 100)
    );
    assert_eq!(order(vec![timed(m("a"), 7), timed(m("b"), 7)]), ("ab".into(), 7), "ties stay");
    // Otherwise the order of receipt counts; the two clocks cannot be compared.
    assert_eq!(order(vec![timed(m("b"), 200), m("a"), timed(m("c"), 100)]), ("bac".into(), 200));
    assert_eq!(order(vec![m("b"), timed(m("a"), 100)]), ("ba".into(), 0), "the time of receipt");
}

#[test]
fn workspaces_are_mentioned_by_name() {
    for (text, want) in [
        ("@monoco::alpha the build is red", "@monoco::alpha"),
        ("hello @monoco::alpha.", "@monoco::alpha"),
        ("is it @monoco::alpha...?", "@monoco::alpha"),
        ("(@monoco::alpha-2_b.md)", "@monoco::alpha-2_b.md"),
        ("@monoco::über-团队, please", "@monoco::über-团队"),
        ("@monoco::a@monoco::b", "@monoco::a @monoco::b"),
        ("@monoco::a and @monoco::a", "@monoco::a"),
        ("@monoco::", ""),
        ("@monoco:: alpha", ""),
        ("@monoco::.", ""),
        ("@monoco::\u{1f600}", ""),
        ("monoco::alpha", ""),
        ("@Monoco::alpha", ""),
        ("", ""),
    ] {
        let (mail, _) = merge(vec![message("1", "ann", text)]);
        assert_eq!(mail.header.participants.mentions.join(" "), want, "{text}");
    }
    let long = format!("@monoco::{} @monoco::{}", "x".repeat(129), "y".repeat(128));
    let (mail, _) = merge(vec![message("1", "ann", &long)]);
    assert_eq!(mail.header.participants.mentions, [format!("@monoco::{}", "y".repeat(128))]);
}

#[test]
fn participants_are_listed_once() {
    let people = |names: &[&str]| -> Vec<Participant> {
        names.iter().map(|id| Participant::user(*id, None)).collect()
    };
    let mut first = named(message("1", "ann", "@monoco::alpha"), "Ann");
    first.to = people(&["bob", "cleo", "bob"]);
    first.mentions = vec!["bob".to_owned(), "@monoco::alpha".to_owned()];
    let mut second = named(message("2", "ann", "@monoco::beta"), "Annie");
    second.to = people(&["cleo", "dan"]);
    second.cc = people(&["bob"]);
    let third = message("3", "bob", "hm");
    let participants = merge(vec![first, second, third]).0.header.participants;
    let ids =
        |people: &[Participant]| people.iter().map(|p| p.id.clone()).collect::<Vec<_>>().join(" ");
    assert_eq!(ids(&participants.from), "ann bob");
    assert_eq!(participants.from[0].display_name(), "Ann");
    assert_eq!(ids(&participants.to), "bob cleo dan");
    assert_eq!(ids(&participants.cc), "bob");
    assert_eq!(participants.mentions, ["@monoco::alpha", "@monoco::beta", "bob"]);
}

#[test]
fn lists_of_participants_are_limited() {
    let crowd = |n: usize| {
        let mut message = message(&n.to_string(), &format!("u{n}"), "");
        let person = |at| Participant::user(format!("{n}/{at}"), None);
        message.to = (0..MAX_LIST_ENTRIES).map(person).collect();
        message.cc = (0..MAX_LIST_ENTRIES).map(person).collect();
        message
    };
    let (mail, _) = merge((0..3).map(crowd).collect());
    let participants = &mail.header.participants;
    assert_eq!(
        (participants.to.len(), participants.cc.len()),
        (MAX_LIST_ENTRIES, MAX_LIST_ENTRIES)
    );
    assert_eq!(participants.from.len(), 3);
    assert_eq!(mail.messages[2].cc.len(), MAX_LIST_ENTRIES, "each message keeps its own");
}

/// A message with hundreds of mentions must not displace the mentions of another message.
#[test]
fn mentions_of_all_messages_are_listed() {
    let mut spammer: Vec<_> = (0..MAX_MESSAGES - 1)
        .map(|n| {
            let mut message = message(&n.to_string(), "pest", &format!("@monoco::{n}"));
            message.mentions = (0..MAX_LIST_ENTRIES).map(|at| format!("{n}/{at}")).collect();
            message
        })
        .collect();
    spammer.push(message("last", "ann", &("@monoco::alpha ".repeat(200) + "@monoco::beta")));
    let mentions = merge(spammer).0.header.participants.mentions;
    assert_eq!(mentions.len(), MAX_MENTIONS);
    assert!(mentions.contains(&"@monoco::alpha".to_owned()));

    let repeated = "@monoco::alpha ".repeat(200) + "@monoco::beta";
    let mentions = merge(vec![message("1", "ann", &repeated)]).0.header.participants.mentions;
    assert_eq!(mentions, ["@monoco::alpha", "@monoco::beta"]);
}

#[test]
fn mail_id_depends_on_the_message_received_first() {
    let (alone, _) = merge(vec![message("evt-1", "ann", "hi")]);
    let (with_others, _) = merge(vec![
        timed(message("evt-1", "ann", "edited"), 900),
        timed(message("evt-2", "bob", "hi"), 100),
    ]);
    assert_eq!(with_others.messages[0].id, "evt-2", "the provider's order");
    assert_eq!(with_others.header.id, alone.header.id);
    assert_eq!(alone.header.id, MailId::of("lark", &"lark-main".parse().unwrap(), "evt-1"));
    assert_ne!(alone.header.id, merge(vec![message("evt-2", "ann", "hi")]).0.header.id);
}

#[test]
fn mail_needs_a_message() {
    assert_eq!(builder(Vec::new()).mail_id(), None);
    assert!(builder(Vec::new()).build(at(0)).is_err());
}

#[test]
fn direct_mail_is_from_its_author_and_group_mail_from_the_group() {
    let kinds = [
        (ChatSessionKind::Direct, "chat", "ann.user", "did:monoco:me", None),
        (ChatSessionKind::Group, "group_msg", "room-7.group", "room-7.group", Some("ann.user")),
        (ChatSessionKind::Thread, "group_msg", "room-7.group", "room-7.group", Some("ann.user")),
    ];
    for (kind, what, from, to, source) in kinds {
        let in_session = |mut message: InboundMessage| {
            message.session.kind = kind;
            message.session.thread_key = Some("t-1".to_owned());
            message.correlation_id = Some(format!("case-{}", message.id));
            message
        };
        let (mail, object) =
            merge(vec![in_session(message("1", "ann", "a")), in_session(message("2", "ann", "b"))]);
        let full = |name: &str| match name.starts_with("did:") {
            true => name.to_owned(),
            false => format!("did:msgtunnel:{name}.lark-main"),
        };
        let value: Value = serde_json::from_str(object.canonical()).unwrap();
        assert_eq!(value["kind"], what);
        assert_eq!(value["from"], full(from));
        assert_eq!(value["to"], json!([full(to)]));
        assert_eq!(value.get("source"), source.map(|name| json!(full(name))).as_ref());
        assert_eq!(value["thread"], json!({"topic": "t-1", "correlation_id": "case-1"}));
        assert_eq!(mail.header.answer_to.as_str(), full(from));
        assert_eq!(mail.header.correlation_id.as_deref(), Some("case-1"));
        assert_eq!(
            (mail.header.received_at, value["created_at_ms"].as_i64()),
            (at(60), Some(60_000))
        );
    }
}

#[test]
fn mail_has_the_newest_session_name_and_the_first_title() {
    let called = |id: &str, name: Option<&str>, title: Option<&str>| {
        let mut message = message(id, "ann", "");
        message.session.name = name.map(str::to_owned);
        message.title = title.map(str::to_owned);
        message
    };
    let (mail, object) = merge(vec![
        called("1", Some("Ops"), None),
        called("2", Some("Operations"), Some("Build")),
        called("3", None, Some("Other")),
    ]);
    assert_eq!(mail.header.session.name.as_deref(), Some("Operations"));
    assert_eq!(mail.header.title.as_deref(), Some("Build"));
    let value: Value = serde_json::from_str(object.canonical()).unwrap();
    assert_eq!(value["content"]["title"], "Build");
    assert_eq!(value["content"]["format"], "text/markdown");
}

/// As many copies of `message` as fit into a window, with different ids.
fn fill(message: &InboundMessage) -> Vec<InboundMessage> {
    let bytes = |message: &InboundMessage| u32::try_from(json!(message).to_string().len()).unwrap();
    let numbered = |n: u32| InboundMessage { id: format!("{n:04}"), ..message.clone() };
    let mut window = MergeWindow::open(at(0), bytes(&numbered(0)));
    while let Some(joined) = window.join(&Debounce::DEFAULT, at(0), bytes(&numbered(0))) {
        window = joined;
    }
    (0..window.messages).map(numbered).collect()
}

/// Every full window must become a Mail with a readable file.
#[test]
fn largest_window_fits_into_a_mail() {
    let text = |text: &str, times| message("0000", "ann", &text.repeat(times));
    let files = |name: &str, count| InboundMessage {
        artifacts: vec![file(name, ""); count],
        ..message("0000", "ann", "")
    };
    let stars = "*".repeat(MAX_NAME_BYTES);
    let person = |n: usize| Participant::user(n.to_string(), Some(stars.clone()));
    let crowd = InboundMessage {
        to: (0..MAX_LIST_ENTRIES).map(person).collect(),
        cc: (0..MAX_LIST_ENTRIES).map(person).collect(),
        mentions: (0..MAX_LIST_ENTRIES).map(|n| format!("{n}{}", "\u{2028}".repeat(300))).collect(),
        ..named(message("0000", "ann", "@monoco::alpha"), &stars)
    };
    let no_name = Participant::user("", None);
    let many = InboundMessage {
        to: vec![no_name.clone(); MAX_LIST_ENTRIES],
        cc: vec![no_name; MAX_LIST_ENTRIES],
        artifacts: vec![
            Artifact { mime_type: String::new(), url: None, ..file("", "") };
            MAX_LIST_ENTRIES
        ],
        mentions: vec![String::new(); MAX_LIST_ENTRIES],
        ..message("0000", "ann", "")
    };
    let tiny = Artifact { mime_type: String::new(), url: None, ..file("", "") };
    let tiny =
        InboundMessage { artifacts: vec![tiny; MAX_LIST_ENTRIES], ..message("0000", "ann", "") };
    let links = vec![file(&stars, &"*".repeat(MAX_URL_BYTES)); MAX_LIST_ENTRIES];
    let links = InboundMessage { artifacts: links, ..message("0000", "ann", "") };
    let mut largest = 0;
    for (what, one) in [
        ("plain", text("x", 1 << 20)),
        ("escapes", text("\u{1}", 170_000)),
        ("quotes", text("\"", 500_000)),
        ("500 of them", text("\u{1}", 400)),
        ("names to escape", files(&stars, 50)),
        ("links to escape", links),
        ("backslashes", files(&"\\".repeat(MAX_NAME_BYTES), 20)),
        ("people", crowd),
        ("many of all", many),
        ("small attachments", tiny),
    ] {
        one.clone().validate().unwrap();
        let window = fill(&one);
        let count = window.len();
        let built = self::builder(window).build(at(60)).map_err(|error| format!("{what}: {error}"));
        let BuiltMail { mail, object } = built.unwrap();
        largest = largest.max(object.canonical().len());
        assert_eq!(Mail::read(object.id(), object.canonical()).as_ref(), Ok(&mail), "{what}");
        assert_eq!(mail.messages.len(), count, "{what}");
        let read = Mail::parse(&mail.render()).map_err(|error| format!("{what}: {error}")).unwrap();
        assert_eq!((read.header, read.text), (mail.header, mail.text), "{what}");
    }
    assert!(largest > MAX_MAIL / 3 * 2 && largest <= MAX_MAIL, "{largest}");
    assert_eq!(fill(&message("0000", "ann", "")).len(), 500);
}

proptest! {
    /// Every field of a message is in the Mail, under the same name.
    #[test]
    fn merging_loses_nothing(
        session in any_session(),
        mut messages in prop::collection::vec(any_message(), 1..6),
    ) {
        let author = messages[0].from.clone();
        for (number, message) in messages.iter_mut().enumerate() {
            message.session = session.clone();
            // The store keeps no two messages with one id.
            message.id = format!("{number}{}", message.id);
            // Windows of direct messages are also separated by author.
            if session.kind == ChatSessionKind::Direct {
                message.from = author.clone();
            }
            prop_assert!(message.clone().validate().is_ok());
        }
        let BuiltMail { mail, object } = builder(messages.clone()).build(at(60)).unwrap();
        let value: Value = serde_json::from_str(object.canonical()).unwrap();
        let data = &value["content"]["machine"]["data"];
        if messages.iter().all(|message| message.at.is_some()) {
            messages.sort_by_key(|message| message.at);
        }
        prop_assert_eq!(data["messages"].as_array().unwrap().len(), messages.len());
        for (message, kept) in messages.iter().zip(data["messages"].as_array().unwrap()) {
            let Value::Object(fields) = json!(message) else { panic!() };
            for (field, value) in fields {
                let (have, want) = match field.as_str() {
                    "session" => (&data["mail"]["session"], value),
                    // The builder of these tests sets it.
                    "received_at" => continue,
                    // An empty text is left out.
                    "text" if message.text.is_empty() => continue,
                    field => (&kept[field], value),
                };
                prop_assert_eq!(have, &want, "{}", field);
            }
            let text = value["content"]["content"].as_str().unwrap();
            prop_assert!(text.contains(&message.text));
        }
        prop_assert_eq!(&Mail::read(object.id(), object.canonical()).unwrap(), &mail);
        let owner = "did:monoco:me".parse().unwrap();
        let restored = restore(&mail.render(), &owner);
        prop_assert_eq!(restored, Ok(BuiltMail { mail: mail.clone(), object }));
        for (merged, message) in mail.messages.into_iter().zip(messages) {
            let (received_at, session) = (merged.received_at, ChatSession::default());
            prop_assert_eq!(merged, InboundMessage { received_at, session, ..message });
        }
    }
}
