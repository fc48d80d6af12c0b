//! Random sequences of storing, merging and claiming, compared with a model in memory.
//!
//! Like [`super::store_model`]. After each call the test compares the result, all Mails
//! with location and claims, the order of file changes, and the open windows and claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use monoco_core::claim::{
    Claim, ClaimStateData, ClaimStatus, MailLocation, Workspace, location_after_claims,
};
use monoco_core::mail::MailId;
use monoco_core::merge::{Debounce, MergeWindow};
use monoco_core::record::{InvalidTransition, TransitionError};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::inbound::{inbound_message, with_message};
use super::mails::list_mails;
use super::*;
use crate::{ClaimUpdate, MergeContext, StoreInboundRequest, StoreInboundResult};

const MAX_CALLS: usize = 80;

const TUNNELS: [(&str, StrangerPolicy); 2] =
    [("lark", StrangerPolicy::Accept), ("wary", StrangerPolicy::Hold)];
const ROOMS: [&str; 2] = ["room", "hall"];
const AUTHORS: [&str; 3] = ["ann", "bob", "eve"];
const WORKSPACES: [&str; 2] = ["alpha", "beta"];

#[derive(Clone, Debug)]
enum MailCall {
    StoreInbound { tunnel: usize, id: u8, room: usize, author: usize },
    Merge { all: bool, limit: usize },
    AcceptAuthor { author: usize },
    Claim { mail: usize, workspace: usize, secs: i64 },
    UpdateClaim { mail: usize, workspace: usize, step: ClaimUpdate, epoch: Option<bool> },
    RetryClaim { mail: usize, workspace: usize },
    DropClaim { mail: usize, workspace: usize },
    ExpireClaims { limit: usize },
    AdvanceClock { secs: i64 },
    Reopen,
}

fn any_call() -> impl Strategy<Value = MailCall> {
    let fail =
        |retryable| ClaimUpdate::Fail { reason: "no".into(), retryable, retry: RetryPolicy::CLAIM };
    let step = prop_oneof![
        4 => Just(ClaimUpdate::Complete),
        1 => (1..5_i64).prop_map(|secs| ClaimUpdate::Renew(lease_for(secs))),
        4 => Just(fail(true)),
        1 => Just(fail(false)),
    ];
    // The current epoch, the previous epoch, or the holder only.
    let epoch = prop_oneof![3 => Just(Some(true)), 1 => Just(Some(false)), 2 => Just(None)];
    let mail = || 0..99_usize;
    let workspace = || 0..WORKSPACES.len();
    prop_oneof![
        10 => (0..TUNNELS.len(), 0..12_u8, 0..ROOMS.len(), 0..AUTHORS.len())
            .prop_map(|(tunnel, id, room, author)| MailCall::StoreInbound { tunnel, id, room, author }),
        6 => (prop::bool::weighted(0.1), 1..4_usize)
            .prop_map(|(all, limit)| MailCall::Merge { all, limit }),
        1 => (0..AUTHORS.len()).prop_map(|author| MailCall::AcceptAuthor { author }),
        12 => (mail(), workspace(), 1..5_i64)
            .prop_map(|(mail, workspace, secs)| MailCall::Claim { mail, workspace, secs }),
        10 => (mail(), workspace(), step, epoch)
            .prop_map(|(mail, workspace, step, epoch)| MailCall::UpdateClaim { mail, workspace, step, epoch }),
        3 => (mail(), workspace()).prop_map(|(mail, workspace)| MailCall::RetryClaim { mail, workspace }),
        2 => (mail(), workspace()).prop_map(|(mail, workspace)| MailCall::DropClaim { mail, workspace }),
        3 => (1..4_usize).prop_map(|limit| MailCall::ExpireClaims { limit }),
        8 => (0..7_i64).prop_map(|secs| MailCall::AdvanceClock { secs }),
        1 => Just(MailCall::Reopen),
    ]
}

pub(crate) fn histories_match_the_model<H: TestHome>(home: impl Fn() -> H) {
    check_histories(home, any_call(), MAX_CALLS, replay);
}

async fn replay(home: &dyn TestHome, history: &[MailCall]) -> Result<(), TestCaseError> {
    let mut model = MailModel::default();
    let mut store = home.open().await;
    for (id, strangers) in TUNNELS {
        put_tunnel(&*store, id, strangers, false).await;
    }
    for (number, call) in history.iter().enumerate() {
        if matches!(call, MailCall::Reopen) {
            drop(store);
            store = home.open().await;
        }
        let answer = call_store(&*store, &model, call).await;
        prop_assert_eq!(answer, model.answer(call), "call {}: {:?}", number, call);
        prop_assert_eq!(contents(&*store).await, model.contents(), "call {}: {:?}", number, call);
    }
    drop(store);
    prop_assert_eq!(contents(&*home.open().await).await, model.contents(), "after closing");
    Ok(())
}

fn message(tunnel: usize, id: u8, room: usize, author: usize) -> StoreInboundRequest {
    let mut request = inbound_message(&id.to_string(), AUTHORS[author], &id.to_string());
    request.tunnel = tunnel_id(TUNNELS[tunnel].0);
    with_message(request, |message| message.session.id = ROOMS[room].to_owned())
}

fn workspace(number: usize) -> Workspace {
    Workspace::new(WORKSPACES[number]).unwrap()
}

/// Makes the call on the store and describes the result.
async fn call_store(store: &dyn Store, model: &MailModel, call: &MailCall) -> String {
    let now = at(model.now);
    match call {
        MailCall::StoreInbound { tunnel, id, room, author } => {
            let answers =
                store.store_inbound(vec![message(*tunnel, *id, *room, *author)], now).await;
            format!("{:?}", answers[0].as_ref().unwrap())
        }
        MailCall::Merge { all, limit } => {
            let merging = MergeContext { owner: did("me"), tunnels: None, all: *all };
            format!("{}", store.merge(Arc::new(merging), *limit, now).await.unwrap())
        }
        MailCall::AcceptAuthor { author } => {
            for (tunnel, _) in TUNNELS {
                add_contact(store, &endpoint(AUTHORS[*author], tunnel), ContactLevel::Friend).await;
            }
            String::new()
        }
        MailCall::Claim { mail, workspace: number, secs } => {
            let Some(mail) = model.mail(*mail) else { return String::new() };
            let (id, workspace) = (&model.mails[mail].id, workspace(*number));
            let term = lease_for(*secs);
            describe_claim(
                store.claim(id, &workspace, holder("agent"), term, RetryPolicy::CLAIM, now).await,
            )
        }
        MailCall::UpdateClaim { mail, workspace: number, step, epoch } => {
            let Some(mail) = model.mail(*mail) else { return String::new() };
            let (id, proof) = (&model.mails[mail].id, model.lease_proof(mail, *number, *epoch));
            describe_claim(
                store.update_claim(id, &workspace(*number), proof, step.clone(), now).await,
            )
        }
        MailCall::RetryClaim { mail, workspace: number } => {
            let Some(mail) = model.mail(*mail) else { return String::new() };
            describe_claim(store.retry_claim(&model.mails[mail].id, &workspace(*number), now).await)
        }
        MailCall::DropClaim { mail, workspace: number } => {
            let Some(mail) = model.mail(*mail) else { return String::new() };
            describe_claim(store.drop_claim(&model.mails[mail].id, &workspace(*number), now).await)
        }
        MailCall::ExpireClaims { limit } => {
            format!("{}", store.expire_claims(RetryPolicy::CLAIM, *limit, now).await.unwrap())
        }
        MailCall::AdvanceClock { .. } | MailCall::Reopen => String::new(),
    }
}

/// The status of a claim, or the kind of an error.
fn describe_claim(answer: Result<Claim, StoreError>) -> String {
    match answer {
        Ok(claim) => describe_status(&claim.claiming, claim.revision),
        Err(StoreError::InvalidTransition(_)) => "wrong state".to_owned(),
        Err(StoreError::LeaseLost(_)) => "lease lost".to_owned(),
        Err(StoreError::NotDue(at)) => format!("not before {}", at.ms()),
        Err(StoreError::Missing { .. }) => "missing".to_owned(),
        Err(other) => panic!("{other:?}"),
    }
}

fn describe_status(claiming: &ClaimStatus, revision: i64) -> String {
    format!("{claiming:?} {revision}")
}

/// Visible Mails with claims, file changes in order, and open windows and claims.
async fn contents(store: &dyn Store) -> (Vec<String>, Vec<String>, String) {
    let mut shown = Vec::new();
    for row in list_mails(store).await {
        let claims = store.claims(&row.entry.id).await.unwrap();
        let claims: Vec<_> = claims
            .iter()
            .map(|c| {
                format!("{} {}", c.workspace.as_str(), describe_status(&c.claiming, c.revision))
            })
            .collect();
        shown.push(format!("{} {:?} {:?}", row.entry.id, row.location, claims));
    }
    let visible = store.list_index_entries(0, 1_000).await.unwrap();
    assert_eq!(visible.len(), shown.len());
    assert!(visible.iter().zip(&shown).all(|(v, s)| s.starts_with(&v.entry.id.to_string())));
    let changes = store.list_file_changes(0, 1_000).await.unwrap();
    let changes = changes.iter().map(|f| format!("{} {:?}", f.entry.id, f.location)).collect();
    let (unmerged, next) =
        (store.counts().await.unwrap().unmerged, store.next_merge().await.unwrap());
    let open: BTreeSet<_> =
        store.open_claims(1_000).await.unwrap().into_iter().map(claim_key).collect();
    let dead: BTreeSet<_> =
        store.dead_claims(1_000).await.unwrap().into_iter().map(claim_key).collect();
    (shown, changes, format!("{unmerged} {:?} {open:?} {dead:?}", next.map(Timestamp::ms)))
}

fn claim_key(claim: Claim) -> String {
    format!("{} {}", claim.mail, claim.workspace.as_str())
}

/// The state of a store, as far as [`MailCall`] can change it.
#[derive(Default)]
struct MailModel {
    now: i64,
    external_ids: BTreeSet<(usize, u8)>,
    friends: BTreeSet<usize>,
    windows: Vec<OpenWindow>,
    /// In the order of sequence numbers.
    mails: Vec<MailEntry>,
    changes: i64,
    claims: usize,
}

/// A merge window with the ids of its messages.
struct OpenWindow {
    tunnel: usize,
    room: usize,
    /// The author, when the tunnel holds messages of strangers.
    held: Option<usize>,
    window: MergeWindow,
    messages: Vec<u8>,
}

struct MailEntry {
    id: MailId,
    author: Option<usize>,
    place: MailLocation,
    change: i64,
    claims: BTreeMap<usize, ClaimEntry>,
}

struct ClaimEntry {
    claiming: ClaimStatus,
    revision: i64,
    /// Creation order among all claims.
    number: usize,
}

impl MailModel {
    fn answer(&mut self, call: &MailCall) -> String {
        let now = at(self.now);
        match call {
            MailCall::StoreInbound { tunnel, id, room, author } => {
                self.store_inbound(*tunnel, *id, *room, *author)
            }
            MailCall::Merge { all, limit } => format!("{}", self.merge(*all, *limit)),
            MailCall::AcceptAuthor { author } => {
                self.accept_author(*author);
                String::new()
            }
            MailCall::Claim { mail, workspace, secs } => {
                let Some(mail) = self.mail(*mail) else { return String::new() };
                if self.mails[mail].place == MailLocation::Held {
                    return "wrong state".to_owned();
                }
                let (claiming, _) = self.claim(mail, *workspace);
                let next =
                    claiming.claim(holder("agent"), now, lease_for(*secs), &RetryPolicy::CLAIM);
                self.put(mail, *workspace, next, false)
            }
            MailCall::UpdateClaim { mail, workspace, step, epoch } => {
                let Some(mail) = self.mail(*mail) else { return String::new() };
                let proof = self.lease_proof(mail, *workspace, *epoch);
                let (claiming, revision) = self.claim(mail, *workspace);
                let again = claiming.state == ClaimStateData::Completed
                    && *step == ClaimUpdate::Complete
                    && proof.epoch == Some(claiming.epoch);
                if again {
                    return describe_status(&claiming, revision);
                }
                if revision == 0 {
                    return "wrong state".to_owned();
                }
                let next = match step {
                    ClaimUpdate::Renew(term) => claiming.renew(&proof, now, *term),
                    ClaimUpdate::Complete => claiming.complete(&proof),
                    ClaimUpdate::Fail { reason, retryable, retry } => {
                        claiming.fail(&proof, reason.clone(), *retryable, now, retry)
                    }
                };
                self.put(mail, *workspace, next, true)
            }
            MailCall::RetryClaim { mail, workspace } => {
                let Some(mail) = self.mail(*mail) else { return String::new() };
                let (claiming, revision) = self.claim(mail, *workspace);
                if revision == 0 {
                    return "missing".to_owned();
                }
                let next = claiming.retry(now);
                if next.is_ok() {
                    self.move_to(mail, MailLocation::Inbound);
                }
                self.put(mail, *workspace, next.map_err(InvalidTransition::into), false)
            }
            MailCall::DropClaim { mail, workspace } => {
                let Some(mail) = self.mail(*mail) else { return String::new() };
                let (claiming, revision) = self.claim(mail, *workspace);
                if revision == 0 {
                    return "missing".to_owned();
                }
                self.put(
                    mail,
                    *workspace,
                    claiming.drop_claim().map_err(InvalidTransition::into),
                    true,
                )
            }
            MailCall::ExpireClaims { limit } => format!("{}", self.expire_claims(*limit)),
            MailCall::AdvanceClock { secs } => {
                self.now += secs;
                String::new()
            }
            MailCall::Reopen => String::new(),
        }
    }

    fn store_inbound(&mut self, tunnel: usize, id: u8, room: usize, author: usize) -> String {
        if !self.external_ids.insert((tunnel, id)) {
            return format!("{:?}", StoreInboundResult::Duplicate);
        }
        let stranger = TUNNELS[tunnel].1 == StrangerPolicy::Hold && !self.friends.contains(&author);
        let held = stranger.then_some(author);
        let now = at(self.now);
        let bytes = message(tunnel, id, room, author).message.json().len();
        let bytes = u32::try_from(bytes).unwrap();
        let open = self
            .windows
            .iter_mut()
            .rev()
            .find(|entry| (entry.tunnel, entry.room, entry.held) == (tunnel, room, held));
        match open.map(|entry| (entry.window.join(&Debounce::DEFAULT, now, bytes), entry)) {
            Some((Some(joined), entry)) => {
                entry.window = joined;
                entry.messages.push(id);
            }
            _ => {
                let window = MergeWindow::open(now, bytes);
                self.windows.push(OpenWindow { tunnel, room, held, window, messages: vec![id] });
            }
        }
        format!("{:?}", StoreInboundResult::Stored)
    }

    fn merge(&mut self, all: bool, limit: usize) -> usize {
        let now = at(self.now);
        let closes = |entry: &OpenWindow| entry.window.closes_at(&Debounce::DEFAULT);
        let mut due: Vec<_> =
            (0..self.windows.len()).filter(|n| all || closes(&self.windows[*n]) <= now).collect();
        due.sort_by_key(|n| closes(&self.windows[*n]));
        due.truncate(limit);
        for n in &due {
            let entry = &self.windows[*n];
            let held = entry.held.filter(|author| !self.friends.contains(author));
            let tunnel = tunnel_id(TUNNELS[entry.tunnel].0);
            self.changes += 1;
            self.mails.push(MailEntry {
                id: MailId::of("lark", &tunnel, &entry.messages[0].to_string()),
                author: held,
                place: if held.is_some() { MailLocation::Held } else { MailLocation::Inbound },
                change: self.changes,
                claims: BTreeMap::new(),
            });
        }
        let mut number = 0;
        self.windows.retain(|_| {
            number += 1;
            !due.contains(&(number - 1))
        });
        due.len()
    }

    /// Accepts an author. The held Mails of the author become visible after all others.
    fn accept_author(&mut self, author: usize) {
        self.friends.insert(author);
        let is_held =
            |mail: &MailEntry| mail.place == MailLocation::Held && mail.author == Some(author);
        let (released, others): (Vec<_>, Vec<_>) = self.mails.drain(..).partition(is_held);
        self.mails = others;
        for mail in released {
            self.mails.push(mail);
            self.move_to(self.mails.len() - 1, MailLocation::Inbound);
        }
    }

    /// Ends at most `limit` expired leases, the oldest first.
    fn expire_claims(&mut self, limit: usize) -> usize {
        let now = at(self.now);
        let mut ended = Vec::new();
        for (mail, MailEntry { claims, .. }) in self.mails.iter().enumerate() {
            for (workspace, claim) in claims {
                if let ClaimStateData::Claimed(lease) = &claim.claiming.state
                    && lease.has_expired(now)
                {
                    ended.push((lease.until, claim.number, mail, *workspace));
                }
            }
        }
        ended.sort();
        ended.truncate(limit);
        for (_, _, mail, workspace) in &ended {
            let (claiming, _) = self.claim(*mail, *workspace);
            let next = claiming.expire(now, &RetryPolicy::CLAIM).map_err(InvalidTransition::into);
            self.put(*mail, *workspace, next, true);
        }
        ended.len()
    }

    fn put(
        &mut self,
        mail: usize,
        workspace: usize,
        next: Result<ClaimStatus, TransitionError>,
        rests: bool,
    ) -> String {
        let (_, revision) = self.claim(mail, workspace);
        let next = match next {
            Ok(next) => next,
            Err(rejected) => return describe_claim(Err(rejected.into())),
        };
        let said = describe_status(&next, revision + 1);
        if revision == 0 {
            self.claims += 1;
        }
        let number =
            self.mails[mail].claims.get(&workspace).map_or(self.claims, |claim| claim.number);
        let claim = ClaimEntry { claiming: next, revision: revision + 1, number };
        self.mails[mail].claims.insert(workspace, claim);
        let claims = self.mails[mail].claims.values().map(|claim| &claim.claiming);
        let ended = |claiming: &ClaimStatus| {
            matches!(claiming.state, ClaimStateData::Completed | ClaimStateData::Deadletter { .. })
        };
        if rests
            && claims.clone().any(ended)
            && let Some(place) = location_after_claims(claims)
        {
            self.move_to(mail, place);
        }
        said
    }

    fn move_to(&mut self, mail: usize, place: MailLocation) {
        if self.mails[mail].place != place {
            self.changes += 1;
            self.mails[mail].place = place;
            self.mails[mail].change = self.changes;
        }
    }

    /// The claim of a workspace and its revision, which is 0 when there is no claim.
    fn claim(&self, mail: usize, workspace: usize) -> (ClaimStatus, i64) {
        match self.mails[mail].claims.get(&workspace) {
            Some(claim) => (claim.claiming.clone(), claim.revision),
            None => (ClaimStatus::start(at(self.now)), 0),
        }
    }

    fn mail(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.mails.len())
    }

    fn lease_proof(&self, mail: usize, workspace: usize, epoch: Option<bool>) -> LeaseProof {
        let current = self.claim(mail, workspace).0.epoch;
        match epoch {
            Some(true) => by_epoch(current),
            Some(false) => by_epoch(current.wrapping_sub(1)),
            None => by_holder("agent"),
        }
    }

    fn contents(&self) -> (Vec<String>, Vec<String>, String) {
        let visible = self.mails.iter().filter(|mail| mail.place != MailLocation::Held);
        let shown = visible.map(|mail| {
            let claims: Vec<_> = mail
                .claims
                .iter()
                .map(|(n, c)| {
                    format!("{} {}", WORKSPACES[*n], describe_status(&c.claiming, c.revision))
                })
                .collect();
            format!("{} {:?} {:?}", mail.id, mail.place, claims)
        });
        let mut changed: Vec<_> = self.mails.iter().collect();
        changed.sort_by_key(|mail| mail.change);
        let changes = changed.iter().map(|mail| format!("{} {:?}", mail.id, mail.place)).collect();
        let unmerged: usize = self.windows.iter().map(|entry| entry.messages.len()).sum();
        let closes =
            self.windows.iter().map(|entry| entry.window.closes_at(&Debounce::DEFAULT).ms());
        let next = closes.min();
        let claims = |wanted: fn(&ClaimStateData) -> bool| -> BTreeSet<String> {
            let of_mail = |mail: &MailEntry| {
                let found = mail.claims.iter().filter(|(_, c)| wanted(&c.claiming.state));
                found.map(|(n, _)| format!("{} {}", mail.id, WORKSPACES[*n])).collect::<Vec<_>>()
            };
            self.mails.iter().flat_map(of_mail).collect()
        };
        let open = claims(|state| {
            matches!(state, ClaimStateData::New { .. } | ClaimStateData::Claimed(_))
        });
        let dead = claims(|state| matches!(state, ClaimStateData::Deadletter { .. }));
        (shown.collect(), changes, format!("{unmerged} {next:?} {open:?} {dead:?}"))
    }
}
