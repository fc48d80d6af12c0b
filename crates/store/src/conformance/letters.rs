//! Conformance tests of letters: each source becomes one letter.

use std::sync::Arc;

use monoco_core::event::EventKind;
use monoco_core::letter::{
    ChainDirection, Letter, LetterId, LetterState, LetterStateData, Verdict, WorkerName,
    WorkerVerdict,
};

use super::inbound::inbound_message;
use super::*;
use crate::{
    AcceptResult, LetterRow, LetterSource, LetterStep, LetterStepResult, MergeContext, NextAction,
    PipelineRouting, StoreInboundResult,
};

pub(super) fn worker(name: &str) -> WorkerName {
    name.parse().unwrap()
}

/// A letter with the text `text` and with unknown keys.
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

pub(super) fn submitted(text: &str) -> LetterSource {
    LetterSource::Submitted {
        letter: letter(text),
        tunnel: None,
        key: None,
        origin: SendOrigin::Owner,
    }
}

fn submitted_with_key(key: &str, text: &str, tunnel: Option<&str>) -> LetterSource {
    let tunnel = tunnel.map(tunnel_id);
    LetterSource::Submitted {
        letter: letter(text),
        tunnel,
        key: Some(key.to_owned()),
        origin: SendOrigin::Owner,
    }
}

/// Routes all messages through the pipeline.
pub(super) fn route_all() -> Arc<PipelineRouting> {
    Arc::new(PipelineRouting { all: true, ..PipelineRouting::default() })
}

/// A message to the endpoint `account` of the tunnel `lark`.
pub(super) fn outgoing_message(account: &str, text: &str) -> MsgObject {
    chat("me", &[&endpoint(account, "lark")], text)
}

pub(super) fn send_source(msg: MsgObject) -> LetterSource {
    LetterSource::Send(send_request(msg))
}

pub(super) async fn accept(
    store: &dyn Store,
    source: LetterSource,
    now: i64,
) -> Result<AcceptResult, StoreError> {
    accept_routed(store, source, route_all(), now).await
}

async fn accept_routed(
    store: &dyn Store,
    source: LetterSource,
    outbound: Arc<PipelineRouting>,
    now: i64,
) -> Result<AcceptResult, StoreError> {
    let mut answers = store.accept(vec![source], outbound, at(now)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Accepts a source that must become a new letter.
pub(super) async fn accept_letter(store: &dyn Store, source: LetterSource, now: i64) -> LetterId {
    match accept(store, source, now).await.unwrap() {
        AcceptResult::Letter { id, duplicate: false, .. } => id,
        other => panic!("not a new letter: {other:?}"),
    }
}

/// Accepts a source again, and returns the letter that it became before.
pub(super) async fn accept_duplicate(store: &dyn Store, source: LetterSource) -> LetterId {
    match accept(store, source, 9).await.unwrap() {
        AcceptResult::Letter { id, duplicate: true, .. } => id,
        other => panic!("not a duplicate: {other:?}"),
    }
}

pub(super) fn pass_verdict(name: &str) -> WorkerVerdict {
    WorkerVerdict { worker: worker(name), result: Verdict::Pass, at: at(1), note: None }
}

/// Applies one step at second `now`.
pub(super) async fn apply_step(
    store: &dyn Store,
    step: LetterStep,
    now: i64,
) -> Result<LetterStepResult, StoreError> {
    store.step_letters(vec![step], at(now)).await.remove(0)
}

/// Applies a step with one verdict to the current revision of a letter.
pub(super) async fn step_letter(
    store: &dyn Store,
    id: LetterId,
    then: NextAction,
    now: i64,
) -> Result<LetterStepResult, StoreError> {
    let row = store.letter(id).await.unwrap();
    let verdicts = vec![pass_verdict("end")];
    apply_step(store, LetterStep { verdicts, ..LetterStep::only(&row, then) }, now).await
}

pub(super) fn then_wait(worker_name: Option<&str>, due: i64) -> NextAction {
    NextAction::Wait { worker: worker_name.map(worker), due: at(due) }
}

pub(super) fn then_hold(by: &str, key: Option<&str>, due: i64) -> NextAction {
    NextAction::Hold { by: worker(by), key: key.map(str::to_owned), due: at(due) }
}

pub(super) fn then_send(msg: MsgObject) -> NextAction {
    NextAction::Send(Box::new(send_request(msg)))
}

pub(super) fn then_trash(why: &str) -> NextAction {
    NextAction::Trash { why: why.to_owned() }
}

/// Describes the state of a letter: `WAITING at spam from 5, 1 attempts`.
pub(super) fn describe_letter(row: &LetterRow) -> String {
    let secs = |time: &Timestamp| (time.ms() - at(0).ms()) / 1000;
    let mut text = row.status.standing.name().as_str().to_owned();
    if let Some(worker_name) = &row.worker {
        text += &format!(" at {worker_name}");
    }
    if let Some(held_by) = &row.held_by {
        text += &format!(" held by {held_by}/{}", row.key.as_deref().unwrap_or("-"));
    }
    match &row.status.standing {
        LetterStateData::Waiting { due } => text += &format!(" from {}", secs(due)),
        LetterStateData::Away { until } => text += &format!(" until {}", secs(until)),
        LetterStateData::Merged { into } => text += &format!(" into {}", into.seq),
        LetterStateData::Done | LetterStateData::Trashed { .. } | LetterStateData::Dead { .. } => {}
    }
    if row.status.attempts > 0 {
        text += &format!(", {} attempts", row.status.attempts);
    }
    match &row.failure {
        Some(failure) => format!("{text}: {failure}"),
        None => text,
    }
}

pub(super) async fn letter_status(store: &dyn Store, id: LetterId) -> String {
    describe_letter(&store.letter(id).await.unwrap())
}

/// The texts of the letters that are due for a worker (`None`: the dispatcher), in order.
pub(super) async fn due_texts(store: &dyn Store, worker_name: Option<&str>, now: i64) -> String {
    let worker_name = worker_name.map(worker);
    let rows = store.due_letters(worker_name.as_ref(), 100, at(now)).await.unwrap();
    rows.iter().map(|row| row.letter.data.as_str()).collect::<Vec<_>>().join(" ")
}

pub(super) async fn merge_all(store: &dyn Store, now: i64) -> usize {
    let merging = MergeContext {
        owner: did("me"),
        labels: Default::default(),
        read_history: Default::default(),
        all: true,
    };
    store.merge(Arc::new(merging), 100, at(now)).await.unwrap()
}

pub(crate) async fn submitted_letter_waits_for_the_dispatcher(store: &dyn Store) {
    let source = LetterSource::Submitted {
        letter: letter("hello"),
        tunnel: Some(tunnel_id("lark")),
        key: None,
        origin: SendOrigin::Owner,
    };
    let id = accept_letter(store, source, 5).await;
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.id, row.direction), (id, ChainDirection::Outbound));
    assert_eq!(row.tunnel, Some(tunnel_id("lark")));
    assert_eq!(row.letter, letter("hello"), "unknown keys survive");
    assert!(
        matches!(&row.source, LetterSource::Submitted { letter: first, .. } if *first == letter("hello"))
    );
    assert_eq!(describe_letter(&row), "WAITING from 5");
    assert_eq!((row.verdicts, row.became, row.revision), (vec![], None, 1));
    assert_eq!((row.created_at, row.updated_at), (at(5), at(5)));
    let event = store.events(0, 10).await.unwrap().remove(0);
    assert_eq!(event.kind, EventKind::Letter);
    assert_eq!(event.detail["letter"], json!(id));
    assert_eq!(event.detail["to"], 1);
}

pub(crate) async fn letter_id_of_another_store_is_missing(store: &dyn Store) {
    let id = accept_letter(store, submitted("hello"), 0).await;
    let other = LetterId { mark: id.mark ^ 1, ..id };
    assert!(matches!(store.letter(other).await, Err(StoreError::Missing { .. })));
    let mut letter_step = LetterStep::only(&store.letter(id).await.unwrap(), then_trash("no"));
    letter_step.id = other;
    assert_matches!(apply_step(store, letter_step, 1).await, Err(StoreError::Missing { .. }));
    assert_ne!(id.mark, accept_letter(store, submitted("other"), 0).await.mark);
}

pub(crate) async fn idempotency_key_cannot_be_reused_for_another_letter(home: &dyn TestHome) {
    let store = home.open().await;
    let id = accept_letter(&*store, submitted_with_key("k", "hello", None), 0).await;
    assert_eq!(accept_duplicate(&*store, submitted_with_key("k", "hello", None)).await, id);
    for other in
        [submitted_with_key("k", "bye", None), submitted_with_key("k", "hello", Some("lark"))]
    {
        let rejected = accept(&*store, other, 0).await;
        let Err(StoreError::KeyReused(first)) = rejected else { panic!("{rejected:?}") };
        assert_eq!(first, id.to_string());
    }
    assert_ne!(
        accept_letter(&*store, submitted("hello"), 0).await,
        id,
        "without a key, the same text is a new letter"
    );
    drop(store);
    let store = home.open().await;
    assert_eq!(accept_duplicate(&*store, submitted_with_key("k", "hello", None)).await, id);
    assert_eq!(due_texts(&*store, None, 0).await, "hello hello");
}

pub(crate) async fn letter_of_an_inbound_mail_has_its_bytes(home: &dyn TestHome) {
    let store = home.open().await;
    let mut ids = Vec::new();
    let large = [b"Subject: long\r\n\r\n".to_vec(), vec![b'x'; 300_000]].concat();
    let mails = [b"Subject: a\r\n\r\nhello\r\n".to_vec(), b"X: \xff\x00\r\n\r\n".to_vec(), large];
    for (number, mail) in mails.iter().enumerate() {
        let mut request = inbound_message(&number.to_string(), "ann", "the text");
        request.mail = Some(mail.clone());
        ids.push(accept_letter(&*store, LetterSource::Inbound(request), 0).await);
    }
    drop(store);
    let store = home.open().await;
    for (id, mail) in ids.into_iter().zip(mails) {
        let row = store.letter(id).await.unwrap();
        assert!(row.letter.is_mail() && *row.letter.bytes() == *mail);
        let LetterSource::Inbound(request) = row.source else { panic!("{:?}", row.source) };
        assert_eq!((request.mail, request.message.text.as_str()), (Some(mail), "the text"));
    }
}

pub(crate) async fn inbound_message_becomes_a_letter_once(store: &dyn Store) {
    put_tunnel(store, "strict", StrangerPolicy::Drop, false).await;
    add_contact(store, &endpoint("eve", "lark"), ContactLevel::Block).await;
    let id =
        accept_letter(store, LetterSource::Inbound(inbound_message("1", "ann", "hello")), 0).await;
    let row = store.letter(id).await.unwrap();
    assert_eq!((row.direction, row.tunnel), (ChainDirection::Inbound, Some(tunnel_id("lark"))));
    assert_eq!(row.letter.data, "hello");
    let LetterSource::Inbound(request) = row.source else { panic!("{:?}", row.source) };
    let first = inbound_message("1", "ann", "hello");
    assert_eq!((request.message, request.debounce), (first.message.clone(), first.debounce));
    assert_eq!(merge_all(store, 100).await, 0, "the message is in no merge window");

    let result = accept(store, LetterSource::Inbound(inbound_message("1", "ann", "edited")), 0)
        .await
        .unwrap();
    assert_eq!(result, AcceptResult::Inbound(StoreInboundResult::Duplicate));
    let stored = store.store_inbound(vec![first], at(0)).await.remove(0).unwrap();
    assert_eq!(stored, StoreInboundResult::Duplicate);
    for (tunnel, author, expected) in [
        ("lark", "eve", StoreInboundResult::Blocked),
        ("strict", "ann", StoreInboundResult::Dropped),
    ] {
        let mut request = inbound_message("2", author, "psst");
        request.tunnel = tunnel_id(tunnel);
        let result = accept(store, LetterSource::Inbound(request), 0).await.unwrap();
        assert_eq!(result, AcceptResult::Inbound(expected));
    }
    assert_eq!(
        event_kinds(store).await,
        "changed changed changed received duplicate duplicate blocked dropped"
    );
}

pub(crate) async fn dispatched_message_becomes_a_letter_once(store: &dyn Store) {
    let msg = chat("ann", &["me"], "hello");
    let id =
        accept_letter(store, LetterSource::Dispatch(via_tunnel("lark", "om_1", msg.clone())), 0)
            .await;
    assert_eq!(
        accept_duplicate(store, LetterSource::Dispatch(without_tunnel(msg.clone()))).await,
        id
    );
    let edited = via_tunnel("lark", "om_1", chat("ann", &["me"], "edited"));
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
    assert_eq!(step_letter(store, id, then, 1).await.unwrap().state, LetterState::Done);
    assert_eq!(inbox_contents(store, "me").await, "hello UNREAD");
    assert_eq!(store.letter(id).await.unwrap().became, Some(msg.id()));
    assert_eq!(store.find_by_external_id("om_1").await.unwrap(), msg.id());
    for repeated in [edited, without_tunnel(msg.clone())] {
        let answer = accept(store, LetterSource::Dispatch(repeated), 2).await.unwrap();
        let AcceptResult::Dispatched(answer) = answer else { panic!("{answer:?}") };
        assert_eq!((answer.msg_id, describe(&answer).as_str()), (msg.id(), "again: me/INBOX"));
    }
}

pub(crate) async fn rejected_message_leaves_no_letter(store: &dyn Store) {
    put_lark_tunnel(store).await;
    put_tunnel(store, "strict", StrangerPolicy::Drop, false).await;
    add_contact(store, "eve", ContactLevel::Block).await;
    let answer = |answer| match answer {
        AcceptResult::Dispatched(answer) => describe(&answer),
        other => panic!("{other:?}"),
    };
    let blocked = LetterSource::Dispatch(without_tunnel(chat("eve", &["me"], "psst")));
    assert_eq!(answer(accept(store, blocked, 0).await.unwrap()), "blocked");
    let dropped = LetterSource::Dispatch(via_tunnel("strict", "1", chat("ann", &["me"], "psst")));
    assert_eq!(answer(accept(store, dropped, 0).await.unwrap()), "dropped");
    let without_recipient =
        LetterSource::Dispatch(without_tunnel(chat("ann", &[&endpoint("oc", "lark")], "psst")));
    assert_matches!(
        accept(store, without_recipient, 0).await,
        Err(StoreError::NoLocalRecipient(_))
    );

    let eve = send_source(chat("eve", &[&endpoint("oc", "lark")], "psst"));
    assert_matches!(
        accept(store, eve, 0).await.unwrap(),
        AcceptResult::Sent(SendResult::BlockedAuthor { .. })
    );
    assert_matches!(
        accept(store, send_source(chat("me", &["unknown"], "psst")), 0).await,
        Err(StoreError::UnresolvableTargets(_))
    );
    let late = msg_object(json!({"expires_at_ms": 5}), "me", &[&endpoint("oc", "lark")], "psst");
    assert_matches!(accept(store, send_source(late), 0).await, Err(StoreError::Expired(_)));
    assert_eq!(due_texts(store, None, 100).await, "");
    assert_eq!(store.letter_counts(at(0)).await.unwrap(), Default::default());
}

pub(crate) async fn pipeline_routing_decides_which_sends_become_letters(store: &dyn Store) {
    put_lark_tunnel(store).await;
    put_tunnel(store, "mail", StrangerPolicy::Accept, false).await;
    add_local_contact(store, "bob").await;
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
        (vec![&*ann, &*cat], route_all(), Some(None)),
        (vec!["bob"], route_all(), Some(None)),
    ] {
        let msg = chat("me", &to, &format!("{to:?} {tunnel:?}"));
        let request = SendRequest { key: Some(msg.id().to_string()), ..send_request(msg.clone()) };
        let first = LetterSource::Send(request.clone());
        let first = accept_routed(store, first, Arc::clone(&through), 3).await;
        let second = accept_routed(store, LetterSource::Send(request), through, 3).await;
        match (tunnel, first.unwrap(), second.unwrap()) {
            (
                Some(tunnel),
                AcceptResult::Letter { id, duplicate: false, msg_id },
                AcceptResult::Letter { id: again, duplicate: true, .. },
            ) => {
                let row = store.letter(id).await.unwrap();
                assert_eq!((row.tunnel, again), (tunnel.map(tunnel_id), id), "{to:?}");
                assert_eq!(msg_id, Some(msg.id()));
                let LetterSource::Send(request) = row.source else { panic!("{:?}", row.source) };
                assert_eq!(request.key, Some(msg.id().to_string()));
                assert_eq!(request.msg.canonical(), msg.canonical());
            }
            (
                None,
                AcceptResult::Sent(SendResult::Queued { duplicate: false, .. }),
                AcceptResult::Sent(SendResult::Queued { duplicate: true, .. }),
            ) => {}
            other => panic!("{to:?}: {other:?}"),
        }
    }
    let reused = SendRequest {
        key: Some(outgoing_message("x", "1").id().to_string()),
        ..send_request(outgoing_message("x", "1"))
    };
    accept_letter(store, LetterSource::Send(reused.clone()), 0).await;
    let other = SendRequest { msg: outgoing_message("x", "2"), ..reused };
    assert_matches!(
        accept(store, LetterSource::Send(other), 0).await,
        Err(StoreError::KeyReused(_))
    );
}

pub(crate) async fn rejected_source_does_not_affect_the_rest_of_the_batch(store: &dyn Store) {
    put_lark_tunnel(store).await;
    accept_letter(store, submitted_with_key("k", "first", None), 0).await;
    let batch = vec![
        submitted("one"),
        send_source(chat("me", &["unknown"], "no")),
        submitted_with_key("k", "other", None),
        LetterSource::Dispatch(without_tunnel(chat("ann", &["me"], "two"))),
        send_source(outgoing_message("ann", "three")),
    ];
    let answers = store.accept(batch, route_all(), at(1)).await;
    let shown: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(shown, [true, false, false, true, true]);
    assert_eq!(due_texts(store, None, 1).await, "first one two three");
}
