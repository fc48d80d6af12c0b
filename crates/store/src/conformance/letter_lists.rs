//! Conformance tests of lists and counts of letters.

use monoco_core::letter::{ChainDirection, LetterState};

use super::inbound::inbound_message;
use super::letter_operator::hand_over;
use super::letters::{
    accept_letter, outgoing_message, route_all, send_source, step_letter, submitted, then_hold,
    then_send, then_trash, then_wait, worker,
};
use super::*;
use crate::{LetterCounts, LetterQuery, LetterSource, NextAction, OperatorAction};

/// Computes the counts from a list of all letters.
pub(super) async fn recount_letters(store: &dyn Store, now: Timestamp) -> LetterCounts {
    let mut counts = LetterCounts::default();
    for page in all_pages(100, false, async |request| {
        store.letters(LetterQuery::default(), request).await.unwrap()
    })
    .await
    {
        for row in page {
            let state = row.status.standing.name();
            *counts.states.entry(state).or_default() += 1;
            if !matches!(state, LetterState::Waiting | LetterState::Away) {
                continue;
            }
            match row.held_by {
                Some(worker) => *counts.held.entry(worker.to_string()).or_default() += 1,
                None => {
                    let worker_name = row.worker.map(String::from).unwrap_or_default();
                    if state == LetterState::Away {
                        *counts.away.entry(worker_name.clone()).or_default() += 1;
                    }
                    *counts.waiting.entry(worker_name).or_default() += 1;
                }
            }
        }
    }
    let first = store.due_letters(None, 1, now).await.unwrap().pop();
    counts.oldest_due = first.map(|row| match row.status.standing {
        monoco_core::letter::LetterStateData::Waiting { due } => due,
        other => panic!("due letter is {other:?}"),
    });
    counts
}

/// The texts of the letters that match a query: `ab cd`, one word per page that is not
/// empty.
pub(super) async fn list_texts(
    store: &dyn Store,
    query: &LetterQuery,
    newest_first: bool,
) -> String {
    let found = all_pages(2, newest_first, async |request| {
        store.letters(query.clone(), request).await.unwrap()
    });
    let shown = found.await.into_iter().filter(|page| !page.is_empty());
    shown
        .map(|page| page.iter().map(|row| row.letter.data.as_str()).collect::<String>())
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) async fn away_letters_are_listed_by_deadline(store: &dyn Store) {
    for (text, worker_name, until) in
        [("a", "x", 30), ("b", "x", 10), ("c", "y", 5), ("d", "x", 20)]
    {
        let id = accept_letter(store, submitted(text), 0).await;
        hand_over(store, id, worker_name, until).await;
    }
    let away = store.away_letters(&worker("x"), 2).await.unwrap();
    assert_eq!(away.iter().map(|row| &*row.letter.data).collect::<String>(), "bd");
}

pub(crate) async fn letters_are_listed_by_every_filter_in_both_directions(store: &dyn Store) {
    put_lark_tunnel(store).await;
    for (n, text) in "abcdefghijkl".chars().enumerate() {
        let text = text.to_string();
        let source = match n % 3 {
            0 => submitted(&text),
            1 => LetterSource::Inbound(inbound_message(&text, "ann", &text)),
            _ => send_source(outgoing_message("ann", &text)),
        };
        let id = accept_letter(store, source, n as i64).await;
        let then = match n {
            0 | 1 => then_trash("no"),
            2 | 5 | 8 => then_send(outgoing_message("ann", &text)),
            3 => then_wait(Some("spam"), 0),
            4 => then_hold("spam", None, 0),
            6 => NextAction::MarkDead { why: "no".to_owned() },
            _ => continue,
        };
        step_letter(store, id, then, 20).await.unwrap();
    }
    let all = LetterQuery::default;
    let states = |states: &[LetterState]| LetterQuery { states: states.to_vec(), ..all() };
    use LetterState::{Away, Dead, Done, Trashed, Waiting};
    for (query, want) in [
        (all(), "ab cd ef gh ij kl"),
        (states(&[Trashed]), "ab"),
        (states(&[Away]), ""),
        (states(&[Waiting]), "de hj kl"),
        (states(&[Trashed, Dead, Waiting]), "ab de gh jk l"),
        (states(&[Done]), "cf i"),
        (states(&[Done, Dead]), "cf gi"),
        (LetterQuery { worker: Some(worker("spam")), ..all() }, "de"),
        (LetterQuery { direction: Some(ChainDirection::Inbound), ..all() }, "be hk"),
        (LetterQuery { tunnel: Some(tunnel_id("lark")), ..all() }, "bc ef hi kl"),
        (LetterQuery { since: Some(at(7)), ..all() }, "hi jk l"),
        (LetterQuery { since: Some(at(99)), ..all() }, ""),
        (LetterQuery { since: Some(at(4)), ..states(&[Waiting]) }, "eh jk l"),
        (
            LetterQuery { direction: Some(ChainDirection::Inbound), ..states(&[Waiting, Trashed]) },
            "be hk",
        ),
    ] {
        let letters = |pages: &str| pages.replace(' ', "");
        let (there, back) =
            (list_texts(store, &query, false).await, list_texts(store, &query, true).await);
        let back: String = letters(&back).chars().rev().collect();
        assert_eq!((letters(&there), back), (letters(want), letters(want)), "{query:?}");
        assert!(there.split(' ').all(|page| page.len() <= 2), "{there}");
    }
}

pub(crate) async fn sparse_query_resumes_where_the_last_page_stopped(store: &dyn Store) {
    for n in 0..40_u8 {
        let text = char::from(b'A' + n).to_string();
        let inbound = LetterSource::Inbound(inbound_message(&text, "ann", &text));
        let source = if n % 8 > 5 { inbound } else { submitted(&text) };
        let id = accept_letter(store, source, 0).await;
        if n % 8 == 6 {
            step_letter(store, id, then_trash("no"), 0).await.unwrap();
        }
    }
    let states = vec![LetterState::Waiting, LetterState::Trashed];
    let direction = Some(ChainDirection::Inbound);
    let query = LetterQuery { states, direction, ..LetterQuery::default() };
    let found = list_texts(store, &query, false).await.replace(' ', "");
    assert_eq!(found, "GHOPWX_`gh", "each once, in order");
    let back = list_texts(store, &query, true).await.replace(' ', "");
    assert_eq!(back, found.chars().rev().collect::<String>());
}

pub(crate) async fn letters_are_listed_since_a_time(store: &dyn Store) {
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(accept_letter(store, submitted(&format!("{n} ")), n / 2 * 10).await);
    }
    for id in [&ids[2..7], &ids[9..10]].concat() {
        step_letter(store, id, then_trash("no"), 200).await.unwrap();
    }
    store.purge_letters(9, 9, 100).await.unwrap();
    for since in 0..=100 {
        let query = LetterQuery { since: Some(at(since)), ..LetterQuery::default() };
        let gone = |n: &i64| (2..7).contains(n) || *n == 9;
        let want: String = (0..20_i64)
            .filter(|n| n / 2 * 10 >= since && !gone(n))
            .map(|n| format!("{n} "))
            .collect();
        let found: String = list_texts(store, &query, false).await;
        assert_eq!(found.replace(' ', ""), want.replace(' ', ""), "since {since}");
    }
}

pub(crate) async fn newest_letter_changes_when_a_letter_starts_to_wait(store: &dyn Store) {
    let mut newest = store.newest_letter();
    // The counter changes after the call returns, so the test waits for it. A change too
    // many is found by the next wait.
    let mut changed_times = async |count: u64| {
        assert_eq!(*newest.wait_for(|newest| *newest >= count).await.unwrap(), count);
    };
    let id = accept_letter(store, submitted("a"), 0).await;
    changed_times(1).await;
    step_letter(store, id, then_wait(Some("spam"), 0), 5).await.unwrap();
    changed_times(2).await;
    step_letter(store, id, NextAction::HandOver { until: at(9), holder: None }, 5).await.unwrap();
    let why = "no".to_owned();
    step_letter(store, id, NextAction::Return { due: at(9), tried: true, why }, 5).await.unwrap();
    changed_times(3).await;
    step_letter(store, id, then_hold("limit", None, 9), 5).await.unwrap();
    changed_times(4).await;
    step_letter(store, id, then_trash("no"), 5).await.unwrap();
    store.move_letter(id, OperatorAction::Restore, at(6)).await.unwrap();
    changed_times(5).await;
    assert_matches!(
        store.move_letter(id, OperatorAction::Restore, at(6)).await,
        Err(StoreError::InvalidTransition(_))
    );
    let batch = vec![submitted("b"), submitted("c")];
    assert!(store.accept(batch, route_all(), at(7)).await.iter().all(Result::is_ok));
    changed_times(6).await;
}

pub(crate) async fn letter_counts_equal_a_recount(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    for then in [
        then_wait(None, 7),
        then_wait(Some("spam"), 3),
        then_hold("limit", None, 30),
        then_hold("merge", Some("k"), 30),
        then_trash("no"),
        then_send(outgoing_message("ann", "x")),
        NextAction::MarkDead { why: "no".to_owned() },
    ] {
        let id = accept_letter(&*store, submitted("x"), 0).await;
        step_letter(&*store, id, then, 0).await.unwrap();
    }
    let away = accept_letter(&*store, submitted("x"), 0).await;
    hand_over(&*store, away, "spam", 9).await;
    let counted = recount_letters(&*store, at(10)).await;
    assert_eq!(counted.waiting, [(String::new(), 1), ("spam".to_owned(), 2)].into());
    assert_eq!(counted.held, [("limit".to_owned(), 1), ("merge".to_owned(), 1)].into());
    assert_eq!(counted.oldest_due, Some(at(7)));
    assert_eq!(store.letter_counts(at(10)).await.unwrap(), counted);
    assert_eq!(store.letter_counts(at(6)).await.unwrap().oldest_due, None);
    assert!(store.counts().await.unwrap().records.len() < 3, "letters create no records");
    drop(store);
    assert_eq!(home.open().await.letter_counts(at(10)).await.unwrap(), counted);
}
