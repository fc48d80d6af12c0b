//! The workers of ours that keep letters: `merge` until a window is over, `limit` until
//! there is a place.

use std::time::Duration;

use monoco_core::letter::{Letter, LetterId, LetterStateData, Verdict, WorkerName, address_domain};
use monoco_core::rate_limit::{Rate, ReservedUntil, reserve};
use monoco_core::time::Timestamp;
use monoco_store::{LetterRow, LetterStep, NextAction, StoreError};

use super::{BatchContext, LetterDispatcher, LetterInProgress, PendingLetter};
use crate::pipeline::config::{LimitConfig, MergeConfig, WorkerConfig};
use crate::pipeline::workers::merge;

impl LetterDispatcher {
    /// Reads what is booked for all letters at once.
    pub(super) async fn read_ahead(
        &self,
        walk: &mut BatchContext<'_>,
        arrivals: &[PendingLetter],
    ) -> Result<(), StoreError> {
        let mut keys = Vec::new();
        for PendingLetter { row, .. } in
            arrivals.iter().filter(|arrival| arrival.row.held_by.is_none())
        {
            for name in &walk.settings.chain(row.direction, row.tunnel.as_ref()).0 {
                if let Some(WorkerConfig::Limit(limit)) = walk.settings.workers.get(name) {
                    keys.extend(limited(name, limit, row, &row.letter).map(|(key, _)| key));
                }
            }
        }
        if keys.is_empty() {
            return Ok(());
        }
        keys.sort_unstable();
        keys.dedup();
        let mut booked = self.store.reservations(keys.clone()).await?;
        walk.booked.extend(keys.into_iter().map(|key| {
            let booked = booked.remove(&key);
            (key, booked)
        }));
        Ok(())
    }

    /// A worker of ours hands a letter back that it kept.
    pub(super) async fn returned(
        &self,
        walk: &mut BatchContext<'_>,
        going: &mut LetterInProgress,
        keeper: WorkerName,
        key: Option<String>,
    ) -> Result<(), StoreError> {
        let rule = walk.settings.workers.get(&keeper);
        let note = match (rule, key) {
            (Some(WorkerConfig::Merge(rule)), Some(key)) => {
                self.join(walk, going, &keeper, &key, rule).await?
            }
            _ => {
                let waited = walk.now.since(going.row.updated_at).as_secs();
                Some(format!("waited {waited} s"))
            }
        };
        self.figures.said(&keeper, Verdict::Pass, Duration::ZERO);
        going.passed(&keeper, Verdict::Pass, note, walk.now);
        Ok(())
    }

    /// Takes those that wait under the same key into a letter whose window is over.
    async fn join(
        &self,
        walk: &mut BatchContext<'_>,
        going: &mut LetterInProgress,
        keeper: &WorkerName,
        key: &str,
        rule: &MergeConfig,
    ) -> Result<Option<String>, StoreError> {
        let own = going.row.id;
        walk.merged.insert(own);
        let most = rule.most + walk.merged.len();
        let kept = self.store.held_letters(keeper, key, most).await?;
        let others = kept.into_iter().filter(|row| {
            let over = matches!(row.status.standing,
                LetterStateData::Waiting { due } if due <= walk.now);
            row.id != own && over && !walk.merged.contains(&row.id)
        });
        let others: Vec<_> = others.take(rule.most.saturating_sub(1)).collect();
        let mut letters = vec![(own, &going.letter)];
        letters.extend(others.iter().map(|row| (row.id, &row.letter)));
        let fit = merge::fits(&letters);
        letters.truncate(fit.max(1));
        if letters.len() < 2 {
            return Ok(None);
        }
        let count = letters.len();
        let joined = merge::join(&letters);
        for row in &others[..count - 1] {
            walk.merged.insert(row.id);
            going.joins.push((row.id, row.revision));
        }
        going.change(joined);
        Ok(Some(format!("{count} letters became one")))
    }

    /// When the group is due that a letter joins or opens.
    pub(super) async fn group(
        &self,
        walk: &mut BatchContext<'_>,
        name: &WorkerName,
        key: &str,
        rule: &MergeConfig,
    ) -> Result<Timestamp, StoreError> {
        let place = (name.clone(), key.to_owned());
        let open = match walk.groups.get(&place) {
            Some(open) => Some(*open),
            None => {
                let kept = self.store.held_letters(name, key, rule.most).await?;
                let due = |row: &LetterRow| match row.status.standing {
                    LetterStateData::Waiting { due } => Some(due),
                    _ => None,
                };
                let due = kept.iter().filter_map(due).max();
                due.map(|due| (due, kept.len()))
            }
        };
        let (due, count) = match open {
            Some((due, count)) if due > walk.now && count < rule.most => (due, count + 1),
            _ => (walk.now + rule.window, 1),
        };
        walk.groups.insert(place, (due, count));
        Ok(due)
    }

    /// Books the next place of a letter. Returns when that is.
    pub(super) async fn limit(
        &self,
        walk: &mut BatchContext<'_>,
        going: &mut LetterInProgress,
        name: &WorkerName,
        limit: &LimitConfig,
    ) -> Result<Timestamp, StoreError> {
        let keys: Vec<_> = limited(name, limit, &going.row, &going.letter).collect();
        let unread: Vec<_> =
            keys.iter().filter(|(key, _)| !walk.booked.contains_key(key)).collect();
        if !unread.is_empty() {
            let unread: Vec<_> = unread.into_iter().map(|(key, _)| key.clone()).collect();
            let mut booked = self.store.reservations(unread.clone()).await?;
            for key in unread {
                let until = booked.remove(&key);
                walk.booked.insert(key, until);
            }
        }
        let places: Vec<(Rate, Option<ReservedUntil>)> = keys
            .iter()
            .map(|(key, rate)| (*rate, walk.booked.get(key).copied().flatten()))
            .collect();
        let (due, booked) = reserve(&places, walk.now);
        for ((key, _), until) in keys.into_iter().zip(booked) {
            walk.booked.insert(key.clone(), Some(until));
            going.booked.push((key, until));
        }
        Ok(due)
    }
}

/// When a letter is due again that a worker of ours keeps.
pub(super) fn kept_until(advance: &LetterStep) -> Option<(LetterId, Timestamp)> {
    match advance.then {
        NextAction::Hold { due, .. } => Some((advance.id, due)),
        _ => None,
    }
}

/// The keys of a letter that a limit counts by, with their rates.
fn limited<'l>(
    name: &'l WorkerName,
    limit: &'l LimitConfig,
    row: &'l LetterRow,
    letter: &'l Letter,
) -> impl Iterator<Item = (String, Rate)> + 'l {
    let recipients = limit.per_recipient.iter().flat_map(move |rate| {
        letter.to.iter().map(move |to| (format!("{name}:to:{}", to.to_lowercase()), *rate))
    });
    let domains = limit.per_domain.iter().flat_map(move |rate| {
        let domains: std::collections::BTreeSet<_> =
            letter.to.iter().map(|to| address_domain(to)).collect();
        domains.into_iter().map(move |domain| (format!("{name}:domain:{domain}"), *rate))
    });
    let tunnel = limit.per_tunnel.iter().map(move |rate| {
        let tunnel = row.tunnel.as_ref().map_or("", |tunnel| tunnel.as_str());
        (format!("{name}:tunnel:{tunnel}"), *rate)
    });
    recipients.chain(domains).chain(tunnel)
}
