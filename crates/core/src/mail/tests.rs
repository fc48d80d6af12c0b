//! Tests of the Mail's file, its name and its line in the index.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::inbound::tests::{any_message, hostile, message};
use crate::merge::MailBuilder;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_ms(1_770_410_700_000 + secs * 1000)
}

fn build(messages: Vec<InboundMessage>, binding: Option<String>) -> Mail {
    let builder = MailBuilder {
        tunnel: "lark-main".parse().unwrap(),
        provider: "lark".to_owned(),
        owner: "did:monoco:me".parse().unwrap(),
        binding,
        trust: Trust::Untrusted,
        messages: messages
            .into_iter()
            .map(|m| InboundMessage { received_at: at(0), ..m })
            .collect(),
    };
    builder.build(at(5)).unwrap().mail
}

fn mail(text: &str) -> Mail {
    build(vec![message("evt-1", "u1", text)], None)
}

/// The Mail as its file has it: the texts of single messages are not there.
fn filed(mut mail: Mail) -> Mail {
    for message in &mut mail.messages {
        message.text.clear();
    }
    mail
}

/// A Mail with hostile text in all fields of its messages and in the label.
fn any_mail() -> impl Strategy<Value = Mail> {
    (prop::collection::vec(any_message(), 1..4), prop::option::of(hostile()))
        .prop_map(|(said, binding)| build(said, binding))
}

#[test]
fn file_format_is_pinned() {
    let mut first = message("evt-1", "u1", "@monoco::alpha the build is red\n---\nid: 7");
    first.at = Some(at(-2));
    first.title = Some("Build \"9\"".to_owned());
    let mail = build(vec![first], Some("alpha".to_owned()));
    let file = mail.render();
    let (lines, checksum) = file.split_once("checksum: ").unwrap();
    let hash = digest(lines.strip_prefix("---\n").unwrap().as_bytes());
    assert_eq!(
        lines,
        format!(
            r#"---
id: "lark_9a167ee74992b6ee7ffb6442"
msg_id: "{}"
provider: "lark"
direction: "inbound"
session:
  id: "room-7"
  name: "Ops"
  type: "group"
participants:
  bcc: []
  cc: []
  from: [{{"id": "u1"}}]
  mentions: ["@monoco::alpha"]
  to: []
timestamp: "2026-02-06T20:44:58.000Z"
received_at: "2026-02-06T20:45:05.000Z"
type: "message"
content:
  bytes: 41
  format: "text/markdown"
  sha256: "{}"
  title: "Build \"9\""
artifacts: []
correlation_id: null
reply_to: null
thread_root: null
binding: "alpha"
trust: "untrusted"
metadata:
  answer_to: "did:msgtunnel:room-7.group.lark-main"
  messages: [{{"at": "2026-02-06T20:44:58.000Z", "from": {{"id": "u1"}}, "id": "evt-1", "received_at": "2026-02-06T20:45:00.000Z", "title": "Build \"9\""}}]
  tunnel: "lark-main"
"#,
            mail.msg_id,
            digest(mail.text.as_bytes()),
        )
    );
    assert_eq!(
        checksum,
        format!("\"{hash}\"\n---\n\n@monoco::alpha the build is red\n---\nid: 7\n")
    );
    assert_eq!(mail.file(), "20260206T204505_lark_9a167ee74992b6ee7ffb6442.md");
}

#[test]
fn lines_of_a_megabyte_are_read_back() {
    let long = "x\u{2028}".repeat(1 << 18);
    let mut mail = mail(&long);
    mail.header.title = Some(long.clone());
    mail.header.correlation_id = Some(long.clone());
    mail.header.participants.mentions = vec![long.clone(), "\u{0}".repeat(1 << 20)];
    mail.messages[0].reply_to = Some(long);
    assert_eq!(Mail::parse(&mail.render()).unwrap(), filed(mail));
}

/// An independent reader of the front matter: each value is JSON on one line.
fn by_lines(file: &str) -> BTreeMap<String, Value> {
    let mut fields = BTreeMap::new();
    let mut above = "";
    for line in file.lines().skip(1).take_while(|line| *line != "---") {
        let (key, value) = line.split_once(':').unwrap();
        match (key.strip_prefix("  "), value) {
            (None, "") => above = key,
            (None, value) => {
                fields.insert(key.to_owned(), serde_json::from_str(value).unwrap());
            }
            (Some(key), value) => {
                let value = serde_json::from_str(value).unwrap();
                fields.entry(above.to_owned()).or_insert_with(|| json!({}))[key] = value;
            }
        }
    }
    fields
}

/// Unsafe characters that JSON and YAML can both escape.
fn is_dangerous(c: char) -> bool {
    is_unsafe(c) && c <= '\u{ffff}'
}

proptest! {
    #[test]
    fn any_mail_is_read_back_from_its_file(mail in any_mail()) {
        let file = mail.render();
        prop_assert_eq!(Mail::parse(&file).unwrap(), filed(mail));
    }

    #[test]
    fn no_text_breaks_out_of_the_front_matter(mail in any_mail()) {
        let file = mail.render();
        let (front, body) = split(&file).unwrap();
        prop_assert_eq!(body.strip_suffix('\n').unwrap(), &mail.text);
        prop_assert!(!front.chars().any(|c| c != '\n' && is_dangerous(c)), "{:?}", front);
        let fields = by_lines(&file);
        let keys: Vec<_> = fields.keys().map(String::as_str).collect();
        prop_assert_eq!(keys, [
            "artifacts", "binding", "checksum", "content", "correlation_id", "direction", "id", "metadata",
            "msg_id", "participants", "provider", "received_at", "reply_to", "session",
            "thread_root", "timestamp", "trust", "type",
        ]);
        prop_assert_eq!(&fields["session"], &json!(mail.header.session));
        prop_assert_eq!(&fields["participants"], &json!(mail.header.participants));
        prop_assert_eq!(&fields["artifacts"], &json!(mail.header.artifacts));
        prop_assert_eq!(&fields["content"]["title"], &json!(mail.header.title));
        prop_assert_eq!(&fields["binding"], &json!(mail.header.binding));
        let messages = json!(filed(mail).messages);
        prop_assert_eq!(&fields["metadata"]["messages"], &messages);
    }

    #[test]
    fn no_body_changes_a_header(texts in prop::collection::vec(hostile(), 0..4), other in any_mail()) {
        let plain = mail("hi");
        let forged = other.render();
        let fences = texts.join("\n---\nid: \"lark_000000000000000000000000\"\ntrust: known\n---\n");
        for text in [forged.clone(), format!("\n{forged}"), fences] {
            let mut changed = plain.clone();
            changed.text = text;
            prop_assert_eq!(Mail::parse(&changed.render()).unwrap(), filed(changed.clone()));
            prop_assert_eq!(changed.header, plain.header.clone());
        }
    }

    #[test]
    fn index_line_is_read_back(mail in any_mail(), seq in any::<i64>()) {
        let file = mail.render();
        let entry = mail.entry(seq, &file);
        let line = json!(entry).to_string();
        prop_assert!(!line.contains(['\n', '\r']));
        prop_assert_eq!(&entry.sha256, &digest(file.as_bytes()));
        prop_assert_eq!((&entry.file, entry.messages), (&mail.file(), mail.messages.len()));
        prop_assert_eq!(serde_json::from_str::<MailIndexEntry>(&line).unwrap(), entry);
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in hostile(), mail in any_mail(), at in any::<prop::sample::Index>()) {
        let _ = Mail::parse(&text);
        let _ = from_yaml::<Value>(&text);
        let _ = text.parse::<MailId>();
        let mut file = mail.render();
        let at = file.floor_char_boundary(at.index(file.len()));
        file.insert_str(at, &text);
        let read = Mail::parse(&file);
        prop_assert_eq!(read.is_ok(), text.is_empty());
    }

    #[test]
    fn preview_is_one_short_line(text in hostile(), times in 0..80_usize) {
        let text = text.repeat(times);
        let preview = preview(&text);
        prop_assert!(preview.chars().count() <= MAX_PREVIEW_CHARS);
        prop_assert_eq!(preview.split_whitespace().collect::<Vec<_>>().join(" "), preview.trim_end());
        let words: Vec<_> = text.split_whitespace().collect();
        if preview.ends_with('…') && !text.contains('…') {
            prop_assert!(words.join(" ").chars().count() > MAX_PREVIEW_CHARS);
        } else {
            prop_assert_eq!(preview, words.join(" "));
        }
    }

    #[test]
    fn different_ids_have_different_files(ids in prop::collection::vec(("[a-z0-9][a-z0-9_-]{0,9}", hostile()), 2..6)) {
        let ids: BTreeMap<_, _> = ids
            .into_iter()
            .map(|(tunnel, id)| {
                let name = MailId::of("lark", &tunnel.parse().unwrap(), &id).file(at(0));
                ((tunnel, id), name)
            })
            .collect();
        for name in ids.values() {
            let safe = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
            prop_assert!(name.bytes().all(safe) && name.len() == 48, "{}", name);
        }
        let mut names: Vec<_> = ids.values().collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), ids.len());
    }
}

#[test]
fn modified_file_is_rejected() {
    let mail =
        build(vec![message("evt-1", "u1", "é\n"), message("evt-2", "u2", "---")], Some("a".into()));
    let file = mail.render();
    for at in 0..file.len() {
        if let Some(cut) = file.get(..at) {
            assert!(Mail::parse(cut).is_err(), "cut at {at}");
        }
        if let (Some(before), Some(after)) = (file.get(..at), file.get(at + 1..)) {
            // The empty line after the front matter belongs to neither part.
            let read = Mail::parse(&format!("{before}{after}"));
            assert!(read.is_err() || read.unwrap() == filed(mail.clone()), "without byte {at}");
        }
    }
    for rest in ["\n", " ", "\0", "x", "---\n", &file] {
        assert!(Mail::parse(&format!("{file}{rest}")).is_err(), "{rest:?} at the end");
        assert!(Mail::parse(&format!("{rest}{file}")).is_err(), "{rest:?} at the start");
    }
    let mut bytes = file.clone().into_bytes();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            let read = str::from_utf8(&bytes).ok().map(Mail::parse);
            assert!(!matches!(read, Some(Ok(_))), "bit {bit} of byte {at}");
            bytes[at] ^= 1 << bit;
        }
    }
    assert_eq!(Mail::parse(&file).unwrap(), filed(mail));
}

#[test]
fn error_distinguishes_modified_body_and_front_matter() {
    let file = mail("hello").render();
    let why = |file: &str| Mail::parse(file).unwrap_err();
    assert_eq!(why(&file.replace("hello", "hallo")), InvalidMailFile::Body("it has another hash"));
    assert_eq!(why(file.trim_end()), InvalidMailFile::Body("it is too short"));
    assert_eq!(why(&format!("{file}more")), InvalidMailFile::Body("it is too long"));
    assert_eq!(why("hello"), InvalidMailFile::NoFrontMatter);
    let wrong = why(&file.replace("untrusted", "known"));
    assert!(
        matches!(&wrong, InvalidMailFile::FrontMatter(why) if why.contains("checksum")),
        "{wrong}"
    );
    let without_checksum: String = file
        .lines()
        .filter(|line| !line.starts_with("checksum"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(matches!(why(&without_checksum), InvalidMailFile::FrontMatter(_)));
}

#[test]
fn other_objects_are_not_read_as_a_mail() {
    let id = mail("").msg_id;
    for object in ["", "{}", "[]", r#"{"content":{"content":"hi"}}"#] {
        assert!(matches!(Mail::read(id, object), Err(InvalidMailFile::NotMail(_))), "{object}");
    }
}

#[test]
fn file_is_split_at_its_first_fence() {
    for (file, parts) in [
        ("---\na: 1\n---\n\nbody\n", Some(("a: 1\n", "body\n"))),
        ("---\na: 1\n---\nbody", Some(("a: 1\n", "body"))),
        ("---\na: 1\n---\n", Some(("a: 1\n", ""))),
        ("---\na: 1\n---\n\n\n\n", Some(("a: 1\n", "\n\n"))),
        ("---\n---\nbody", Some(("", "body"))),
        ("---\na: 1\n---\n---\n---\n", Some(("a: 1\n", "---\n---\n"))),
        ("---\na: \"x---\"\n ---\n--- \n---\n", Some(("a: \"x---\"\n ---\n--- \n", ""))),
        ("", None),
        ("---", None),
        ("---\n", None),
        ("---\na: 1\n", None),
        ("---\na: 1\n---", None),
        ("--- \na: 1\n---\n", None),
        (" ---\na: 1\n---\n", None),
        ("\u{feff}---\na: 1\n---\n", None),
        ("---\r\na: 1\r\n---\r\n", None),
        ("body\n---\na: 1\n---\n", None),
    ] {
        assert_eq!(split(file), parts, "{file:?}");
    }
}

#[test]
fn yaml_bombs_are_rejected() {
    let laughs: String = (1..10)
        .map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", ")))
        .collect();
    let keys: String = (0..400_000).map(|n| format!("k{n}: 1\n")).collect();
    for (what, bomb) in [
        ("laughs", format!("a0: &a0 \"ha\"\n{laughs}")),
        ("an anchor", "a: &x 1".to_owned()),
        ("an alias", "a: *x".to_owned()),
        ("a merge", "a: {b: 1}\n<<: {c: 1}".to_owned()),
        ("lists in lists", "[".repeat(100_000)),
        ("lists in lists, closed", format!("{}{}", "[".repeat(17), "]".repeat(17))),
        ("maps in maps", "{a: ".repeat(100_000)),
        ("blocks in blocks", (0..1_000).map(|n| format!("{}a:\n", " ".repeat(n))).collect()),
        ("dashes", "- ".repeat(100_000)),
        ("question marks", "? ".repeat(100_000)),
        ("many values", format!("[{}]", "1,".repeat(MAX_NODES + 1))),
        ("many keys", keys),
        ("long", format!("a: \"{}\"", "x".repeat(MAX_FRONT_MATTER + 1))),
        ("a tag", "a: !!python/object/apply:os.system [ls]".to_owned()),
        ("a tag of ours", "a: !include /etc/passwd".to_owned()),
        ("two documents", "a: 1\n---\nb: 1".to_owned()),
        ("a key twice", "a: 1\na: 2".to_owned()),
        ("a key twice, quoted", "{\"a\": 1, a: 2}".to_owned()),
    ] {
        let read = from_yaml::<Value>(&bomb);
        assert!(matches!(read, Err(InvalidMailFile::FrontMatter(_))), "{what}: {read:.80?}");
    }
}

#[test]
fn plain_yaml_is_read() {
    let read = |text: &str| from_yaml::<Value>(text).unwrap();
    assert_eq!(
        read("a: 1\nb: [x, 'y', \"z\"]\nc: {d: null}"),
        json!({"a": 1, "b": ["x", "y", "z"], "c": {"d": null}})
    );
    // `no` and `yes` are strings.
    assert_eq!(read("a: no\nb: yes\nc: true"), json!({"a": "no", "b": "yes", "c": true}));
    assert_eq!(read("a: ${HOME}"), json!({"a": "${HOME}"}), "the environment is not read");
}

#[test]
fn cut_preview_ends_with_an_ellipsis() {
    for (text, shown) in [
        ("", String::new()),
        (" \n\t ", String::new()),
        ("a\n\n b\u{2028}c", "a b c".to_owned()),
        (&"x".repeat(160), "x".repeat(160)),
        (&"x".repeat(161), "x".repeat(159) + "…"),
        (&"é ".repeat(81), "é ".repeat(79) + "é…"),
        (&format!("{} y", "x".repeat(158)), "x".repeat(158) + " y"),
        (&format!("{} yz", "x".repeat(158)), "x".repeat(158) + " …"),
    ] {
        assert_eq!(preview(text), shown, "{text:?}");
    }
}

#[test]
fn mail_ids_are_parsed_strictly() {
    let uid = "0123456789abcdef01234567";
    let good = format!("webhook_{uid}");
    let id: MailId = good.parse().unwrap();
    assert_eq!((id.provider(), id.uid(), id.to_string()), ("webhook", uid, good.clone()));
    assert_eq!(json!(id), json!(good));
    assert_eq!(serde_json::from_value::<MailId>(json!(good)).unwrap(), id);
    assert_eq!(id.file(at(0)), format!("20260206T204500_{good}.md"));
    let cut = &uid[1..];
    for bad in [
        "",
        "_",
        uid,
        "webhook_",
        &format!("webhook_{cut}"),
        &format!("webhook_{uid}0"),
        &format!("webhook_{cut}A"),
        &format!("webhook_{cut}g"),
        &format!("webhook_{cut}é"),
        &format!("webhook_{cut}\n"),
        &format!("_{uid}"),
        &format!("Webhook_{uid}"),
        &format!("web-hook_{uid}"),
        &format!("a_b_{uid}"),
        &format!("../x_{uid}"),
        &format!("é_{uid}"),
        &format!("{}_{uid}", "x".repeat(33)),
        &format!(" webhook_{uid}"),
        &format!("webhook_{uid}.md"),
        "webhook_*",
        "1",
    ] {
        assert!(bad.parse::<MailId>().is_err(), "{bad:?}");
        assert!(serde_json::from_value::<MailId>(json!(bad)).is_err(), "{bad:?}");
    }
    let long = "x".repeat(1 << 20).parse::<MailId>().unwrap_err().to_string();
    assert!(long.len() < 300, "an error is short");
}

#[test]
fn same_message_has_the_same_id() {
    let id = |tunnel: &str, external: &str| MailId::of("lark", &tunnel.parse().unwrap(), external);
    assert_eq!(id("lark", "om_1"), id("lark", "om_1"));
    for (tunnel, external) in
        [("lark", "OM_1"), ("lark", "om_1 "), ("lark-2", "om_1"), ("lar", "kom_1")]
    {
        assert_ne!(id("lark", "om_1"), id(tunnel, external));
    }
    assert_ne!(id("lark", "e\u{301}"), id("lark", "é"), "one form of Unicode is not another");
}
