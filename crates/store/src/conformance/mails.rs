//! Conformance tests of Mails: contents, trust, held Mails and lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use monoco_core::claim::{Claim, ClaimState, MailLocation, Workspace};
use monoco_core::mail::{Mail, MailId, Trust};

use super::files::{file_changes, newest_change};
use super::inbound::{
    in_room, inbound_message, merge_context, merge_due, store_inbound, unmerged_count, via,
    with_message,
};
use super::*;
use crate::{ClaimUpdate, MailQuery, MailRow, MergeContext, StoreInboundResult};

/// Stores one Mail for each text, each in a room of its own, at second `now`. Returns the
/// ids in the order of their sequence numbers.
pub(crate) async fn store_mails(store: &dyn Store, texts: &[&str], now: i64) -> Vec<MailId> {
    for text in texts {
        store_inbound(store, in_room(text, inbound_message(text, "ann", text)), now).await;
    }
    store.merge(merge_context(true), 1_000, at(now)).await.unwrap();
    texts.iter().map(|text| MailId::of("lark", &tunnel_id("lark"), text)).collect()
}

fn all_mails_query(workspace: &Workspace) -> MailQuery {
    let workspace = workspace.clone();
    MailQuery { workspace, status: None, provider: None, since: None, unclaimed: false }
}

/// All visible Mails, oldest first.
pub(super) async fn list_mails(store: &dyn Store) -> Vec<MailRow> {
    let query = all_mails_query(&Workspace::shared());
    let page = async |request| store.mails(query.clone(), request).await.unwrap();
    all_pages(100, false, page).await.concat()
}

pub(super) async fn read_mail(store: &dyn Store, row: &MailRow) -> Mail {
    let body = store.object(row.entry.msg_id).await.unwrap();
    Mail::read(row.entry.msg_id, std::str::from_utf8(&body).unwrap()).unwrap()
}

/// The texts of the messages of each visible Mail: `a+b | c`.
pub(super) async fn mail_texts(store: &dyn Store) -> String {
    let mut texts = Vec::new();
    for row in list_mails(store).await {
        let mail = read_mail(store, &row).await;
        let each: Vec<_> = mail.messages.iter().map(|message| message.text.as_str()).collect();
        texts.push(each.join("+"));
    }
    texts.join(" | ")
}

pub(super) async fn location_of(store: &dyn Store, id: &MailId) -> MailLocation {
    store.mail(id, &Workspace::shared()).await.unwrap().location
}

/// Stores a Mail from a stranger through the tunnel `wary`, which holds Mails of strangers.
pub(super) async fn store_held_mail(
    store: &dyn Store,
    stranger: &str,
    text: &str,
    now: i64,
) -> MailId {
    put_tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    let result =
        store_inbound(store, via("wary", inbound_message(text, stranger, text)), now).await;
    assert_eq!(result, StoreInboundResult::Stored);
    merge_due(store, now + 60).await;
    MailId::of("lark", &tunnel_id("wary"), text)
}

/// Whether a list of Mails with `query` must contain the Mail.
fn matches_query(row: &MailRow, query: &MailQuery, claims: &BTreeMap<MailId, ClaimState>) -> bool {
    let entry = &row.entry;
    let state = claims.get(&entry.id).copied().unwrap_or(ClaimState::New);
    query.status.is_none_or(|status| status == state)
        && query.provider.as_deref().is_none_or(|provider| provider == entry.id.provider())
        && query.since.is_none_or(|since| entry.received_at >= since)
}

pub(crate) async fn large_mail_survives_reopening(home: &dyn TestHome) {
    let store = home.open().await;
    let long = |length: usize| "é".repeat(length / 2);
    for length in [10, 70 << 10, 1 << 20] {
        let room = length.to_string();
        store_inbound(&*store, in_room(&room, inbound_message(&room, "ann", &long(length))), 0)
            .await;
    }
    store_inbound(&*store, in_room("both", inbound_message("l1", "ann", &long(400 << 10))), 0)
        .await;
    store_inbound(&*store, in_room("both", inbound_message("l2", "ann", &long(800 << 10))), 1)
        .await;
    // Two Mails from the last room: one Mail of both messages would be too long.
    assert_eq!(merge_due(&*store, 60).await, 5);
    drop(store);
    let store = &*home.open().await;
    let mut lengths = Vec::new();
    for row in list_mails(store).await {
        let mail = read_mail(store, &row).await;
        assert_eq!(row.entry, mail.entry(row.entry.seq, &mail.render()), "index entry");
        lengths.extend(mail.messages.iter().map(|message| message.text.len()));
    }
    lengths.sort_unstable();
    assert_eq!(lengths, [10, 70 << 10, 400 << 10, 800 << 10, 1 << 20]);
    assert_eq!(unmerged_count(store).await, 0);
}

pub(crate) async fn mail_has_the_binding_of_its_chat_or_tunnel(store: &dyn Store) {
    for (tunnel, room) in [("lark", "room"), ("lark", "oc_42"), ("slack", "oc_42"), ("ci", "x")] {
        store_inbound(store, via(tunnel, in_room(room, inbound_message(room, "ann", tunnel))), 0)
            .await;
    }
    let labels = |binding: Option<&str>, bindings: &[(&str, &str)]| TunnelLabels {
        binding: binding.map(str::to_owned),
        bindings: bindings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
    };
    for (tunnel, labels) in [
        ("lark", labels(Some("alpha"), &[("oc_42", "beta")])),
        ("slack", labels(None, &[("other", "gamma")])),
    ] {
        let info = TunnelInfo::new(tunnel_id(tunnel), "stub".to_owned(), StrangerPolicy::Accept);
        store.put_tunnel(TunnelInfo { labels, ..info }, at(0)).await.unwrap();
    }
    assert_eq!(merge_due(store, 60).await, 4);
    let found: BTreeMap<_, _> = list_mails(store)
        .await
        .into_iter()
        .map(|row| (format!("{} {}", row.entry.tunnel, row.entry.session.id), row.entry.binding))
        .collect();
    let label = |place: &str| found[place].as_deref();
    assert_eq!(label("lark room"), Some("alpha"));
    assert_eq!(label("lark oc_42"), Some("beta"));
    assert_eq!((label("slack oc_42"), label("ci x")), (None, None));
}

pub(crate) async fn mail_is_trusted_when_every_author_is_a_contact(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_contact(store, &endpoint("ann", "lark"), ContactLevel::Friend).await;
    add_contact(store, &endpoint("bob", "lark"), ContactLevel::Temporary).await;
    add_contact(store, &endpoint("name", "lark"), ContactLevel::Stranger).await;
    add_contact(store, "cleo", ContactLevel::Friend).await;
    store.bind(&did("cleo"), binding("lark", "c1", 1), at(0)).await.unwrap();
    for (room, authors, trust) in [
        ("1", &["ann"] as &[&str], Trust::Known),
        ("2", &["ann", "bob", "c1"], Trust::Known),
        ("3", &["ann", "eve"], Trust::Untrusted),
        ("4", &["eve", "ann"], Trust::Untrusted),
        ("5", &["name"], Trust::Untrusted),
    ] {
        for author in authors {
            store_inbound(
                store,
                in_room(room, inbound_message(&format!("{room}{author}"), author, "x")),
                0,
            )
            .await;
        }
        assert_eq!(merge_due(store, 60).await, 1);
        let row = list_mails(store).await.pop().unwrap();
        assert_eq!((row.entry.trust, read_mail(store, &row).await.header.trust), (trust, trust));
    }
}

pub(crate) async fn held_mail_is_hidden_until_its_author_is_accepted(store: &dyn Store) {
    let held = store_held_mail(store, "eve", "psst", 0).await;
    let other = store_held_mail(store, "mallory", "also", 0).await;
    let free = store_mails(store, &["free"], 100).await.remove(0);
    let seen = list_mails(store).await;
    assert_eq!(seen.iter().map(|row| &row.entry.id).collect::<Vec<_>>(), [&free]);
    let visible = store.list_index_entries(0, 10).await.unwrap();
    assert_eq!(visible.iter().map(|change| &change.entry.id).collect::<Vec<_>>(), [&free]);
    assert_eq!(location_of(store, &held).await, MailLocation::Held);
    let claim = |id: MailId| async move {
        let holder = holder("agent");
        store
            .claim(&id, &Workspace::shared(), holder, lease_for(60), RetryPolicy::CLAIM, at(200))
            .await
    };
    assert_matches!(claim(held.clone()).await, Err(StoreError::InvalidTransition(_)));

    let newest = newest_change(store).await;
    for level in [ContactLevel::Stranger, ContactLevel::Block] {
        add_contact(store, &endpoint("eve", "wary"), level).await;
        assert_eq!(location_of(store, &held).await, MailLocation::Held, "{level:?}");
    }
    add_contact(store, &endpoint("eve", "wary"), ContactLevel::Temporary).await;
    let row = store.mail(&held, &Workspace::shared()).await.unwrap();
    assert_eq!(row.location, MailLocation::Inbound);
    assert!(row.entry.seq > seen[0].entry.seq, "it comes after the Mails that were visible before");
    let after = file_changes(store, newest).await;
    assert_eq!(after.len(), 1);
    assert_eq!((&after[0].entry, after[0].location), (&row.entry, MailLocation::Inbound));
    let visible = store.list_index_entries(seen[0].entry.seq, 10).await.unwrap();
    assert_eq!(visible, after);
    claim(held).await.unwrap();
    assert_eq!(
        location_of(store, &other).await,
        MailLocation::Held,
        "accepting eve does not accept mallory"
    );
}

pub(crate) async fn binding_an_address_releases_its_held_mails(store: &dyn Store) {
    let held = [
        store_held_mail(store, "eve", "one", 0).await,
        store_held_mail(store, "eve", "two", 100).await,
    ];
    add_contact(store, "cleo", ContactLevel::Friend).await;
    assert_eq!(list_mails(store).await, []);
    store.bind(&did("cleo"), binding("wary", "eve", 1), at(300)).await.unwrap();
    let seen: Vec<_> = list_mails(store).await.into_iter().map(|row| row.entry.id).collect();
    assert_eq!(seen, held, "in the order of arrival");
    store.bind(&did("cleo"), binding("wary", "eve", 2), at(301)).await.unwrap();
    assert_eq!(list_mails(store).await.len(), 2);
}

pub(crate) async fn strangers_of_one_room_are_accepted_separately(store: &dyn Store) {
    put_tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    for (id, from) in [("1", "eve"), ("2", "mallory"), ("3", "eve")] {
        store_inbound(store, via("wary", inbound_message(id, from, id)), 0).await;
    }
    assert_eq!(merge_due(store, 60).await, 2);
    add_contact(store, &endpoint("eve", "wary"), ContactLevel::Friend).await;
    assert_eq!(mail_texts(store).await, "1+3");
    add_contact(store, &endpoint("mallory", "wary"), ContactLevel::Friend).await;
    assert_eq!(mail_texts(store).await, "1+3 | 2");
}

pub(crate) async fn mails_are_listed_by_every_filter_in_both_directions(store: &dyn Store) {
    let late = store_held_mail(store, "eve", "late Apple", 0).await;
    for (n, now) in (100..).step_by(10).take(12).enumerate() {
        let (author, text) = (["ann", "Bob"][n % 2], ["apple", "PEAR", "fig"][n % 3]);
        let title = (n % 4 == 0).then(|| "Übersicht".to_owned());
        let mut request = with_message(inbound_message(&n.to_string(), author, text), |message| {
            message.title = title;
        });
        request.provider = ["lark", "slack", "lark"][n % 3].to_owned();
        store_inbound(store, request, now).await;
        merge_due(store, now + 5).await;
    }
    // Accepted last, so the oldest Mail has the largest sequence number.
    add_contact(store, &endpoint("eve", "wary"), ContactLevel::Friend).await;
    let all = list_mails(store).await;
    assert_eq!((all.len(), &all[12].entry.id), (13, &late));

    let mine = Workspace::new("mine").unwrap();
    let mut claims = BTreeMap::new();
    for (n, row) in all.iter().enumerate() {
        let id = &row.entry.id;
        let (claim, settle) = (
            store.claim(id, &mine, holder("a"), lease_for(60), RetryPolicy::CLAIM, at(500)),
            |step| store.update_claim(id, &mine, by_holder("a"), step, at(501)),
        );
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
    // Claims of another workspace do not count.
    let theirs = Workspace::new("theirs").unwrap();
    store
        .claim(&late, &theirs, holder("b"), lease_for(60), RetryPolicy::CLAIM, at(500))
        .await
        .unwrap();

    let states = ClaimState::ALL.map(Some).into_iter().chain([None]);
    let mut found = 0;
    for status in states {
        for provider in [None, Some("lark"), Some("slack"), Some("unknown")] {
            for since in [None, Some(0), Some(60), Some(135), Some(1_000)] {
                let query = MailQuery {
                    workspace: mine.clone(),
                    status,
                    provider: provider.map(str::to_owned),
                    since: since.map(at),
                    unclaimed: false,
                };
                let mut want: Vec<_> = all
                    .iter()
                    .filter(|row| matches_query(row, &query, &claims))
                    .map(|row| row.entry.seq)
                    .collect();
                found += want.len();
                for newest_first in [false, true] {
                    for limit in [1, 4, 100] {
                        let pages = all_pages(limit, newest_first, async |request| {
                            store.mails(query.clone(), request).await.unwrap()
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
    assert!(found > 100, "{found}");
    let unclaimed = MailQuery { unclaimed: true, ..all_mails_query(&mine) };
    let pages = all_pages(100, false, async |request| {
        store.mails(unclaimed.clone(), request).await.unwrap()
    });
    let listed = pages.await.concat();
    let want: Vec<_> = all
        .iter()
        .map(|row| &row.entry)
        .filter(|entry| !claims.contains_key(&entry.id) && entry.id != late)
        .map(|entry| entry.seq)
        .collect();
    let seqs: Vec<_> = listed.iter().map(|row| row.entry.seq).collect();
    assert_eq!(seqs, want, "claims of any workspace count");
    assert!(!want.is_empty());
}

pub(crate) async fn only_windows_of_the_named_tunnels_are_merged(store: &dyn Store) {
    for tunnel in ["lark", "slack"] {
        store_inbound(store, via(tunnel, inbound_message(tunnel, "ann", tunnel)), 0).await;
    }
    let merge = async |names: &[&str]| {
        let tunnels = Some(names.iter().map(|name| tunnel_id(name)).collect());
        let context = MergeContext { owner: did("me"), tunnels, all: false };
        store.merge(Arc::new(context), 9, at(60)).await.unwrap()
    };
    assert_eq!(merge(&[]).await, 0);
    assert_eq!(merge(&["unknown"]).await, 0);
    assert_eq!(merge(&["slack", "unknown"]).await, 1);
    let merged: Vec<_> = list_mails(store).await.into_iter().map(|row| row.entry.tunnel).collect();
    assert_eq!(merged, [tunnel_id("slack")]);
    assert_eq!(merge_due(store, 60).await, 1);
}
