//! Laws of what was heard: kept once, merged into Mails, shown, and let go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use monoco_core::claim::{Claim, ClaimState, MailLocation, Workspace};
use monoco_core::event::EventKind;
use monoco_core::inbound::{
    ChatSession, ChatSessionKind, InboundMessage, Participant, ValidInboundMessage,
};
use monoco_core::mail::{Mail, MailId, Trust};
use monoco_core::merge::{Debounce, MAX_BYTES, MAX_MESSAGES};
use monoco_core::retention::ClockStep;

use super::*;
use crate::{
    ClaimUpdate, FileChange, FileProgress, MailQuery, MailRow, MergeContext, StoreInboundRequest,
    StoreInboundResult, TunnelLabels,
};

/// What `from` says in a group chat behind the tunnel `lark`.
pub(super) fn says(id: &str, from: &str, text: &str) -> StoreInboundRequest {
    let message = InboundMessage {
        id: id.to_owned(),
        at: None,
        received_at: at(0),
        session: ChatSession {
            id: "room".to_owned(),
            kind: ChatSessionKind::Group,
            name: None,
            thread_key: None,
        },
        from: Participant { id: from.to_owned(), name: None },
        to: Vec::new(),
        cc: Vec::new(),
        title: None,
        text: text.to_owned(),
        mentions: Vec::new(),
        reply_to: None,
        forwarded_from: None,
        correlation_id: None,
        artifacts: Vec::new(),
    };
    let (tunnel, provider) = (tunnel_id("lark"), "lark".to_owned());
    StoreInboundRequest { tunnel, provider, message: stored(&message), debounce: Debounce::DEFAULT }
}

/// The message as it is read from the store, where limits are not checked again.
fn stored(message: &InboundMessage) -> ValidInboundMessage {
    ValidInboundMessage::from_stored_json(json!(message).to_string()).unwrap()
}

/// The request with a changed message.
pub(super) fn with_message(
    request: StoreInboundRequest,
    change: impl FnOnce(&mut InboundMessage),
) -> StoreInboundRequest {
    let mut message = request.message.into_message();
    change(&mut message);
    StoreInboundRequest { message: stored(&message), ..request }
}

fn through(tunnel: &str, mut keep: StoreInboundRequest) -> StoreInboundRequest {
    keep.tunnel = tunnel_id(tunnel);
    keep
}

fn in_room(room: &str, request: StoreInboundRequest) -> StoreInboundRequest {
    with_message(request, |message| message.session.id = room.to_owned())
}

fn in_thread(thread: &str, request: StoreInboundRequest) -> StoreInboundRequest {
    with_message(request, |message| message.session.thread_key = Some(thread.to_owned()))
}

fn direct(request: StoreInboundRequest) -> StoreInboundRequest {
    with_message(request, |message| message.session.kind = ChatSessionKind::Direct)
}

/// Keeps one message at second `now`.
pub(super) async fn hear(
    store: &dyn Store,
    keep: StoreInboundRequest,
    now: i64,
) -> StoreInboundResult {
    let keep = with_message(keep, |message| message.received_at = at(now));
    let mut answers = store.store_inbound(vec![keep], at(now)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0).unwrap()
}

fn merging(all: bool) -> Arc<MergeContext> {
    Arc::new(MergeContext { owner: did("me"), labels: BTreeMap::new(), all })
}

/// Merges what is over at second `now`.
pub(super) async fn merge(store: &dyn Store, now: i64) -> usize {
    store.merge(merging(false), 1_000, at(now)).await.unwrap()
}

/// Keeps messages of as many rooms and merges them, all at second `now`. Returns their
/// ids, in the order of their numbers.
pub(super) async fn deliver(store: &dyn Store, texts: &[&str], now: i64) -> Vec<MailId> {
    for text in texts {
        hear(store, in_room(text, says(text, "ann", text)), now).await;
    }
    store.merge(merging(true), 1_000, at(now)).await.unwrap();
    texts.iter().map(|text| MailId::of("lark", &tunnel_id("lark"), text)).collect()
}

fn all_of(workspace: &Workspace) -> MailQuery {
    let workspace = workspace.clone();
    MailQuery { workspace, status: None, provider: None, since: None, text: None }
}

/// All Mails that anybody may see, oldest first.
pub(super) async fn mails(store: &dyn Store) -> Vec<MailRow> {
    let query = all_of(&Workspace::shared());
    let page = async |window| store.mails(query.clone(), window).await.unwrap();
    pages(100, false, page).await.concat()
}

async fn read(store: &dyn Store, row: &MailRow) -> Mail {
    let body = store.object(row.entry.msg_id).await.unwrap();
    Mail::read(row.entry.msg_id, std::str::from_utf8(&body).unwrap()).unwrap()
}

/// What the messages of each Mail say: `a+b | c`.
async fn texts(store: &dyn Store) -> String {
    let mut texts = Vec::new();
    for row in mails(store).await {
        let mail = read(store, &row).await;
        let each: Vec<_> = mail.messages.iter().map(|message| message.text.as_str()).collect();
        texts.push(each.join("+"));
    }
    texts.join(" | ")
}

async fn place(store: &dyn Store, id: &MailId) -> MailLocation {
    store.mail(id, &Workspace::shared()).await.unwrap().place
}

async fn kept(store: &dyn Store) -> i64 {
    store.counts().await.unwrap().kept
}

pub(crate) async fn a_message_is_kept_once_however_often_it_is_heard(home: &dyn Home) {
    let store = home.open().await;
    let batch = vec![says("1", "ann", "a"), says("1", "ann", "a"), says("2", "ann", "b")];
    let answers: Vec<_> =
        store.store_inbound(batch, at(0)).await.into_iter().map(|answer| answer.unwrap()).collect();
    assert_eq!(
        answers,
        [StoreInboundResult::Stored, StoreInboundResult::Duplicate, StoreInboundResult::Stored]
    );
    assert_eq!(hear(&*store, says("1", "ann", "edited"), 1).await, StoreInboundResult::Duplicate);
    assert_eq!(
        hear(&*store, through("slack", says("1", "ann", "c")), 1).await,
        StoreInboundResult::Stored
    );

    drop(store);
    let store = home.open().await;
    assert_eq!(hear(&*store, says("1", "ann", "a"), 2).await, StoreInboundResult::Duplicate);
    assert_eq!(merge(&*store, 60).await, 2);
    assert_eq!(hear(&*store, says("1", "ann", "a"), 61).await, StoreInboundResult::Duplicate);
    drop(store);
    let store = home.open().await;
    assert_eq!(hear(&*store, says("1", "ann", "a"), 62).await, StoreInboundResult::Duplicate);
    assert_eq!(merge(&*store, 3_600).await, 0);
    assert_eq!(texts(&*store).await, "a+b | c");
    let duplicates = store.events(0, 100).await.unwrap();
    let duplicates: Vec<_> =
        duplicates.iter().filter(|event| event.kind == EventKind::Duplicate).collect();
    assert_eq!(duplicates.len(), 5);
    assert!(duplicates[4].msg_id.is_some(), "it is known which Mail it became");
}

/// What an adapter did not check must not harm those who did nothing wrong.
pub(crate) async fn a_bad_message_in_a_batch_does_not_harm_the_others(home: &dyn Home) {
    let store = &*home.open().await;
    let mut batch = vec![says("1", "ann", "a"), says("2", "", "nobody"), says("3", "ann", "b")];
    let answers = store.store_inbound(batch.clone(), at(0)).await;
    assert!(matches!(answers[1], Err(StoreError::Damaged { .. })), "{answers:?}");
    assert!(answers[0].is_ok() && answers[2].is_ok());
    merge(store, 5).await;
    assert_eq!(texts(store).await, "a+b");
    let second = with_message(batch.remove(1), |message| message.from.id = "bob".to_owned());
    assert_eq!(hear(store, second, 6).await, StoreInboundResult::Stored, "it was not remembered");
}

pub(crate) async fn the_unwanted_are_remembered_and_not_kept(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "shut", StrangerPolicy::Drop, false).await;
    tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    contact(store, &endpoint("pest", "lark"), ContactLevel::Block).await;
    contact(store, &endpoint("friend", "shut"), ContactLevel::Temporary).await;
    contact(store, &endpoint("name", "shut"), ContactLevel::Stranger).await;
    for (tunnel, from, keeping) in [
        ("lark", "pest", StoreInboundResult::Blocked),
        ("lark", "anybody", StoreInboundResult::Stored),
        ("shut", "anybody", StoreInboundResult::Dropped),
        ("shut", "name", StoreInboundResult::Dropped),
        ("shut", "friend", StoreInboundResult::Stored),
        ("wary", "anybody", StoreInboundResult::Stored),
    ] {
        let message = through(tunnel, says(from, from, from));
        assert_eq!(hear(store, message.clone(), 0).await, keeping, "{from} on {tunnel}");
        assert_eq!(
            hear(store, message, 1).await,
            StoreInboundResult::Duplicate,
            "{from} on {tunnel}"
        );
    }
    assert_eq!(kept(store).await, 3);
    assert_eq!(merge(store, 60).await, 3);
    assert_eq!(texts(store).await, "anybody | friend");
    let events = events(store).await;
    assert!(events.contains("blocked") && events.contains("dropped"), "{events}");
}

pub(crate) async fn a_burst_becomes_one_mail_when_nobody_speaks_any_more(home: &dyn Home) {
    let store = &*home.open().await;
    assert_eq!(store.next_merge().await.unwrap(), None);
    for (now, text) in [(0, "a"), (2, "b"), (4, "c")] {
        hear(store, says(text, "ann", text), now).await;
        assert_eq!(store.next_merge().await.unwrap(), Some(at(now + 5)));
        assert_eq!(merge(store, now).await, 0);
    }
    assert_eq!((merge(store, 8).await, kept(store).await), (0, 3));
    assert_eq!((merge(store, 9).await, kept(store).await), (1, 0));
    assert_eq!(store.next_merge().await.unwrap(), None);
    assert_eq!(texts(store).await, "a+b+c");
    let mail = read(store, &mails(store).await[0]).await;
    assert_eq!(mail.header.received_at, at(9));
    let heard: Vec<_> = mail.messages.iter().map(|message| message.received_at).collect();
    assert_eq!(heard, [at(0), at(2), at(4)]);
}

pub(crate) async fn a_talker_can_not_hold_the_floor_forever(home: &dyn Home) {
    let store = &*home.open().await;
    for now in (0..=32).step_by(4) {
        hear(store, says(&now.to_string(), "ann", &now.to_string()), now).await;
    }
    assert_eq!((merge(store, 29).await, merge(store, 30).await), (0, 1));
    assert_eq!((merge(store, 36).await, merge(store, 37).await), (0, 1));
    assert_eq!(texts(store).await, "0+4+8+12+16+20+24+28 | 32");
}

pub(crate) async fn each_tunnel_waits_as_long_as_it_likes(home: &dyn Home) {
    let store = &*home.open().await;
    let quick = Debounce { window: Duration::from_secs(1), max_wait: Duration::from_secs(2) };
    for (now, text) in [(0, "a"), (1, "b")] {
        hear(store, says(text, "ann", text), now).await;
        let message = through("ci", says(text, "ann", text));
        hear(store, StoreInboundRequest { debounce: quick, ..message }, now).await;
    }
    assert_eq!(store.next_merge().await.unwrap(), Some(at(1)));
    assert_eq!(merge(store, 2).await, 2);
    assert_eq!(texts(store).await, "a | b");
    assert_eq!(merge(store, 6).await, 1);
    assert_eq!(texts(store).await, "a | b | a+b");
}

/// Whether or not somebody has come round to merging the old one.
pub(crate) async fn what_comes_after_a_window_is_over_opens_the_next(home: &dyn Home) {
    let store = &*home.open().await;
    for (now, text) in [(0, "a"), (6, "b"), (7, "c"), (12, "d")] {
        hear(store, says(text, "ann", text), now).await;
    }
    assert_eq!(store.next_merge().await.unwrap(), Some(at(5)));
    assert_eq!(merge(store, 60).await, 3);
    assert_eq!(texts(store).await, "a | b+c | d");
}

pub(crate) async fn sessions_threads_and_tunnels_do_not_mix(home: &dyn Home) {
    let store = &*home.open().await;
    let places: [fn(StoreInboundRequest) -> StoreInboundRequest; 10] = [
        |k| k,
        |k| in_thread("t", k),
        |k| in_thread("u", k),
        |k| in_room("other", k),
        |k| through("slack", k),
        |k| in_thread("c", in_room("a:b", k)),
        |k| in_thread("b:c", in_room("a", k)),
        |k| in_thread("c", in_room("a%3Ab", k)),
        // A direct message is answered to its author.
        |k| direct(in_room("bot", k)),
        |k| {
            let k = with_message(k, |message| message.from.id = "bob".to_owned());
            direct(in_room("bot", k))
        },
    ];
    for round in ["x", "y"] {
        for (n, place) in places.iter().enumerate() {
            hear(store, place(says(&format!("{n}{round}"), "ann", &format!("{n}{round}"))), 0)
                .await;
        }
    }
    assert_eq!(merge(store, 5).await, places.len());
    let texts = texts(store).await;
    let found: BTreeSet<_> = texts.split(" | ").collect();
    let want: Vec<_> = (0..places.len()).map(|n| format!("{n}x+{n}y")).collect();
    assert_eq!(found, want.iter().map(String::as_str).collect());
    for row in mails(store).await {
        let mail = read(store, &row).await;
        let session = &mail.header.session;
        let answer = match session.kind {
            ChatSessionKind::Direct => mail.messages[0].from.did(&mail.header.tunnel).unwrap(),
            _ => session.answer_to(&mail.messages[0].from, &mail.header.tunnel).unwrap(),
        };
        assert_eq!(mail.header.answer_to, answer);
    }
}

pub(crate) async fn authors_of_one_room_are_merged(home: &dyn Home) {
    let store = &*home.open().await;
    hear(store, says("1", "ann", "a"), 0).await;
    hear(store, says("2", "bob", "b"), 1).await;
    let titled = with_message(says("3", "ann", "c"), |message| {
        message.session.kind = ChatSessionKind::Thread;
    });
    hear(store, titled, 2).await;
    assert_eq!(merge(store, 10).await, 1);
    assert_eq!(texts(store).await, "a+b+c");
    assert_eq!(mails(store).await[0].entry.participants.from.len(), 2);
}

/// There is no moment at which a message is in neither place or in both.
pub(crate) async fn merging_is_one_step(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    hear(store, says("g1", "ann", "a"), 0).await;
    hear(store, says("g2", "bob", "b"), 1).await;
    hear(store, direct(says("d1", "ann", "psst")), 2).await;
    for id in ["g1", "d1"] {
        let missing = store.find_by_external_id(id).await;
        assert!(matches!(missing, Err(StoreError::Missing { .. })), "{missing:?}");
        let one = heard("lark", id, chat("ann", &["bob"], "by another door"));
        let refused = try_dispatch(store, one).await;
        assert!(matches!(refused, Err(StoreError::InvalidTransition(_))), "{refused:?}");
    }
    assert_eq!(merge(store, 60).await, 2);
    assert_eq!(kept(store).await, 0);
    assert_eq!(
        events(store).await,
        "changed received received received dispatched merged dispatched merged"
    );

    let [group, direct] = &mails(store).await[..] else { panic!() };
    for (id, mail) in [("g1", group), ("g2", group), ("d1", direct)] {
        let msg_id = store.find_by_external_id(id).await.unwrap();
        assert_eq!(msg_id, mail.entry.msg_id);
        let trace = store.trace(msg_id).await.unwrap();
        assert_eq!(trace.mail.as_ref(), Some(&mail.entry));
        assert_eq!((trace.records.len(), trace.claims.len()), (1, 0));
        let kinds: Vec<_> = trace.events.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, ["dispatched", "merged"]);
    }
    let room = "did:msgtunnel:room.group.lark";
    let said = look(store, room, BoxKind::GroupInbox).await;
    assert!(said.contains("**ann**") && said.contains("**bob**") && said.ends_with("UNREAD"));
    assert_eq!(inbox(store, "me").await, "psst UNREAD");
    assert_eq!(read(store, group).await.header.answer_to.as_str(), room);
    assert_eq!(read(store, direct).await.header.answer_to.as_str(), endpoint("ann", "lark"));

    let again = heard("lark", "g2", chat("ann", &["bob"], "by another door"));
    let answer = try_dispatch(store, again).await.unwrap();
    assert_eq!(answer.msg_id, group.entry.msg_id, "once merged, it is a repeated message");
    assert_eq!(group.entry.id, MailId::of("lark", &tunnel_id("lark"), "g1"));
    assert_eq!((group.entry.messages, group.place), (2, MailLocation::Inbound));
}

pub(crate) async fn windows_outlive_a_restart(home: &dyn Home) {
    let store = home.open().await;
    hear(&*store, says("1", "ann", "a"), 0).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(store.next_merge().await.unwrap(), Some(at(5)));
    hear(&*store, says("2", "ann", "b"), 4).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(merge(&*store, 9).await, 1);
    assert_eq!(texts(&*store).await, "a+b");
}

pub(crate) async fn a_stop_closes_every_window(home: &dyn Home) {
    let store = &*home.open().await;
    for room in ["a", "b", "c"] {
        hear(store, in_room(room, says(room, "ann", room)), 0).await;
    }
    assert_eq!(store.merge(merging(true), 2, at(1)).await.unwrap(), 2);
    assert_eq!(store.merge(merging(true), 2, at(1)).await.unwrap(), 1);
    assert_eq!(store.merge(merging(true), 2, at(1)).await.unwrap(), 0);
    assert_eq!((texts(store).await.as_str(), kept(store).await), ("a | b | c", 0));
}

pub(crate) async fn the_longest_over_is_merged_first_and_no_more_than_asked(home: &dyn Home) {
    let store = &*home.open().await;
    for (now, room) in [(3, "b"), (0, "a"), (9, "d"), (6, "c")] {
        hear(store, in_room(room, says(room, "ann", room)), now).await;
    }
    for (merged, so_far) in [(2, "a | b"), (2, "a | b | c | d"), (0, "a | b | c | d")] {
        assert_eq!(store.merge(merging(false), 2, at(60)).await.unwrap(), merged);
        assert_eq!(texts(store).await, so_far);
    }
}

pub(crate) async fn a_full_window_is_followed_by_another(home: &dyn Home) {
    let store = &*home.open().await;
    let many = MAX_MESSAGES as usize + 1;
    let batch = (0..many).map(|n| says(&n.to_string(), "ann", "x")).collect();
    assert!(store.store_inbound(batch, at(0)).await.iter().all(Result::is_ok));
    let half = "y".repeat(MAX_BYTES as usize / 2);
    for id in ["a", "b"] {
        hear(store, in_room("long", says(id, "ann", &half)), 0).await;
    }
    assert_eq!(merge(store, 60).await, 4);
    let mut sizes: Vec<_> = mails(store).await.iter().map(|row| row.entry.messages).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 1, 1, 500]);
}

pub(crate) async fn a_large_mail_comes_whole(home: &dyn Home) {
    let store = home.open().await;
    let long = |length: usize| "é".repeat(length / 2);
    for length in [10, 70 << 10, 1 << 20] {
        let room = length.to_string();
        hear(&*store, in_room(&room, says(&room, "ann", &long(length))), 0).await;
    }
    hear(&*store, in_room("both", says("l1", "ann", &long(400 << 10))), 0).await;
    hear(&*store, in_room("both", says("l2", "ann", &long(800 << 10))), 1).await;
    assert_eq!(merge(&*store, 60).await, 4);
    drop(store);
    let store = &*home.open().await;
    let mut lengths = Vec::new();
    for row in mails(store).await {
        let mail = read(store, &row).await;
        assert_eq!(row.entry, mail.entry(row.entry.seq, &mail.render()), "what the index says");
        lengths.extend(mail.messages.iter().map(|message| message.text.len()));
    }
    lengths.sort_unstable();
    assert_eq!(lengths, [10, 70 << 10, 400 << 10, 800 << 10, 1 << 20]);
    assert_eq!(kept(store).await, 0);
}

pub(crate) async fn mails_have_the_label_of_their_chat_or_tunnel(home: &dyn Home) {
    let store = &*home.open().await;
    for (tunnel, room) in [("lark", "room"), ("lark", "oc_42"), ("slack", "oc_42"), ("ci", "x")] {
        hear(store, through(tunnel, in_room(room, says(room, "ann", tunnel))), 0).await;
    }
    let labels = |binding: Option<&str>, bindings: &[(&str, &str)]| TunnelLabels {
        binding: binding.map(str::to_owned),
        bindings: bindings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
    };
    let labels = BTreeMap::from([
        (tunnel_id("lark"), labels(Some("alpha"), &[("oc_42", "beta")])),
        (tunnel_id("slack"), labels(None, &[("other", "gamma")])),
    ]);
    let merging = Arc::new(MergeContext { owner: did("me"), labels, all: false });
    assert_eq!(store.merge(merging, 10, at(60)).await.unwrap(), 4);
    let found: BTreeMap<_, _> = mails(store)
        .await
        .into_iter()
        .map(|row| (format!("{} {}", row.entry.tunnel, row.entry.session.id), row.entry.binding))
        .collect();
    let label = |place: &str| found[place].as_deref();
    assert_eq!(label("lark room"), Some("alpha"));
    assert_eq!(label("lark oc_42"), Some("beta"));
    assert_eq!((label("slack oc_42"), label("ci x")), (None, None));
}

pub(crate) async fn a_mail_is_trusted_when_all_who_speak_are_known(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    contact(store, &endpoint("ann", "lark"), ContactLevel::Friend).await;
    contact(store, &endpoint("bob", "lark"), ContactLevel::Temporary).await;
    contact(store, &endpoint("name", "lark"), ContactLevel::Stranger).await;
    contact(store, "cleo", ContactLevel::Friend).await;
    store.bind(&did("cleo"), binding("lark", "c1", 1), at(0)).await.unwrap();
    for (room, authors, trust) in [
        ("1", &["ann"] as &[&str], Trust::Known),
        ("2", &["ann", "bob", "c1"], Trust::Known),
        ("3", &["ann", "eve"], Trust::Untrusted),
        ("4", &["eve", "ann"], Trust::Untrusted),
        ("5", &["name"], Trust::Untrusted),
    ] {
        for author in authors {
            hear(store, in_room(room, says(&format!("{room}{author}"), author, "x")), 0).await;
        }
        assert_eq!(merge(store, 60).await, 1);
        let row = mails(store).await.pop().unwrap();
        assert_eq!((row.entry.trust, read(store, &row).await.header.trust), (trust, trust));
    }
}

/// Hears of `stranger` in a tunnel that holds strangers, and merges it.
async fn hold(store: &dyn Store, stranger: &str, text: &str, now: i64) -> MailId {
    tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    let keeping = hear(store, through("wary", says(text, stranger, text)), now).await;
    assert_eq!(keeping, StoreInboundResult::Stored);
    merge(store, now + 60).await;
    MailId::of("lark", &tunnel_id("wary"), text)
}

async fn filings(store: &dyn Store, after: i64) -> Vec<FileChange> {
    store.list_file_changes(after, 1_000).await.unwrap()
}

/// The number of the newest change.
async fn newest(store: &dyn Store) -> i64 {
    filings(store, 0).await.last().map_or(0, |filing| filing.change)
}

pub(crate) async fn a_held_mail_is_seen_by_nobody_until_its_author_is_let_in(home: &dyn Home) {
    let store = &*home.open().await;
    let held = hold(store, "eve", "psst", 0).await;
    let other = hold(store, "mallory", "also", 0).await;
    let free = deliver(store, &["free"], 100).await.remove(0);
    let seen = mails(store).await;
    assert_eq!(seen.iter().map(|row| &row.entry.id).collect::<Vec<_>>(), [&free]);
    let visible = store.list_index_entries(0, 10).await.unwrap();
    assert_eq!(visible.iter().map(|filing| &filing.entry.id).collect::<Vec<_>>(), [&free]);
    assert_eq!(place(store, &held).await, MailLocation::Held);
    let claim = |id: MailId| async move {
        let holder = name("agent");
        store.claim(&id, &Workspace::shared(), holder, term(60), RetryPolicy::CLAIM, at(200)).await
    };
    let refused = claim(held.clone()).await;
    assert!(matches!(refused, Err(StoreError::InvalidTransition(_))), "{refused:?}");

    let newest = newest(store).await;
    for level in [ContactLevel::Stranger, ContactLevel::Block] {
        contact(store, &endpoint("eve", "wary"), level).await;
        assert_eq!(place(store, &held).await, MailLocation::Held, "{level:?}");
    }
    contact(store, &endpoint("eve", "wary"), ContactLevel::Temporary).await;
    let row = store.mail(&held, &Workspace::shared()).await.unwrap();
    assert_eq!(row.place, MailLocation::Inbound);
    assert!(row.entry.seq > seen[0].entry.seq, "it is behind what was seen");
    let after = filings(store, newest).await;
    assert_eq!(after.len(), 1);
    assert_eq!((&after[0].entry, after[0].place), (&row.entry, MailLocation::Inbound));
    let visible = store.list_index_entries(seen[0].entry.seq, 10).await.unwrap();
    assert_eq!(visible, after);
    claim(held).await.unwrap();
    assert_eq!(place(store, &other).await, MailLocation::Held, "he is let in by himself");
}

pub(crate) async fn binding_an_address_lets_its_mails_in(home: &dyn Home) {
    let store = &*home.open().await;
    let held = [hold(store, "eve", "one", 0).await, hold(store, "eve", "two", 100).await];
    contact(store, "cleo", ContactLevel::Friend).await;
    assert_eq!(mails(store).await, []);
    store.bind(&did("cleo"), binding("wary", "eve", 1), at(300)).await.unwrap();
    let seen: Vec<_> = mails(store).await.into_iter().map(|row| row.entry.id).collect();
    assert_eq!(seen, held, "in the order they came");
    store.bind(&did("cleo"), binding("wary", "eve", 2), at(301)).await.unwrap();
    assert_eq!(mails(store).await.len(), 2);
}

pub(crate) async fn strangers_of_one_room_are_let_in_one_by_one(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    for (id, from) in [("1", "eve"), ("2", "mallory"), ("3", "eve")] {
        hear(store, through("wary", says(id, from, id)), 0).await;
    }
    assert_eq!(merge(store, 60).await, 2);
    contact(store, &endpoint("eve", "wary"), ContactLevel::Friend).await;
    assert_eq!(texts(store).await, "1+3");
    contact(store, &endpoint("mallory", "wary"), ContactLevel::Friend).await;
    assert_eq!(texts(store).await, "1+3 | 2");
}

pub(crate) async fn whoever_is_let_in_before_his_window_closes_is_not_held(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    hear(store, direct(through("wary", says("1", "eve", "hello?"))), 0).await;
    contact(store, &endpoint("eve", "wary"), ContactLevel::Friend).await;
    assert_eq!(merge(store, 60).await, 1);
    let row = mails(store).await.remove(0);
    assert_eq!((row.place, row.entry.trust), (MailLocation::Inbound, Trust::Known));
    assert_eq!(inbox(store, "me").await, "hello? UNREAD");
    assert_eq!(look(store, "me", BoxKind::RequestBox).await, "");
}

/// Nothing of his is delivered any more, and nothing of the others is lost.
pub(crate) async fn whoever_is_blocked_before_his_window_closes_takes_nobody_along(
    home: &dyn Home,
) {
    let store = &*home.open().await;
    lark(store).await;
    for (id, from) in [("1", "pest"), ("2", "ann"), ("3", "pest"), ("4", "bob")] {
        hear(store, says(id, from, id), 0).await;
    }
    hear(store, direct(says("5", "pest", "5")), 0).await;
    contact(store, &endpoint("pest", "lark"), ContactLevel::Block).await;
    assert_eq!(merge(store, 60).await, 2);
    assert_eq!((texts(store).await.as_str(), kept(store).await), ("2+4", 0));
    let mail = mails(store).await.remove(0).entry.msg_id;
    assert_eq!(store.find_by_external_id("4").await.unwrap(), mail);
    for gone in ["1", "3", "5"] {
        assert!(matches!(store.find_by_external_id(gone).await, Err(StoreError::Missing { .. })));
        assert_eq!(hear(store, says(gone, "pest", gone), 61).await, StoreInboundResult::Duplicate);
    }
    let blocked = events(store).await.matches("blocked").count();
    assert_eq!(blocked, 3);
}

pub(crate) async fn an_owner_who_blocked_somebody_gets_no_mail_of_him(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let pest = did(&endpoint("pest", "lark"));
    store.set_block(&pest, &did("me"), true, at(0)).await.unwrap();
    hear(store, direct(says("1", "pest", "psst")), 0).await;
    assert_eq!(merge(store, 60).await, 1);
    assert_eq!((mails(store).await.len(), kept(store).await), (0, 0));
    assert!(events(store).await.ends_with("blocked"));
}

/// A burst that is damaged is tried again later, and meanwhile its session goes on.
pub(crate) async fn a_burst_that_can_not_be_merged_holds_up_nobody(home: &dyn Home) {
    let store = &*home.open().await;
    let mut broken = says("bad", "ann", "bad");
    // No adapter has such a name, and no Mail can.
    broken.provider = "No Provider".to_owned();
    hear(store, broken, 0).await;
    hear(store, in_room("other", says("1", "bob", "a")), 1).await;
    assert_eq!(merge(store, 6).await, 1);
    assert_eq!(texts(store).await, "a");
    assert_eq!((kept(store).await, store.next_merge().await.unwrap()), (1, Some(at(66))));
    assert_eq!(merge(store, 7).await, 0);

    hear(store, says("2", "ann", "b"), 10).await;
    hear(store, says("3", "ann", "c"), 11).await;
    assert_eq!(merge(store, 20).await, 1);
    assert_eq!(texts(store).await, "a | b+c");
    assert_eq!(store.merge(merging(true), 10, at(21)).await.unwrap(), 0, "a stop ends");
    assert_eq!(kept(store).await, 1, "it is not lost");
    assert_eq!(
        look(store, "did:msgtunnel:room.group.lark", BoxKind::GroupInbox)
            .await
            .matches("UNREAD")
            .count(),
        1
    );
}

/// What a page shows of a Mail.
fn fits(row: &MailRow, query: &MailQuery, claims: &BTreeMap<MailId, ClaimState>) -> bool {
    let entry = &row.entry;
    let state = claims.get(&entry.id).copied().unwrap_or(ClaimState::New);
    let words = [entry.preview.clone(), entry.title.clone().unwrap_or_default()];
    let names = entry.participants.from.iter().map(|person| person.display_name().to_owned());
    let words: Vec<_> = words.into_iter().chain(names).map(|word| word.to_lowercase()).collect();
    query.status.is_none_or(|status| status == state)
        && query.provider.as_deref().is_none_or(|provider| provider == entry.id.provider())
        && query.since.is_none_or(|since| entry.received_at >= since)
        && query
            .text
            .as_ref()
            .is_none_or(|text| words.iter().any(|word| word.contains(&text.to_lowercase())))
}

pub(crate) async fn mails_are_listed_by_every_filter_and_both_ways(home: &dyn Home) {
    let store = &*home.open().await;
    let late = hold(store, "eve", "late Apple", 0).await;
    for (n, now) in (100..).step_by(10).take(12).enumerate() {
        let (author, text) = (["ann", "Bob"][n % 2], ["apple", "PEAR", "fig"][n % 3]);
        let title = (n % 4 == 0).then(|| "Übersicht".to_owned());
        let mut keep =
            with_message(says(&n.to_string(), author, text), |message| message.title = title);
        keep.provider = ["lark", "slack", "lark"][n % 3].to_owned();
        hear(store, keep, now).await;
        merge(store, now + 5).await;
    }
    // Let in last: the oldest by time has the largest number.
    contact(store, &endpoint("eve", "wary"), ContactLevel::Friend).await;
    let all = mails(store).await;
    assert_eq!((all.len(), &all[12].entry.id), (13, &late));

    let mine = Workspace::new("mine").unwrap();
    let mut claims = BTreeMap::new();
    for (n, row) in all.iter().enumerate() {
        let id = &row.entry.id;
        let (claim, settle) =
            (store.claim(id, &mine, name("a"), term(60), RetryPolicy::CLAIM, at(500)), |step| {
                store.update_claim(id, &mine, by("a"), step, at(501))
            });
        let fail = |retryable| ClaimUpdate::Fail {
            reason: "no".to_owned(),
            retryable,
            retry: RetryPolicy::CLAIM,
        };
        let state = match n % 5 {
            0 => continue,
            1 => claim.await.unwrap(),
            2 => {
                claim.await.unwrap();
                settle(ClaimUpdate::Complete).await.unwrap()
            }
            3 => {
                claim.await.unwrap();
                settle(fail(false)).await.unwrap()
            }
            _ => {
                claim.await.unwrap();
                settle(fail(true)).await.unwrap()
            }
        };
        claims.insert(id.clone(), state.claiming.state.name());
    }
    // Somebody else's claims are nobody's business.
    let theirs = Workspace::new("theirs").unwrap();
    store.claim(&late, &theirs, name("b"), term(60), RetryPolicy::CLAIM, at(500)).await.unwrap();

    let states = ClaimState::ALL.map(Some).into_iter().chain([None]);
    let mut found = 0;
    for status in states {
        for provider in [None, Some("lark"), Some("slack"), Some("nobody")] {
            for since in [None, Some(0), Some(60), Some(135), Some(1_000)] {
                for text in [None, Some("APPLE"), Some("bob"), Some("übers"), Some("nowhere")] {
                    let query = MailQuery {
                        workspace: mine.clone(),
                        status,
                        provider: provider.map(str::to_owned),
                        since: since.map(at),
                        text: text.map(str::to_owned),
                    };
                    let mut want: Vec<_> = all
                        .iter()
                        .filter(|row| fits(row, &query, &claims))
                        .map(|row| row.entry.seq)
                        .collect();
                    found += want.len();
                    for newest_first in [false, true] {
                        for limit in [1, 4, 100] {
                            let pages = pages(limit, newest_first, async |window| {
                                store.mails(query.clone(), window).await.unwrap()
                            });
                            let pages = pages.await;
                            assert!(pages.iter().all(|page| page.len() <= limit));
                            let rows = pages.concat();
                            let seqs: Vec<_> = rows.iter().map(|row| row.entry.seq).collect();
                            assert_eq!(seqs, want, "{query:?} {newest_first} by {limit}");
                            let state = |claim: &Claim| claim.claiming.state.name();
                            for row in &rows {
                                let claim = row.claim.as_ref().map(state);
                                assert_eq!(claim, claims.get(&row.entry.id).copied());
                            }
                        }
                        want.reverse();
                    }
                }
            }
        }
    }
    assert!(found > 100, "{found}");
}

pub(crate) async fn files_follow_in_pages(home: &dyn Home) {
    let store = &*home.open().await;
    let ids = deliver(store, &["a", "b", "c", "d", "e"], 0).await;
    let (shared, holder) = (Workspace::shared(), name("agent"));
    store.claim(&ids[1], &shared, holder, term(60), RetryPolicy::CLAIM, at(10)).await.unwrap();
    store.update_claim(&ids[1], &shared, by("agent"), ClaimUpdate::Complete, at(11)).await.unwrap();

    let walk = async |index: bool| {
        let (mut after, mut walked) = (0, Vec::new());
        loop {
            let page = match index {
                true => store.list_index_entries(after, 2).await.unwrap(),
                false => store.list_file_changes(after, 2).await.unwrap(),
            };
            assert!(page.len() <= 2);
            let Some(last) = page.last() else { return walked };
            after = if index { last.entry.seq } else { last.change };
            walked.extend(page.into_iter().map(|filing| (filing.entry.id, filing.place)));
        }
    };
    let line = |n: usize, place| (ids[n].clone(), place);
    use MailLocation::{Archive, Inbound};
    let by_number =
        [line(0, Inbound), line(1, Archive), line(2, Inbound), line(3, Inbound), line(4, Inbound)];
    assert_eq!(walk(true).await, by_number);
    let by_change =
        [line(0, Inbound), line(2, Inbound), line(3, Inbound), line(4, Inbound), line(1, Archive)];
    assert_eq!(walk(false).await, by_change, "only the last change of each");
}

pub(crate) async fn how_far_the_files_are_is_remembered(home: &dyn Home) {
    let store = home.open().await;
    assert_eq!(store.file_progress().await.unwrap(), FileProgress::default());
    for change in [7, 3] {
        let filed = FileProgress { change, index_bytes: 1 << 40, index_seq: 9, generation: 2 };
        store.set_file_progress(filed).await.unwrap();
        assert_eq!(store.file_progress().await.unwrap(), filed);
    }
    let filed = store.file_progress().await.unwrap();
    drop(store);
    assert_eq!(home.open().await.file_progress().await.unwrap(), filed);
}

pub(crate) async fn the_newest_filing_is_told_after_its_commit(home: &dyn Home) {
    let store = home.open().await;
    let mut news = store.newest_file_change();
    assert_eq!(*news.borrow_and_update(), 0);
    hear(&*store, says("1", "ann", "a"), 0).await;
    assert!(!news.has_changed().unwrap());
    merge(&*store, 60).await;
    let newest = newest(&*store).await;
    news.changed().await.unwrap();
    assert_eq!(*news.borrow_and_update(), newest);
    drop(store);
    assert_eq!(*home.open().await.newest_file_change().borrow(), newest);
}

const DAY: i64 = 86_400;

/// Completes a Mail for one workspace.
async fn complete(store: &dyn Store, id: &MailId, workspace: &str, now: i64) {
    let workspace = Workspace::new(workspace).unwrap();
    store.claim(id, &workspace, name("a"), term(60), RetryPolicy::CLAIM, at(now)).await.unwrap();
    store.update_claim(id, &workspace, by("a"), ClaimUpdate::Complete, at(now)).await.unwrap();
}

pub(crate) async fn what_was_archived_long_ago_goes(home: &dyn Home) {
    let store = &*home.open().await;
    store.advance_retention_clock(at(0)).await.unwrap();
    let ids = deliver(store, &["busy", "old", "young", "open"], 0).await;
    let [busy, old, young, open] = &ids[..] else { panic!() };
    complete(store, busy, "w", 1).await;
    complete(store, old, "w", 1).await;
    for day in 1..=3 {
        store.advance_retention_clock(at(day * DAY)).await.unwrap();
    }
    complete(store, young, "w", 3 * DAY).await;
    let late = Workspace::new("late").unwrap();
    let now = at(3 * DAY);
    store.claim(busy, &late, name("a"), term(60), RetryPolicy::CLAIM, now).await.unwrap();

    let change = newest(store).await;
    assert_eq!(store.purge_archived_mails(-1, 10, now).await.unwrap(), 0);
    // Somebody who is at it neither loses it nor keeps the others.
    assert_eq!(store.purge_archived_mails(0, 1, now).await.unwrap(), 1);
    assert_eq!(store.purge_archived_mails(2, 10, now).await.unwrap(), 0);
    for (id, there) in [
        (busy, MailLocation::Archive),
        (old, MailLocation::Removed),
        (young, MailLocation::Archive),
        (open, MailLocation::Inbound),
    ] {
        assert_eq!(place(store, id).await, there);
    }
    let gone = filings(store, change).await;
    assert_eq!((gone.len(), &gone[0].entry.id, gone[0].place), (1, old, MailLocation::Removed));
    let refused = store.claim(old, &late, name("a"), term(60), RetryPolicy::CLAIM, now).await;
    assert!(matches!(refused, Err(StoreError::InvalidTransition(_))), "{refused:?}");
    assert!(store.object(gone[0].entry.msg_id).await.is_ok(), "only its file is gone");

    store.update_claim(busy, &late, by("a"), ClaimUpdate::Complete, now).await.unwrap();
    assert_eq!(store.purge_archived_mails(3, 10, now).await.unwrap(), 2);
    assert_eq!(place(store, open).await, MailLocation::Inbound, "what nobody dealt with stays");
}

pub(crate) async fn a_jump_of_the_clock_makes_nothing_older(home: &dyn Home) {
    let mut store = home.open().await;
    let (life, step) = store.advance_retention_clock(at(0)).await.unwrap();
    assert_eq!((life.elapsed_ms, step), (0, ClockStep::Passed));
    let years = 10 * 365 * DAY;
    let mut lived = 0;
    for (now, passed, step) in [
        (DAY, DAY, ClockStep::Passed),
        (DAY + 10, 10, ClockStep::Passed),
        (years, 0, ClockStep::Jumped),
        (years + DAY + 1, 0, ClockStep::Jumped),
        (years + DAY + 2, 1, ClockStep::Passed),
        (20, 0, ClockStep::Jumped),
        (30, 10, ClockStep::Passed),
    ] {
        drop(store);
        store = home.open().await;
        lived += passed;
        let (life, taken) = store.advance_retention_clock(at(now)).await.unwrap();
        assert_eq!((life.elapsed_ms, life.noted_at, taken), (lived * 1_000, at(now), step));
    }
}

pub(crate) async fn forgetting_events_keeps_the_newest(home: &dyn Home) {
    let store = home.open().await;
    store.advance_retention_clock(at(0)).await.unwrap();
    contact(&*store, "ann", ContactLevel::Friend).await;
    contact(&*store, "bob", ContactLevel::Friend).await;
    store.advance_retention_clock(at(10)).await.unwrap();
    store.advance_retention_clock(at(DAY)).await.unwrap();
    contact(&*store, "cat", ContactLevel::Friend).await;
    store.advance_retention_clock(at(DAY + 10)).await.unwrap();
    let all = store.events(0, 10).await.unwrap();
    assert_eq!(all.len(), 3);
    let left = async |store: &dyn Store| -> Vec<i64> {
        store.events(0, 10).await.unwrap().iter().map(|event| event.seq).collect()
    };
    assert_eq!(store.purge_events(-1, 10).await.unwrap(), 0);
    assert_eq!(store.purge_events(0, 1).await.unwrap(), 1);
    assert_eq!(left(&*store).await, [all[1].seq, all[2].seq], "a slice at a time");
    assert_eq!(store.purge_events(0, 10).await.unwrap(), 1);
    assert_eq!(store.purge_events(0, 10).await.unwrap(), 0);
    assert_eq!(store.purge_events(1, 10).await.unwrap(), 0, "the newest stays");
    assert_eq!(left(&*store).await, [all[2].seq]);
    drop(store);
    let store = home.open().await;
    contact(&*store, "dan", ContactLevel::Friend).await;
    assert_eq!(left(&*store).await, [all[2].seq, all[2].seq + 1], "no number is given twice");
}

/// Leases, waits and windows of a clock that ran years ahead.
pub(crate) async fn a_clock_that_was_wrong_holds_nothing_up(home: &dyn Home) {
    let store = &*home.open().await;
    let years = 10 * 365 * DAY;
    let [held, waiting] = &deliver(store, &["held", "waiting"], years).await[..] else { panic!() };
    let (shared, holder) = (Workspace::shared(), name("a"));
    for id in [held, waiting] {
        store
            .claim(id, &shared, holder.clone(), term(60), RetryPolicy::CLAIM, at(years))
            .await
            .unwrap();
    }
    let fail =
        ClaimUpdate::Fail { reason: "no".into(), retryable: true, retry: RetryPolicy::CLAIM };
    store.update_claim(waiting, &shared, by("a"), fail, at(years)).await.unwrap();
    hear(store, says("1", "ann", "a"), years).await;
    assert_eq!(store.last_clock_reading().await.unwrap(), Some(at(years)));

    assert_eq!(
        store.expire_future_leases(at(years + 1)).await.unwrap(),
        0,
        "it may have been right"
    );
    assert_eq!(store.expire_future_leases(at(0)).await.unwrap(), 3);
    assert_eq!(store.expire_future_leases(at(0)).await.unwrap(), 0);
    for id in [held, waiting] {
        store.claim(id, &shared, name("b"), term(60), RetryPolicy::CLAIM, at(1)).await.unwrap();
    }
    assert_eq!(merge(store, 1).await, 1);
}
