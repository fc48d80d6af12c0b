//! Paces the sends of one tunnel, so that known limits are kept before the provider applies them.

use std::collections::HashMap;
use std::time::Duration;

use super::{Rate, ReservedUntil, SendLimits, reserve};
use crate::did::EndpointKind;
use crate::retry::{Jitter, RetryPolicy};
use crate::time::Timestamp;

/// How many addresses are remembered. Above this number the limits of new addresses are not kept
/// here, and the provider applies them.
const MAX_TARGETS: usize = 50_000;

/// Addresses with free slots are forgotten when there are at least this many.
const MIN_PRUNED: usize = 1_000;

/// The slots that the sends of one tunnel have used, and its pause. In memory: after a restart the
/// provider applies its limits once more.
#[derive(Debug, Default)]
pub struct SendPacer {
    /// The reservations of an address, or of the tunnel, one per limit.
    reserved: HashMap<PaceKey, Vec<ReservedUntil>>,
    /// The number of entries at which they are pruned.
    prune_at: usize,
    paused_until: Option<Timestamp>,
    /// Rate limits of the whole tunnel since the last accepted message.
    throttles: u32,
}

/// What a limit applies to: an address, or all addresses of the tunnel (`None`). The kinds of
/// addresses that a provider limits together share the slots.
type PaceKey = Option<(EndpointKind, String)>;

impl SendPacer {
    /// Returns when the address has a free slot, whatever the limits of the tunnel are.
    pub fn target_slot(
        &self,
        kind: EndpointKind,
        address: &str,
        limits: &SendLimits,
        now: Timestamp,
    ) -> Timestamp {
        self.slot(&Some((kind, address.to_owned())), &limits.per_target, now)
    }

    /// Returns when the tunnel has a free slot for addresses with these limits.
    pub fn tunnel_slot(&self, limits: &SendLimits, now: Timestamp) -> Timestamp {
        self.slot(&None, &limits.per_tunnel, now)
    }

    /// Reserves the next slot for a message or part to an address, and returns its time.
    pub fn reserve(
        &mut self,
        kind: EndpointKind,
        address: &str,
        limits: &SendLimits,
        now: Timestamp,
    ) -> Timestamp {
        let keys = [Some((kind, address.to_owned())), None];
        let rates = [&limits.per_target, &limits.per_tunnel];
        let slots = keys.iter().zip(rates).map(|(key, rates)| self.slot(key, rates, now));
        let at = slots.fold(now, Timestamp::max);
        for (key, rates) in keys.into_iter().zip(rates).filter(|(_, rates)| !rates.is_empty()) {
            let (_, reserved) = reserve(&self.reservations(&key, rates), at);
            self.put(key, reserved, now);
        }
        at
    }

    /// Pauses the tunnel after a rate limit of the provider that applies to all addresses.
    /// Without a delay from the provider, the pause grows with each rate limit in a row.
    pub fn pause(&mut self, retry_after: Option<Duration>, now: Timestamp, jitter: Jitter) {
        self.throttles = self.throttles.saturating_add(1);
        let policy = RetryPolicy::DELIVERY.after_rate_limit(retry_after);
        let delay = policy.next_delay(self.throttles, Duration::ZERO, retry_after, jitter);
        let delay = delay.unwrap_or_default();
        self.paused_until = self.paused_until.max(Some(now + delay));
    }

    /// Records that the provider accepted a message.
    pub fn accepted(&mut self) {
        self.throttles = 0;
    }

    /// Returns the end of the pause, while the tunnel is paused.
    pub fn paused_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.paused_until.filter(|until| *until > now)
    }

    fn slot(&self, key: &PaceKey, rates: &[Rate], now: Timestamp) -> Timestamp {
        if rates.is_empty() { now } else { reserve(&self.reservations(key, rates), now).0 }
    }

    fn reservations(&self, key: &PaceKey, rates: &[Rate]) -> Vec<(Rate, Option<ReservedUntil>)> {
        let reserved = self.reserved.get(key);
        let reserved = |at: usize| reserved.and_then(|reserved| reserved.get(at).copied());
        rates.iter().enumerate().map(|(at, rate)| (*rate, reserved(at))).collect()
    }

    fn put(&mut self, key: PaceKey, reserved: Vec<ReservedUntil>, now: Timestamp) {
        if self.reserved.len() >= self.prune_at.max(MIN_PRUNED) {
            let now_us = now.ms().saturating_mul(1_000);
            self.reserved.retain(|_, reserved| reserved.iter().any(|until| *until > now_us));
            self.prune_at = (self.reserved.len() * 2).min(MAX_TARGETS);
        }
        if self.reserved.len() < MAX_TARGETS || self.reserved.contains_key(&key) {
            self.reserved.insert(key, reserved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: EndpointKind = EndpointKind::Group;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms)
    }

    fn limits(per_target: &[&str], per_tunnel: &[&str]) -> SendLimits {
        let rates =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Rate>>();
        SendLimits { per_target: rates(per_target), per_tunnel: rates(per_tunnel) }
    }

    #[test]
    fn each_address_has_slots_of_its_own_within_those_of_the_tunnel() {
        let (mut pacer, limits) = (SendPacer::default(), limits(&["1/s"], &["3/s"]));
        let slots: Vec<_> = ["a", "a", "b", "c"]
            .iter()
            .map(|address| pacer.reserve(KIND, address, &limits, at(0)).ms())
            .collect();
        assert_eq!(slots[..2], [0, 1_000], "one per second to an address");
        assert!(slots[2..].iter().all(|slot| *slot < 2_000), "{slots:?}");
        assert_eq!(pacer.target_slot(KIND, "a", &limits, at(0)), at(2_000));
        assert_eq!(pacer.target_slot(KIND, "new", &limits, at(0)), at(0));
        assert!(pacer.tunnel_slot(&limits, at(0)) > at(0));
        assert_eq!(pacer.target_slot(EndpointKind::User, "a", &limits, at(0)), at(0));
    }

    #[test]
    fn kinds_of_addresses_share_the_slots_of_the_tunnel() {
        let (mut pacer, limits) = (SendPacer::default(), limits(&[], &["2/s"]));
        let kinds = [EndpointKind::User, EndpointKind::Group, EndpointKind::Channel];
        let slots = kinds.map(|kind| pacer.reserve(kind, "a", &limits, at(0)).ms());
        assert_eq!(slots, [0, 0, 500]);
        assert_eq!(
            pacer.tunnel_slot(&SendLimits::default(), at(0)),
            at(0),
            "a kind without limits"
        );
    }

    #[test]
    fn tunnel_without_limits_is_never_delayed_and_remembers_nothing() {
        let (mut pacer, none) = (SendPacer::default(), SendLimits::default());
        for _ in 0..10 {
            assert_eq!(pacer.reserve(KIND, "a", &none, at(5)), at(5));
        }
        assert!(pacer.reserved.is_empty());
    }

    #[test]
    fn pause_follows_the_provider_or_grows() {
        let mut pacer = SendPacer::default();
        pacer.pause(Some(Duration::from_secs(30)), at(0), Jitter::NONE);
        assert_eq!(pacer.paused_until(at(29_999)), Some(at(30_000)));
        assert_eq!(pacer.paused_until(at(30_000)), None);
        pacer.pause(None, at(30_000), Jitter::NONE);
        assert_eq!(pacer.paused_until(at(30_000)), Some(at(32_000)), "the second in a row");
        pacer.accepted();
        pacer.pause(None, at(40_000), Jitter::NONE);
        assert_eq!(pacer.paused_until(at(40_000)), Some(at(41_000)));
    }

    #[test]
    fn addresses_with_free_slots_are_forgotten() {
        let (mut pacer, limits) = (SendPacer::default(), limits(&["1/s"], &[]));
        for n in 0..5_000_i64 {
            pacer.reserve(KIND, &n.to_string(), &limits, at(n * 10));
        }
        assert!(pacer.reserved.len() <= MIN_PRUNED, "{}", pacer.reserved.len());
    }
}
