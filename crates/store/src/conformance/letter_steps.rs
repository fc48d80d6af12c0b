//! Conformance tests of the steps of letters through their chain.

use monoco_core::letter::{Letter, LetterState, WorkerName};

use super::inbound::{inbound_message, with_message};
use super::letters::{
    accept, accept_duplicate, accept_letter, apply_step, describe_letter, due_texts, letter,
    letter_status, merge_all, outgoing_message, pass_verdict, send_source, step_letter, submitted,
    then_hold, then_send, then_trash, then_wait, worker,
};
use super::mails::list_mails;
use super::*;
use crate::{AcceptResult, LetterRow, LetterSource, LetterStep, LetterStepResult, NextAction};

/// Transition table: state before, step, letter after the step; `-` when the step is
/// rejected. Rejected steps of finished letters are left out.
const STEPS: &str = "
waiting, wait: WAITING from 40
waiting, wait at: WAITING at b from 40
waiting, hold: WAITING held by limit/k from 40
waiting, hand over: -
waiting, return: -
waiting, return: -
waiting, send: DONE
waiting, trash: TRASHED: bad
waiting, mark dead: DEAD: enough
at worker, wait: WAITING from 40
at worker, wait at: WAITING at b from 40
at worker, hold: WAITING held by limit/k from 40
at worker, hand over: AWAY at a until 60, 1 attempts
at worker, return: -
at worker, return: -
at worker, send: DONE
at worker, trash: TRASHED: bad
at worker, mark dead: DEAD at a: enough
held, wait: WAITING from 40
held, wait at: WAITING at b from 40
held, hold: WAITING held by limit/k from 40
held, hand over: -
held, return: -
held, return: -
held, send: DONE
held, trash: TRASHED: bad
held, mark dead: DEAD: enough
away, wait: WAITING from 40
away, wait at: WAITING at b from 40
away, hold: WAITING held by limit/k from 40
away, hand over: -
away, return: WAITING at a from 40, 1 attempts: no
away, return: WAITING at a from 40: down
away, send: DONE, 1 attempts
away, trash: TRASHED, 1 attempts: bad
away, mark dead: DEAD at a, 1 attempts: enough
dead, trash: TRASHED: bad
";

pub(crate) async fn due_letters_are_ordered_per_worker(store: &dyn Store) {
    let none: Option<&WorkerName> = None;
    assert_eq!(store.next_letter(none).await.unwrap(), None);
    for (text, worker_name, due) in [
        ("a", None, 30),
        ("b", None, 20),
        ("c", None, 20),
        ("d", Some("spam"), 10),
        ("e", Some("spam"), 5),
        ("f", Some("spa"), 1),
    ] {
        let id = accept_letter(store, submitted(text), 0).await;
        step_letter(store, id, then_wait(worker_name, due), 1).await.unwrap();
    }
    assert_eq!(due_texts(store, None, 19).await, "");
    assert_eq!(due_texts(store, None, 20).await, "b c");
    assert_eq!(due_texts(store, None, 30).await, "b c a");
    assert_eq!(due_texts(store, Some("spam"), 100).await, "e d");
    assert_eq!(due_texts(store, Some("spa"), 100).await, "f");
    assert_eq!(due_texts(store, Some("none"), 100).await, "");
    let some = store.due_letters(none, 2, at(100)).await.unwrap();
    assert_eq!(some.iter().map(|row| &*row.letter.data).collect::<String>(), "bc");
    assert_eq!(store.next_letter(none).await.unwrap(), Some(at(20)));
    assert_eq!(store.next_letter(Some(&worker("spam"))).await.unwrap(), Some(at(5)));
}

pub(crate) async fn letter_steps_match_the_transition_table(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let steps = [
        ("wait", then_wait(None, 40)),
        ("wait at", then_wait(Some("b"), 40)),
        ("hold", then_hold("limit", Some("k"), 40)),
        ("hand over", NextAction::HandOver { until: at(60), holder: None }),
        ("return", NextAction::Return { due: at(40), tried: true, why: "no".to_owned() }),
        ("return", NextAction::Return { due: at(40), tried: false, why: "down".to_owned() }),
        ("send", then_send(outgoing_message("ann", "sent"))),
        ("trash", then_trash("bad")),
        ("mark dead", NextAction::MarkDead { why: "enough".to_owned() }),
    ];
    let mut table = String::new();
    for from in ["waiting", "at worker", "held", "away", "done", "trashed", "dead"] {
        for (name, then) in &steps {
            let id = accept_letter(store, submitted("x"), 0).await;
            let until = NextAction::HandOver { until: at(50), holder: None };
            let before = match from {
                "waiting" => vec![then_wait(None, 10)],
                "held" => vec![then_hold("merge", None, 10)],
                "at worker" => vec![then_wait(Some("a"), 10)],
                "away" => vec![then_wait(Some("a"), 10), until],
                "done" => vec![then_send(outgoing_message("ann", "sent"))],
                "trashed" => vec![then_trash("before")],
                _ => vec![
                    then_wait(Some("a"), 10),
                    NextAction::MarkDead { why: "before".to_owned() },
                ],
            };
            for step in before {
                step_letter(store, id, step, 20).await.unwrap();
            }
            let seen = store.letter(id).await.unwrap();
            let end = match step_letter(store, id, then.clone(), 20).await {
                Ok(result) => {
                    let row = store.letter(id).await.unwrap();
                    assert_eq!(result.state, row.status.standing.name());
                    assert_eq!(result.revision, row.revision);
                    assert_eq!(row.revision, seen.revision + 1);
                    assert_eq!(row.verdicts.len(), seen.verdicts.len() + 1);
                    describe_letter(&row)
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

pub(crate) async fn step_of_a_changed_letter_is_a_conflict(store: &dyn Store) {
    let ids = [
        accept_letter(store, submitted("a"), 0).await,
        accept_letter(store, submitted("b"), 0).await,
    ];
    let rows = [store.letter(ids[0]).await.unwrap(), store.letter(ids[1]).await.unwrap()];
    step_letter(store, ids[0], then_wait(Some("spam"), 7), 1).await.unwrap();
    let before = event_kinds(store).await;
    let batch: Vec<_> = rows.iter().map(|row| LetterStep::only(row, then_wait(None, 5))).collect();
    let answers = store.step_letters(batch, at(2)).await;
    assert!(
        matches!(answers[0], Err(StoreError::Conflict { revision: 2, .. })),
        "{:?}",
        answers[0]
    );
    assert_eq!(answers[1].as_ref().unwrap().revision, 2);
    assert_eq!(letter_status(store, ids[0]).await, "WAITING at spam from 7");
    assert_eq!(letter_status(store, ids[1]).await, "WAITING from 5");
    assert_eq!(
        event_kinds(store).await,
        before,
        "a step without verdicts or an end writes no event"
    );
}

pub(crate) async fn letters_are_joined_atomically(store: &dyn Store) {
    let mut rows = Vec::new();
    for text in ["a", "b", "c"] {
        let id = accept_letter(store, submitted(text), 0).await;
        step_letter(store, id, then_hold("merge", Some("k"), 10), 1).await.unwrap();
        rows.push(store.letter(id).await.unwrap());
    }
    let held = store.held_letters(&worker("merge"), "k", 2).await.unwrap();
    assert_eq!(held.iter().map(|row| &*row.letter.data).collect::<String>(), "ab");
    assert!(store.held_letters(&worker("merge"), "j", 9).await.unwrap().is_empty());
    assert!(store.held_letters(&worker("merg"), "k", 9).await.unwrap().is_empty());

    let join = |others: &[&LetterRow]| LetterStep {
        letter: Some(letter("abc")),
        joins: others.iter().map(|row| (row.id, row.revision)).collect(),
        ..LetterStep::only(&rows[0], then_wait(None, 11))
    };
    step_letter(store, rows[2].id, then_hold("merge", Some("k"), 12), 1).await.unwrap();
    assert_matches!(
        store.step_letters(vec![join(&[&rows[1], &rows[2]])], at(11)).await.remove(0),
        Err(StoreError::Conflict { .. })
    );
    assert_matches!(
        store.step_letters(vec![join(&[&rows[0]])], at(11)).await.remove(0),
        Err(StoreError::InvalidTransition(_))
    );
    assert_eq!(due_texts(store, None, 12).await, "a b c", "no letter was changed");

    let last = store.letter(rows[2].id).await.unwrap();
    store.step_letters(vec![join(&[&rows[1], &last])], at(11)).await.remove(0).unwrap();
    assert_eq!(due_texts(store, None, 12).await, "abc");
    for row in &rows[1..] {
        assert_eq!(letter_status(store, row.id).await, format!("MERGED into {}", rows[0].id.seq));
    }
    let away = accept_letter(store, submitted("d"), 0).await;
    step_letter(store, away, then_wait(Some("spam"), 1), 1).await.unwrap();
    step_letter(store, away, NextAction::HandOver { until: at(9), holder: None }, 1).await.unwrap();
    let (main, away) = (store.letter(rows[0].id).await.unwrap(), store.letter(away).await.unwrap());
    let mut late = LetterStep::only(&main, then_wait(None, 1));
    late.joins.push((away.id, away.revision));
    assert_matches!(apply_step(store, late, 11).await, Err(StoreError::InvalidTransition(_)));
}

pub(crate) async fn reservations_are_written_with_their_step(home: &dyn TestHome) {
    let store = home.open().await;
    let id = accept_letter(&*store, submitted("a"), 0).await;
    let row = store.letter(id).await.unwrap();
    let reserve = |revision, reserved: &[(&str, i64)]| LetterStep {
        revision,
        reservations: reserved.iter().map(|(key, until)| ((*key).to_owned(), *until)).collect(),
        ..LetterStep::only(&row, then_hold("limit", None, 9))
    };
    let keys = || ["limit:a", "limit:b", "limit:c"].map(str::to_owned).to_vec();
    apply_step(&*store, reserve(1, &[("limit:a", 5), ("limit:b", 6)]), 1).await.unwrap();
    assert!(apply_step(&*store, reserve(1, &[("limit:c", 7)]), 1).await.is_err());
    apply_step(&*store, reserve(2, &[("limit:a", 8)]), 1).await.unwrap();
    drop(store);
    let reserved = home.open().await.reservations(keys()).await.unwrap();
    assert_eq!(reserved, [("limit:a".to_owned(), 8), ("limit:b".to_owned(), 6)].into());
}

pub(crate) async fn letter_is_sent_as_changed_by_workers(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let (first, other) =
        (outgoing_message("ann", "hello"), outgoing_message("ann", "hello, with a footer"));
    let request = SendRequest { key: Some("k".to_owned()), ..send_request(first.clone()) };
    let id = accept_letter(store, LetterSource::Send(request.clone()), 0).await;
    let row = store.letter(id).await.unwrap();
    let changed = Letter { data: "hello, with a footer".to_owned(), ..row.letter.clone() };
    let then = NextAction::Send(Box::new(SendRequest { msg: other.clone(), ..request.clone() }));
    let (letter, had) = (Some(changed.clone()), vec![pass_verdict("footer"), pass_verdict("send")]);
    let letter_step = LetterStep {
        letter,
        in_object: true,
        verdicts: had.clone(),
        ..LetterStep::only(&row, then)
    };
    let result = apply_step(store, letter_step, 1).await.unwrap();
    assert_eq!(result, LetterStepResult { state: LetterState::Done, revision: 2 });
    assert_eq!(tunnel_contents(store, "lark").await, "hello, with a footer WAIT");
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.letter, row.verdicts, row.became), (changed, had, Some(other.id())));
    assert_eq!(
        accept_duplicate(store, LetterSource::Send(request)).await,
        id,
        "the key belongs to the letter"
    );

    let same = accept_letter(store, send_source(outgoing_message("ann", "as it is")), 0).await;
    step_letter(store, same, then_send(outgoing_message("ann", "as it is")), 1).await.unwrap();
    let answer = accept(store, send_source(outgoing_message("ann", "as it is")), 2).await.unwrap();
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

pub(crate) async fn unsendable_letter_becomes_dead_or_trashed(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_contact(store, "eve", ContactLevel::Block).await;
    let late = msg_object(json!({"expires_at_ms": 5}), "me", &[&endpoint("oc", "lark")], "late");
    let eve = chat("eve", &[&endpoint("oc", "lark")], "psst");
    let away = without_tunnel(chat("ann", &[&endpoint("oc", "lark")], "no local recipient"));
    let blocked = without_tunnel(chat("eve", &["me"], "psst"));
    for (then, want) in [
        (then_send(chat("me", &["unknown"], "x")), "DEAD: no way to reach did:web:unknown"),
        (then_send(late), "DEAD: message expired at 1970-01-01T00:00:00.005Z"),
        (then_send(eve), "TRASHED: blocked_author"),
        (NextAction::Dispatch(Box::new(away)), "DEAD: no local recipient among"),
        (NextAction::Dispatch(Box::new(blocked)), "TRASHED: blocked_author"),
    ] {
        let id = accept_letter(store, submitted("x"), 0).await;
        step_letter(store, id, then_wait(Some("spam"), 0), 0).await.unwrap();
        let result = step_letter(store, id, then, 1).await.unwrap();
        let row = store.letter(id).await.unwrap();
        assert_eq!(result.state, row.status.standing.name());
        assert!(describe_letter(&row).starts_with(want), "{}", describe_letter(&row));
        assert_eq!(
            (row.verdicts.len(), row.became),
            (1, None),
            "the failed last step adds no verdict"
        );
        assert_eq!(row.worker, None, "no external worker failed");
    }
    assert_eq!(tunnel_contents(store, "lark").await, "");
    assert_eq!(store.dead_letters(2).await.unwrap().len(), 2);
    assert_eq!(store.dead_letters(9).await.unwrap().len(), 3);
}

pub(crate) async fn inbound_letter_joins_its_merge_window_at_the_end(store: &dyn Store) {
    put_tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    let of = |id: &str, author: &str, tunnel: &str| {
        let mut request = inbound_message(id, author, id);
        request.tunnel = tunnel_id(tunnel);
        request
    };
    let mut ids = Vec::new();
    for (id, author, tunnel) in [("1", "ann", "lark"), ("2", "eve", "lark"), ("3", "bob", "wary")] {
        ids.push(accept_letter(store, LetterSource::Inbound(of(id, author, tunnel)), 0).await);
    }
    add_contact(store, &endpoint("eve", "lark"), ContactLevel::Block).await;
    let changed =
        with_message(of("1", "ann", "lark"), |message| message.text = "changed".to_owned());
    for (id, request) in ids.iter().zip([changed, of("2", "eve", "lark"), of("3", "bob", "wary")]) {
        step_letter(store, *id, NextAction::Deliver(Box::new(request)), 1).await.unwrap();
    }
    assert_eq!(letter_status(store, ids[0]).await, "DONE");
    assert_eq!(letter_status(store, ids[1]).await, "TRASHED: blocked_author");
    assert_eq!(store.letter(ids[0]).await.unwrap().became, None, "its merge window is open");
    assert_eq!(merge_all(store, 100).await, 2);
    let mails = list_mails(store).await;
    assert_eq!(mails.len(), 1, "the Mail of a stranger is held");
    let mail = mails[0].entry.msg_id;
    assert_eq!(store.find_by_external_id("1").await.unwrap(), mail);
    assert_eq!(store.letter(ids[0]).await.unwrap().became, Some(mail));
    assert_eq!(store.letters_of(mail).await.unwrap()[0].id, ids[0]);
    let none = accept_letter(store, submitted("x"), 0).await;
    assert_matches!(
        step_letter(store, none, NextAction::Deliver(Box::new(of("9", "ann", "lark"))), 1).await,
        Err(StoreError::Missing { .. })
    );
}

pub(crate) async fn large_letters_survive_reopening(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    let large = |word: &str| word.repeat(1_000_000 / word.len());
    let msg = outgoing_message("ann", &large("post "));
    let handed_in = accept_letter(&*store, submitted(&large("door ")), 0).await;
    let sent = accept_letter(&*store, send_source(msg.clone()), 0).await;
    let request = inbound_message("1", "ann", &"heard ".repeat(15_000));
    let heard = accept_letter(&*store, LetterSource::Inbound(request.clone()), 0).await;
    let row = store.letter(handed_in).await.unwrap();
    let change = LetterStep {
        letter: Some(letter(&large("new "))),
        ..LetterStep::only(&row, then_wait(None, 1))
    };
    apply_step(&*store, change, 1).await.unwrap();
    drop(store);
    let store = home.open().await;
    let row = store.letter(handed_in).await.unwrap();
    assert_eq!(row.letter, letter(&large("new ")));
    assert!(
        matches!(row.source, LetterSource::Submitted { letter: first, .. } if first == letter(&large("door ")))
    );
    let row = store.letter(sent).await.unwrap();
    assert!(matches!(row.source, LetterSource::Send(request) if request.msg == msg));
    let row = store.letter(heard).await.unwrap();
    assert!(matches!(row.source, LetterSource::Inbound(heard) if heard.message == request.message));
    assert_eq!(due_texts(&*store, None, 9).await.len(), 2_000_000 + 90_000 + 2);
    step_letter(&*store, sent, then_send(msg), 2).await.unwrap();
    assert_eq!(tunnel_contents(&*store, "lark").await.len(), 1_000_000 + " WAIT".len());
}
