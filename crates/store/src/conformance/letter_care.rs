//! Laws of letters: moved by hand, taken back, listed, counted and forgotten.

use std::collections::BTreeMap;

use monoco_core::event::EventKind;
use monoco_core::letter::{ChainDirection, LetterId, LetterState};

use super::letters::*;
use super::*;
use crate::{
    DraftSendRequest, LetterCounts, LetterQuery, LetterSource, LetterStep, NextAction,
    OperatorAction,
};

const DAY: i64 = 86_400;

async fn move_to(store: &dyn Store, id: LetterId, how: OperatorAction, now: i64) -> String {
    match store.move_letter(id, how, at(now)).await {
        Ok(row) => stands(&row),
        Err(StoreError::InvalidTransition(_)) => "-".to_owned(),
        Err(error) => panic!("{error:?}"),
    }
}

fn bin(why: &str) -> OperatorAction {
    OperatorAction::Trash { why: why.to_owned() }
}

async fn hand_over(store: &dyn Store, id: LetterId, desk: &str, until: i64) {
    go(store, id, wait(Some(desk), 0), 0).await.unwrap();
    go(store, id, NextAction::HandOver { until: at(until) }, 0).await.unwrap();
}

async fn give_up(store: &dyn Store, id: LetterId) {
    go(store, id, NextAction::MarkDead { why: "enough".to_owned() }, 0).await.unwrap();
}

pub(crate) async fn a_person_throws_away_and_takes_out_again(home: &dyn Home) {
    let store = &*home.open().await;
    let id = take_in(store, door("a"), 0).await;
    assert_eq!(move_to(store, id, OperatorAction::Restore, 1).await, "-");
    hand_over(store, id, "spam", 9).await;
    assert_eq!(move_to(store, id, bin("no good"), 1).await, "TRASHED, 1 tries: no good");
    assert_eq!(move_to(store, id, bin("again"), 1).await, "-");
    assert_eq!(move_to(store, id, OperatorAction::Retry, 1).await, "-");
    assert_eq!(move_to(store, id, OperatorAction::Restore, 3).await, "WAITING from 3");
    assert_eq!(store.letter(id).await.unwrap().verdicts.len(), 2, "who had it is not asked again");
    let last = store.events(0, 100).await.unwrap().pop().unwrap();
    assert_eq!(last.kind, EventKind::Marked);
    assert_eq!(last.detail, json!({"letter": id, "to": "WAITING"}));
}

pub(crate) async fn a_dead_letter_is_tried_again_where_it_failed(home: &dyn Home) {
    let store = &*home.open().await;
    let id = take_in(store, door("a"), 0).await;
    hand_over(store, id, "spam", 9).await;
    assert_eq!(move_to(store, id, OperatorAction::Retry, 1).await, "-", "somebody has it");
    give_up(store, id).await;
    assert_eq!(
        move_to(store, id, OperatorAction::Retry, 4).await,
        "WAITING at spam from 4: enough"
    );
    go(store, id, wait(Some("spam"), 99), 4).await.unwrap();
    assert_eq!(move_to(store, id, OperatorAction::Retry, 5).await, "WAITING at spam from 5");
    go(store, id, keep("limit", Some("k"), 99), 5).await.unwrap();
    assert_eq!(
        move_to(store, id, OperatorAction::Retry, 6).await,
        "WAITING kept by limit/k from 6"
    );
    go(store, id, wait(None, 0), 6).await.unwrap();
    give_up(store, id).await;
    assert_eq!(move_to(store, id, OperatorAction::Retry, 7).await, "WAITING from 7: enough");
    go(store, id, trash("no"), 7).await.unwrap();
    assert_eq!(move_to(store, id, OperatorAction::Retry, 8).await, "-");
}

pub(crate) async fn a_letter_is_replayed_as_it_came(home: &dyn Home) {
    let store = &*home.open().await;
    for end in [trash("no"), NextAction::MarkDead { why: "enough".to_owned() }] {
        let id = take_in(store, door("as it came"), 0).await;
        assert_eq!(move_to(store, id, OperatorAction::Replay, 1).await, "-", "it is under way");
        let row = store.letter(id).await.unwrap();
        let (changed, had) = (Some(letter("changed")), vec![passed("subject")]);
        // It was to become a message that says the same, and does not.
        let change = LetterStep {
            letter: changed,
            in_object: true,
            verdicts: had,
            ..LetterStep::only(&row, end)
        };
        store.step_letters(vec![change], at(1)).await.remove(0).unwrap();
        assert_eq!(store.letter(id).await.unwrap().letter, letter("changed"));
        assert_eq!(move_to(store, id, OperatorAction::Replay, 2).await, "WAITING from 2");
        let row = store.letter(id).await.unwrap();
        assert_eq!((row.letter, row.verdicts), (letter("as it came"), vec![]));
    }
}

pub(crate) async fn letters_of_workers_that_are_gone_are_taken_back(home: &dyn Home) {
    let store = &*home.open().await;
    let mut ids = Vec::new();
    for (text, desk) in [("a", "old"), ("b", "old"), ("c", "new"), ("d", "older"), ("e", "old")] {
        let id = take_in(store, door(text), 0).await;
        go(store, id, wait(Some(desk), 50), 0).await.unwrap();
        ids.push(id);
    }
    hand_over(store, ids[1], "old", 99).await;
    give_up(store, ids[4]).await;
    let known = [worker("new")];
    assert_eq!(store.recall_letters(&known, 2, at(7)).await.unwrap(), 2);
    assert_eq!(store.recall_letters(&known, 2, at(7)).await.unwrap(), 1);
    assert_eq!(store.recall_letters(&known, 2, at(7)).await.unwrap(), 0);
    assert_eq!(due(store, None, 7).await, "a b d");
    assert_eq!(look_at(store, ids[1]).await, "WAITING from 7");
    assert_eq!(look_at(store, ids[2]).await, "WAITING at new from 50");
    assert_eq!(look_at(store, ids[4]).await, "DEAD at old: enough");
}

pub(crate) async fn letters_that_are_kept_are_taken_back_with_what_is_booked(home: &dyn Home) {
    let store = &*home.open().await;
    for (text, by) in [("a", "limit"), ("b", "limit"), ("c", "limit-2"), ("d", "limit")] {
        let id = take_in(store, door(text), 0).await;
        let row = store.letter(id).await.unwrap();
        let booked = vec![(format!("{by}:{text}"), 5)];
        let step =
            LetterStep { reservations: booked, ..LetterStep::only(&row, keep(by, None, 50)) };
        store.step_letters(vec![step], at(1)).await.remove(0).unwrap();
    }
    assert_eq!(due(store, None, 7).await, "");
    assert_eq!(store.recall_held_letters(&worker("limit"), 2, at(7)).await.unwrap(), 2);
    assert_eq!(store.recall_held_letters(&worker("limit"), 2, at(7)).await.unwrap(), 1);
    assert_eq!(due(store, None, 7).await, "a b d");
    let keys = ["limit:a", "limit:b", "limit-2:c", "limit:d"].map(str::to_owned).to_vec();
    let booked = store.reservations(keys).await.unwrap();
    assert_eq!(booked, [("limit-2:c".to_owned(), 5)].into());
}

pub(crate) async fn letters_that_were_away_are_put_back(home: &dyn Home) {
    let store = &*home.open().await;
    let mut ids = Vec::new();
    for desk in ["exec", "exec", "http"] {
        let id = take_in(store, door(desk), 0).await;
        hand_over(store, id, desk, 99).await;
        ids.push(id);
    }
    let desks = [worker("exec"), worker("none")];
    assert_eq!(store.release_letters(&desks, at(5)).await.unwrap(), 2);
    assert_eq!(store.release_letters(&desks, at(5)).await.unwrap(), 0);
    let shown = look_at(store, ids[0]).await;
    assert!(shown.starts_with("WAITING at exec from 5, 1 tries: the courier stopped"), "{shown}");
    assert_eq!(look_at(store, ids[2]).await, "AWAY at http until 99, 1 tries");
}

pub(crate) async fn those_whose_time_is_over_come_first(home: &dyn Home) {
    let store = &*home.open().await;
    for (text, desk, until) in [("a", "x", 30), ("b", "x", 10), ("c", "y", 5), ("d", "x", 20)] {
        let id = take_in(store, door(text), 0).await;
        hand_over(store, id, desk, until).await;
    }
    let away = store.away_letters(&worker("x"), 2).await.unwrap();
    assert_eq!(away.iter().map(|row| &*row.letter.data).collect::<String>(), "bd");
}

pub(crate) async fn bookings_that_are_over_are_forgotten(home: &dyn Home) {
    let store = &*home.open().await;
    let id = take_in(store, door("hello"), 0).await;
    let row = store.letter(id).await.unwrap();
    // Every third of them is over.
    let end = |number: i64| at(10).ms() * 1_000 + number % 3;
    let booked: Vec<_> =
        (0..25).map(|number| (format!("limit:{number:02}"), end(number))).collect();
    let step = LetterStep { reservations: booked.clone(), ..LetterStep::only(&row, wait(None, 0)) };
    store.step_letters(vec![step], at(0)).await.remove(0).unwrap();
    let forget = async |now| {
        let (mut gone, mut key) = (Vec::new(), Some(String::new()));
        while let Some(after) = key {
            let (some, last) = store.purge_reservations(&after, 10, at(now)).await.unwrap();
            gone.push(some);
            key = last;
        }
        gone
    };
    assert_eq!(forget(9).await, [0, 0, 0, 0]);
    assert_eq!(forget(10).await, [4, 3, 2, 0]);
    let keys: Vec<_> = booked.iter().map(|(key, _)| key.clone()).collect();
    let left: BTreeMap<_, _> =
        booked.into_iter().filter(|(_, end)| *end > at(10).ms() * 1_000).collect();
    assert_eq!(store.reservations(keys).await.unwrap(), left);
    assert_eq!(forget(11).await, [10, 6, 0]);
    assert_eq!(forget(11).await, [0]);
}

pub(crate) async fn letters_are_forgotten_by_the_days_of_the_hubs_life(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let live = async |day: i64| {
        // A day that is lived, in steps that are believed.
        for half in 1..=2 {
            store.advance_retention_clock(at((day - 1) * DAY + half * DAY / 2)).await.unwrap();
        }
    };
    store.advance_retention_clock(at(0)).await.unwrap();
    let mut ids = BTreeMap::new();
    for day in 0..3 {
        for (name, then) in [
            ("trashed", trash("no")),
            ("done", send(out("ann", &day.to_string()))),
            ("dead", NextAction::MarkDead { why: "enough".to_owned() }),
            ("waiting", wait(None, 0)),
        ] {
            let key = Some(format!("{name} {day}"));
            let origin = LetterSource::Submitted { letter: letter(name), tunnel: None, key };
            let id = take_in(store, origin, day * DAY).await;
            go(store, id, then, day * DAY).await.unwrap();
            ids.insert((name, day), id);
        }
        live(day + 1).await;
    }
    let purge = |trashed, done| store.purge_letters(trashed, done, 100);
    assert_eq!(purge(-1, -1).await.unwrap(), 0);
    assert_eq!(purge(0, -1).await.unwrap(), 1);
    assert_eq!(purge(1, 1).await.unwrap(), 3);
    for ((name, day), id) in &ids {
        let there = *name == "dead" || *name == "waiting" || *day == 2;
        assert_eq!(store.letter(*id).await.is_ok(), there, "{name} {day}");
    }
    let key = Some("trashed 0".to_owned());
    take_in(store, LetterSource::Submitted { letter: letter("new"), tunnel: None, key }, 9 * DAY)
        .await;
    let states: Vec<_> = [LetterState::Trashed, LetterState::Done].into();
    let query = LetterQuery { states, ..LetterQuery::default() };
    let newest = take_in(store, door("newest"), 9 * DAY).await;
    go(store, newest, trash("no"), 9 * DAY).await.unwrap();
    assert_eq!(purge(100, 100).await.unwrap(), 2);
    assert_eq!(listed(store, &query, false).await, "newest", "its number stays");
}

/// Counts all letters by listing them.
pub(super) async fn recount(store: &dyn Store, now: Timestamp) -> LetterCounts {
    let mut figures = LetterCounts::default();
    for page in pages(100, false, async |window| {
        store.letters(LetterQuery::default(), window).await.unwrap()
    })
    .await
    {
        for row in page {
            let state = row.status.standing.name();
            *figures.states.entry(state).or_default() += 1;
            if !matches!(state, LetterState::Waiting | LetterState::Away) {
                continue;
            }
            match row.held_by {
                Some(worker) => *figures.held.entry(worker.to_string()).or_default() += 1,
                None => {
                    let desk = row.worker.map(String::from).unwrap_or_default();
                    if state == LetterState::Away {
                        *figures.away.entry(desk.clone()).or_default() += 1;
                    }
                    *figures.waiting.entry(desk).or_default() += 1;
                }
            }
        }
    }
    let first = store.due_letters(None, 1, now).await.unwrap().pop();
    figures.oldest_due = first.map(|row| match row.status.standing {
        monoco_core::letter::LetterStateData::Waiting { due } => due,
        other => panic!("due, and {other:?}"),
    });
    figures
}

pub(crate) async fn letter_figures_equal_a_recount(home: &dyn Home) {
    let store = home.open().await;
    lark(&*store).await;
    for then in [
        wait(None, 7),
        wait(Some("spam"), 3),
        keep("limit", None, 30),
        keep("merge", Some("k"), 30),
        trash("no"),
        send(out("ann", "x")),
        NextAction::MarkDead { why: "no".to_owned() },
    ] {
        let id = take_in(&*store, door("x"), 0).await;
        go(&*store, id, then, 0).await.unwrap();
    }
    let away = take_in(&*store, door("x"), 0).await;
    hand_over(&*store, away, "spam", 9).await;
    let counted = recount(&*store, at(10)).await;
    assert_eq!(counted.waiting, [(String::new(), 1), ("spam".to_owned(), 2)].into());
    assert_eq!(counted.held, [("limit".to_owned(), 1), ("merge".to_owned(), 1)].into());
    assert_eq!(counted.oldest_due, Some(at(7)));
    assert_eq!(store.letter_counts(at(10)).await.unwrap(), counted);
    assert_eq!(store.letter_counts(at(6)).await.unwrap().oldest_due, None);
    assert!(store.counts().await.unwrap().records.len() < 3, "letters are in no box");
    drop(store);
    assert_eq!(home.open().await.letter_counts(at(10)).await.unwrap(), counted);
}

/// What the letters say that a query finds, page by page, with empty pages left out.
async fn listed(store: &dyn Store, query: &LetterQuery, newest_first: bool) -> String {
    let found =
        pages(2, newest_first, async |window| store.letters(query.clone(), window).await.unwrap());
    let shown = found.await.into_iter().filter(|page| !page.is_empty());
    shown
        .map(|page| page.iter().map(|row| row.letter.data.as_str()).collect::<String>())
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) async fn letters_are_listed_by_every_filter_and_both_ways(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    for (n, text) in "abcdefghijkl".chars().enumerate() {
        let text = text.to_string();
        let origin = match n % 3 {
            0 => door(&text),
            1 => LetterSource::Inbound(super::mails::says(&text, "ann", &text)),
            _ => posted(out("ann", &text)),
        };
        let id = take_in(store, origin, n as i64).await;
        let then = match n {
            0 | 1 => trash("no"),
            2 | 5 | 8 => send(out("ann", &text)),
            3 => wait(Some("spam"), 0),
            4 => keep("spam", None, 0),
            6 => NextAction::MarkDead { why: "no".to_owned() },
            _ => continue,
        };
        go(store, id, then, 20).await.unwrap();
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
        let (there, back) = (listed(store, &query, false).await, listed(store, &query, true).await);
        let back: String = letters(&back).chars().rev().collect();
        assert_eq!((letters(&there), back), (letters(want), letters(want)), "{query:?}");
        assert!(there.split(' ').all(|page| page.len() <= 2), "{there}");
    }
}

pub(crate) async fn a_search_that_looked_at_enough_goes_on_where_it_stopped(home: &dyn Home) {
    let store = &*home.open().await;
    for n in 0..40_u8 {
        let text = char::from(b'A' + n).to_string();
        let heard = LetterSource::Inbound(super::mails::says(&text, "ann", &text));
        let origin = if n % 8 > 5 { heard } else { door(&text) };
        let id = take_in(store, origin, 0).await;
        if n % 8 == 6 {
            go(store, id, trash("no"), 0).await.unwrap();
        }
    }
    let states = vec![LetterState::Waiting, LetterState::Trashed];
    let direction = Some(ChainDirection::Inbound);
    let query = LetterQuery { states, direction, ..LetterQuery::default() };
    let found = listed(store, &query, false).await.replace(' ', "");
    assert_eq!(found, "GHOPWX_`gh", "each once, in order");
    let back = listed(store, &query, true).await.replace(' ', "");
    assert_eq!(back, found.chars().rev().collect::<String>());
}

pub(crate) async fn letters_are_listed_from_a_time_on(home: &dyn Home) {
    let store = &*home.open().await;
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(take_in(store, door(&format!("{n} ")), n / 2 * 10).await);
    }
    for id in [&ids[2..7], &ids[9..10]].concat() {
        go(store, id, trash("no"), 200).await.unwrap();
    }
    store.purge_letters(9, 9, 100).await.unwrap();
    for since in 0..=100 {
        let query = LetterQuery { since: Some(at(since)), ..LetterQuery::default() };
        let gone = |n: &i64| (2..7).contains(n) || *n == 9;
        let want: String = (0..20_i64)
            .filter(|n| n / 2 * 10 >= since && !gone(n))
            .map(|n| format!("{n} "))
            .collect();
        let found: String = listed(store, &query, false).await;
        assert_eq!(found.replace(' ', ""), want.replace(' ', ""), "since {since}");
    }
}

pub(crate) async fn whoever_is_blocked_is_unwelcome(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    contact(store, "eve", ContactLevel::Block).await;
    store.bind(&did("eve"), binding("lark", "evil", 1), at(0)).await.unwrap();
    store.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    let lark = tunnel_id("lark");
    for (author, to, why) in [
        ("ann", vec!["cat"], None),
        ("ann", vec!["cat", "bob"], Some("did:web:bob has blocked its author")),
        ("eve", vec!["cat"], Some("its author is blocked")),
        (&endpoint("evil", "lark"), vec!["cat"], Some("its author is blocked")),
        (&endpoint("good", "lark"), vec!["cat"], None),
        ("stranger", vec![], None),
    ] {
        let found = store.find_block(&did(author), &dids(&to), Some(&lark)).await.unwrap();
        assert_eq!(found.as_deref(), why, "{author} to {to:?}");
    }
}

pub(crate) async fn the_newest_letter_is_told_when_one_waits(home: &dyn Home) {
    let store = &*home.open().await;
    let mut told = store.newest_letter();
    // Told after the answer, so that it is waited for; what was told too often shows
    // the next time.
    let mut waits = async |count: u64| {
        assert_eq!(*told.wait_for(|told| *told >= count).await.unwrap(), count);
    };
    let id = take_in(store, door("a"), 0).await;
    waits(1).await;
    go(store, id, wait(Some("spam"), 0), 5).await.unwrap();
    waits(2).await;
    go(store, id, NextAction::HandOver { until: at(9) }, 5).await.unwrap();
    let why = "no".to_owned();
    go(store, id, NextAction::Return { due: at(9), tried: true, why }, 5).await.unwrap();
    waits(3).await;
    go(store, id, keep("limit", None, 9), 5).await.unwrap();
    waits(4).await;
    go(store, id, trash("no"), 5).await.unwrap();
    store.move_letter(id, OperatorAction::Restore, at(6)).await.unwrap();
    waits(5).await;
    let late = store.move_letter(id, OperatorAction::Restore, at(6)).await;
    assert!(matches!(late, Err(StoreError::InvalidTransition(_))), "{late:?}");
    let batch = vec![door("b"), door("c")];
    assert!(store.accept(batch, all(), at(7)).await.iter().all(Result::is_ok));
    waits(6).await;
}

fn draft(uid: &str, msg: MsgObject) -> DraftSendRequest {
    DraftSendRequest { uid: uid.to_owned(), provider: "lark".to_owned(), post: post_of(msg) }
}

async fn send_draft(store: &dyn Store, uid: &str, msg: &MsgObject) -> LetterId {
    match store.send_draft(draft(uid, msg.clone()), &all(), at(0)).await.unwrap() {
        SendResult::Chained { letter, duplicate: false, msg_id } if msg_id == msg.id() => letter,
        other => panic!("{other:?}"),
    }
}

/// Drafts that have ended: `d1 SENT` or `d1: why`.
async fn ended(store: &dyn Store) -> String {
    let fates = store.finished_drafts(100).await.unwrap();
    let shown = fates.iter().map(|fate| {
        let states = fate.deliveries.iter().map(|one| one.sending.state.name().as_str());
        match &fate.ended {
            Some(why) => format!("{}: {why}", fate.uid),
            None => format!("{} {}", fate.uid, states.collect::<String>()),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

async fn deliver_next(store: &dyn Store) {
    let taken = send_next(store, "lark", 50).await.unwrap().entry;
    let ok = monoco_core::delivery::DeliveryOutcome::Accepted { external_msg_id: None };
    store
        .report_delivery(taken.id, ok, in_epoch(taken.sending.epoch), AGAIN, at(51))
        .await
        .unwrap();
}

pub(crate) async fn a_draft_ends_as_its_letter_does(home: &dyn Home) {
    let store = home.open().await;
    lark(&*store).await;
    let names = ["d1", "d2", "d3", "d4"];
    let mut ids: BTreeMap<&str, LetterId> = BTreeMap::new();
    for uid in names {
        ids.insert(uid, send_draft(&*store, uid, &out("ann", uid)).await);
    }
    let again = store.send_draft(draft("d1", out("ann", "d1")), &all(), at(0)).await.unwrap();
    assert!(matches!(again, SendResult::Chained { duplicate: true, .. }), "{again:?}");
    let other = store.send_draft(draft("d1", out("ann", "other")), &all(), at(0)).await;
    assert!(matches!(other, Err(StoreError::KeyReused(_))), "{other:?}");
    assert!(store.draft_exists("d4").await.unwrap());
    assert_eq!(ended(&*store).await, "");
    hand_over(&*store, ids["d4"], "spam", 9).await;
    go(&*store, ids["d2"], trash("spam: rubbish"), 1).await.unwrap();
    give_up(&*store, ids["d3"]).await;
    assert_eq!(ended(&*store).await, "d2: spam: rubbish, d3: enough");
    go(&*store, ids["d1"], send(out("ann", "d1, with a footer")), 1).await.unwrap();
    assert_eq!(ended(&*store).await, "d2: spam: rubbish, d3: enough", "one is on its way");
    deliver_next(&*store).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(ended(&*store).await, "d1 SENT, d2: spam: rubbish, d3: enough");
    let fate = store.finished_drafts(1).await.unwrap().remove(0);
    assert_eq!(fate.msg_id, out("ann", "d1, with a footer").id());

    take_in(&*store, door("newer"), 0).await;
    assert_eq!(store.purge_letters(9, 9, 9).await.unwrap(), 0, "somebody waits for them");
    store.close_draft("d1").await.unwrap();
    store.close_draft("d2").await.unwrap();
    assert_eq!(store.purge_letters(9, 9, 9).await.unwrap(), 2);
}

pub(crate) async fn a_draft_whose_letter_is_part_of_another_ends_with_that(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let mut rows = Vec::new();
    for uid in ["d1", "d2"] {
        let id = send_draft(store, uid, &out("ann", uid)).await;
        rows.push(store.letter(id).await.unwrap());
    }
    let joins = vec![(rows[1].id, rows[1].revision)];
    let step = LetterStep { joins, ..LetterStep::only(&rows[0], wait(None, 1)) };
    store.step_letters(vec![step], at(1)).await.remove(0).unwrap();
    assert_eq!(ended(store).await, "");
    go(store, rows[0].id, send(out("ann", "both")), 1).await.unwrap();
    assert_eq!(ended(store).await, "");
    deliver_next(store).await;
    assert_eq!(ended(store).await, "d1 SENT, d2 SENT");
}

pub(crate) async fn a_wrong_clock_holds_up_no_letter(home: &dyn Home) {
    let store = &*home.open().await;
    let years = 10 * 365 * DAY;
    let mut ids = Vec::new();
    for text in ["away", "waits", "kept"] {
        ids.push(take_in(store, door(text), 0).await);
    }
    hand_over(store, ids[0], "spam", years).await;
    go(store, ids[1], wait(Some("spam"), years), 0).await.unwrap();
    go(store, ids[2], keep("limit", None, years), 0).await.unwrap();
    let old = store.letter(ids[1]).await.unwrap();
    assert_eq!(store.expire_future_leases(at(years)).await.unwrap(), 0, "it may have been right");
    assert_eq!(store.expire_future_leases(at(1)).await.unwrap(), 2);
    assert_eq!(look_at(store, ids[0]).await, "AWAY at spam until 1, 1 tries");
    assert_eq!(look_at(store, ids[1]).await, "WAITING at spam from 1");
    assert_eq!(look_at(store, ids[2]).await, format!("WAITING kept by limit/- from {years}"));
    let late =
        store.step_letters(vec![LetterStep::only(&old, wait(None, 2))], at(2)).await.remove(0);
    assert!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
}
