//! Duties: work that exactly one of the couriers of a shared store does.
//!
//! ```text
//!           acquire              20 s without a renewal
//!   FREE ────────────▶ HELD ──────────────────────────▶ EXPIRED
//!     ▲                │  ▲ renew, every 5 s              │
//!     └──── release ───┘  └──────────── acquire ──────────┘
//! ```
//!
//! Every acquisition increases the **epoch** of the duty, and transactions of a duty show their
//! epoch: a courier that was stopped for a while cannot write for a duty that another courier has
//! acquired since. The candidates of a duty are the live couriers that can do the work. The first
//! by rendezvous hash acquires it, so that couriers agree without asking each other, and only the
//! duties of a courier that starts or ends move.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::courier::{CourierId, CourierRun};
use crate::did::TunnelId;
use crate::rendezvous;
use crate::time::Timestamp;

/// How long a duty is held without a renewal. A courier that was not seen for this time is dead.
pub const DUTY_LEASE: Duration = Duration::from_secs(20);

/// How often a courier renews its duties, and reports that it lives.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// How long before the end of a lease that was not renewed its holder stops working.
pub const STOP_MARGIN: Duration = Duration::from_secs(3);

/// The name of a duty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DutyName {
    /// Retention, and the leases of dead couriers.
    Leader,
    /// Runs letters through their chains.
    Dispatcher,
    /// Listens, sends and merges for one tunnel.
    Tunnel(TunnelId),
}

/// A duty as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duty {
    pub name: DutyName,
    /// `None` when it was released.
    pub holder: Option<CourierRun>,
    /// Number of acquisitions so far.
    pub epoch: i64,
    /// When the lease expires, unless it is renewed.
    pub until: Timestamp,
}

/// What the holder of a duty shows in its transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DutyProof {
    pub name: DutyName,
    pub epoch: i64,
}

/// A courier that uses the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredCourier {
    pub run: CourierRun,
    /// The tunnels in its configuration that are enabled.
    pub tunnels: BTreeSet<TunnelId>,
    /// When it last reported that it lives. `None` after a clean end.
    pub seen_at: Option<Timestamp>,
}

/// The state of a duty, from the view of one courier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DutyState {
    Free,
    /// Held by this run of this courier.
    Own,
    /// Held by another courier.
    Other,
    /// Not renewed in time, or held by an earlier run of this courier, which has ended.
    Expired,
}

/// The place of a courier among the live couriers that can do the work of a duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidacy {
    /// The first by rendezvous hash.
    First,
    /// Another courier comes first.
    Later,
    /// It cannot do the work.
    None,
}

/// What a courier does about a duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DutyStep {
    Acquire,
    Renew,
    /// Stop the work, and release the duty after that. It is not renewed meanwhile.
    Release,
    /// Leave it to another courier.
    Leave,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duty {0:?}; expected leader, dispatcher or tunnel: and the id of a tunnel")]
pub struct InvalidDutyName(String);

impl DutyState {
    /// Decides what a courier with this candidacy does.
    pub const fn step(self, candidacy: Candidacy) -> DutyStep {
        match (self, candidacy) {
            (Self::Free | Self::Expired, Candidacy::First) => DutyStep::Acquire,
            (Self::Own, Candidacy::First) => DutyStep::Renew,
            (Self::Own, Candidacy::Later | Candidacy::None) => DutyStep::Release,
            (Self::Free | Self::Expired, Candidacy::Later | Candidacy::None) | (Self::Other, _) => {
                DutyStep::Leave
            }
        }
    }
}

impl Duty {
    /// A duty that no courier has held yet.
    pub const fn new(name: DutyName) -> Self {
        Self { name, holder: None, epoch: 0, until: Timestamp::from_ms(0) }
    }

    /// The state for the run `me`.
    pub fn state(&self, me: CourierRun, now: Timestamp) -> DutyState {
        match self.holder {
            None => DutyState::Free,
            Some(_) if self.until <= now => DutyState::Expired,
            Some(holder) if holder == me => DutyState::Own,
            // The lock of the home directory proves that the earlier run has ended.
            Some(holder) if holder.id == me.id => DutyState::Expired,
            Some(_) => DutyState::Other,
        }
    }

    /// The duty after its acquisition.
    pub fn acquire(self, me: CourierRun, now: Timestamp) -> Self {
        Self { holder: Some(me), epoch: self.epoch + 1, until: now + DUTY_LEASE, ..self }
    }

    /// The duty after a renewal.
    pub fn renew(self, now: Timestamp) -> Self {
        Self { until: now + DUTY_LEASE, ..self }
    }

    /// The duty after its release. The epoch stays, so that the next holder has a higher one.
    pub fn release(self) -> Self {
        Self { holder: None, until: Timestamp::from_ms(0), ..self }
    }

    pub fn proof(&self) -> DutyProof {
        DutyProof { name: self.name.clone(), epoch: self.epoch }
    }
}

impl RegisteredCourier {
    /// Whether the courier runs, as far as the store knows. A report from the future was written
    /// with a wrong clock and proves nothing.
    pub fn is_live(&self, now: Timestamp) -> bool {
        let Some(seen) = self.seen_at else { return false };
        seen.since(now).max(now.since(seen)) < DUTY_LEASE
    }

    /// Whether the courier has not reported its end, and yet counts as dead at `now`. Either it has
    /// died, or the clock that shows `now` was set.
    pub fn is_missing(&self, now: Timestamp) -> bool {
        self.seen_at.is_some() && !self.is_live(now)
    }

    fn can_do(&self, name: &DutyName) -> bool {
        match name {
            DutyName::Leader | DutyName::Dispatcher => true,
            DutyName::Tunnel(tunnel) => self.tunnels.contains(tunnel),
        }
    }
}

/// The newest time that a courier beside `me` has reported between two reads of all couriers. Such a
/// courier runs, whatever other clocks show.
pub fn newest_report(
    me: CourierId,
    before: &[RegisteredCourier],
    after: &[RegisteredCourier],
) -> Option<Timestamp> {
    let is_new = |it: &&RegisteredCourier| it.run.id != me && !before.contains(it);
    after.iter().filter(is_new).filter_map(|it| it.seen_at).max()
}

/// The place of `me` among the live couriers that can do the work of a duty.
pub fn candidacy(
    name: &DutyName,
    me: CourierId,
    couriers: &[RegisteredCourier],
    now: Timestamp,
) -> Candidacy {
    let able = couriers.iter().filter(|courier| courier.can_do(name));
    let able = able.filter(|courier| courier.run.id == me || courier.is_live(now));
    let able: Vec<_> = able.map(|courier| courier.run.id).collect();
    if !able.contains(&me) {
        return Candidacy::None;
    }
    match rendezvous::choose(&name.to_string(), able.iter().map(CourierId::as_bytes)) {
        Some(first) if first == me.as_bytes() => Candidacy::First,
        _ => Candidacy::Later,
    }
}

/// Plans what the run `me`, which is one of `couriers`, does about its duties: those that it can
/// do, and those that it holds. Returns each with its row and step.
pub fn plan_duties(
    me: CourierRun,
    couriers: &[RegisteredCourier],
    duties: &[Duty],
    now: Timestamp,
) -> Vec<(Duty, DutyStep)> {
    let mut names = BTreeSet::from([DutyName::Leader, DutyName::Dispatcher]);
    let own = couriers.iter().filter(|courier| courier.run.id == me.id);
    names.extend(own.flat_map(|courier| courier.tunnels.iter().cloned().map(DutyName::Tunnel)));
    names.extend(duties.iter().filter(|it| it.holder == Some(me)).map(|it| it.name.clone()));
    let plan = |name: DutyName| {
        let stored = duties.iter().find(|duty| duty.name == name).cloned();
        let candidacy = candidacy(&name, me.id, couriers, now);
        let duty = stored.unwrap_or_else(|| Duty::new(name));
        let step = duty.state(me, now).step(candidacy);
        (duty, step)
    };
    names.into_iter().map(plan).collect()
}

impl fmt::Display for DutyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader => f.write_str("leader"),
            Self::Dispatcher => f.write_str("dispatcher"),
            Self::Tunnel(id) => write!(f, "tunnel:{id}"),
        }
    }
}

impl FromStr for DutyName {
    type Err = InvalidDutyName;

    fn from_str(text: &str) -> Result<Self, InvalidDutyName> {
        match text {
            "leader" => Ok(Self::Leader),
            "dispatcher" => Ok(Self::Dispatcher),
            _ => match text.strip_prefix("tunnel:") {
                Some(id) => {
                    id.parse().map(Self::Tunnel).map_err(|_| InvalidDutyName(text.to_owned()))
                }
                None => Err(InvalidDutyName(text.to_owned())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(1_770_000_000_000 + secs * 1_000)
    }

    fn run(id: u8, boot: i64) -> CourierRun {
        CourierRun { id: CourierId::from_random([id; 16]), boot }
    }

    fn courier(id: u8, tunnels: &[&str], seen: Option<i64>) -> RegisteredCourier {
        let tunnels = tunnels.iter().map(|id| id.parse().unwrap()).collect();
        RegisteredCourier { run: run(id, 1), tunnels, seen_at: seen.map(at) }
    }

    fn tunnel(id: &str) -> DutyName {
        DutyName::Tunnel(id.parse().unwrap())
    }

    #[test]
    fn every_step_from_every_state() {
        use {Candidacy as C, DutyState as S, DutyStep as T};
        for (state, first, later, none) in [
            (S::Free, T::Acquire, T::Leave, T::Leave),
            (S::Own, T::Renew, T::Release, T::Release),
            (S::Other, T::Leave, T::Leave, T::Leave),
            (S::Expired, T::Acquire, T::Leave, T::Leave),
        ] {
            let steps = [C::First, C::Later, C::None].map(|candidacy| state.step(candidacy));
            assert_eq!(steps, [first, later, none], "{state:?}");
        }
    }

    #[test]
    fn state_depends_on_holder_boot_and_time() {
        let me = run(1, 2);
        let held = |holder, until| Duty { holder, until: at(until), ..Duty::new(DutyName::Leader) };
        for (duty, state) in [
            (Duty::new(DutyName::Leader), DutyState::Free),
            (held(Some(me), 1), DutyState::Own),
            (held(Some(me), 0), DutyState::Expired),
            (held(Some(run(1, 1)), 9), DutyState::Expired),
            (held(Some(run(2, 2)), 1), DutyState::Other),
            (held(Some(run(2, 2)), 0), DutyState::Expired),
        ] {
            assert_eq!(duty.state(me, at(0)), state, "{duty:?}");
        }
    }

    #[test]
    fn epoch_increases_with_every_acquisition_and_stays_over_a_release() {
        let (a, b) = (run(1, 1), run(2, 1));
        let duty = Duty::new(DutyName::Leader).acquire(a, at(0)).renew(at(5));
        assert_eq!((duty.epoch, duty.until), (1, at(25)));
        let duty = duty.release();
        assert_eq!((duty.epoch, duty.state(b, at(5))), (1, DutyState::Free));
        assert_eq!(duty.acquire(b, at(6)).proof().epoch, 2);
    }

    #[test]
    fn courier_lives_until_it_was_not_seen_for_20_s_or_has_ended() {
        for (seen, live) in [
            (Some(0), true),
            (Some(-19), true),
            (Some(-20), false),
            (Some(20), false),
            (None, false),
        ] {
            assert_eq!(courier(1, &[], seen).is_live(at(0)), live, "{seen:?}");
        }
    }

    #[test]
    fn courier_is_missing_when_it_has_neither_reported_nor_ended() {
        for (seen, missing) in
            [(Some(0), false), (Some(-20), true), (Some(60), true), (None, false)]
        {
            assert_eq!(courier(1, &[], seen).is_missing(at(0)), missing, "{seen:?}");
        }
    }

    #[test]
    fn report_between_two_reads_shows_the_time_of_running_couriers() {
        let me = run(1, 1).id;
        let before = [1, 2, 3].map(|id| courier(id, &[], Some(-60)));
        let changed = |seen: [Option<i64>; 3]| {
            let after = [(1, seen[0]), (2, seen[1]), (3, seen[2])];
            newest_report(me, &before, &after.map(|(id, seen)| courier(id, &[], seen)))
        };
        assert_eq!(changed([Some(-60); 3]), None);
        assert_eq!(changed([Some(0), Some(-60), Some(-60)]), None, "its own earlier run");
        assert_eq!(changed([Some(-60), None, Some(-60)]), None, "one that has ended");
        assert_eq!(changed([Some(-60), Some(-55), Some(-54)]), Some(at(-54)));
    }

    #[test]
    fn exactly_one_live_courier_that_has_the_tunnel_comes_first() {
        let couriers = [
            courier(1, &["a", "b", "c", "d", "e", "f"], Some(0)),
            courier(2, &["a", "b", "c", "d", "e", "f"], Some(0)),
            courier(3, &["g"], Some(0)),
            courier(4, &["a", "h"], Some(-60)),
        ];
        let first = |name: &DutyName| -> Vec<u8> {
            let is_first = |id: &u8| {
                let me = CourierId::from_random([*id; 16]);
                candidacy(name, me, &couriers, at(0)) == Candidacy::First
            };
            (1..=3).filter(is_first).collect()
        };
        let mut shares = [0; 4];
        for id in ["a", "b", "c", "d", "e", "f"] {
            let found = first(&tunnel(id));
            assert_eq!(found.len(), 1, "{id}: {found:?}");
            assert!(found[0] < 3, "courier 3 does not configure it");
            shares[usize::from(found[0])] += 1;
        }
        assert!(shares[1] > 0 && shares[2] > 0, "{shares:?}");
        assert_eq!(first(&tunnel("g")), [3]);
        assert_eq!(first(&tunnel("h")), Vec::<u8>::new(), "its courier is dead");
        assert_eq!((first(&DutyName::Leader).len(), first(&DutyName::Dispatcher).len()), (1, 1));
    }

    #[test]
    fn only_duties_of_a_courier_that_ends_move() {
        let tunnels: Vec<_> = (0..40).map(|n| format!("t{n}")).collect();
        let tunnels: Vec<_> = tunnels.iter().map(String::as_str).collect();
        let mut couriers: Vec<_> = (1..=3).map(|id| courier(id, &tunnels, Some(0))).collect();
        let holders = |couriers: &[RegisteredCourier]| -> Vec<CourierId> {
            let first = |id: &&str| {
                let is_first = |it: &&RegisteredCourier| {
                    let place = candidacy(&tunnel(id), it.run.id, couriers, at(0));
                    it.is_live(at(0)) && place == Candidacy::First
                };
                couriers.iter().find(is_first).unwrap().run.id
            };
            tunnels.iter().map(first).collect()
        };
        let before = holders(&couriers);
        couriers[2].seen_at = None;
        let gone = couriers[2].run.id;
        for (old, new) in before.into_iter().zip(holders(&couriers)) {
            assert!(old == gone || old == new);
            assert_ne!(new, gone);
        }
    }

    #[test]
    fn plan_covers_own_tunnels_and_duties_that_are_no_longer_configured() {
        let me = run(1, 1);
        let couriers = [courier(1, &["a"], Some(0))];
        let left = Duty::new(tunnel("old")).acquire(me, at(0));
        let others = Duty::new(DutyName::Leader).acquire(run(2, 1), at(0));
        let plan = plan_duties(me, &couriers, &[left, others], at(1));
        let plan: Vec<_> = plan.into_iter().map(|(it, step)| (it.name.to_string(), step)).collect();
        let expected = [
            ("leader", DutyStep::Leave),
            ("dispatcher", DutyStep::Acquire),
            ("tunnel:a", DutyStep::Acquire),
            ("tunnel:old", DutyStep::Release),
        ];
        assert_eq!(plan, expected.map(|(name, step)| (name.to_owned(), step)));
    }

    #[test]
    fn names_parse_to_themselves() {
        for text in ["leader", "dispatcher", "tunnel:lark-main"] {
            assert_eq!(text.parse::<DutyName>().unwrap().to_string(), text);
        }
        for text in ["", "tunnel:", "tunnel:A", "other"] {
            assert!(text.parse::<DutyName>().is_err(), "{text}");
        }
    }
}
