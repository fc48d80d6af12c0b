//! Laws of claims: one workspace's hold on one Mail.

use futures_util::future::join_all;
use monoco_core::claim::{Claim, ClaimState, ClaimStateData, MailLocation, Workspace};
use monoco_core::lease::LeaseLost;
use monoco_core::mail::MailId;
use monoco_core::record::InvalidTransition;

use super::mails::{deliver, mails};
use super::*;
use crate::ClaimUpdate;

fn workspace(name: &str) -> Workspace {
    Workspace::new(name).unwrap()
}

/// Claims for `agent` of `alpha` at second `now`, for 60 s. `beta/bob` is of `beta`.
async fn claim(store: &dyn Store, id: &MailId, agent: &str, now: i64) -> Result<Claim, StoreError> {
    let (space, agent) = agent.split_once('/').unwrap_or(("alpha", agent));
    store.claim(id, &workspace(space), name(agent), term(60), RetryPolicy::CLAIM, at(now)).await
}

async fn settle(
    store: &dyn Store,
    id: &MailId,
    agent: &str,
    step: ClaimUpdate,
    now: i64,
) -> Result<Claim, StoreError> {
    let (space, agent) = agent.split_once('/').unwrap_or(("alpha", agent));
    store.update_claim(id, &workspace(space), by(agent), step, at(now)).await
}

async fn done(store: &dyn Store, id: &MailId, agent: &str, now: i64) -> Result<Claim, StoreError> {
    settle(store, id, agent, ClaimUpdate::Complete, now).await
}

fn failure(reason: &str, retryable: bool) -> ClaimUpdate {
    ClaimUpdate::Fail { reason: reason.to_owned(), retryable, retry: RetryPolicy::CLAIM }
}

async fn fail(store: &dyn Store, id: &MailId, agent: &str, now: i64) -> Result<Claim, StoreError> {
    settle(store, id, agent, failure("no luck", true), now).await
}

/// Gives it up for good.
async fn kill(store: &dyn Store, id: &MailId, agent: &str, now: i64) {
    claim(store, id, agent, now).await.unwrap();
    let dead = settle(store, id, agent, failure("hopeless", false), now).await.unwrap();
    assert_eq!(state(&dead), ClaimState::Deadletter);
}

fn state(claim: &Claim) -> ClaimState {
    claim.claiming.state.name()
}

async fn one(store: &dyn Store) -> MailId {
    deliver(store, &["hello"], 0).await.remove(0)
}

async fn place(store: &dyn Store, id: &MailId) -> MailLocation {
    store.mail(id, &workspace("alpha")).await.unwrap().place
}

fn is_wrong(answer: &Result<Claim, StoreError>, from: &str) -> bool {
    matches!(answer, Err(StoreError::InvalidTransition(InvalidTransition { from: was, .. })) if *was == from)
}

pub(crate) async fn agents_of_one_workspace_exclude_each_other(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
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

pub(crate) async fn two_workspaces_do_not_exclude_each_other(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    claim(store, &id, "alpha/ann", 10).await.unwrap();
    claim(store, &id, "beta/ann", 10).await.unwrap();
    done(store, &id, "alpha/ann", 11).await.unwrap();
    let mine = settle(store, &id, "beta/ann", ClaimUpdate::Renew(term(60)), 12).await.unwrap();
    assert_eq!(state(&mine), ClaimState::Claimed);
    let states: Vec<_> = store.claims(&id).await.unwrap().iter().map(state).collect();
    assert_eq!(states, [ClaimState::Completed, ClaimState::Claimed]);
}

pub(crate) async fn only_what_is_there_and_open_is_claimed(home: &dyn Home) {
    let store = &*home.open().await;
    let [finished, dead] = &deliver(store, &["finished", "dead"], 0).await[..] else { panic!() };
    let nowhere: MailId = "lark_000000000000000000000000".parse().unwrap();
    assert!(matches!(claim(store, &nowhere, "ann", 1).await, Err(StoreError::Missing { .. })));
    assert!(matches!(done(store, &nowhere, "ann", 1).await, Err(StoreError::Missing { .. })));
    let elsewhere = MailId::of("slack", &tunnel_id("lark"), "finished");
    assert!(matches!(claim(store, &elsewhere, "ann", 1).await, Err(StoreError::Missing { .. })));
    assert!(is_wrong(&done(store, finished, "ann", 1).await, "NEW"), "nobody claimed it");

    claim(store, finished, "ann", 1).await.unwrap();
    done(store, finished, "ann", 1).await.unwrap();
    assert!(is_wrong(&claim(store, finished, "ann", 2).await, "COMPLETED"));
    assert!(is_wrong(&claim(store, finished, "ann", 100_000).await, "COMPLETED"));
    kill(store, dead, "ann", 3).await;
    assert!(is_wrong(&claim(store, dead, "bob", 100_000).await, "DEADLETTER"));
    assert!(is_wrong(&done(store, dead, "ann", 4).await, "DEADLETTER"));
}

pub(crate) async fn an_ended_lease_is_free_for_the_next_and_lost_for_the_first(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    let shared = workspace("alpha");
    let first =
        store.claim(&id, &shared, name("ann"), term(1), RetryPolicy::CLAIM, at(0)).await.unwrap();
    let early = store.claim(&id, &shared, name("bob"), term(1), RetryPolicy::CLAIM, at(0)).await;
    assert!(matches!(early, Err(StoreError::LeaseLost(_))));
    let second = claim(store, &id, "bob", 1).await.unwrap();
    assert_eq!((second.claiming.attempts, second.claiming.epoch), (2, 2));

    for step in [ClaimUpdate::Complete, ClaimUpdate::Renew(term(9)), failure("late", true)] {
        let late = in_epoch(first.claiming.epoch);
        let late = store.update_claim(&id, &shared, late, step.clone(), at(2)).await;
        let stale =
            matches!(late, Err(StoreError::LeaseLost(LeaseLost::Stale { shown: 1, current: 2 })));
        assert!(stale, "{late:?}");
        let late = settle(store, &id, "ann", step, 2).await;
        assert!(matches!(late, Err(StoreError::LeaseLost(LeaseLost::Held(_)))), "{late:?}");
    }
    assert_eq!(store.claims(&id).await.unwrap(), [second]);
    done(store, &id, "bob", 3).await.unwrap();
    let late = store.update_claim(&id, &shared, in_epoch(1), ClaimUpdate::Complete, at(4)).await;
    assert!(matches!(late, Err(StoreError::LeaseLost(LeaseLost::Stale { .. }))), "{late:?}");
}

pub(crate) async fn three_retries_and_the_fourth_failure_is_a_dead_letter(home: &dyn Home) {
    let mut store = home.open().await;
    let id = one(&*store).await;
    let mut now = 100;
    for (attempt, wait) in [(1, Some(1)), (2, Some(2)), (3, Some(4)), (4, None)] {
        let taken = claim(&*store, &id, ["ann", "bob"][attempt % 2], now).await.unwrap();
        assert_eq!(taken.claiming.attempts as usize, attempt, "claiming does not reset it");
        now += 10;
        let failed = fail(&*store, &id, ["ann", "bob"][attempt % 2], now).await.unwrap();
        assert_eq!(failed.reason.as_deref(), Some("no luck"));
        drop(store);
        store = home.open().await;
        let Some(wait) = wait else {
            assert_eq!(state(&failed), ClaimState::Deadletter);
            break;
        };
        assert_eq!(failed.claiming.state, ClaimStateData::New { due: at(now + wait) });
        assert_eq!(place(&*store, &id).await, MailLocation::Inbound);
        for early in [now, now + wait - 1] {
            let refused = claim(&*store, &id, "cat", early).await;
            let due = matches!(refused, Err(StoreError::NotDue(due)) if due == at(now + wait));
            assert!(due, "{refused:?}");
        }
        now += wait;
    }
    assert_eq!(place(&*store, &id).await, MailLocation::Deadletter);
    assert!(is_wrong(&claim(&*store, &id, "cat", now + 3_600).await, "DEADLETTER"));
    let story = events(&*store).await;
    let story = story.split_once("merged ").unwrap().1;
    assert_eq!(story, "claimed failed claimed failed claimed failed claimed dead moved");
}

pub(crate) async fn a_failure_for_good_is_dead_at_once(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    kill(store, &id, "ann", 1).await;
    let claim = store.claims(&id).await.unwrap().remove(0);
    assert_eq!(claim.claiming.state, ClaimStateData::Deadletter { reason: "hopeless".to_owned() });
    assert_eq!((claim.claiming.attempts, place(store, &id).await), (1, MailLocation::Deadletter));
}

pub(crate) async fn a_renewed_lease_runs_longer(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    claim(store, &id, "ann", 0).await.unwrap();
    let renewed = settle(store, &id, "ann", ClaimUpdate::Renew(term(100)), 50).await.unwrap();
    let ClaimStateData::Claimed(lease) = &renewed.claiming.state else { panic!() };
    assert_eq!((lease.until, renewed.claiming.attempts, renewed.claiming.epoch), (at(150), 1, 1));
    assert!(matches!(claim(store, &id, "bob", 149).await, Err(StoreError::LeaseLost(_))));
    let refused = settle(store, &id, "bob", ClaimUpdate::Renew(term(100)), 60).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost(LeaseLost::Held(_)))), "{refused:?}");
    assert_eq!(store.expire_claims(RetryPolicy::CLAIM, 10, at(149)).await.unwrap(), 0);
    // Nobody has taken it yet: whoever is late but alone may go on.
    settle(store, &id, "ann", ClaimUpdate::Renew(term(1)), 151).await.unwrap();
    claim(store, &id, "bob", 152).await.unwrap();
}

pub(crate) async fn saying_again_that_it_is_done_changes_nothing(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    let taken = claim(store, &id, "ann", 0).await.unwrap();
    let epoch = in_epoch(taken.claiming.epoch);
    let complete = |guard: LeaseProof| {
        store.update_claim(&id, &taken.workspace, guard, ClaimUpdate::Complete, at(1))
    };
    let first = complete(epoch.clone()).await.unwrap();
    let before = events(store).await;
    assert_eq!(complete(epoch).await.unwrap(), first);
    assert_eq!(events(store).await, before);
    assert!(is_wrong(&complete(by("ann")).await, "COMPLETED"), "without an epoch nobody knows");
}

pub(crate) async fn a_file_rests_when_nobody_is_at_it_any_more(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    let there = async || place(store, &id).await;
    claim(store, &id, "alpha/ann", 0).await.unwrap();
    claim(store, &id, "beta/bob", 0).await.unwrap();
    claim(store, &id, "gamma/cat", 0).await.unwrap();
    done(store, &id, "alpha/ann", 1).await.unwrap();
    assert_eq!(there().await, MailLocation::Inbound, "beta and gamma are at it");
    fail(store, &id, "beta/bob", 2).await.unwrap();
    done(store, &id, "gamma/cat", 3).await.unwrap();
    assert_eq!(there().await, MailLocation::Inbound, "beta is to try again");
    claim(store, &id, "beta/bob", 4).await.unwrap();
    done(store, &id, "beta/bob", 5).await.unwrap();
    assert_eq!(there().await, MailLocation::Archive);

    // Who comes late still gets it, and the file stays where it is meanwhile.
    claim(store, &id, "late/dan", 1_000).await.unwrap();
    assert_eq!(there().await, MailLocation::Archive);
    fail(store, &id, "late/dan", 1_001).await.unwrap();
    claim(store, &id, "late/dan", 1_002).await.unwrap();
    done(store, &id, "late/dan", 1_003).await.unwrap();
    assert_eq!(there().await, MailLocation::Archive);

    kill(store, &id, "later/eve", 2_000).await;
    assert_eq!(there().await, MailLocation::Deadletter, "a person decides");
    claim(store, &id, "last/fay", 3_000).await.unwrap();
    done(store, &id, "last/fay", 3_001).await.unwrap();
    assert_eq!(there().await, MailLocation::Deadletter);
    let moves = events(store).await.matches("moved").count();
    assert_eq!(moves, 2);
}

pub(crate) async fn a_dead_letter_says_who_gave_it_up_and_why(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    let filing = async || store.list_file_changes(0, 10).await.unwrap().remove(0);
    let new = filing().await;
    assert_eq!((new.place, new.reasons.len()), (MailLocation::Inbound, 0));
    kill(store, &id, "beta/bob", 0).await;
    let dead = filing().await;
    assert!(dead.change > new.change);
    assert_eq!(dead.place, MailLocation::Deadletter);
    assert_eq!(dead.reasons, [(workspace("beta"), "hopeless".to_owned())]);
    claim(store, &id, "alpha/ann", 1).await.unwrap();
    settle(store, &id, "alpha/ann", failure("me too", false), 2).await.unwrap();
    let both = filing().await.reasons;
    assert_eq!(both[0], (workspace("alpha"), "me too".to_owned()));
    assert_eq!(both.len(), 2);
}

pub(crate) async fn a_dead_claim_is_revived_by_hand(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    let alpha = workspace("alpha");
    let missing = store.retry_claim(&id, &alpha, at(0)).await;
    assert!(matches!(missing, Err(StoreError::Missing { .. })), "{missing:?}");
    kill(store, &id, "ann", 0).await;
    let revived = store.retry_claim(&id, &alpha, at(5)).await.unwrap();
    assert_eq!(revived.claiming.state, ClaimStateData::New { due: at(5) });
    assert_eq!((revived.claiming.attempts, place(store, &id).await), (0, MailLocation::Inbound));
    let again = store.retry_claim(&id, &alpha, at(5)).await;
    assert!(matches!(again, Err(StoreError::InvalidTransition(_))), "{again:?}");

    // It is to be done again, so what others do does not put it away.
    claim(store, &id, "beta/bob", 6).await.unwrap();
    done(store, &id, "beta/bob", 7).await.unwrap();
    assert_eq!(place(store, &id).await, MailLocation::Inbound);
    for attempt in 1..=4 {
        let taken = claim(store, &id, "ann", 100 * attempt).await.unwrap();
        assert_eq!(i64::from(taken.claiming.attempts), attempt, "it has all its tries");
        assert!(taken.claiming.epoch > 1, "an old epoch stays old");
        fail(store, &id, "ann", 100 * attempt).await.unwrap();
    }
    assert_eq!(place(store, &id).await, MailLocation::Deadletter);
}

pub(crate) async fn a_dead_claim_is_laid_to_rest_by_hand(home: &dyn Home) {
    let store = &*home.open().await;
    let ids = deliver(store, &["1", "2", "3"], 0).await;
    for (now, id) in (0..).zip(&ids) {
        kill(store, id, "ann", now).await;
    }
    let dead = |limit| async move {
        let dead = store.dead_claims(limit).await.unwrap();
        dead.into_iter().map(|claim| claim.mail).collect::<Vec<_>>()
    };
    assert_eq!((dead(2).await, dead(10).await), (ids[..2].to_vec(), ids.clone()));
    let rested = store.drop_claim(&ids[1], &workspace("alpha"), at(5)).await.unwrap();
    assert_eq!(
        (state(&rested), place(store, &ids[1]).await),
        (ClaimState::Completed, MailLocation::Archive)
    );
    assert_eq!(dead(10).await, [ids[0].clone(), ids[2].clone()]);
    let again = store.drop_claim(&ids[1], &workspace("alpha"), at(5)).await;
    assert!(is_wrong(&again, "COMPLETED"), "{again:?}");
    let missing = store.drop_claim(&ids[0], &workspace("beta"), at(5)).await;
    assert!(matches!(missing, Err(StoreError::Missing { .. })), "{missing:?}");
}

/// A Mail that kills its workers ends in the dead letters too.
pub(crate) async fn the_sweeper_takes_back_what_was_let_go(home: &dyn Home) {
    let store = &*home.open().await;
    let ids = deliver(store, &["1", "2", "3"], 0).await;
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
            assert_eq!((state(&claim), i64::from(claim.claiming.attempts)), (want, round));
        }
    }
    let dead = store.list_file_changes(0, 10).await.unwrap();
    assert!(dead.iter().all(|filing| filing.place == MailLocation::Deadletter));
    let (_, why) = &dead[0].reasons[0];
    assert!(why.contains("ann"), "{why}");
    let story = events(store).await;
    assert_eq!((story.matches("lease_ended").count(), story.matches("dead").count()), (9, 3));
}

/// The one that comes before the sweeper does not get more tries than the others.
pub(crate) async fn an_ended_last_lease_is_not_claimed_once_more(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    for round in 1..=4 {
        claim(store, &id, "ann", round * 1_000).await.unwrap();
    }
    let refused = claim(store, &id, "ann", 5_000).await;
    assert!(is_wrong(&refused, "DEADLETTER"), "{refused:?}");
    assert_eq!(store.expire_claims(RetryPolicy::CLAIM, 10, at(5_000)).await.unwrap(), 1);
    assert_eq!(place(store, &id).await, MailLocation::Deadletter);
}

pub(crate) async fn open_claims_are_told_oldest_first(home: &dyn Home) {
    let store = home.open().await;
    let ids = deliver(&*store, &["1", "2", "3", "4", "5"], 0).await;
    for id in [&ids[3], &ids[0], &ids[1], &ids[2]] {
        claim(&*store, id, "ann", 1).await.unwrap();
    }
    done(&*store, &ids[0], "ann", 2).await.unwrap();
    fail(&*store, &ids[1], "ann", 2).await.unwrap();
    drop(store);
    let store = home.open().await;
    let open: Vec<_> =
        store.open_claims(10).await.unwrap().into_iter().map(|claim| claim.mail).collect();
    assert_eq!(open, [ids[3].clone(), ids[1].clone(), ids[2].clone()]);
    assert_eq!(store.open_claims(1).await.unwrap().len(), 1);
}

pub(crate) async fn the_oldest_mail_that_nobody_claimed_is_known(home: &dyn Home) {
    let store = &*home.open().await;
    let oldest = async || store.counts().await.unwrap().oldest_unclaimed;
    assert_eq!(oldest().await, None);
    let first = deliver(store, &["1"], 10).await.remove(0);
    let second = deliver(store, &["2"], 20).await.remove(0);
    assert_eq!(oldest().await, Some(at(10)));
    claim(store, &first, "ann", 30).await.unwrap();
    assert_eq!(oldest().await, Some(at(20)));
    claim(store, &second, "ann", 30).await.unwrap();
    fail(store, &second, "ann", 31).await.unwrap();
    assert_eq!(oldest().await, None);
}

pub(crate) async fn of_eight_agents_one_gets_the_mail(home: &dyn Home) {
    let store = &*home.open().await;
    let id = one(store).await;
    let agents: Vec<_> = (0..8).map(|n| format!("agent-{n}")).collect();
    let answers = join_all(agents.iter().map(|agent| claim(store, &id, agent, 1))).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    let ClaimStateData::Claimed(lease) = &won[0].as_ref().unwrap().claiming.state else { panic!() };
    for answer in lost {
        let Err(StoreError::LeaseLost(LeaseLost::Held(held))) = answer else { panic!() };
        assert_eq!(held, *lease, "who has it is told to all");
    }
}

pub(crate) async fn eight_workers_complete_each_mail_once(home: &dyn Home) {
    let store = &*home.open().await;
    let texts: Vec<_> = (0..60).map(|n| n.to_string()).collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    let ids = deliver(store, &texts, 0).await;
    let worker = async |n: usize| {
        let (agent, mut completed) = (format!("agent-{n}"), Vec::new());
        // Each starts somewhere else, and tries them all.
        for id in ids.iter().cycle().skip(n * 7).take(ids.len()) {
            let Ok(taken) = claim(store, id, &agent, 1).await else { continue };
            let guard = in_epoch(taken.claiming.epoch);
            let step = ClaimUpdate::Complete;
            store.update_claim(id, &taken.workspace, guard, step, at(2)).await.unwrap();
            completed.push(id.clone());
        }
        completed
    };
    let mut completed: Vec<_> = join_all((0..8).map(worker)).await.concat();
    completed.sort();
    let mut want = ids.clone();
    want.sort();
    assert_eq!(completed, want);
    assert!(mails(store).await.iter().all(|row| row.place == MailLocation::Archive));
    assert_eq!(events(store).await.matches("completed").count(), 60);
}
