//! Helpers that the conformance tests share: sample messages, contacts and tunnels, and
//! short descriptions of what a store contains.

use super::*;

pub(super) fn at(secs: i64) -> Timestamp {
    Timestamp::from_ms(1_770_000_000_000 + secs * 1000)
}

/// The DID `did:web:ann` for `ann`. A DID is returned unchanged.
pub(super) fn did(name: &str) -> Did {
    if name.starts_with("did:") {
        return name.parse().unwrap();
    }
    format!("did:web:{name}").parse().unwrap()
}

pub(super) fn tunnel_id(name: &str) -> TunnelId {
    name.parse().unwrap()
}

/// The DID of the endpoint `account` of a tunnel.
pub(super) fn endpoint(account: &str, tunnel: &str) -> String {
    format!("did:msgtunnel:{account}.user.{tunnel}")
}

pub(super) fn dids(names: &[&str]) -> Vec<Did> {
    names.iter().map(|name| did(name)).collect()
}

pub(super) fn msg_object(mut fields: Value, from: &str, to: &[&str], text: &str) -> MsgObject {
    fields["from"] = json!(did(from));
    fields["to"] = json!(dids(to));
    fields["content"] = json!({"content": text});
    if fields.get("kind").is_none() {
        fields["kind"] = json!("chat");
    }
    MsgObject::from_json(fields).unwrap()
}

pub(super) fn chat(from: &str, to: &[&str], text: &str) -> MsgObject {
    msg_object(json!({}), from, to, text)
}

/// A message of `author` in a group.
pub(super) fn group_chat(group: &str, author: &str, text: &str) -> MsgObject {
    msg_object(json!({"source": did(author), "kind": "group_msg"}), group, &[group], text)
}

pub(super) fn without_tunnel(msg: MsgObject) -> DispatchRequest {
    DispatchRequest { msg, tunnel: None, external_id: None }
}

pub(super) fn via_tunnel(tunnel: &str, external_id: &str, msg: MsgObject) -> DispatchRequest {
    let external_id = Some(external_id.to_owned());
    DispatchRequest { msg, tunnel: Some(tunnel_id(tunnel)), external_id }
}

pub(super) async fn try_dispatch(
    store: &dyn Store,
    one: DispatchRequest,
) -> Result<DispatchResult, StoreError> {
    let mut answers = store.dispatch(vec![one], at(0)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Dispatches one message and describes the result.
pub(super) async fn dispatch(store: &dyn Store, one: DispatchRequest) -> String {
    describe(&try_dispatch(store, one).await.unwrap())
}

/// Dispatches a message of `ann` to `bob` and describes the result.
pub(super) async fn dispatch_text(store: &dyn Store, text: &str) -> String {
    dispatch(store, without_tunnel(chat("ann", &["bob"], text))).await
}

/// Describes the records: `ann/INBOX bob/INBOX`, with the prefix `again:` for a duplicate.
pub(super) fn describe(answer: &DispatchResult) -> String {
    let (duplicate, records) = match &answer.outcome {
        DispatchOutcome::Delivered { duplicate, records } => (*duplicate, records),
        DispatchOutcome::Blocked => return "blocked".to_owned(),
        DispatchOutcome::Dropped => return "dropped".to_owned(),
        DispatchOutcome::Chained { letter, .. } => panic!("not dispatched: {letter}"),
    };
    let boxes: Vec<_> = records
        .iter()
        .map(|placed| format!("{}/{}", short_name(&placed.owner), placed.box_kind.as_str()))
        .collect();
    format!("{}{}", if duplicate { "again: " } else { "" }, boxes.join(" "))
}

pub(super) fn short_name(did: &Did) -> &str {
    did.as_str().trim_start_matches("did:web:")
}

pub(super) fn send_request(msg: MsgObject) -> SendRequest {
    SendRequest { msg, key: None, not_before: None, origin: SendOrigin::Owner }
}

/// Sends a message that must be queued as new. Returns one result per target.
pub(super) async fn send_message(store: &dyn Store, msg: MsgObject) -> Vec<crate::TargetResult> {
    match store.send(send_request(msg), at(0)).await.unwrap() {
        SendResult::Queued { duplicate: false, ways, .. } => ways,
        other => panic!("not queued: {other:?}"),
    }
}

pub(super) fn holder(name: &str) -> Holder {
    Holder::new(name).unwrap()
}

/// The proof of a caller that knows no epoch.
pub(super) fn by_holder(name: &str) -> LeaseProof {
    LeaseProof { epoch: None, holder: holder(name) }
}

pub(super) fn by_epoch(epoch: u64) -> LeaseProof {
    LeaseProof { epoch: Some(epoch), holder: holder("any") }
}

pub(super) fn lease_for(secs: i64) -> LeaseDuration {
    LeaseDuration::from_secs(secs).unwrap()
}

pub(super) const RETRY: JitteredRetry =
    JitteredRetry { retry: RetryPolicy::DELIVERY, jitter: Jitter::NONE };

/// Leases the next record of an INBOX at second `now` for 60 s.
pub(super) async fn lease_next_record(
    store: &dyn Store,
    owner: &str,
    now: i64,
) -> Option<LeasedEntry<MsgRecord>> {
    let owner = did(owner);
    store
        .lease_record(&owner, BoxKind::Inbox, holder("reader"), lease_for(60), at(now))
        .await
        .unwrap()
}

/// Changes the state of a record as `reader`, at second `now`.
pub(super) async fn mark(
    store: &dyn Store,
    id: RecordId,
    to: ReadState,
    now: i64,
) -> Result<MsgRecord, StoreError> {
    store.mark_record(id, to, by_holder("reader"), None, lease_for(60), at(now)).await
}

/// Leases the next delivery of a tunnel at second `now` for 60 s.
pub(super) async fn lease_next_delivery(
    store: &dyn Store,
    tunnel: &str,
    now: i64,
) -> Option<LeasedEntry<Delivery>> {
    let tunnel = tunnel_id(tunnel).did();
    store.lease_delivery(&tunnel, holder("sender"), lease_for(60), at(now)).await.unwrap()
}

pub(super) const FULL_PAGE: PageRequest =
    PageRequest { beyond: None, limit: 1_000, newest_first: false };

/// Reads all pages of a list.
pub(super) async fn all_pages<T>(
    limit: usize,
    newest_first: bool,
    page: impl AsyncFn(PageRequest) -> Page<T>,
) -> Vec<Vec<T>> {
    let (mut pages, mut beyond) = (Vec::new(), None);
    loop {
        let Page { entries, next } = page(PageRequest { beyond, limit, newest_first }).await;
        pages.push(entries);
        match next {
            Some(next) => beyond = Some(next),
            None => return pages,
        }
    }
}

/// The texts of the messages, one word per page: `012 345 6`.
pub(super) async fn texts_by_page(store: &dyn Store, pages: Vec<Vec<ObjId>>) -> String {
    let mut words = Vec::new();
    for page in pages {
        let mut word = String::new();
        for id in page {
            word += &body_text(&store.object(id).await.unwrap());
        }
        words.push(word);
    }
    words.join(" ")
}

/// Describes the records of a box, oldest first: `hello UNREAD, bye READED`.
pub(super) async fn box_contents(store: &dyn Store, owner: &str, box_kind: BoxKind) -> String {
    let page =
        store.records(&did(owner), box_kind, &RecordFilter::default(), FULL_PAGE).await.unwrap();
    let mut lines = Vec::new();
    for record in page.entries {
        let text = text_of_record(store, &record).await;
        lines.push(format!("{text} {}", record.reading.state.name().as_str()));
    }
    lines.join(", ")
}

pub(super) async fn inbox_contents(store: &dyn Store, owner: &str) -> String {
    box_contents(store, owner, BoxKind::Inbox).await
}

/// Describes the deliveries of a tunnel, oldest first: `hello WAIT, bye DEAD`.
pub(super) async fn tunnel_contents(store: &dyn Store, tunnel: &str) -> String {
    let page = store.deliveries(&tunnel_id(tunnel).did(), &[], FULL_PAGE).await.unwrap();
    let mut lines = Vec::new();
    for delivery in page.entries {
        let body = store.object(delivery.msg_id).await.unwrap();
        lines.push(format!("{} {}", body_text(&body), delivery.sending.state.name().as_str()));
    }
    lines.join(", ")
}

pub(super) async fn text_of_record(store: &dyn Store, record: &MsgRecord) -> String {
    body_text(&store.object(record.msg_id).await.unwrap())
}

/// The text of a leased message.
pub(super) fn leased_text<T>(leased: &LeasedEntry<T>) -> String {
    body_text(leased.message.canonical().as_bytes())
}

/// The text of a message, from its canonical JSON.
pub(super) fn body_text(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["content"]["content"].as_str().unwrap_or_default().to_owned()
}

/// The kinds of all events in order, separated by spaces.
pub(super) async fn event_kinds(store: &dyn Store) -> String {
    let events = store.events(0, 1_000).await.unwrap();
    events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>().join(" ")
}

pub(super) async fn put_tunnel(
    store: &dyn Store,
    id: &str,
    strangers: StrangerPolicy,
    idempotent: bool,
) {
    let (id, provider) = (tunnel_id(id), "stub".into());
    let tunnel = TunnelInfo { id, provider, strangers, idempotent, finds_sent: false };
    store.put_tunnel(tunnel, at(0)).await.unwrap();
}

/// Adds a tunnel whose adapter can look for sent messages.
pub(super) async fn put_finding_tunnel(store: &dyn Store, id: &str) {
    let (id, provider, strangers) = (tunnel_id(id), "stub".into(), StrangerPolicy::Accept);
    let tunnel = TunnelInfo { id, provider, strangers, idempotent: false, finds_sent: true };
    store.put_tunnel(tunnel, at(0)).await.unwrap();
}

/// Adds the tunnel `lark`, which accepts strangers and no idempotency keys.
pub(super) async fn put_lark_tunnel(store: &dyn Store) {
    put_tunnel(store, "lark", StrangerPolicy::Accept, false).await;
}

/// Adds a contact without a local box, or changes its level.
pub(super) async fn add_contact(store: &dyn Store, who: &str, level: ContactLevel) {
    put_contact(store, who, level, false).await;
}

/// Adds a contact with a local box.
pub(super) async fn add_local_contact(store: &dyn Store, who: &str) {
    put_contact(store, who, ContactLevel::Friend, true).await;
}

pub(super) async fn put_contact(store: &dyn Store, who: &str, level: ContactLevel, here: bool) {
    let (did, names) = (did(who), vec![who.to_owned()]);
    let contact = Contact { did, names, level, here, bindings: Vec::new() };
    store.put_contact(contact, at(0)).await.unwrap();
}

pub(super) fn binding(tunnel: &str, address: &str, priority: i32) -> Binding {
    let (tunnel, address) = (tunnel_id(tunnel), address.to_owned());
    Binding { tunnel, kind: EndpointKind::User, address, priority }
}

/// Adds a group with these subscribers.
pub(super) async fn add_group(store: &dyn Store, group: &str, readers: &[&str]) {
    store.put_group(&did(group), Some(group.to_owned()), at(0)).await.unwrap();
    for reader in readers {
        store.set_subscriber(&did(group), &did(reader), true, at(0)).await.unwrap();
    }
}

/// A filter for records in some states.
pub(super) fn in_states(states: &[ReadState]) -> RecordFilter {
    RecordFilter { states: states.to_vec(), ..RecordFilter::default() }
}
