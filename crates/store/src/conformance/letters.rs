//! Laws of letters: taken in once, moved step by step, and finished as what they became.

use std::sync::Arc;

use monoco_core::event::EventKind;
use monoco_core::letter::{
    Direction, Letter, LetterId, LetterState, Passed, Standing, Verdict, WorkerName,
};

use super::mails::says;
use super::*;
use crate::{
    Accepted, Advance, Advanced, Keeping, LetterRow, Merging, Origin, Source, Then, Through,
};

pub(super) fn worker(name: &str) -> WorkerName {
    name.parse().unwrap()
}

/// A letter that says `text`, with keys that nobody knows.
pub(super) fn letter(text: &str) -> Letter {
    let map = |value: Value| value.as_object().unwrap().clone();
    Letter {
        from: "ann@example.org".to_owned(),
        to: vec!["bob@example.org".to_owned()],
        data: text.to_owned(),
        extra: map(json!({"content_type": "text/markdown", "mood": {"is": ["fine", 1]}})),
        rest: map(json!({"colour": "blue"})),
    }
}

pub(super) fn door(text: &str) -> Origin {
    Origin::Door { letter: letter(text), tunnel: None, key: None }
}

fn keyed(key: &str, text: &str, tunnel: Option<&str>) -> Origin {
    let tunnel = tunnel.map(tunnel_id);
    Origin::Door { letter: letter(text), tunnel, key: Some(key.to_owned()) }
}

/// Everything goes through the post office.
pub(super) fn all() -> Arc<Through> {
    Arc::new(Through { all: true, ..Through::default() })
}

/// A message to `account` behind the tunnel `lark`.
pub(super) fn out(account: &str, text: &str) -> MsgObject {
    chat("me", &[&endpoint(account, "lark")], text)
}

pub(super) fn posted(msg: MsgObject) -> Origin {
    Origin::Post(post_of(msg), all())
}

pub(super) async fn accept(
    store: &dyn Store,
    origin: Origin,
    now: i64,
) -> Result<Accepted, StoreError> {
    let mut answers = store.accept(vec![origin], at(now)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Takes in a letter that is new.
pub(super) async fn take_in(store: &dyn Store, origin: Origin, now: i64) -> LetterId {
    match accept(store, origin, now).await.unwrap() {
        Accepted::Letter { id, duplicate: false, .. } => id,
        other => panic!("no new letter: {other:?}"),
    }
}

/// The letter that was taken in before.
async fn again(store: &dyn Store, origin: Origin) -> LetterId {
    match accept(store, origin, 9).await.unwrap() {
        Accepted::Letter { id, duplicate: true, .. } => id,
        other => panic!("not taken in before: {other:?}"),
    }
}

pub(super) fn passed(name: &str) -> Passed {
    Passed { worker: worker(name), result: Verdict::Pass, at: at(1), note: None }
}

/// Takes a step with a letter as it is now.
pub(super) async fn go(
    store: &dyn Store,
    id: LetterId,
    then: Then,
    now: i64,
) -> Result<Advanced, StoreError> {
    let row = store.letter(id).await.unwrap();
    let advance = Advance { had: vec![passed("end")], ..Advance::only(&row, then) };
    store.advance(vec![advance], at(now)).await.remove(0)
}

pub(super) fn wait(desk: Option<&str>, due: i64) -> Then {
    Then::Wait { desk: desk.map(worker), due: at(due) }
}

pub(super) fn keep(by: &str, key: Option<&str>, due: i64) -> Then {
    Then::Keep { by: worker(by), key: key.map(str::to_owned), due: at(due) }
}

pub(super) fn send(msg: MsgObject) -> Then {
    Then::Post(Box::new(post_of(msg)))
}

pub(super) fn trash(why: &str) -> Then {
    Then::Trash { why: why.to_owned() }
}

/// `WAITING at spam from 5, 1 tries`: where a letter stands.
pub(super) fn stands(row: &LetterRow) -> String {
    let secs = |time: &Timestamp| (time.ms() - at(0).ms()) / 1000;
    let mut text = row.journey.standing.name().as_str().to_owned();
    if let Some(desk) = &row.desk {
        text += &format!(" at {desk}");
    }
    if let Some(kept_by) = &row.kept_by {
        text += &format!(" kept by {kept_by}/{}", row.key.as_deref().unwrap_or("-"));
    }
    match &row.journey.standing {
        Standing::Waiting { due } => text += &format!(" from {}", secs(due)),
        Standing::Away { until } => text += &format!(" until {}", secs(until)),
        Standing::Merged { into } => text += &format!(" into {}", into.seq),
        Standing::Done | Standing::Trashed { .. } | Standing::Dead { .. } => {}
    }
    if row.journey.attempts > 0 {
        text += &format!(", {} tries", row.journey.attempts);
    }
    match &row.failure {
        Some(failure) => format!("{text}: {failure}"),
        None => text,
    }
}

pub(super) async fn look_at(store: &dyn Store, id: LetterId) -> String {
    stands(&store.letter(id).await.unwrap())
}

/// What the letters say that are due at a desk, in order.
pub(super) async fn due(store: &dyn Store, desk: Option<&str>, now: i64) -> String {
    let desk = desk.map(worker);
    let rows = store.due_letters(desk.as_ref(), 100, at(now)).await.unwrap();
    rows.iter().map(|row| row.letter.data.as_str()).collect::<Vec<_>>().join(" ")
}

async fn merge(store: &dyn Store, now: i64) -> usize {
    let merging = Merging { owner: did("me"), labels: Default::default(), all: true };
    store.merge(Arc::new(merging), 100, at(now)).await.unwrap()
}

pub(crate) async fn a_letter_that_is_handed_in_waits_for_the_dispatcher(home: &dyn Home) {
    let store = &*home.open().await;
    let origin =
        Origin::Door { letter: letter("hello"), tunnel: Some(tunnel_id("lark")), key: None };
    let id = take_in(store, origin, 5).await;
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.id, row.direction), (id, Direction::Outbound));
    assert_eq!(row.tunnel, Some(tunnel_id("lark")));
    assert_eq!(row.letter, letter("hello"), "unknown keys survive");
    assert!(matches!(&row.source, Source::Door(first) if *first == letter("hello")));
    assert_eq!(stands(&row), "WAITING from 5");
    assert_eq!((row.had, row.became, row.revision), (vec![], None, 1));
    assert_eq!((row.created_at, row.updated_at), (at(5), at(5)));
    let event = store.events(0, 10).await.unwrap().remove(0);
    assert_eq!(event.kind, EventKind::Letter);
    assert_eq!(event.detail["letter"], json!(id));
    assert_eq!(event.detail["to"], 1);
}

pub(crate) async fn a_letter_of_another_store_is_missing(home: &dyn Home) {
    let store = &*home.open().await;
    let id = take_in(store, door("hello"), 0).await;
    let other = LetterId { mark: id.mark ^ 1, ..id };
    assert!(matches!(store.letter(other).await, Err(StoreError::Missing { .. })));
    let mut advance = Advance::only(&store.letter(id).await.unwrap(), trash("no"));
    advance.id = other;
    let answer = store.advance(vec![advance], at(1)).await.remove(0);
    assert!(matches!(answer, Err(StoreError::Missing { .. })), "{answer:?}");
    assert_ne!(id.mark, take_in(store, door("other"), 0).await.mark);
}

pub(crate) async fn a_key_stands_for_one_letter(home: &dyn Home) {
    let store = home.open().await;
    let id = take_in(&*store, keyed("k", "hello", None), 0).await;
    assert_eq!(again(&*store, keyed("k", "hello", None)).await, id);
    for other in [keyed("k", "bye", None), keyed("k", "hello", Some("lark"))] {
        let refused = accept(&*store, other, 0).await;
        let Err(StoreError::KeyReused(first)) = refused else { panic!("{refused:?}") };
        assert_eq!(first, id.to_string());
    }
    assert_ne!(take_in(&*store, door("hello"), 0).await, id, "without a key, two are two");
    drop(store);
    let store = home.open().await;
    assert_eq!(again(&*store, keyed("k", "hello", None)).await, id);
    assert_eq!(due(&*store, None, 0).await, "hello hello");
}

pub(crate) async fn what_is_heard_becomes_a_letter_once(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "strict", Strangers::Drop, false).await;
    contact(store, &endpoint("eve", "lark"), Level::Block).await;
    let id = take_in(store, Origin::Heard(says("1", "ann", "hello")), 0).await;
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.direction, row.tunnel), (Direction::Inbound, Some(tunnel_id("lark"))));
    assert_eq!(row.letter.data, "hello");
    let Source::Heard(keep) = row.source else { panic!("{:?}", row.source) };
    let first = says("1", "ann", "hello");
    assert_eq!((keep.said, keep.debounce), (first.said.clone(), first.debounce));
    assert_eq!(merge(store, 100).await, 0, "it is in no window");

    let heard = accept(store, Origin::Heard(says("1", "ann", "edited")), 0).await.unwrap();
    assert_eq!(heard, Accepted::Heard(Keeping::Duplicate));
    let kept = store.keep(vec![first], at(0)).await.remove(0).unwrap();
    assert_eq!(kept, Keeping::Duplicate);
    for (tunnel, author, keeping) in
        [("lark", "eve", Keeping::Blocked), ("strict", "ann", Keeping::Dropped)]
    {
        let mut keep = says("2", author, "psst");
        keep.tunnel = tunnel_id(tunnel);
        let heard = accept(store, Origin::Heard(keep), 0).await.unwrap();
        assert_eq!(heard, Accepted::Heard(keeping));
    }
    assert_eq!(events(store).await, "changed changed heard duplicate duplicate blocked dropped");
}

pub(crate) async fn a_message_that_comes_in_becomes_a_letter_once(home: &dyn Home) {
    let store = &*home.open().await;
    let msg = chat("ann", &["me"], "hello");
    let id = take_in(store, Origin::Dispatch(heard("lark", "om_1", msg.clone())), 0).await;
    assert_eq!(again(store, Origin::Dispatch(plain(msg.clone()))).await, id);
    let edited = heard("lark", "om_1", chat("ann", &["me"], "edited"));
    match accept(store, Origin::Dispatch(edited.clone()), 0).await.unwrap() {
        Accepted::Letter { id: first, duplicate: true, msg_id } => {
            assert_eq!((first, msg_id), (id, Some(msg.id())));
        }
        other => panic!("{other:?}"),
    }
    assert!(store.is_known(&tunnel_id("lark").did()).await.unwrap());
    assert!(matches!(store.message_heard("om_1").await, Err(StoreError::Missing { .. })));

    let row = store.letter(id).await.unwrap();
    let Source::Dispatch(dispatch) = &row.source else { panic!("{:?}", row.source) };
    assert_eq!(dispatch.external_id.as_deref(), Some("om_1"));
    let then = Then::Dispatch(Box::new(dispatch.clone()));
    assert_eq!(go(store, id, then, 1).await.unwrap().state, LetterState::Done);
    assert_eq!(inbox(store, "me").await, "hello UNREAD");
    assert_eq!(store.letter(id).await.unwrap().became, Some(msg.id()));
    assert_eq!(store.message_heard("om_1").await.unwrap(), msg.id());
    for repeated in [edited, plain(msg.clone())] {
        let answer = accept(store, Origin::Dispatch(repeated), 2).await.unwrap();
        let Accepted::Dispatched(answer) = answer else { panic!("{answer:?}") };
        assert_eq!((answer.msg_id, say(&answer).as_str()), (msg.id(), "again: me/INBOX"));
    }
}

pub(crate) async fn what_is_refused_leaves_no_letter(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    tunnel(store, "strict", Strangers::Drop, false).await;
    contact(store, "eve", Level::Block).await;
    let answer = |answer| match answer {
        Accepted::Dispatched(answer) => say(&answer),
        other => panic!("{other:?}"),
    };
    let blocked = Origin::Dispatch(plain(chat("eve", &["me"], "psst")));
    assert_eq!(answer(accept(store, blocked, 0).await.unwrap()), "blocked");
    let dropped = Origin::Dispatch(heard("strict", "1", chat("ann", &["me"], "psst")));
    assert_eq!(answer(accept(store, dropped, 0).await.unwrap()), "dropped");
    let nobody = Origin::Dispatch(plain(chat("ann", &[&endpoint("oc", "lark")], "psst")));
    let refused = accept(store, nobody, 0).await;
    assert!(matches!(refused, Err(StoreError::NobodyHere(_))), "{refused:?}");

    let eve = posted(chat("eve", &[&endpoint("oc", "lark")], "psst"));
    let refused = accept(store, eve, 0).await.unwrap();
    assert!(matches!(refused, Accepted::Posted(Posted::BlockedAuthor { .. })), "{refused:?}");
    let refused = accept(store, posted(chat("me", &["nobody"], "psst")), 0).await;
    assert!(matches!(refused, Err(StoreError::Unresolvable(_))), "{refused:?}");
    let late = object(json!({"expires_at_ms": 5}), "me", &[&endpoint("oc", "lark")], "psst");
    let refused = accept(store, posted(late), 0).await;
    assert!(matches!(refused, Err(StoreError::Expired(_))), "{refused:?}");
    assert_eq!(due(store, None, 100).await, "");
    assert_eq!(store.letter_figures(at(0)).await.unwrap(), Default::default());
}

pub(crate) async fn what_goes_out_is_a_letter_where_a_chain_is_in_its_way(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    tunnel(store, "mail", Strangers::Accept, false).await;
    lives_here(store, "bob").await;
    let only = |name: &str| {
        let tunnels = [(tunnel_id(name), true)].into();
        Arc::new(Through { all: false, tunnels })
    };
    let (ann, cat) = (endpoint("ann", "lark"), endpoint("cat", "mail"));
    for (to, through, tunnel) in [
        (vec![&*ann], only("lark"), Some(Some("lark"))),
        (vec![&*ann], only("mail"), None),
        (vec![&*ann, &*cat], only("lark"), None),
        (vec![&*ann, "bob"], only("lark"), None),
        (vec![&*ann, &*cat], all(), Some(None)),
        (vec!["bob"], all(), Some(None)),
    ] {
        let msg = chat("me", &to, &format!("{to:?} {tunnel:?}"));
        let post = Post { key: Some(msg.id().to_string()), ..post_of(msg.clone()) };
        let first = accept(store, Origin::Post(post.clone(), Arc::clone(&through)), 3).await;
        let second = accept(store, Origin::Post(post, through), 3).await;
        match (tunnel, first.unwrap(), second.unwrap()) {
            (
                Some(tunnel),
                Accepted::Letter { id, duplicate: false, msg_id },
                Accepted::Letter { id: again, duplicate: true, .. },
            ) => {
                let row = store.letter(id).await.unwrap();
                assert_eq!((row.tunnel, again), (tunnel.map(tunnel_id), id), "{to:?}");
                assert_eq!(msg_id, Some(msg.id()));
                let Source::Post(post) = row.source else { panic!("{:?}", row.source) };
                assert_eq!(post.key, Some(msg.id().to_string()));
                assert_eq!(post.msg.canonical(), msg.canonical());
            }
            (
                None,
                Accepted::Posted(Posted::OnItsWay { duplicate: false, .. }),
                Accepted::Posted(Posted::OnItsWay { duplicate: true, .. }),
            ) => {}
            other => panic!("{to:?}: {other:?}"),
        }
    }
    let reused = Post { key: Some(out("x", "1").id().to_string()), ..post_of(out("x", "1")) };
    take_in(store, Origin::Post(reused.clone(), all()), 0).await;
    let other = Post { msg: out("x", "2"), ..reused };
    let refused = accept(store, Origin::Post(other, all()), 0).await;
    assert!(matches!(refused, Err(StoreError::KeyReused(_))), "{refused:?}");
}

pub(crate) async fn a_bad_one_among_letters_does_not_harm_the_others(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    take_in(store, keyed("k", "first", None), 0).await;
    let mut told = store.newest_letter();
    told.mark_unchanged();
    let batch = vec![
        door("one"),
        posted(chat("me", &["nobody"], "no")),
        keyed("k", "other", None),
        Origin::Dispatch(plain(chat("ann", &["me"], "two"))),
        posted(out("ann", "three")),
    ];
    let answers = store.accept(batch, at(1)).await;
    let shown: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(shown, [true, false, false, true, true]);
    assert!(told.has_changed().unwrap(), "letters wait");
    assert_eq!(due(store, None, 1).await, "first one two three");
}

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
        ("hand over", Then::HandOver { until: at(60) }),
        ("put back", Then::PutBack { due: at(40), tried: true, why: "no".to_owned() }),
        ("put back", Then::PutBack { due: at(40), tried: false, why: "down".to_owned() }),
        ("send", send(out("ann", "sent"))),
        ("trash", trash("bad")),
        ("give up", Then::GiveUp { why: "enough".to_owned() }),
    ];
    let mut table = String::new();
    for from in ["waits", "at desk", "kept", "away", "done", "trashed", "dead"] {
        for (name, then) in &steps {
            let id = take_in(store, door("x"), 0).await;
            let until = Then::HandOver { until: at(50) };
            let before = match from {
                "waits" => vec![wait(None, 10)],
                "kept" => vec![keep("merge", None, 10)],
                "at desk" => vec![wait(Some("a"), 10)],
                "away" => vec![wait(Some("a"), 10), until],
                "done" => vec![send(out("ann", "sent"))],
                "trashed" => vec![trash("before")],
                _ => vec![wait(Some("a"), 10), Then::GiveUp { why: "before".to_owned() }],
            };
            for step in before {
                go(store, id, step, 20).await.unwrap();
            }
            let seen = store.letter(id).await.unwrap();
            let end = match go(store, id, then.clone(), 20).await {
                Ok(advanced) => {
                    let row = store.letter(id).await.unwrap();
                    assert_eq!(advanced.state, row.journey.standing.name());
                    assert_eq!(advanced.revision, row.revision);
                    assert_eq!(row.revision, seen.revision + 1);
                    assert_eq!(row.had.len(), seen.had.len() + 1);
                    stands(&row)
                }
                Err(StoreError::WrongState(_)) => {
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
    assert_eq!(table, include_str!("letter_steps.txt"));
}

pub(crate) async fn a_step_of_a_letter_that_changed_is_refused(home: &dyn Home) {
    let store = &*home.open().await;
    let ids = [take_in(store, door("a"), 0).await, take_in(store, door("b"), 0).await];
    let rows = [store.letter(ids[0]).await.unwrap(), store.letter(ids[1]).await.unwrap()];
    go(store, ids[0], wait(Some("spam"), 7), 1).await.unwrap();
    let before = events(store).await;
    let batch: Vec<_> = rows.iter().map(|row| Advance::only(row, wait(None, 5))).collect();
    let answers = store.advance(batch, at(2)).await;
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
    let kept = store.kept_letters(&worker("merge"), "k", 2).await.unwrap();
    assert_eq!(kept.iter().map(|row| &*row.letter.data).collect::<String>(), "ab");
    assert!(store.kept_letters(&worker("merge"), "j", 9).await.unwrap().is_empty());
    assert!(store.kept_letters(&worker("merg"), "k", 9).await.unwrap().is_empty());

    let join = |others: &[&LetterRow]| Advance {
        letter: Some(letter("abc")),
        joins: others.iter().map(|row| (row.id, row.revision)).collect(),
        ..Advance::only(&rows[0], wait(None, 11))
    };
    go(store, rows[2].id, keep("merge", Some("k"), 12), 1).await.unwrap();
    let answer = store.advance(vec![join(&[&rows[1], &rows[2]])], at(11)).await.remove(0);
    assert!(matches!(answer, Err(StoreError::Conflict { .. })), "{answer:?}");
    let own = store.advance(vec![join(&[&rows[0]])], at(11)).await.remove(0);
    assert!(matches!(own, Err(StoreError::WrongState(_))), "{own:?}");
    assert_eq!(due(store, None, 12).await, "a b c", "nothing happened to any");

    let last = store.letter(rows[2].id).await.unwrap();
    store.advance(vec![join(&[&rows[1], &last])], at(11)).await.remove(0).unwrap();
    assert_eq!(due(store, None, 12).await, "abc");
    for row in &rows[1..] {
        assert_eq!(look_at(store, row.id).await, format!("MERGED into {}", rows[0].id.seq));
    }
    let away = take_in(store, door("d"), 0).await;
    go(store, away, wait(Some("spam"), 1), 1).await.unwrap();
    go(store, away, Then::HandOver { until: at(9) }, 1).await.unwrap();
    let (main, away) = (store.letter(rows[0].id).await.unwrap(), store.letter(away).await.unwrap());
    let mut late = Advance::only(&main, wait(None, 1));
    late.joins.push((away.id, away.revision));
    let refused = store.advance(vec![late], at(11)).await.remove(0);
    assert!(matches!(refused, Err(StoreError::WrongState(_))), "{refused:?}");
}

pub(crate) async fn what_is_booked_is_written_with_its_step(home: &dyn Home) {
    let store = home.open().await;
    let id = take_in(&*store, door("a"), 0).await;
    let row = store.letter(id).await.unwrap();
    let book = |revision, booked: &[(&str, i64)]| Advance {
        revision,
        booked: booked.iter().map(|(key, until)| ((*key).to_owned(), *until)).collect(),
        ..Advance::only(&row, keep("limit", None, 9))
    };
    let keys = || ["limit:a", "limit:b", "limit:c"].map(str::to_owned).to_vec();
    store.advance(vec![book(1, &[("limit:a", 5), ("limit:b", 6)])], at(1)).await.remove(0).unwrap();
    assert!(store.advance(vec![book(1, &[("limit:c", 7)])], at(1)).await.remove(0).is_err());
    store.advance(vec![book(2, &[("limit:a", 8)])], at(1)).await.remove(0).unwrap();
    drop(store);
    let booked = home.open().await.booked(keys()).await.unwrap();
    assert_eq!(booked, [("limit:a".to_owned(), 8), ("limit:b".to_owned(), 6)].into());
}

pub(crate) async fn a_letter_is_sent_as_what_it_became(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let (first, other) = (out("ann", "hello"), out("ann", "hello, with a footer"));
    let post = Post { key: Some("k".to_owned()), ..post_of(first.clone()) };
    let id = take_in(store, Origin::Post(post.clone(), all()), 0).await;
    let row = store.letter(id).await.unwrap();
    let changed = Letter { data: "hello, with a footer".to_owned(), ..row.letter.clone() };
    let then = Then::Post(Box::new(Post { msg: other.clone(), ..post.clone() }));
    let (letter, had) = (Some(changed.clone()), vec![passed("footer"), passed("send")]);
    let advance = Advance { letter, had: had.clone(), ..Advance::only(&row, then) };
    let advanced = store.advance(vec![advance], at(1)).await.remove(0).unwrap();
    assert_eq!(advanced, Advanced { state: LetterState::Done, revision: 2 });
    assert_eq!(outgoing(store, "lark").await, "hello, with a footer WAIT");
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.letter, row.had, row.became), (changed, had, Some(other.id())));
    assert_eq!(again(store, Origin::Post(post, all())).await, id, "the key stands for it");

    let same = take_in(store, posted(out("ann", "as it is")), 0).await;
    go(store, same, send(out("ann", "as it is")), 1).await.unwrap();
    let answer = accept(store, posted(out("ann", "as it is")), 2).await.unwrap();
    let Accepted::Posted(Posted::OnItsWay { duplicate: true, ways, .. }) = answer else {
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
    contact(store, "eve", Level::Block).await;
    let late = object(json!({"expires_at_ms": 5}), "me", &[&endpoint("oc", "lark")], "late");
    let eve = chat("eve", &[&endpoint("oc", "lark")], "psst");
    let away = plain(chat("ann", &[&endpoint("oc", "lark")], "for nobody here"));
    let blocked = plain(chat("eve", &["me"], "psst"));
    for (then, want) in [
        (send(chat("me", &["nobody"], "x")), "DEAD: no way to reach did:web:nobody"),
        (send(late), "DEAD: the message expired at 5 ms"),
        (send(eve), "TRASHED: blocked_author"),
        (Then::Dispatch(Box::new(away)), "DEAD: nobody it is for lives here"),
        (Then::Dispatch(Box::new(blocked)), "TRASHED: blocked_author"),
    ] {
        let id = take_in(store, door("x"), 0).await;
        go(store, id, wait(Some("spam"), 0), 0).await.unwrap();
        let advanced = go(store, id, then, 1).await.unwrap();
        let row = store.letter(id).await.unwrap();
        assert_eq!(advanced.state, row.journey.standing.name());
        assert!(stands(&row).starts_with(want), "{}", stands(&row));
        assert_eq!((row.had.len(), row.became), (1, None), "whoever ends the chain has not");
        assert_eq!(row.desk, None, "nobody at a desk failed");
    }
    assert_eq!(outgoing(store, "lark").await, "");
    assert_eq!(store.dead_letters(2).await.unwrap().len(), 2);
    assert_eq!(store.dead_letters(9).await.unwrap().len(), 3);
}

pub(crate) async fn what_was_heard_joins_its_session_at_the_end(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "wary", Strangers::Hold, false).await;
    let of = |id: &str, author: &str, tunnel: &str| {
        let mut keep = says(id, author, id);
        keep.tunnel = tunnel_id(tunnel);
        keep
    };
    let mut ids = Vec::new();
    for (id, author, tunnel) in [("1", "ann", "lark"), ("2", "eve", "lark"), ("3", "bob", "wary")]
    {
        ids.push(take_in(store, Origin::Heard(of(id, author, tunnel)), 0).await);
    }
    contact(store, &endpoint("eve", "lark"), Level::Block).await;
    let mut changed = of("1", "ann", "lark");
    changed.said.text = "changed".to_owned();
    for (id, keep) in ids.iter().zip([changed, of("2", "eve", "lark"), of("3", "bob", "wary")]) {
        go(store, *id, Then::Deliver(Box::new(keep)), 1).await.unwrap();
    }
    assert_eq!(look_at(store, ids[0]).await, "DONE");
    assert_eq!(look_at(store, ids[1]).await, "TRASHED: blocked_author");
    assert_eq!(store.letter(ids[0]).await.unwrap().became, None, "its window is open");
    assert_eq!(merge(store, 100).await, 2);
    let mails = super::mails::mails(store).await;
    assert_eq!(mails.len(), 1, "a stranger's is held");
    let mail = mails[0].entry.msg_id;
    assert_eq!(store.message_heard("1").await.unwrap(), mail);
    assert_eq!(store.letter(ids[0]).await.unwrap().became, Some(mail));
    assert_eq!(store.letters_of(mail).await.unwrap()[0].id, ids[0]);
    let none = take_in(store, door("x"), 0).await;
    let answer = go(store, none, Then::Deliver(Box::new(of("9", "ann", "lark"))), 1).await;
    assert!(matches!(answer, Err(StoreError::Missing { .. })), "{answer:?}");
}

pub(crate) async fn large_letters_are_kept_whole(home: &dyn Home) {
    let store = home.open().await;
    lark(&*store).await;
    let large = |word: &str| word.repeat((1 << 20) / word.len());
    let msg = out("ann", &large("post "));
    let handed_in = take_in(&*store, door(&large("door ")), 0).await;
    let sent = take_in(&*store, posted(msg.clone()), 0).await;
    let mut keep = says("1", "ann", "");
    keep.said.text = "heard ".repeat(15_000);
    let heard = take_in(&*store, Origin::Heard(keep.clone()), 0).await;
    let row = store.letter(handed_in).await.unwrap();
    let change = Advance { letter: Some(letter(&large("new "))), ..Advance::only(&row, wait(None, 1)) };
    store.advance(vec![change], at(1)).await.remove(0).unwrap();
    drop(store);
    let store = home.open().await;
    let row = store.letter(handed_in).await.unwrap();
    assert_eq!(row.letter, letter(&large("new ")));
    assert!(matches!(row.source, Source::Door(first) if first == letter(&large("door "))));
    let row = store.letter(sent).await.unwrap();
    assert!(matches!(row.source, Source::Post(post) if post.msg == msg));
    let row = store.letter(heard).await.unwrap();
    assert!(matches!(row.source, Source::Heard(heard) if heard.said == keep.said));
    assert_eq!(due(&*store, None, 9).await.len(), 3 * (1 << 20) - 4 + 90_000 + 2 - (1 << 20));
    go(&*store, sent, send(msg), 2).await.unwrap();
    assert_eq!(outgoing(&*store, "lark").await.len(), (1 << 20) - 1 + " WAIT".len());
}
