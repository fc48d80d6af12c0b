//! Conformance tests of agent tokens, and of the Mails that agents have read.

use monoco_core::claim::{MailLocation, Workspace};
use monoco_core::erasure::ErasedAuthors;
use monoco_core::event::EventKind;
use monoco_core::mail::{MailId, Trust};
use monoco_core::token::{AgentName, AgentRead, AgentToken, NewAgentToken, TokenHash};

use super::inbound::{inbound_message, merge_due, store_inbound, with_message};
use super::mails::{location_of, store_mails};
use super::*;
use crate::{ClaimUpdate, ErasureRequest};

fn agent(name: &str) -> AgentName {
    name.parse().unwrap()
}

fn new_token(name: &str, scopes: &str) -> NewAgentToken {
    NewAgentToken {
        name: agent(name),
        scopes: scopes.parse().unwrap(),
        workspace: Workspace::new("alpha").unwrap(),
        did: did(name),
    }
}

fn hash(number: u8) -> TokenHash {
    TokenHash([number; 32])
}

async fn add_token(store: &dyn Store, name: &str, secret: u8, now: i64) -> AgentToken {
    store.add_token(new_token(name, "read,claim"), hash(secret), at(now)).await.unwrap()
}

async fn newest_event(store: &dyn Store) -> i64 {
    store.events(0, 1_000).await.unwrap().last().map_or(0, |event| event.seq)
}

/// The last use, in seconds of the test clock.
async fn last_use(store: &dyn Store, secret: u8) -> Option<i64> {
    let token = store.find_token(hash(secret)).await.unwrap().unwrap();
    token.last_used_at.map(|used| (used.ms() - at(0).ms()) / 1000)
}

pub(crate) async fn token_is_found_by_the_hash_of_its_secret(home: &dyn TestHome) {
    let store = home.open().await;
    let token = new_token("codex", "reply,read");
    let added = store.add_token(token.clone(), hash(1), at(5)).await.unwrap();
    assert_eq!((&added.name, added.scopes, &added.did), (&token.name, token.scopes, &token.did));
    assert_eq!((added.workspace.as_str(), added.created_at), ("alpha", at(5)));
    assert_eq!((added.last_used_at, added.revoked_at), (None, None));
    let other = add_token(&*store, "claude", 2, 6).await;
    drop(store);

    let store = home.open().await;
    assert_eq!(store.find_token(hash(1)).await.unwrap(), Some(added.clone()));
    assert_eq!(store.find_token(hash(3)).await.unwrap(), None);
    assert_eq!(store.tokens().await.unwrap(), [other, added], "by name");
}

pub(crate) async fn name_of_a_valid_token_cannot_be_used_again(store: &dyn Store) {
    let first = add_token(store, "codex", 1, 0).await;
    let again = store.add_token(new_token("codex", "operate"), hash(2), at(1)).await;
    assert_matches!(again, Err(StoreError::Exists { what: "token", .. }));
    assert_eq!(store.tokens().await.unwrap(), [first]);
    assert_eq!(store.find_token(hash(2)).await.unwrap(), None);
}

pub(crate) async fn revoked_token_stays_listed_and_its_name_can_be_used_again(store: &dyn Store) {
    add_token(store, "codex", 1, 0).await;
    store.touch_token(&agent("codex"), at(5)).await.unwrap();
    let revoked = store.revoke_token(&agent("codex"), at(10)).await.unwrap();
    assert_eq!(revoked.revoked_at, Some(at(10)));
    assert_eq!(store.find_token(hash(1)).await.unwrap(), Some(revoked.clone()));
    let before = newest_event(store).await;
    assert_eq!(store.revoke_token(&agent("codex"), at(20)).await.unwrap(), revoked);
    assert_eq!(newest_event(store).await, before, "repeating it changes nothing");
    assert_matches!(
        store.revoke_token(&agent("claude"), at(20)).await,
        Err(StoreError::Missing { what: "token", .. })
    );

    let again = add_token(store, "codex", 2, 30).await;
    assert_eq!((again.created_at, again.last_used_at, again.revoked_at), (at(30), None, None));
    assert_eq!(store.find_token(hash(1)).await.unwrap(), None, "the old secret is gone");
    assert_eq!(store.tokens().await.unwrap(), [again]);
    let events = store.events(0, 10).await.unwrap();
    let changes: Vec<_> = events.iter().map(|event| event.detail["change"].as_str()).collect();
    assert_eq!(changes, [Some("added"), Some("revoked"), Some("added")]);
}

pub(crate) async fn last_use_is_stored_once_a_minute(store: &dyn Store) {
    add_token(store, "codex", 1, 0).await;
    let before = newest_event(store).await;
    for (now, stored) in [(10, 10), (69, 10), (70, 70), (80, 70)] {
        store.touch_token(&agent("codex"), at(now)).await.unwrap();
        assert_eq!(last_use(store, 1).await, Some(stored), "at {now} s");
    }
    store.touch_token(&agent("unknown"), at(0)).await.unwrap();
    assert_eq!(newest_event(store).await, before, "a use is no event");
}

pub(crate) async fn first_read_of_each_agent_is_recorded(store: &dyn Store) {
    let ids = store_mails(store, &["one", "two"], 0).await;
    let before = newest_event(store).await;
    for (name, mail, now) in [
        ("codex", &ids[0], 10),
        ("codex", &ids[0], 11),
        ("claude", &ids[0], 12),
        ("codex", &ids[1], 13),
        ("codex", &ids[1], 14),
    ] {
        store.record_read(&agent(name), mail, at(now)).await.unwrap();
    }
    let msg_id = store.mail(&ids[1], &Workspace::shared()).await.unwrap().entry.msg_id;
    store.record_message_read(&agent("codex"), msg_id, at(15)).await.unwrap();
    store.record_message_read(&agent("claude"), msg_id, at(16)).await.unwrap();
    let events = store.events(before, 100).await.unwrap();
    let reads: Vec<_> = events
        .iter()
        .map(|event| {
            assert_eq!(event.kind, EventKind::Read);
            assert!(event.msg_id.is_some());
            let text = |key: &str| event.detail[key].as_str().unwrap().to_owned();
            (text("agent"), text("mail"), event.at)
        })
        .collect();
    let expected = [("codex", 0, 10), ("claude", 0, 12), ("codex", 1, 13), ("claude", 1, 16)]
        .map(|(name, mail, now)| (name.to_owned(), ids[mail].to_string(), at(now)));
    assert_eq!(reads, expected);

    let read = |mail: usize, session: &str, now| AgentRead {
        mail: ids[mail].clone(),
        tunnel: tunnel_id("lark"),
        session: session.to_owned(),
        answer_to: format!("did:msgtunnel:{session}.group.lark").parse().unwrap(),
        trust: Trust::Untrusted,
        at: at(now),
    };
    let all = store.agent_reads(&agent("codex"), at(0), 10).await.unwrap();
    assert_eq!(all, [read(1, "two", 13), read(0, "one", 10)], "newest first");
    assert_eq!(store.agent_reads(&agent("codex"), at(11), 10).await.unwrap(), all[..1]);
    assert_eq!(store.agent_reads(&agent("codex"), at(0), 1).await.unwrap(), all[..1]);
    assert_eq!(store.agent_reads(&agent("other"), at(0), 10).await.unwrap(), []);

    let unknown = MailId::of("lark", &tunnel_id("lark"), "unknown");
    dispatch_text(store, "no Mail").await;
    let other = chat("ann", &["bob"], "no Mail").id();
    store.record_message_read(&agent("codex"), other, at(20)).await.unwrap();
    assert_eq!(store.agent_reads(&agent("codex"), at(0), 10).await.unwrap(), all);
    let missing = store.record_read(&agent("codex"), &unknown, at(20)).await;
    assert_matches!(missing, Err(StoreError::Missing { what: "Mail", .. }));
}

pub(crate) async fn reads_of_a_list_are_recorded_once_and_refreshed(store: &dyn Store) {
    let ids = store_mails(store, &["one", "two", "three"], 0).await;
    let mut numbers = Vec::new();
    for id in &ids {
        numbers.push(store.mail(id, &Workspace::shared()).await.unwrap().entry.seq);
    }
    let before = newest_event(store).await;
    store.record_read(&agent("codex"), &ids[1], at(5)).await.unwrap();
    for now in [10, 11, 66] {
        store.record_reads(&agent("codex"), numbers.clone(), at(now)).await.unwrap();
    }
    let reads = store.agent_reads(&agent("codex"), at(0), 10).await.unwrap();
    let times: Vec<_> = reads.iter().map(|read| (read.mail.clone(), read.at)).collect();
    let expected = [(1, 66), (2, 10), (0, 10)].map(|(mail, now)| (ids[mail].clone(), at(now)));
    assert_eq!(times, expected, "the time of a read changes at most once a minute");
    assert_eq!(newest_event(store).await, before + 3, "one event per Mail");
    store.record_reads(&agent("codex"), Vec::new(), at(90)).await.unwrap();
    store.record_reads(&agent("codex"), vec![1_000_000], at(90)).await.unwrap_err();
}

pub(crate) async fn read_of_a_direct_mail_names_trust_and_author(store: &dyn Store) {
    add_contact(store, &endpoint("ann", "lark"), ContactLevel::Friend).await;
    for author in ["ann", "eve"] {
        let direct = with_message(inbound_message(author, author, "hello"), |message| {
            message.session.id = format!("chat-{author}");
            message.session.kind = monoco_core::inbound::ChatSessionKind::Direct;
        });
        store_inbound(store, direct, 0).await;
    }
    merge_due(store, 60).await;
    for (now, author) in [(0, "ann"), (1, "eve")] {
        let id = MailId::of("lark", &tunnel_id("lark"), author);
        store.record_read(&agent("codex"), &id, at(now)).await.unwrap();
    }
    let reads = store.agent_reads(&agent("codex"), at(0), 10).await.unwrap();
    let facts: Vec<_> = reads
        .iter()
        .map(|read| (read.session.as_str(), read.answer_to.to_string(), read.trust))
        .collect();
    assert_eq!(
        facts,
        [
            ("chat-eve", endpoint("eve", "lark"), Trust::Untrusted),
            ("chat-ann", endpoint("ann", "lark"), Trust::Known),
        ]
    );
}

pub(crate) async fn reads_of_purged_and_erased_mails_are_deleted(store: &dyn Store) {
    store.advance_retention_clock(at(0)).await.unwrap();
    let ids = store_mails(store, &["purged", "erased"], 0).await;
    for id in &ids {
        store.record_read(&agent("codex"), id, at(1)).await.unwrap();
    }
    let (shared, now) = (Workspace::shared(), at(2));
    let claim = store.claim(&ids[0], &shared, holder("a"), lease_for(60), RetryPolicy::CLAIM, now);
    claim.await.unwrap();
    let complete = ClaimUpdate::Complete;
    store.update_claim(&ids[0], &shared, by_holder("a"), complete, now).await.unwrap();
    assert_eq!(store.purge_archived_mails(0, 10, now).await.unwrap(), 1);
    assert_eq!(location_of(store, &ids[0]).await, MailLocation::Removed);
    let left = store.agent_reads(&agent("codex"), at(0), 10).await.unwrap();
    assert_eq!(left.iter().map(|read| &read.mail).collect::<Vec<_>>(), [&ids[1]]);

    let authors = ErasedAuthors([did(&endpoint("ann", "lark"))].into_iter().collect());
    let request = ErasureRequest { authors, ..ErasureRequest::default() };
    store.erase(&request, at(3)).await.unwrap();
    assert_eq!(store.agent_reads(&agent("codex"), at(0), 10).await.unwrap(), []);
    // Reading what is left of it records nothing.
    store.record_read(&agent("codex"), &ids[1], at(4)).await.unwrap();
    assert_eq!(store.agent_reads(&agent("codex"), at(0), 10).await.unwrap(), []);
}
