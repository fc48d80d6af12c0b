//! Laws of letters: moved step by step, and finished as what they became.

use super::letters::*;
use super::mails::{says, with_message};
use super::*;
use crate::{AcceptResult, LetterRow, LetterSource, LetterStep, LetterStepResult, NextAction};
use monoco_core::letter::{Letter, LetterState, WorkerName};

/// Where each step leads from each state; `-` where it is refused. From where a letter
/// has ended, only those that are not.
const STEPS: &str = "
waits, wait: WAITING from 40
waits, wait at: WAITING at b from 40
waits, keep: WAITING kept by limit/k from 40
waits, hand over: -
waits, put back: -
waits, put back: -
waits, send: DONE
waits, trash: TRASHED: bad
waits, give up: DEAD: enough
at desk, wait: WAITING from 40
at desk, wait at: WAITING at b from 40
at desk, keep: WAITING kept by limit/k from 40
at desk, hand over: AWAY at a until 60, 1 tries
at desk, put back: -
at desk, put back: -
at desk, send: DONE
at desk, trash: TRASHED: bad
at desk, give up: DEAD at a: enough
kept, wait: WAITING from 40
kept, wait at: WAITING at b from 40
kept, keep: WAITING kept by limit/k from 40
kept, hand over: -
kept, put back: -
kept, put back: -
kept, send: DONE
kept, trash: TRASHED: bad
kept, give up: DEAD: enough
away, wait: WAITING from 40
away, wait at: WAITING at b from 40
away, keep: WAITING kept by limit/k from 40
away, hand over: -
away, put back: WAITING at a from 40, 1 tries: no
away, put back: WAITING at a from 40: down
away, send: DONE, 1 tries
away, trash: TRASHED, 1 tries: bad
away, give up: DEAD at a, 1 tries: enough
dead, trash: TRASHED: bad
";

pub(crate) async fn letters_are_due_at_their_desks_in_their_order(home: &dyn Home) {
    let store = &*home.open().await;
    let none: Option<&WorkerName> = None;
    assert_eq!(store.next_letter(none).await.unwrap(), None);
    for (text, desk, due) in [
        ("a", None, 30),
        ("b", None, 20),
        ("c", None, 20),
        ("d", Some("spam"), 10),
        ("e", Some("spam"), 5),
        ("f", Some("spa"), 1),
    ] {
        let id = take_in(store, door(text), 0).await;
        go(store, id, wait(desk, due), 1).await.unwrap();
    }
    assert_eq!(due(store, None, 19).await, "");
    assert_eq!(due(store, None, 20).await, "b c");
    assert_eq!(due(store, None, 30).await, "b c a");
    assert_eq!(due(store, Some("spam"), 100).await, "e d");
    assert_eq!(due(store, Some("spa"), 100).await, "f");
    assert_eq!(due(store, Some("none"), 100).await, "");
    let some = store.due_letters(none, 2, at(100)).await.unwrap();
    assert_eq!(some.iter().map(|row| &*row.letter.data).collect::<String>(), "bc");
    assert_eq!(store.next_letter(none).await.unwrap(), Some(at(20)));
    assert_eq!(store.next_letter(Some(&worker("spam"))).await.unwrap(), Some(at(5)));
}

/// Where each step leads from each state, as one line.
pub(crate) async fn steps_follow_the_machine(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let steps = [
        ("wait", wait(None, 40)),
        ("wait at", wait(Some("b"), 40)),
        ("keep", keep("limit", Some("k"), 40)),
        ("hand over", NextAction::HandOver { until: at(60) }),
        ("put back", NextAction::Return { due: at(40), tried: true, why: "no".to_owned() }),
        ("put back", NextAction::Return { due: at(40), tried: false, why: "down".to_owned() }),
        ("send", send(out("ann", "sent"))),
        ("trash", trash("bad")),
        ("give up", NextAction::MarkDead { why: "enough".to_owned() }),
    ];
    let mut table = String::new();
    for from in ["waits", "at desk", "kept", "away", "done", "trashed", "dead"] {
        for (name, then) in &steps {
            let id = take_in(store, door("x"), 0).await;
            let until = NextAction::HandOver { until: at(50) };
            let before = match from {
                "waits" => vec![wait(None, 10)],
                "kept" => vec![keep("merge", None, 10)],
                "at desk" => vec![wait(Some("a"), 10)],
                "away" => vec![wait(Some("a"), 10), until],
                "done" => vec![send(out("ann", "sent"))],
                "trashed" => vec![trash("before")],
                _ => vec![wait(Some("a"), 10), NextAction::MarkDead { why: "before".to_owned() }],
            };
            for step in before {
                go(store, id, step, 20).await.unwrap();
            }
            let seen = store.letter(id).await.unwrap();
            let end = match go(store, id, then.clone(), 20).await {
                Ok(advanced) => {
                    let row = store.letter(id).await.unwrap();
                    assert_eq!(advanced.state, row.status.standing.name());
                    assert_eq!(advanced.revision, row.revision);
                    assert_eq!(row.revision, seen.revision + 1);
                    assert_eq!(row.verdicts.len(), seen.verdicts.len() + 1);
                    stands(&row)
                }
                Err(StoreError::InvalidTransition(_)) => {
                    assert_eq!(store.letter(id).await.unwrap().revision, seen.revision);
                    "-".to_owned()
                }
                Err(error) => panic!("{from} {name}: {error}"),
            };
            if !matches!(from, "done" | "trashed" | "dead") || end != "-" {
                table += &format!("{from}, {name}: {end}\n");
            }
        }
    }
    assert_eq!(table, STEPS.trim_start());
}

pub(crate) async fn a_step_of_a_letter_that_changed_is_refused(home: &dyn Home) {
    let store = &*home.open().await;
    let ids = [take_in(store, door("a"), 0).await, take_in(store, door("b"), 0).await];
    let rows = [store.letter(ids[0]).await.unwrap(), store.letter(ids[1]).await.unwrap()];
    go(store, ids[0], wait(Some("spam"), 7), 1).await.unwrap();
    let before = events(store).await;
    let batch: Vec<_> = rows.iter().map(|row| LetterStep::only(row, wait(None, 5))).collect();
    let answers = store.step_letters(batch, at(2)).await;
    assert!(
        matches!(answers[0], Err(StoreError::Conflict { revision: 2, .. })),
        "{:?}",
        answers[0]
    );
    assert_eq!(answers[1].as_ref().unwrap().revision, 2);
    assert_eq!(look_at(store, ids[0]).await, "WAITING at spam from 7");
    assert_eq!(look_at(store, ids[1]).await, "WAITING from 5");
    assert_eq!(events(store).await, before, "nobody said anything, and nothing ended");
}

pub(crate) async fn letters_become_one_together_or_not_at_all(home: &dyn Home) {
    let store = &*home.open().await;
    let mut rows = Vec::new();
    for text in ["a", "b", "c"] {
        let id = take_in(store, door(text), 0).await;
        go(store, id, keep("merge", Some("k"), 10), 1).await.unwrap();
        rows.push(store.letter(id).await.unwrap());
    }
    let kept = store.held_letters(&worker("merge"), "k", 2).await.unwrap();
    assert_eq!(kept.iter().map(|row| &*row.letter.data).collect::<String>(), "ab");
    assert!(store.held_letters(&worker("merge"), "j", 9).await.unwrap().is_empty());
    assert!(store.held_letters(&worker("merg"), "k", 9).await.unwrap().is_empty());

    let join = |others: &[&LetterRow]| LetterStep {
        letter: Some(letter("abc")),
        joins: others.iter().map(|row| (row.id, row.revision)).collect(),
        ..LetterStep::only(&rows[0], wait(None, 11))
    };
    go(store, rows[2].id, keep("merge", Some("k"), 12), 1).await.unwrap();
    let answer = store.step_letters(vec![join(&[&rows[1], &rows[2]])], at(11)).await.remove(0);
    assert!(matches!(answer, Err(StoreError::Conflict { .. })), "{answer:?}");
    let own = store.step_letters(vec![join(&[&rows[0]])], at(11)).await.remove(0);
    assert!(matches!(own, Err(StoreError::InvalidTransition(_))), "{own:?}");
    assert_eq!(due(store, None, 12).await, "a b c", "nothing happened to any");

    let last = store.letter(rows[2].id).await.unwrap();
    store.step_letters(vec![join(&[&rows[1], &last])], at(11)).await.remove(0).unwrap();
    assert_eq!(due(store, None, 12).await, "abc");
    for row in &rows[1..] {
        assert_eq!(look_at(store, row.id).await, format!("MERGED into {}", rows[0].id.seq));
    }
    let away = take_in(store, door("d"), 0).await;
    go(store, away, wait(Some("spam"), 1), 1).await.unwrap();
    go(store, away, NextAction::HandOver { until: at(9) }, 1).await.unwrap();
    let (main, away) = (store.letter(rows[0].id).await.unwrap(), store.letter(away).await.unwrap());
    let mut late = LetterStep::only(&main, wait(None, 1));
    late.joins.push((away.id, away.revision));
    let refused = store.step_letters(vec![late], at(11)).await.remove(0);
    assert!(matches!(refused, Err(StoreError::InvalidTransition(_))), "{refused:?}");
}

pub(crate) async fn what_is_booked_is_written_with_its_step(home: &dyn Home) {
    let store = home.open().await;
    let id = take_in(&*store, door("a"), 0).await;
    let row = store.letter(id).await.unwrap();
    let book = |revision, booked: &[(&str, i64)]| LetterStep {
        revision,
        reservations: booked.iter().map(|(key, until)| ((*key).to_owned(), *until)).collect(),
        ..LetterStep::only(&row, keep("limit", None, 9))
    };
    let keys = || ["limit:a", "limit:b", "limit:c"].map(str::to_owned).to_vec();
    store
        .step_letters(vec![book(1, &[("limit:a", 5), ("limit:b", 6)])], at(1))
        .await
        .remove(0)
        .unwrap();
    assert!(store.step_letters(vec![book(1, &[("limit:c", 7)])], at(1)).await.remove(0).is_err());
    store.step_letters(vec![book(2, &[("limit:a", 8)])], at(1)).await.remove(0).unwrap();
    drop(store);
    let booked = home.open().await.reservations(keys()).await.unwrap();
    assert_eq!(booked, [("limit:a".to_owned(), 8), ("limit:b".to_owned(), 6)].into());
}

pub(crate) async fn a_letter_is_sent_as_what_it_became(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let (first, other) = (out("ann", "hello"), out("ann", "hello, with a footer"));
    let post = SendRequest { key: Some("k".to_owned()), ..post_of(first.clone()) };
    let id = take_in(store, LetterSource::Send(post.clone()), 0).await;
    let row = store.letter(id).await.unwrap();
    let changed = Letter { data: "hello, with a footer".to_owned(), ..row.letter.clone() };
    let then = NextAction::Send(Box::new(SendRequest { msg: other.clone(), ..post.clone() }));
    let (letter, had) = (Some(changed.clone()), vec![passed("footer"), passed("send")]);
    let advance = LetterStep {
        letter,
        in_object: true,
        verdicts: had.clone(),
        ..LetterStep::only(&row, then)
    };
    let advanced = store.step_letters(vec![advance], at(1)).await.remove(0).unwrap();
    assert_eq!(advanced, LetterStepResult { state: LetterState::Done, revision: 2 });
    assert_eq!(outgoing(store, "lark").await, "hello, with a footer WAIT");
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.letter, row.verdicts, row.became), (changed, had, Some(other.id())));
    assert_eq!(again(store, LetterSource::Send(post)).await, id, "the key stands for it");

    let same = take_in(store, posted(out("ann", "as it is")), 0).await;
    go(store, same, send(out("ann", "as it is")), 1).await.unwrap();
    let answer = accept(store, posted(out("ann", "as it is")), 2).await.unwrap();
    let AcceptResult::Sent(SendResult::Queued { duplicate: true, ways, .. }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(ways.len(), 1);

    for id in [first.id(), other.id()] {
        let letters = store.trace(id).await.unwrap().letters;
        assert_eq!(letters.iter().map(|row| row.revision).collect::<Vec<_>>(), [2]);
    }
    let kinds: Vec<_> = store.trace(other.id()).await.unwrap().events;
    let kinds: Vec<_> = kinds.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["posted", "verdict"]);
}

pub(crate) async fn what_can_not_be_sent_is_dead_or_in_the_bin(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    contact(store, "eve", ContactLevel::Block).await;
    let late = object(json!({"expires_at_ms": 5}), "me", &[&endpoint("oc", "lark")], "late");
    let eve = chat("eve", &[&endpoint("oc", "lark")], "psst");
    let away = plain(chat("ann", &[&endpoint("oc", "lark")], "for nobody here"));
    let blocked = plain(chat("eve", &["me"], "psst"));
    for (then, want) in [
        (send(chat("me", &["nobody"], "x")), "DEAD: no way to reach did:web:nobody"),
        (send(late), "DEAD: message expired at 1970-01-01T00:00:00.005Z"),
        (send(eve), "TRASHED: blocked_author"),
        (NextAction::Dispatch(Box::new(away)), "DEAD: no local recipient among"),
        (NextAction::Dispatch(Box::new(blocked)), "TRASHED: blocked_author"),
    ] {
        let id = take_in(store, door("x"), 0).await;
        go(store, id, wait(Some("spam"), 0), 0).await.unwrap();
        let advanced = go(store, id, then, 1).await.unwrap();
        let row = store.letter(id).await.unwrap();
        assert_eq!(advanced.state, row.status.standing.name());
        assert!(stands(&row).starts_with(want), "{}", stands(&row));
        assert_eq!((row.verdicts.len(), row.became), (1, None), "whoever ends the chain has not");
        assert_eq!(row.worker, None, "nobody at a desk failed");
    }
    assert_eq!(outgoing(store, "lark").await, "");
    assert_eq!(store.dead_letters(2).await.unwrap().len(), 2);
    assert_eq!(store.dead_letters(9).await.unwrap().len(), 3);
}

pub(crate) async fn what_was_heard_joins_its_session_at_the_end(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    let of = |id: &str, author: &str, tunnel: &str| {
        let mut keep = says(id, author, id);
        keep.tunnel = tunnel_id(tunnel);
        keep
    };
    let mut ids = Vec::new();
    for (id, author, tunnel) in [("1", "ann", "lark"), ("2", "eve", "lark"), ("3", "bob", "wary")] {
        ids.push(take_in(store, LetterSource::Inbound(of(id, author, tunnel)), 0).await);
    }
    contact(store, &endpoint("eve", "lark"), ContactLevel::Block).await;
    let changed =
        with_message(of("1", "ann", "lark"), |message| message.text = "changed".to_owned());
    for (id, keep) in ids.iter().zip([changed, of("2", "eve", "lark"), of("3", "bob", "wary")]) {
        go(store, *id, NextAction::Deliver(Box::new(keep)), 1).await.unwrap();
    }
    assert_eq!(look_at(store, ids[0]).await, "DONE");
    assert_eq!(look_at(store, ids[1]).await, "TRASHED: blocked_author");
    assert_eq!(store.letter(ids[0]).await.unwrap().became, None, "its window is open");
    assert_eq!(merge(store, 100).await, 2);
    let mails = super::mails::mails(store).await;
    assert_eq!(mails.len(), 1, "a stranger's is held");
    let mail = mails[0].entry.msg_id;
    assert_eq!(store.find_by_external_id("1").await.unwrap(), mail);
    assert_eq!(store.letter(ids[0]).await.unwrap().became, Some(mail));
    assert_eq!(store.letters_of(mail).await.unwrap()[0].id, ids[0]);
    let none = take_in(store, door("x"), 0).await;
    let answer = go(store, none, NextAction::Deliver(Box::new(of("9", "ann", "lark"))), 1).await;
    assert!(matches!(answer, Err(StoreError::Missing { .. })), "{answer:?}");
}

pub(crate) async fn large_letters_are_kept_whole(home: &dyn Home) {
    let store = home.open().await;
    lark(&*store).await;
    let large = |word: &str| word.repeat(1_000_000 / word.len());
    let msg = out("ann", &large("post "));
    let handed_in = take_in(&*store, door(&large("door ")), 0).await;
    let sent = take_in(&*store, posted(msg.clone()), 0).await;
    let keep = says("1", "ann", &"heard ".repeat(15_000));
    let heard = take_in(&*store, LetterSource::Inbound(keep.clone()), 0).await;
    let row = store.letter(handed_in).await.unwrap();
    let change = LetterStep {
        letter: Some(letter(&large("new "))),
        ..LetterStep::only(&row, wait(None, 1))
    };
    store.step_letters(vec![change], at(1)).await.remove(0).unwrap();
    drop(store);
    let store = home.open().await;
    let row = store.letter(handed_in).await.unwrap();
    assert_eq!(row.letter, letter(&large("new ")));
    assert!(
        matches!(row.source, LetterSource::Submitted { letter: first, .. } if first == letter(&large("door ")))
    );
    let row = store.letter(sent).await.unwrap();
    assert!(matches!(row.source, LetterSource::Send(post) if post.msg == msg));
    let row = store.letter(heard).await.unwrap();
    assert!(matches!(row.source, LetterSource::Inbound(heard) if heard.message == keep.message));
    assert_eq!(due(&*store, None, 9).await.len(), 2_000_000 + 90_000 + 2);
    go(&*store, sent, send(msg), 2).await.unwrap();
    assert_eq!(outgoing(&*store, "lark").await.len(), 1_000_000 + " WAIT".len());
}
