//! Letters in the pipeline: the ordinary letter, the spam, the one that has to wait; on the
//! store and on a real beanstalkd.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use monoco_core::did::{Endpoint, EndpointKind};
use serde_json::{Value, json};

use crate::common::{ME, chat, until};
use crate::mail_checker::{list, name};
use crate::pipeline_harness::{Beanstalkd, PipelineCourier, mail, said, verdicts};
use crate::reference_sdks::python;

/// A room behind the tunnel.
const ROOM: &str = "did:msgtunnel:room-7.group.ci";

/// The chain of all stories.
fn five(queue: &str) -> Value {
    json!({
        "queue": queue,
        "outbound": ["spam", "subject", "footer", "limit", "send"],
        "workers": {
            "spam": {"rules": [{"name": "casino", "subject": "(?i)casino", "score": 5}]},
            "subject": {"template": "[Team] {subject}"},
            "footer": {"text": "Sent by Monoco"},
            "limit": {"per_recipient": "2/s"},
        },
    })
}

/// Tells a story twice: with the store as the queue, and with a beanstalkd.
fn on_both(story: impl Fn(&str)) {
    story("store");
    let beanstalkd = Beanstalkd::start();
    story(&beanstalkd.url());
}

#[test]
fn an_ordinary_letter_goes_through_all_five() {
    on_both(|queue| {
        let hub = PipelineCourier::open(&five(queue));
        let id = hub.post(&mail("bob@example.org", "Hello", "How are you?"));
        let letter = hub.stands(&id, "DONE");
        let all = ["spam", "subject", "footer", "limit", "send"].map(|worker| (worker, "pass"));
        assert_eq!(verdicts(&letter), said(&all));

        let arrived = hub.arrivals(1).remove(0);
        assert_eq!(arrived.to, "bob@example.org");
        assert_eq!(arrived.title.as_deref(), Some("[Team] Hello"));
        assert_eq!(
            arrived.text,
            "From: ann@example.com\r\nTo: bob@example.org\r\nSubject: [Team] Hello\r\nDate: Mon, \
             1 Jun 2026 12:00:00 +0000\r\n\r\nHow are you?\r\n-- \r\nSent by Monoco\r\n"
        );
        let trace = hub.courier.cli(&["trace", &id]).ok();
        for (worker, _) in all {
            assert!(trace.contains(worker), "{worker}: {trace}");
        }
    });
}

#[test]
fn spam_ends_in_the_bin_and_can_be_taken_out_again() {
    on_both(|queue| {
        let hub = PipelineCourier::open(&five(queue));
        let spam = hub.post(&mail("bob@example.org", "Best Casino", "Win!"));
        let trashed = hub.stands(&spam, "TRASHED");
        assert_eq!(verdicts(&trashed), said(&[("spam", "trash")]));
        let ham = hub.post(&mail("bob@example.org", "Hello", "How are you?"));
        hub.stands(&ham, "DONE");
        assert!(hub.arrivals(1)[0].text.contains("How are you?"));

        let bin = hub.courier.get("/api/v1/letters?state=TRASHED").ok();
        let ids: Vec<_> = bin["letters"].as_array().unwrap().iter().map(|row| &row["id"]).collect();
        assert_eq!(ids, [spam.as_str()]);
        let listed = hub.courier.cli(&["pipeline", "trash", "--format", "id"]).ok();
        assert_eq!(listed, format!("{spam}\n"));

        hub.courier.post(&format!("/api/v1/letters/{spam}/restore"), &json!({})).ok();
        let restored = hub.stands(&spam, "DONE");
        let rest = ["subject", "footer", "limit", "send"].map(|worker| (worker, "pass"));
        assert_eq!(verdicts(&restored), said(&[&[("spam", "trash")][..], &rest[..]].concat()));
        let arrived = hub.arrivals(2).remove(1);
        assert_eq!(arrived.title.as_deref(), Some("[Team] Best Casino"));
        assert!(arrived.text.contains("Win!\r\n-- \r\nSent by Monoco"), "{}", arrived.text);
    });
}

#[test]
fn a_limited_letter_waits_its_turn_and_holds_up_nobody() {
    on_both(|queue| {
        let mut hub = PipelineCourier::open(&five(queue));
        let post = |hub: &PipelineCourier, to: &str, words: &[&str]| -> Vec<String> {
            let post = |word: &&str| hub.post(&mail(to, "Hello", word));
            words.iter().map(post).collect()
        };
        let many = ["word-a", "word-b", "word-c", "word-d", "word-e", "word-f", "word-g", "word-h"];
        let anns = post(&hub, "ann@example.org", &many);
        let bobs = post(&hub, "bob@example.org", &["word-x", "word-y"]);
        // A burst goes at once, the rest is kept; another recipient does not wait for it.
        for id in anns[..2].iter().chain(&bobs) {
            hub.stands(id, "DONE");
        }
        let last = hub.letter(&anns[7]);
        assert_eq!((&last["state"], &last["worker"]), (&json!("WAITING"), &json!("limit")));
        assert_eq!(verdicts(&last), said(&["spam", "subject", "footer"].map(|w| (w, "pass"))));

        // In the middle of it the courier is killed.
        hub.stands(&anns[2], "DONE");
        hub.restart();
        for id in &anns {
            hub.stands(id, "DONE");
        }
        let all = many.iter().chain(&["word-x", "word-y"]).map(|word| (*word).to_owned());
        hub.each_once(&all.collect::<BTreeSet<_>>());
        in_order(&hub, &anns);
    });
}

/// Sees that letters were sent in this order, and not faster than two in a second.
fn in_order(hub: &PipelineCourier, ids: &[String]) {
    let sent = |id: &String| {
        let letter = hub.letter(id);
        let verdicts = letter["verdicts"].as_array().unwrap();
        let send = verdicts.iter().find(|passed| passed["worker"] == "send").unwrap();
        let at = send["at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        at.as_millisecond()
    };
    let times: Vec<_> = ids.iter().map(sent).collect();
    assert!(times.is_sorted(), "{times:?}");
    for (n, at) in (0..).zip(&times).skip(2) {
        let turn = times[0] + (n - 1) * 500;
        // Each is due when it was booked, which is reckoned from when the first came.
        assert!(*at >= turn - 100, "no. {n} went {} ms early: {times:?}", turn - at);
    }
    let path = "/api/v1/boxes/did:msgtunnel:ci/TUNNEL_OUTBOX?order=oldest&limit=1000";
    let records = hub.courier.get(path).ok();
    let became: Vec<_> = ids.iter().map(|id| hub.letter(id)["became"].clone()).collect();
    let filed = records["records"].as_array().unwrap().iter().map(|record| &record["msg_id"]);
    let filed: Vec<_> = filed.filter(|id| became.contains(id)).cloned().collect();
    assert_eq!(filed, became);
}

#[test]
fn what_is_heard_goes_through_the_inbound_chain() {
    let pipeline = json!({
        "inbound": ["spam", "deliver"],
        "workers": {"spam": {"rules": [{"name": "casino", "text": "(?i)casino", "score": 5}]}},
    });
    let hub = PipelineCourier::open(&pipeline);
    let courier = &hub.courier;
    courier.hears("evt-1", "room-7", "eve", "the best casino");
    courier.hears("evt-2", "room-7", "ann", "the build is red");
    // A second copy of either is no second letter.
    courier.hears("evt-1", "room-7", "eve", "the best casino");
    courier.hears("evt-2", "room-7", "ann", "the build is red");
    let mails = courier.mails(1);
    assert_eq!(mails[0]["preview"], "the build is red");
    hub.settled();
    assert_eq!((hub.count("DONE"), hub.count("TRASHED")), (1, 1));

    // The same chain applies to tunnels that use `dispatch`.
    let dispatch = |text: &str| {
        let answer =
            courier.post("/api/v1/dispatch", &json!({"msg": chat("did:web:ann", ME, text)}));
        answer.ok()["letter"].as_str().unwrap().to_owned()
    };
    let (spam, ham) = (dispatch("casino royale"), dispatch("good evening"));
    hub.stands(&spam, "TRASHED");
    let done = hub.stands(&ham, "DONE");
    assert_eq!(verdicts(&done), said(&[("spam", "pass"), ("deliver", "pass")]));
    let inbox = courier.get(&format!("/api/v1/boxes/{ME}/INBOX")).ok();
    let found: BTreeSet<_> =
        inbox["records"].as_array().unwrap().iter().map(|r| r["msg_id"].to_string()).collect();
    assert!(found.contains(&done["became"].to_string()), "{inbox:#}");
    assert_eq!(
        courier.get("/api/v1/letters?state=TRASHED").ok()["letters"][0]["id"],
        spam.as_str()
    );
}

/// A chain that throws casinos away and adds a footer.
fn footed() -> Value {
    json!({
        "outbound": ["spam", "footer", "send"],
        "workers": {
            "spam": {"rules": [{"name": "casino", "text": "(?i)casino", "score": 5}]},
            "footer": {"text": "Sent by Monoco"},
        },
    })
}

#[test]
fn a_message_that_is_posted_goes_through_the_outbound_chain() {
    let hub = PipelineCourier::open(&footed());
    let post = |text: &str| {
        let answer = hub.courier.post("/api/v1/post_send", &json!({"msg": chat(ME, ROOM, text)}));
        answer.ok()
    };
    let answer = post("hello");
    assert_eq!(answer["deliveries"], json!([]));
    let id = answer["letter"].as_str().unwrap().to_owned();
    let done = hub.stands(&id, "DONE");
    assert_ne!(done["became"], answer["msg_id"], "it is another message with its footer");
    let arrived = hub.arrivals(1).remove(0);
    assert_eq!((&*arrived.to, &*arrived.text), ("room-7", "hello\n\n-- \nSent by Monoco"));

    let again = post("hello");
    assert_eq!((&again["letter"], &again["duplicate"]), (&json!(id), &json!(true)));
    let spam = post("casino")["letter"].as_str().unwrap().to_owned();
    hub.stands(&spam, "TRASHED");
    assert_eq!(hub.arrivals(1).len(), 1);
}

#[test]
fn a_draft_is_put_away_when_its_letter_has_come_to_its_end() {
    let hub = PipelineCourier::open(&footed());
    let outbound = hub.home().join("mailbox/outbound/webhook");
    fs::create_dir_all(&outbound).unwrap();
    let write = |file: &str, text: &str| {
        fs::write(outbound.join(file), format!("---\nto: group:room-7\n---\n\n{text}")).unwrap();
    };
    write("good.md", "hello");
    write("bad.md", "the best casino");
    let drafts = |place: &str| -> Vec<_> {
        let files = list(&hub.home().join("mailbox").join(place).join("webhook"));
        files.into_iter().filter(|path| name(path).ends_with(".md")).collect()
    };
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    until("both drafts ended", || drafts("archive").len() == 1 && drafts(".deadletter").len() == 1);
    assert_eq!(hub.arrivals(1)[0].text, "hello\n\n-- \nSent by Monoco");
    assert!(text(&drafts("archive")[0]).contains("hello"));
    let dead = &drafts(".deadletter")[0];
    assert!(text(dead).contains("the best casino"));
    let reason = text(&dead.with_extension("reason.json"));
    assert!(reason.contains("spam") && reason.contains("casino"), "{reason}");
}

#[test]
fn letters_of_one_key_become_one() {
    let pipeline = json!({"outbound": ["merge", "send"], "workers": {"merge": {"window_s": 1}}});
    let hub = PipelineCourier::open(&pipeline);
    let text = |to: &str, text: &str| {
        let extra = json!({"content_type": "text/markdown"});
        hub.post(&json!({"from": ME, "to": [to], "data": text, "extra": extra}))
    };
    let chats = ["one", "two", "three"].map(|word| text(ROOM, word));
    let other = text("did:msgtunnel:room-8.group.ci", "four");
    let mails = ["Uno", "Dos", "Tres"].map(|word| hub.post(&mail("bob@example.org", word, word)));
    hub.stands(&other, "DONE");
    for ids in [&chats, &mails] {
        hub.stands(&ids[0], "DONE");
        for id in &ids[1..] {
            assert_eq!(hub.stands(id, "MERGED")["merged_into"], ids[0].as_str());
        }
    }
    let arrived = hub.arrivals(3);
    let to = |to: &str| arrived.iter().find(|arrived| arrived.to == to).unwrap();
    assert_eq!(to("room-7").text, "one\n\ntwo\n\nthree");
    assert_eq!(to("room-8").text, "four");

    let script = r#"
import sys, json, email, email.policy
mail = email.message_from_string(json.load(sys.stdin), policy=email.policy.default)
parts = [part.get_payload(0) for part in mail.iter_parts()]
print(json.dumps([mail.get_content_type(), mail["Subject"], mail["To"], [str(d) for d in mail.defects],
    [[part["Subject"], part.get_payload().strip()] for part in parts]]))
"#;
    let digest: Value =
        serde_json::from_str(&python(script, &json!(to("bob@example.org").text))).unwrap();
    let parts = json!([["Uno", "Uno"], ["Dos", "Dos"], ["Tres", "Tres"]]);
    assert_eq!(
        digest,
        json!(["multipart/digest", "Uno (and 2 more)", "bob@example.org", [], parts])
    );
}

#[test]
fn letters_of_the_blocked_end_in_the_bin() {
    let pipeline = json!({
        "outbound": ["block", "send"],
        "workers": {"block": {"senders": ["@spam.example"], "recipients": ["nobody@example.org"]}},
    });
    let hub = PipelineCourier::open(&pipeline);
    let did = |account: &str| {
        let (account, kind) = (account.to_owned(), EndpointKind::Addr);
        Endpoint { account, kind, tunnel: "ci".parse().unwrap() }.did().unwrap().to_string()
    };
    // In a path the DID's own escapes are escaped once more.
    let eve = did("eve@example.com").replace('%', "%25");
    hub.courier.put(&format!("/api/v1/contacts/{eve}"), &json!({"level": "block"})).ok();
    let from = |from: &str, to: &str| {
        let mut letter = mail(to, "Hello", "hello");
        letter["from"] = json!(from);
        hub.post(&letter)
    };
    for (from, to) in [
        (from("sales@spam.example", "bob@example.org"), "its sender is blocked"),
        (from("ann@example.com", "nobody@example.org"), "nobody@example.org is blocked"),
        (from("eve@example.com", "bob@example.org"), "its author is blocked"),
    ] {
        let trashed = hub.stands(&from, "TRASHED");
        assert_eq!(verdicts(&trashed), said(&[("block", "trash")]));
        assert!(trashed["verdicts"][0]["note"].as_str().unwrap().contains(to), "{trashed:#}");
    }
    hub.stands(&from("ann@example.com", "bob@example.org"), "DONE");
    assert_eq!(hub.arrivals(1)[0].to, "bob@example.org");
}

/// A worker that takes its time, for ever.
fn hangs() -> Value {
    json!({"kind": "exec", "command": ["sleep", "100"], "timeout_s": 100, "parallel": 1})
}

/// Changes a pipeline: while the courier runs, or while it does not.
fn change(hub: &mut PipelineCourier, pipeline: &Value, runs: bool) {
    if runs { hub.reload(pipeline) } else { hub.restart_with(pipeline) }
}

#[test]
fn a_worker_that_leaves_the_chain_holds_no_letter_back() {
    let chain = |outbound: Value, workers: Value| json!({"outbound": outbound, "workers": workers});
    let title = json!({"template": "[New] {subject}"});
    // It may be gone altogether, or be left where it is and asked no more.
    let gone = chain(json!(["subject", "send"]), json!({"subject": title}));
    let left = chain(json!(["subject", "send"]), json!({"hangs": hangs(), "subject": title}));
    for (after, runs) in [(&gone, true), (&left, true), (&left, false)] {
        let mut hub =
            PipelineCourier::open(&chain(json!(["hangs", "send"]), json!({"hangs": hangs()})));
        let ids: Vec<_> = (0..3)
            .map(|n| hub.post(&mail("bob@example.org", "Hello", &format!("word-{n}"))))
            .collect();
        until("one is away, two wait", || (hub.count("AWAY"), hub.count("WAITING")) == (1, 2));
        change(&mut hub, after, runs);
        for id in &ids {
            let done = hub.stands(id, "DONE");
            assert_eq!(verdicts(&done), said(&[("subject", "pass"), ("send", "pass")]));
        }
        hub.each_once(&(0..3).map(|n| format!("word-{n}")).collect());
        let titles: BTreeSet<_> = hub.came().into_iter().map(|one| one.title).collect();
        assert_eq!(titles, BTreeSet::from([Some("[New] Hello".to_owned())]));
    }
}

#[test]
fn a_limit_that_leaves_the_chain_lets_go_at_once() {
    let limit = json!({"limit": {"per_recipient": "1/day"}});
    let footer = json!({"text": "-30-"});
    let both = json!({"limit": limit["limit"], "footer": footer});
    let gone = json!({"outbound": ["footer", "send"], "workers": {"footer": footer}});
    let left = json!({"outbound": ["footer", "send"], "workers": both});
    for (after, runs) in [(&gone, true), (&left, true), (&gone, false), (&left, false)] {
        let mut hub =
            PipelineCourier::open(&json!({"outbound": ["limit", "send"], "workers": limit}));
        let ids: Vec<_> = (0..4)
            .map(|n| hub.post(&mail("bob@example.org", "Hello", &format!("word-{n}"))))
            .collect();
        hub.stands(&ids[0], "DONE");
        let held = |status: &Value| status["workers"]["limit"]["held"] == 3;
        hub.courier.until("/api/v1/pipeline", held);
        change(&mut hub, after, runs);
        for id in &ids[1..] {
            let done = hub.stands(id, "DONE");
            assert!(verdicts(&done).contains(&("footer".into(), "pass".into())), "{done:#}");
        }
        hub.each_once(&(0..4).map(|n| format!("word-{n}")).collect());
        let footed = hub.came().into_iter().filter(|one| one.text.contains("-30-"));
        assert_eq!(footed.map(|one| one.key).collect::<BTreeSet<_>>().len(), 3);
    }
}
