//! Laws of letters: a message becomes one once, whichever way it came.

use std::sync::Arc;

use monoco_core::event::EventKind;
use monoco_core::letter::{
    ChainDirection, Letter, LetterId, LetterState, LetterStateData, Verdict, WorkerName,
    WorkerVerdict,
};

use super::mails::says;
use super::*;
use crate::{
    AcceptResult, LetterRow, LetterSource, LetterStep, LetterStepResult, MergeContext, NextAction,
    PipelineRouting, StoreInboundResult,
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

pub(super) fn door(text: &str) -> LetterSource {
    LetterSource::Submitted { letter: letter(text), tunnel: None, key: None }
}

fn keyed(key: &str, text: &str, tunnel: Option<&str>) -> LetterSource {
    let tunnel = tunnel.map(tunnel_id);
    LetterSource::Submitted { letter: letter(text), tunnel, key: Some(key.to_owned()) }
}

/// Everything goes through the post office.
pub(super) fn all() -> Arc<PipelineRouting> {
    Arc::new(PipelineRouting { all: true, ..PipelineRouting::default() })
}

/// A message to `account` behind the tunnel `lark`.
pub(super) fn out(account: &str, text: &str) -> MsgObject {
    chat("me", &[&endpoint(account, "lark")], text)
}

pub(super) fn posted(msg: MsgObject) -> LetterSource {
    LetterSource::Send(post_of(msg))
}

pub(super) async fn accept(
    store: &dyn Store,
    origin: LetterSource,
    now: i64,
) -> Result<AcceptResult, StoreError> {
    accept_routed(store, origin, all(), now).await
}

async fn accept_routed(
    store: &dyn Store,
    origin: LetterSource,
    outbound: Arc<PipelineRouting>,
    now: i64,
) -> Result<AcceptResult, StoreError> {
    let mut answers = store.accept(vec![origin], outbound, at(now)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Takes in a letter that is new.
pub(super) async fn take_in(store: &dyn Store, origin: LetterSource, now: i64) -> LetterId {
    match accept(store, origin, now).await.unwrap() {
        AcceptResult::Letter { id, duplicate: false, .. } => id,
        other => panic!("no new letter: {other:?}"),
    }
}

/// The letter that was taken in before.
pub(super) async fn again(store: &dyn Store, origin: LetterSource) -> LetterId {
    match accept(store, origin, 9).await.unwrap() {
        AcceptResult::Letter { id, duplicate: true, .. } => id,
        other => panic!("not taken in before: {other:?}"),
    }
}

pub(super) fn passed(name: &str) -> WorkerVerdict {
    WorkerVerdict { worker: worker(name), result: Verdict::Pass, at: at(1), note: None }
}

/// Takes a step with a letter as it is now.
pub(super) async fn go(
    store: &dyn Store,
    id: LetterId,
    then: NextAction,
    now: i64,
) -> Result<LetterStepResult, StoreError> {
    let row = store.letter(id).await.unwrap();
    let advance = LetterStep { verdicts: vec![passed("end")], ..LetterStep::only(&row, then) };
    store.step_letters(vec![advance], at(now)).await.remove(0)
}

pub(super) fn wait(desk: Option<&str>, due: i64) -> NextAction {
    NextAction::Wait { worker: desk.map(worker), due: at(due) }
}

pub(super) fn keep(by: &str, key: Option<&str>, due: i64) -> NextAction {
    NextAction::Hold { by: worker(by), key: key.map(str::to_owned), due: at(due) }
}

pub(super) fn send(msg: MsgObject) -> NextAction {
    NextAction::Send(Box::new(post_of(msg)))
}

pub(super) fn trash(why: &str) -> NextAction {
    NextAction::Trash { why: why.to_owned() }
}

/// `WAITING at spam from 5, 1 tries`: where a letter stands.
pub(super) fn stands(row: &LetterRow) -> String {
    let secs = |time: &Timestamp| (time.ms() - at(0).ms()) / 1000;
    let mut text = row.status.standing.name().as_str().to_owned();
    if let Some(desk) = &row.worker {
        text += &format!(" at {desk}");
    }
    if let Some(kept_by) = &row.held_by {
        text += &format!(" kept by {kept_by}/{}", row.key.as_deref().unwrap_or("-"));
    }
    match &row.status.standing {
        LetterStateData::Waiting { due } => text += &format!(" from {}", secs(due)),
        LetterStateData::Away { until } => text += &format!(" until {}", secs(until)),
        LetterStateData::Merged { into } => text += &format!(" into {}", into.seq),
        LetterStateData::Done | LetterStateData::Trashed { .. } | LetterStateData::Dead { .. } => {}
    }
    if row.status.attempts > 0 {
        text += &format!(", {} tries", row.status.attempts);
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

pub(super) async fn merge(store: &dyn Store, now: i64) -> usize {
    let merging = MergeContext { owner: did("me"), labels: Default::default(), all: true };
    store.merge(Arc::new(merging), 100, at(now)).await.unwrap()
}

pub(crate) async fn a_letter_that_is_handed_in_waits_for_the_dispatcher(home: &dyn Home) {
    let store = &*home.open().await;
    let origin = LetterSource::Submitted {
        letter: letter("hello"),
        tunnel: Some(tunnel_id("lark")),
        key: None,
    };
    let id = take_in(store, origin, 5).await;
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.id, row.direction), (id, ChainDirection::Outbound));
    assert_eq!(row.tunnel, Some(tunnel_id("lark")));
    assert_eq!(row.letter, letter("hello"), "unknown keys survive");
    assert!(
        matches!(&row.source, LetterSource::Submitted { letter: first, .. } if *first == letter("hello"))
    );
    assert_eq!(stands(&row), "WAITING from 5");
    assert_eq!((row.verdicts, row.became, row.revision), (vec![], None, 1));
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
    let mut advance = LetterStep::only(&store.letter(id).await.unwrap(), trash("no"));
    advance.id = other;
    let answer = store.step_letters(vec![advance], at(1)).await.remove(0);
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
    tunnel(store, "strict", StrangerPolicy::Drop, false).await;
    contact(store, &endpoint("eve", "lark"), ContactLevel::Block).await;
    let id = take_in(store, LetterSource::Inbound(says("1", "ann", "hello")), 0).await;
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.direction, row.tunnel), (ChainDirection::Inbound, Some(tunnel_id("lark"))));
    assert_eq!(row.letter.data, "hello");
    let LetterSource::Inbound(keep) = row.source else { panic!("{:?}", row.source) };
    let first = says("1", "ann", "hello");
    assert_eq!((keep.message, keep.debounce), (first.message.clone(), first.debounce));
    assert_eq!(merge(store, 100).await, 0, "it is in no window");

    let heard = accept(store, LetterSource::Inbound(says("1", "ann", "edited")), 0).await.unwrap();
    assert_eq!(heard, AcceptResult::Inbound(StoreInboundResult::Duplicate));
    let kept = store.store_inbound(vec![first], at(0)).await.remove(0).unwrap();
    assert_eq!(kept, StoreInboundResult::Duplicate);
    for (tunnel, author, keeping) in [
        ("lark", "eve", StoreInboundResult::Blocked),
        ("strict", "ann", StoreInboundResult::Dropped),
    ] {
        let mut keep = says("2", author, "psst");
        keep.tunnel = tunnel_id(tunnel);
        let heard = accept(store, LetterSource::Inbound(keep), 0).await.unwrap();
        assert_eq!(heard, AcceptResult::Inbound(keeping));
    }
    assert_eq!(
        events(store).await,
        "changed changed changed received duplicate duplicate blocked dropped"
    );
}

pub(crate) async fn a_message_that_comes_in_becomes_a_letter_once(home: &dyn Home) {
    let store = &*home.open().await;
    let msg = chat("ann", &["me"], "hello");
    let id = take_in(store, LetterSource::Dispatch(heard("lark", "om_1", msg.clone())), 0).await;
    assert_eq!(again(store, LetterSource::Dispatch(plain(msg.clone()))).await, id);
    let edited = heard("lark", "om_1", chat("ann", &["me"], "edited"));
    match accept(store, LetterSource::Dispatch(edited.clone()), 0).await.unwrap() {
        AcceptResult::Letter { id: first, duplicate: true, msg_id } => {
            assert_eq!((first, msg_id), (id, Some(msg.id())));
        }
        other => panic!("{other:?}"),
    }
    assert!(store.owner_exists(&tunnel_id("lark").did()).await.unwrap());
    assert!(matches!(store.find_by_external_id("om_1").await, Err(StoreError::Missing { .. })));

    let row = store.letter(id).await.unwrap();
    let LetterSource::Dispatch(dispatch) = &row.source else { panic!("{:?}", row.source) };
    assert_eq!(dispatch.external_id.as_deref(), Some("om_1"));
    let then = NextAction::Dispatch(Box::new(dispatch.clone()));
    assert_eq!(go(store, id, then, 1).await.unwrap().state, LetterState::Done);
    assert_eq!(inbox(store, "me").await, "hello UNREAD");
    assert_eq!(store.letter(id).await.unwrap().became, Some(msg.id()));
    assert_eq!(store.find_by_external_id("om_1").await.unwrap(), msg.id());
    for repeated in [edited, plain(msg.clone())] {
        let answer = accept(store, LetterSource::Dispatch(repeated), 2).await.unwrap();
        let AcceptResult::Dispatched(answer) = answer else { panic!("{answer:?}") };
        assert_eq!((answer.msg_id, say(&answer).as_str()), (msg.id(), "again: me/INBOX"));
    }
}

pub(crate) async fn what_is_refused_leaves_no_letter(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    tunnel(store, "strict", StrangerPolicy::Drop, false).await;
    contact(store, "eve", ContactLevel::Block).await;
    let answer = |answer| match answer {
        AcceptResult::Dispatched(answer) => say(&answer),
        other => panic!("{other:?}"),
    };
    let blocked = LetterSource::Dispatch(plain(chat("eve", &["me"], "psst")));
    assert_eq!(answer(accept(store, blocked, 0).await.unwrap()), "blocked");
    let dropped = LetterSource::Dispatch(heard("strict", "1", chat("ann", &["me"], "psst")));
    assert_eq!(answer(accept(store, dropped, 0).await.unwrap()), "dropped");
    let nobody = LetterSource::Dispatch(plain(chat("ann", &[&endpoint("oc", "lark")], "psst")));
    let refused = accept(store, nobody, 0).await;
    assert!(matches!(refused, Err(StoreError::NoLocalRecipient(_))), "{refused:?}");

    let eve = posted(chat("eve", &[&endpoint("oc", "lark")], "psst"));
    let refused = accept(store, eve, 0).await.unwrap();
    assert!(matches!(refused, AcceptResult::Sent(SendResult::BlockedAuthor { .. })), "{refused:?}");
    let refused = accept(store, posted(chat("me", &["nobody"], "psst")), 0).await;
    assert!(matches!(refused, Err(StoreError::UnresolvableTargets(_))), "{refused:?}");
    let late = object(json!({"expires_at_ms": 5}), "me", &[&endpoint("oc", "lark")], "psst");
    let refused = accept(store, posted(late), 0).await;
    assert!(matches!(refused, Err(StoreError::Expired(_))), "{refused:?}");
    assert_eq!(due(store, None, 100).await, "");
    assert_eq!(store.letter_counts(at(0)).await.unwrap(), Default::default());
}

pub(crate) async fn what_goes_out_is_a_letter_where_a_chain_is_in_its_way(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    tunnel(store, "mail", StrangerPolicy::Accept, false).await;
    lives_here(store, "bob").await;
    let only = |name: &str| {
        let tunnels = [(tunnel_id(name), true)].into();
        Arc::new(PipelineRouting { all: false, tunnels })
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
        let post = SendRequest { key: Some(msg.id().to_string()), ..post_of(msg.clone()) };
        let first = LetterSource::Send(post.clone());
        let first = accept_routed(store, first, Arc::clone(&through), 3).await;
        let second = accept_routed(store, LetterSource::Send(post), through, 3).await;
        match (tunnel, first.unwrap(), second.unwrap()) {
            (
                Some(tunnel),
                AcceptResult::Letter { id, duplicate: false, msg_id },
                AcceptResult::Letter { id: again, duplicate: true, .. },
            ) => {
                let row = store.letter(id).await.unwrap();
                assert_eq!((row.tunnel, again), (tunnel.map(tunnel_id), id), "{to:?}");
                assert_eq!(msg_id, Some(msg.id()));
                let LetterSource::Send(post) = row.source else { panic!("{:?}", row.source) };
                assert_eq!(post.key, Some(msg.id().to_string()));
                assert_eq!(post.msg.canonical(), msg.canonical());
            }
            (
                None,
                AcceptResult::Sent(SendResult::Queued { duplicate: false, .. }),
                AcceptResult::Sent(SendResult::Queued { duplicate: true, .. }),
            ) => {}
            other => panic!("{to:?}: {other:?}"),
        }
    }
    let reused =
        SendRequest { key: Some(out("x", "1").id().to_string()), ..post_of(out("x", "1")) };
    take_in(store, LetterSource::Send(reused.clone()), 0).await;
    let other = SendRequest { msg: out("x", "2"), ..reused };
    let refused = accept(store, LetterSource::Send(other), 0).await;
    assert!(matches!(refused, Err(StoreError::KeyReused(_))), "{refused:?}");
}

pub(crate) async fn a_bad_one_among_letters_does_not_harm_the_others(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    take_in(store, keyed("k", "first", None), 0).await;
    let batch = vec![
        door("one"),
        posted(chat("me", &["nobody"], "no")),
        keyed("k", "other", None),
        LetterSource::Dispatch(plain(chat("ann", &["me"], "two"))),
        posted(out("ann", "three")),
    ];
    let answers = store.accept(batch, all(), at(1)).await;
    let shown: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(shown, [true, false, false, true, true]);
    assert_eq!(due(store, None, 1).await, "first one two three");
}
