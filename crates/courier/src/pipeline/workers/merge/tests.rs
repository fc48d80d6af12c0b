//! Merge keys, size limits and the content of joined letters.

use monoco_core::letter::{ChainDirection, FinishContext, RFC822, letter_to_message};
use monoco_core::object::MsgObject;
use proptest::prelude::*;

use super::super::tests::parts;
use super::*;

fn id(seq: i64) -> LetterId {
    LetterId { seq, mark: 0xabc }
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn letter(data: &str, extra: Value) -> Letter {
    let mut all = map(json!({"content_type": "text/markdown"}));
    all.extend(map(extra));
    Letter {
        from: "ann@example.com".to_owned(),
        to: vec!["bob@example.com".to_owned()],
        data: data.to_owned(),
        extra: all,
        rest: Map::new(),
    }
}

fn mail(bytes: &[u8]) -> Letter {
    let mut letter = letter("", json!({"content_type": RFC822}));
    letter.set_bytes(bytes.to_vec());
    letter
}

fn numbered(letters: &[Letter]) -> Vec<(LetterId, &Letter)> {
    (1..).zip(letters).map(|(seq, letter)| (id(seq), letter)).collect()
}

#[test]
fn similar_letters_have_the_same_key() {
    let one = letter("a", json!({}));
    let two =
        Letter { to: vec!["x@example.com".to_owned(), "y@example.com".to_owned()], ..one.clone() };
    let turned = Letter { to: two.to.iter().rev().cloned().collect(), ..two.clone() };
    assert_eq!(
        merge_key(&one),
        merge_key(&letter("b", json!({"subject": "x", "spam": {"score": 1}})))
    );
    assert_eq!(merge_key(&two), merge_key(&turned), "in any order");
}

#[test]
fn different_letters_have_different_keys() {
    let base = letter("a", json!({}));
    let to =
        |to: &[&str]| Letter { to: to.iter().map(|to| (*to).to_owned()).collect(), ..base.clone() };
    let others = [
        base.clone(),
        Letter { from: "eve@example.com".to_owned(), ..base.clone() },
        to(&["bob@example.com", "eve@example.com"]),
        to(&["bob@example.com,eve@example.com"]),
        to(&["bob@example.com\",\"eve@example.com"]),
        to(&[]),
        mail(b"a"),
        letter("a", json!({"content_type": "text/plain"})),
        letter("a", json!({"tunnel": "work-mail"})),
        letter("a", json!({"merge_key": "work-mail"})),
        letter("a", json!({"merge_key": "other"})),
        // The same key of another sender is another group.
        Letter { from: "eve@example.com".to_owned(), ..letter("a", json!({"merge_key": "other"})) },
        Letter {
            to: vec!["did:monoco:eve".to_owned()],
            ..letter("a", json!({"merge_key": "other"}))
        },
    ];
    let keys: std::collections::BTreeSet<_> = others.iter().map(merge_key).collect();
    assert_eq!(keys.len(), others.len(), "{keys:#?}");
}

#[test]
fn message_with_attachments_has_its_own_key() {
    let msg = |n: i64, content: Value| {
        let value = json!({"from": "did:monoco:me", "to": ["did:monoco:bob"], "kind": "chat",
                           "created_at_ms": n, "content": content});
        Letter::from_message(&MsgObject::from_json(value).unwrap(), ChainDirection::Outbound)
    };
    let plain = json!({"content": "see"});
    assert_eq!(merge_key(&msg(1, plain.clone())), merge_key(&msg(2, plain)));
    let refs = json!({"content": "see", "refs": [{"role": "attachment", "target": {}}]});
    assert_ne!(
        merge_key(&msg(1, refs.clone())),
        merge_key(&msg(2, refs)),
        "or its attachment is lost"
    );
}

#[test]
fn long_key_is_hashed() {
    let to = |end: &str| Letter {
        to: (0..1_000).map(|n| format!("{n}@{end}.example.com")).collect(),
        ..letter("", json!({}))
    };
    assert_eq!(merge_key(&to("a")).len(), "sha256:".len() + 64);
    assert_ne!(merge_key(&to("a")), merge_key(&to("b")));
}

#[test]
fn single_letter_is_unchanged() {
    for letter in [letter("a", json!({"subject": "x"})), mail(b"Subject: x\n\na")] {
        assert_eq!(join(&[(id(1), &letter)]), letter);
        assert_eq!(joinable(&[(id(1), &letter)]), 1);
    }
    assert_eq!(joinable(&[]), 0);
}

#[test]
fn texts_are_concatenated() {
    let mut second =
        letter("two", json!({"subject": "second", "msg_id": "cymsg:2", "tag": "blue"}));
    second.rest = map(json!({"campaign": "winter", "mood": "good"}));
    let mut letters = [
        letter("one", json!({"subject": "first", "tag": "red"})),
        second,
        letter("three", json!({})),
    ];
    letters[0].rest = map(json!({"campaign": "autumn"}));
    letters[2].extra.insert("spam".to_owned(), json!({"score": 1}));
    let joined = join(&numbered(&letters));
    let want = Letter {
        data: "one\n\ntwo\n\nthree".to_owned(),
        extra: map(json!({
            "content_type": "text/markdown", "subject": "first", "tag": "red",
            "spam": {"score": 1}, "merged": ["ltr_2_00000abc", "ltr_3_00000abc"],
        })),
        rest: map(json!({"campaign": "autumn", "mood": "good"})),
        ..letters[0].clone()
    };
    assert_eq!(joined, want);
}

#[test]
fn joined_letter_keeps_the_keys_of_the_first() {
    let other = json!({"subject": "x", "msg_id": "cymsg:2", "kind": "chat", "external_id": "7",
                       "charset": "latin-1"});
    let letters = [letter("one", json!({})), letter("two", other)];
    let merged = json!({"content_type": "text/markdown", "merged": ["ltr_2_00000abc"]});
    assert_eq!(Value::from(join(&numbered(&letters)).extra), merged);
}

#[test]
fn earlier_merges_are_listed() {
    let letters = [
        letter("one", json!({"merged": ["ltr_8_00000abc"]})),
        letter("two", json!({"merged": ["ltr_9_00000abc"]})),
    ];
    let merged = json!(["ltr_8_00000abc", "ltr_2_00000abc", "ltr_9_00000abc"]);
    assert_eq!(join(&numbered(&letters)).extra["merged"], merged);
}

#[test]
fn mails_are_joined_into_a_digest() {
    let mails: [&[u8]; 3] = [
        b"From: ann@example.com\r\nTo: bob@example.com\r\nSubject: One\r\n\r\nfirst\r\n",
        b"From: ann@example.com\r\nSubject: Two\r\n\r\ncaf\xc3\xa9\r\n",
        b"Subject: Three\r\n\r\ncaf\xe9 \xff\r\n",
    ];
    let mut letters = mails.map(mail);
    letters[0].extra.insert("subject".to_owned(), json!("One"));
    let joined = join(&numbered(&letters));
    let bytes = joined.bytes();
    assert_eq!(monoco_mime::subject(&bytes).as_deref(), Some("One (and 2 more)"));
    assert_eq!(joined.extra("subject"), Some("One (and 2 more)"));
    assert_eq!(monoco_mime::header(&bytes, "From").as_deref(), Some("ann@example.com"));
    assert_eq!(monoco_mime::check(&bytes), Ok(()));
    for mail in mails {
        let count = bytes.windows(mail.len()).filter(|window| *window == mail).count();
        assert_eq!(count, 1, "each is in it as it was");
    }
    assert_eq!(joined.extra("charset"), Some("latin-1"), "one of them is no UTF-8");
    assert_eq!(join(&numbered(&letters[..2])).extra("charset"), None);
}

#[test]
fn digest_of_mails_without_subjects() {
    let letters = [mail(b"From: a\n\nx"), mail(b"From: a\n\ny")];
    let joined = join(&numbered(&letters));
    let bytes = joined.bytes();
    assert_eq!(monoco_mime::subject(&bytes).as_deref(), Some("(and 1 more)"));
}

#[test]
fn letters_are_joined_up_to_the_size_limit() {
    let mail_of = |size: usize| mail(&[&b"Subject: x\n\n"[..], &vec![b'x'; size]].concat());
    let letters = [(); 4].map(|()| mail_of(MAX_DATA / 3));
    assert_eq!(joinable(&numbered(&letters)), 2, "a digest is more than its mails");
    let large = mail_of(MAX_DATA - 20);
    assert_eq!(joinable(&numbered(&[large.clone(), large])), 1);
    let known = letter("x", json!({"known": "x".repeat(MAX_EXTRA - 200)}));
    let letters = vec![known; 50];
    let fit = joinable(&numbered(&letters));
    assert!((2..10).contains(&fit), "{fit}");
    assert!(json_size(&join(&numbered(&letters[..fit])).extra) <= MAX_EXTRA);
}

#[test]
fn joined_letter_fits_into_a_message() {
    let tunnel = "work-mail".parse().unwrap();
    let at = monoco_core::time::Timestamp::from_ms(0);
    let sealing =
        FinishContext { id: id(1), at, tunnel: Some(&tunnel), bytes: None, mail_subject: None };
    for text in ["x".repeat(50_000), "\n\u{1}".repeat(20_000), "€".repeat(20_000)] {
        let mut letters = vec![letter(&text, json!({})); 100];
        for letter in &mut letters {
            letter.to = (0..300).map(|n| format!("a.b.{n}@sub.example.com")).collect();
        }
        let fit = joinable(&numbered(&letters));
        assert!((4..50).contains(&fit), "{fit}");
        let joined = join(&numbered(&letters[..fit]));
        assert!(letter_to_message(&joined, sealing).is_ok(), "{fit}");
        assert!(letter_to_message(&join(&numbered(&letters)), sealing).is_err());
    }
    // A mail of a message must fit into the message; a submitted mail need not.
    let mut letters = vec![mail(&[&b"Subject: x\n\n"[..], &[b'x'; 300_000]].concat()); 5];
    assert_eq!(joinable(&numbered(&letters)), 5);
    letters[0].extra.insert("msg_id".to_owned(), json!("cymsg:1"));
    assert_eq!(joinable(&numbered(&letters)), 3);
}

#[test]
fn extra_of_other_letters_is_kept_while_it_fits() {
    let knows = |key: &str| letter("x", json!({key: "x".repeat(MAX_EXTRA / 2 - 100)}));
    let mut letters = [knows("a"), knows("b"), knows("c"), letter("x", json!({"d": 1}))];
    for letter in &mut letters {
        letter.rest = letter.extra.clone();
    }
    let joined = join(&numbered(&letters));
    for map in [&joined.extra, &joined.rest] {
        let has: Vec<_> =
            ["a", "b", "c", "d"].iter().filter(|key| map.contains_key(**key)).collect();
        assert_eq!(has, [&"a", &"b", &"d"], "c has no room");
        assert!(json_size(map) <= MAX_EXTRA);
    }
}

#[test]
fn latin1_bytes_count_twice() {
    let wide = |bytes: &[u8], count: usize| [&b"Subject: x\n\n"[..], &bytes.repeat(count)].concat();
    let utf8 = mail(&wide("é".as_bytes(), MAX_DATA / 5));
    assert_eq!(joinable(&numbered(&[utf8.clone(), utf8.clone()])), 2);
    // One mail that is not UTF-8 makes all of them Latin-1.
    let letters = [utf8.clone(), mail(b"Subject: x\n\n\xff"), utf8];
    assert_eq!(joinable(&numbered(&letters)), 2);
    assert!(join(&numbered(&letters[..2])).data.len() <= MAX_DATA);
}

/// A letter with arbitrary content.
fn some_letter() -> impl Strategy<Value = Letter> {
    let extra = prop::collection::btree_map("[a-f]", "\\PC{0,40}", 0..4);
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        "(Subject: \\PC{0,9}\n|From: a\n|--=_monoco_|\n|\\PC){0,30}".prop_map(String::into_bytes),
    ];
    (bytes, extra).prop_map(|(bytes, extra)| {
        let mut letter = mail(&bytes);
        letter.extra.extend(extra.into_iter().map(|(key, value)| (key, json!(value))));
        letter
    })
}

proptest! {
    #[test]
    fn no_two_conversations_share_a_key(
        a in "[a,\"\\[\\]\\\\ ]{0,4}", b in prop::collection::vec("[a,\"\\[\\]\\\\ ]{0,4}", 0..4),
        c in "[a,\"\\[\\]\\\\ ]{0,4}", d in prop::collection::vec("[a,\"\\[\\]\\\\ ]{0,4}", 0..4),
    ) {
        let of = |from: &String, to: &Vec<String>| Letter {
            from: from.clone(), to: to.clone(), ..letter("", json!({}))
        };
        let sorted = |list: &Vec<String>| { let mut list = list.clone(); list.sort(); list };
        let same = a == c && sorted(&b) == sorted(&d);
        prop_assert_eq!(merge_key(&of(&a, &b)) == merge_key(&of(&c, &d)), same);
    }

    #[test]
    fn all_that_fit_are_in_the_digest(letters in prop::collection::vec(some_letter(), 2..6)) {
        let letters = numbered(&letters);
        let fit = joinable(&letters);
        prop_assert_eq!(fit, letters.len());
        let joined = join(&letters);
        let bytes = joined.bytes();
        let room = letters.iter().map(|(_, letter)| letter.bytes().len() + MAX_BYTES_PER_MAIL).sum::<usize>();
        prop_assert!(bytes.len() <= room + MAX_BYTES_PER_DIGEST + header_size(&letters[0].1.bytes()));
        let mut body = parts(&bytes).1;
        for (_, letter) in &letters {
            let mail = letter.bytes();
            let at = (0..=body.len() - mail.len()).find(|at| body[*at..].starts_with(&mail));
            body = &body[at.expect("it is in it, after the one before") + mail.len()..];
        }
        prop_assert_eq!(&joined.from, &letters[0].1.from);
        prop_assert_eq!(&joined.to, &letters[0].1.to);
    }
}
