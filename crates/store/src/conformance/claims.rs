//! Conformance tests of claims of workspaces on Mails.

use futures_util::future::join_all;
use monoco_core::claim::{Claim, ClaimState, ClaimStateData, MailLocation, Workspace};
use monoco_core::lease::LeaseLost;
use monoco_core::mail::MailId;
use monoco_core::record::InvalidTransition;

use super::mails::{list_mails, location_of, store_mails};
use super::*;
use crate::ClaimUpdate;

fn workspace(name: &str) -> Workspace {
    Workspace::new(name).unwrap()
}

/// Claims a Mail at second `now` for 60 s. `agent` is `ann` (of the workspace `alpha`) or
/// `workspace/agent`.
pub(super) async fn claim(
    store: &dyn Store,
    id: &MailId,
    agent: &str,
    now: i64,
) -> Result<Claim, StoreError> {
    let (space, agent) = agent.split_once('/').unwrap_or(("alpha", agent));
    store
        .claim(id, &workspace(space), holder(agent), lease_for(60), RetryPolicy::CLAIM, at(now))
        .await
}

async fn update(
    store: &dyn Store,
    id: &MailId,
    agent: &str,
    step: ClaimUpdate,
    now: i64,
) -> Result<Claim, StoreError> {
    let (space, agent) = agent.split_once('/').unwrap_or(("alpha", agent));
    store.update_claim(id, &workspace(space), by_holder(agent), step, at(now)).await
}

async fn complete(
    store: &dyn Store,
    id: &MailId,
    agent: &str,
    now: i64,
) -> Result<Claim, StoreError> {
    update(store, id, agent, ClaimUpdate::Complete, now).await
}

fn fail_update(reason: &str, retryable: bool) -> ClaimUpdate {
    ClaimUpdate::Fail { reason: reason.to_owned(), retryable, retry: RetryPolicy::CLAIM }
}

pub(super) async fn fail(
    store: &dyn Store,
    id: &MailId,
    agent: &str,
    now: i64,
) -> Result<Claim, StoreError> {
    update(store, id, agent, fail_update("no luck", true), now).await
}

/// Claims a Mail and reports a failure that is not retryable.
async fn fail_permanently(store: &dyn Store, id: &MailId, agent: &str, now: i64) {
    claim(store, id, agent, now).await.unwrap();
    let dead = update(store, id, agent, fail_update("hopeless", false), now).await.unwrap();
    assert_eq!(state_of(&dead), ClaimState::Deadletter);
}

fn state_of(claim: &Claim) -> ClaimState {
    claim.claiming.state.name()
}

async fn store_one_mail(store: &dyn Store) -> MailId {
    store_mails(store, &["hello"], 0).await.remove(0)
}

fn is_invalid_transition(answer: &Result<Claim, StoreError>, from: &str) -> bool {
    matches!(answer, Err(StoreError::InvalidTransition(InvalidTransition { from: was, .. })) if *was == from)
}

pub(crate) async fn only_one_agent_of_a_workspace_holds_a_mail(store: &dyn Store) {
    let id = store_one_mail(store).await;
    let first = claim(store, &id, "ann", 10).await.unwrap();
    assert_eq!((first.mail.clone(), first.workspace.as_str()), (id.clone(), "alpha"));
    assert_eq!((first.claiming.attempts, first.claiming.epoch, first.revision), (1, 1, 1));
    for again in ["bob", "ann"] {
        let Err(StoreError::LeaseLost(LeaseLost::Held(lease))) = claim(store, &id, again, 11).await
        else {
            panic!("{again}");
        };
        assert_eq!((lease.holder.as_str(), lease.until), ("ann", at(70)));
    }
    assert_eq!(store.claims(&id).await.unwrap(), std::slice::from_ref(&first));
    assert_eq!(store.mail(&id, &workspace("alpha")).await.unwrap().claim, Some(first));
    assert_eq!(store.mail(&id, &workspace("beta")).await.unwrap().claim, None);
}

pub(crate) async fn workspaces_claim_a_mail_independently(store: &dyn Store) {
    let id = store_one_mail(store).await;
    claim(store, &id, "alpha/ann", 10).await.unwrap();
    claim(store, &id, "beta/ann", 10).await.unwrap();
    complete(store, &id, "alpha/ann", 11).await.unwrap();
    let mine = update(store, &id, "beta/ann", ClaimUpdate::Renew(lease_for(60)), 12).await.unwrap();
    assert_eq!(state_of(&mine), ClaimState::Claimed);
    let states: Vec<_> = store.claims(&id).await.unwrap().iter().map(state_of).collect();
    assert_eq!(states, [ClaimState::Completed, ClaimState::Claimed]);
}

pub(crate) async fn missing_and_finished_mails_cannot_be_claimed(store: &dyn Store) {
    let [finished, dead] = &store_mails(store, &["finished", "dead"], 0).await[..] else {
        panic!()
    };
    let nowhere: MailId = "lark_000000000000000000000000".parse().unwrap();
    assert!(matches!(claim(store, &nowhere, "ann", 1).await, Err(StoreError::Missing { .. })));
    assert!(matches!(complete(store, &nowhere, "ann", 1).await, Err(StoreError::Missing { .. })));
    let elsewhere = MailId::of("slack", &tunnel_id("lark"), "finished");
    assert!(matches!(claim(store, &elsewhere, "ann", 1).await, Err(StoreError::Missing { .. })));
    assert!(
        is_invalid_transition(&complete(store, finished, "ann", 1).await, "NEW"),
        "the Mail was never claimed"
    );

    claim(store, finished, "ann", 1).await.unwrap();
    complete(store, finished, "ann", 1).await.unwrap();
    assert!(is_invalid_transition(&claim(store, finished, "ann", 2).await, "COMPLETED"));
    assert!(is_invalid_transition(&claim(store, finished, "ann", 100_000).await, "COMPLETED"));
    fail_permanently(store, dead, "ann", 3).await;
    assert!(is_invalid_transition(&claim(store, dead, "bob", 100_000).await, "DEADLETTER"));
    assert!(is_invalid_transition(&complete(store, dead, "ann", 4).await, "DEADLETTER"));
}

pub(crate) async fn expired_claim_is_lost_once_another_agent_claims(store: &dyn Store) {
    let id = store_one_mail(store).await;
    let shared = workspace("alpha");
    let first = store
        .claim(&id, &shared, holder("ann"), lease_for(1), RetryPolicy::CLAIM, at(0))
        .await
        .unwrap();
    let early =
        store.claim(&id, &shared, holder("bob"), lease_for(1), RetryPolicy::CLAIM, at(0)).await;
    assert!(matches!(early, Err(StoreError::LeaseLost(_))));
    let second = claim(store, &id, "bob", 1).await.unwrap();
    assert_eq!((second.claiming.attempts, second.claiming.epoch), (2, 2));

    for step in [ClaimUpdate::Complete, ClaimUpdate::Renew(lease_for(9)), fail_update("late", true)]
    {
        let late = by_epoch(first.claiming.epoch);
        let late = store.update_claim(&id, &shared, late, step.clone(), at(2)).await;
        let stale =
            matches!(late, Err(StoreError::LeaseLost(LeaseLost::Stale { shown: 1, current: 2 })));
        assert!(stale, "{late:?}");
        assert_matches!(
            update(store, &id, "ann", step, 2).await,
            Err(StoreError::LeaseLost(LeaseLost::Held(_)))
        );
    }
    assert_eq!(store.claims(&id).await.unwrap(), [second]);
    complete(store, &id, "bob", 3).await.unwrap();
    assert_matches!(
        store.update_claim(&id, &shared, by_epoch(1), ClaimUpdate::Complete, at(4)).await,
        Err(StoreError::LeaseLost(LeaseLost::Stale { .. }))
    );
}

pub(crate) async fn fourth_failure_makes_a_dead_letter(home: &dyn TestHome) {
    let mut store = home.open().await;
    let id = store_one_mail(&*store).await;
    let mut now = 100;
    for (attempt, wait) in [(1, Some(1)), (2, Some(2)), (3, Some(4)), (4, None)] {
        let leased = claim(&*store, &id, ["ann", "bob"][attempt % 2], now).await.unwrap();
        assert_eq!(leased.claiming.attempts as usize, attempt, "a new claim keeps the attempts");
        now += 10;
        let failed = fail(&*store, &id, ["ann", "bob"][attempt % 2], now).await.unwrap();
        assert_eq!(failed.reason.as_deref(), Some("no luck"));
        drop(store);
        store = home.open().await;
        let Some(wait) = wait else {
            assert_eq!(state_of(&failed), ClaimState::Deadletter);
            break;
        };
        assert_eq!(failed.claiming.state, ClaimStateData::New { due: at(now + wait) });
        assert_eq!(location_of(&*store, &id).await, MailLocation::Inbound);
        for early in [now, now + wait - 1] {
            let rejected = claim(&*store, &id, "cat", early).await;
            let due = matches!(rejected, Err(StoreError::NotDue(due)) if due == at(now + wait));
            assert!(due, "{rejected:?}");
        }
        now += wait;
    }
    assert_eq!(location_of(&*store, &id).await, MailLocation::Deadletter);
    assert!(is_invalid_transition(&claim(&*store, &id, "cat", now + 3_600).await, "DEADLETTER"));
    let kinds = event_kinds(&*store).await;
    let kinds = kinds.split_once("merged ").unwrap().1;
    assert_eq!(kinds, "claimed failed claimed failed claimed failed claimed dead moved");
}

pub(crate) async fn permanent_failure_makes_a_dead_letter_at_once(store: &dyn Store) {
    let id = store_one_mail(store).await;
    fail_permanently(store, &id, "ann", 1).await;
    let claim = store.claims(&id).await.unwrap().remove(0);
    assert_eq!(claim.claiming.state, ClaimStateData::Deadletter { reason: "hopeless".to_owned() });
    assert_eq!(
        (claim.claiming.attempts, location_of(store, &id).await),
        (1, MailLocation::Deadletter)
    );
}

pub(crate) async fn renewal_extends_the_lease(store: &dyn Store) {
    let id = store_one_mail(store).await;
    claim(store, &id, "ann", 0).await.unwrap();
    let renewed = update(store, &id, "ann", ClaimUpdate::Renew(lease_for(100)), 50).await.unwrap();
    let ClaimStateData::Claimed(lease) = &renewed.claiming.state else { panic!() };
    assert_eq!((lease.until, renewed.claiming.attempts, renewed.claiming.epoch), (at(150), 1, 1));
    assert!(matches!(claim(store, &id, "bob", 149).await, Err(StoreError::LeaseLost(_))));
    assert_matches!(
        update(store, &id, "bob", ClaimUpdate::Renew(lease_for(100)), 60).await,
        Err(StoreError::LeaseLost(LeaseLost::Held(_)))
    );
    assert_eq!(store.expire_claims(RetryPolicy::CLAIM, 10, at(149)).await.unwrap(), 0);
    // An expired lease can still be renewed until another agent claims the Mail.
    update(store, &id, "ann", ClaimUpdate::Renew(lease_for(1)), 151).await.unwrap();
    claim(store, &id, "bob", 152).await.unwrap();
}

pub(crate) async fn repeated_completion_changes_nothing(store: &dyn Store) {
    let id = store_one_mail(store).await;
    let leased = claim(store, &id, "ann", 0).await.unwrap();
    let epoch = by_epoch(leased.claiming.epoch);
    let complete = |proof: LeaseProof| {
        store.update_claim(&id, &leased.workspace, proof, ClaimUpdate::Complete, at(1))
    };
    let first = complete(epoch.clone()).await.unwrap();
    let before = event_kinds(store).await;
    assert_eq!(complete(epoch).await.unwrap(), first);
    assert_eq!(event_kinds(store).await, before);
    assert!(
        is_invalid_transition(&complete(by_holder("ann")).await, "COMPLETED"),
        "a caller without an epoch cannot prove that it completed the claim"
    );
}

pub(crate) async fn mail_is_moved_when_no_claim_is_open(store: &dyn Store) {
    let id = store_one_mail(store).await;
    let there = async || location_of(store, &id).await;
    claim(store, &id, "alpha/ann", 0).await.unwrap();
    claim(store, &id, "beta/bob", 0).await.unwrap();
    claim(store, &id, "gamma/cat", 0).await.unwrap();
    complete(store, &id, "alpha/ann", 1).await.unwrap();
    assert_eq!(there().await, MailLocation::Inbound, "beta and gamma hold claims");
    fail(store, &id, "beta/bob", 2).await.unwrap();
    complete(store, &id, "gamma/cat", 3).await.unwrap();
    assert_eq!(there().await, MailLocation::Inbound, "beta may retry");
    claim(store, &id, "beta/bob", 4).await.unwrap();
    complete(store, &id, "beta/bob", 5).await.unwrap();
    assert_eq!(there().await, MailLocation::Archive);

    // A workspace can claim an archived Mail, and its file stays in the archive.
    claim(store, &id, "late/dan", 1_000).await.unwrap();
    assert_eq!(there().await, MailLocation::Archive);
    fail(store, &id, "late/dan", 1_001).await.unwrap();
    claim(store, &id, "late/dan", 1_002).await.unwrap();
    complete(store, &id, "late/dan", 1_003).await.unwrap();
    assert_eq!(there().await, MailLocation::Archive);

    fail_permanently(store, &id, "later/eve", 2_000).await;
    assert_eq!(there().await, MailLocation::Deadletter, "an operator decides");
    claim(store, &id, "last/fay", 3_000).await.unwrap();
    complete(store, &id, "last/fay", 3_001).await.unwrap();
    assert_eq!(there().await, MailLocation::Deadletter);
    let moves = event_kinds(store).await.matches("moved").count();
    assert_eq!(moves, 2);
}

pub(crate) async fn dead_mail_lists_its_workspaces_and_reasons(store: &dyn Store) {
    let id = store_one_mail(store).await;
    let change = async || store.list_file_changes(0, 10).await.unwrap().remove(0);
    let new = change().await;
    assert_eq!((new.location, new.reasons.len()), (MailLocation::Inbound, 0));
    fail_permanently(store, &id, "beta/bob", 0).await;
    let dead = change().await;
    assert!(dead.change > new.change);
    assert_eq!(dead.location, MailLocation::Deadletter);
    assert_eq!(dead.reasons, [(workspace("beta"), "hopeless".to_owned())]);
    claim(store, &id, "alpha/ann", 1).await.unwrap();
    update(store, &id, "alpha/ann", fail_update("me too", false), 2).await.unwrap();
    let both = change().await.reasons;
    assert_eq!(both[0], (workspace("alpha"), "me too".to_owned()));
    assert_eq!(both.len(), 2);
}

pub(crate) async fn operator_can_retry_a_dead_claim(store: &dyn Store) {
    let id = store_one_mail(store).await;
    let alpha = workspace("alpha");
    assert_matches!(store.retry_claim(&id, &alpha, at(0)).await, Err(StoreError::Missing { .. }));
    fail_permanently(store, &id, "ann", 0).await;
    let retried = store.retry_claim(&id, &alpha, at(5)).await.unwrap();
    assert_eq!(retried.claiming.state, ClaimStateData::New { due: at(5) });
    assert_eq!(
        (retried.claiming.attempts, location_of(store, &id).await),
        (0, MailLocation::Inbound)
    );
    assert_matches!(
        store.retry_claim(&id, &alpha, at(5)).await,
        Err(StoreError::InvalidTransition(_))
    );

    // The retried claim is open, so a completed claim of beta does not archive the Mail.
    claim(store, &id, "beta/bob", 6).await.unwrap();
    complete(store, &id, "beta/bob", 7).await.unwrap();
    assert_eq!(location_of(store, &id).await, MailLocation::Inbound);
    for attempt in 1..=4 {
        let leased = claim(store, &id, "ann", 100 * attempt).await.unwrap();
        assert_eq!(
            i64::from(leased.claiming.attempts),
            attempt,
            "a retried claim has all its attempts"
        );
        assert!(leased.claiming.epoch > 1, "an old epoch stays invalid");
        fail(store, &id, "ann", 100 * attempt).await.unwrap();
    }
    assert_eq!(location_of(store, &id).await, MailLocation::Deadletter);
}

pub(crate) async fn operator_can_drop_a_dead_claim(store: &dyn Store) {
    let ids = store_mails(store, &["1", "2", "3"], 0).await;
    for (now, id) in (0..).zip(&ids) {
        fail_permanently(store, id, "ann", now).await;
    }
    let dead = |limit| async move {
        let dead = store.dead_claims(limit).await.unwrap();
        dead.into_iter().map(|claim| claim.mail).collect::<Vec<_>>()
    };
    assert_eq!((dead(2).await, dead(10).await), (ids[..2].to_vec(), ids.clone()));
    let dropped = store.drop_claim(&ids[1], &workspace("alpha"), at(5)).await.unwrap();
    assert_eq!(
        (state_of(&dropped), location_of(store, &ids[1]).await),
        (ClaimState::Completed, MailLocation::Archive)
    );
    assert_eq!(dead(10).await, [ids[0].clone(), ids[2].clone()]);
    let again = store.drop_claim(&ids[1], &workspace("alpha"), at(5)).await;
    assert!(is_invalid_transition(&again, "COMPLETED"), "{again:?}");
    assert_matches!(
        store.drop_claim(&ids[0], &workspace("beta"), at(5)).await,
        Err(StoreError::Missing { .. })
    );
}

/// A Mail whose agents never report, because it crashes them, becomes a dead letter too.
pub(crate) async fn expired_lease_returns_mail_to_new(store: &dyn Store) {
    let ids = store_mails(store, &["1", "2", "3"], 0).await;
    let sweep = |limit, now| async move {
        store.expire_claims(RetryPolicy::CLAIM, limit, at(now)).await.unwrap()
    };
    for round in 1..=4 {
        let now = round * 1_000;
        for (n, id) in (0..).zip(&ids) {
            claim(store, id, "ann", now + n).await.unwrap();
        }
        assert_eq!(sweep(10, now + 59).await, 0);
        assert_eq!((sweep(10, now + 60).await, sweep(2, now + 99).await), (1, 2));
        assert_eq!(sweep(2, now + 99).await, 0);
        for id in &ids {
            let claim = store.claims(id).await.unwrap().remove(0);
            let want = if round < 4 { ClaimState::New } else { ClaimState::Deadletter };
            assert_eq!((state_of(&claim), i64::from(claim.claiming.attempts)), (want, round));
        }
    }
    let dead = store.list_file_changes(0, 10).await.unwrap();
    assert!(dead.iter().all(|change| change.location == MailLocation::Deadletter));
    let (_, why) = &dead[0].reasons[0];
    assert!(why.contains("ann"), "{why}");
    let kinds = event_kinds(store).await;
    assert_eq!((kinds.matches("lease_ended").count(), kinds.matches("dead").count()), (9, 3));
}

/// An agent that claims before the sweeper runs gets no additional attempt.
pub(crate) async fn expired_last_attempt_is_not_claimed_again(store: &dyn Store) {
    let id = store_one_mail(store).await;
    for round in 1..=4 {
        claim(store, &id, "ann", round * 1_000).await.unwrap();
    }
    let rejected = claim(store, &id, "ann", 5_000).await;
    assert!(is_invalid_transition(&rejected, "DEADLETTER"), "{rejected:?}");
    assert_eq!(store.expire_claims(RetryPolicy::CLAIM, 10, at(5_000)).await.unwrap(), 1);
    assert_eq!(location_of(store, &id).await, MailLocation::Deadletter);
}

pub(crate) async fn open_claims_are_listed_oldest_first(home: &dyn TestHome) {
    let store = home.open().await;
    let ids = store_mails(&*store, &["1", "2", "3", "4", "5"], 0).await;
    for id in [&ids[3], &ids[0], &ids[1], &ids[2]] {
        claim(&*store, id, "ann", 1).await.unwrap();
    }
    complete(&*store, &ids[0], "ann", 2).await.unwrap();
    fail(&*store, &ids[1], "ann", 2).await.unwrap();
    drop(store);
    let store = home.open().await;
    let open: Vec<_> =
        store.open_claims(10).await.unwrap().into_iter().map(|claim| claim.mail).collect();
    assert_eq!(open, [ids[3].clone(), ids[1].clone(), ids[2].clone()]);
    assert_eq!(store.open_claims(1).await.unwrap().len(), 1);
}

pub(crate) async fn counts_report_the_oldest_unclaimed_mail(store: &dyn Store) {
    let oldest = async || store.counts().await.unwrap().oldest_unclaimed;
    assert_eq!(oldest().await, None);
    let first = store_mails(store, &["1"], 10).await.remove(0);
    let second = store_mails(store, &["2"], 20).await.remove(0);
    assert_eq!(oldest().await, Some(at(10)));
    claim(store, &first, "ann", 30).await.unwrap();
    assert_eq!(oldest().await, Some(at(20)));
    claim(store, &second, "ann", 30).await.unwrap();
    fail(store, &second, "ann", 31).await.unwrap();
    assert_eq!(oldest().await, None);
}

pub(crate) async fn one_of_eight_concurrent_claims_succeeds(store: &dyn Store) {
    let id = store_one_mail(store).await;
    let agents: Vec<_> = (0..8).map(|n| format!("agent-{n}")).collect();
    let answers = join_all(agents.iter().map(|agent| claim(store, &id, agent, 1))).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    let ClaimStateData::Claimed(lease) = &won[0].as_ref().unwrap().claiming.state else { panic!() };
    for answer in lost {
        let Err(StoreError::LeaseLost(LeaseLost::Held(held))) = answer else { panic!() };
        assert_eq!(held, *lease, "the error names the holder");
    }
}

pub(crate) async fn eight_agents_complete_each_mail_once(store: &dyn Store) {
    let texts: Vec<_> = (0..60).map(|n| n.to_string()).collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    let ids = store_mails(store, &texts, 0).await;
    let worker = async |n: usize| {
        let (agent, mut completed) = (format!("agent-{n}"), Vec::new());
        // Each agent starts at another Mail and tries all of them.
        for id in ids.iter().cycle().skip(n * 7).take(ids.len()) {
            let Ok(leased) = claim(store, id, &agent, 1).await else { continue };
            let proof = by_epoch(leased.claiming.epoch);
            let step = ClaimUpdate::Complete;
            store.update_claim(id, &leased.workspace, proof, step, at(2)).await.unwrap();
            completed.push(id.clone());
        }
        completed
    };
    let mut completed: Vec<_> = join_all((0..8).map(worker)).await.concat();
    completed.sort();
    let mut want = ids.clone();
    want.sort();
    assert_eq!(completed, want);
    assert!(list_mails(store).await.iter().all(|row| row.location == MailLocation::Archive));
    assert_eq!(event_kinds(store).await.matches("completed").count(), 60);
}
