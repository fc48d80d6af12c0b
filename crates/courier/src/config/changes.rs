//! Compares two configs: what a reload changes, and what needs a restart.

use std::fmt::{self, Display};
use std::time::Duration;

use super::{Config, RemoteConfig, TunnelConfig};
use crate::pipeline::config::PipelineConfig;

/// The common keys of tunnels that a reload changes without a new connection.
const LIVE_KEYS: [&str; 6] =
    ["strangers", "debounce", "binding", "bindings", "max_mb_per_day", "max_file_mb"];

/// One difference between two configs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// The key with both values, without secrets.
    pub what: String,
    /// Whether a reload applies it; otherwise it needs a restart.
    pub live: bool,
}

impl Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.live { "" } else { " (after a restart)" };
        write!(f, "{}{end}", self.what)
    }
}

impl Config {
    /// Returns the differences in `new`.
    pub fn changes(&self, new: &Self) -> Vec<ConfigChange> {
        let mut changes = ConfigChanges::default();
        changes.restart("owner", &self.owner, &new.owner);
        changes.restart("host", &self.host, &new.host);
        changes.restart("port", &self.port, &new.port);
        changes.restart("webhook_port", &self.webhook_port, &new.webhook_port);
        changes.remote(self.remote.as_ref(), new.remote.as_ref());
        let root = |config: &Self| match &config.mailbox_root {
            Some(root) => root.display().to_string(),
            None => "the default".to_owned(),
        };
        changes.restart("mailbox_root", &root(self), &root(new));
        changes.restart("search", &self.search, &new.search);
        if self.store != new.store {
            changes.0.push(ConfigChange { what: "store".to_owned(), live: false });
        }
        changes.live("log_level", &self.log_level, &new.log_level);
        changes.debounce("", self.debounce, new.debounce);
        let (old_claims, new_claims) = (&self.claims, &new.claims);
        let secs = |config: &Self| config.claims.term.length().as_secs();
        changes.live("claims timeout_s", &secs(self), &secs(new));
        let retries = |config: &Self| config.claims.retry.max_attempts.map_or(0, |tries| tries - 1);
        changes.live("claims max_retries", &retries(self), &retries(new));
        let (old_retry, new_retry) = (old_claims.retry, new_claims.retry);
        changes.ms("claims backoff_ms", old_retry.backoff.first, new_retry.backoff.first);
        changes.ms("claims max_backoff_ms", old_retry.backoff.longest, new_retry.backoff.longest);
        let attempts = |config: &Self| {
            config.deliveries.max_attempts.map_or("unlimited".to_owned(), |max| max.to_string())
        };
        changes.live("deliveries max_attempts", &attempts(self), &attempts(new));
        let give_up = |config: &Self| config.deliveries.give_up_after.map_or(0, |at| at.as_secs());
        changes.live("deliveries give_up_after, in seconds", &give_up(self), &give_up(new));
        let (old, new_retention) = (self.retention, new.retention);
        changes.live("retention inbound_days", &old.inbound_days, &new_retention.inbound_days);
        changes.live("retention archive_days", &old.archive_days, &new_retention.archive_days);
        changes.live("retention trash_days", &old.trash_days, &new_retention.trash_days);
        changes.live("retention events_days", &old.events_days, &new_retention.events_days);
        if self.approvals != new.approvals {
            changes.0.push(ConfigChange { what: "approvals".to_owned(), live: true });
        }
        changes.0.extend(self.pipeline.changes(&new.pipeline));
        changes.tunnels(self, new);
        changes.0
    }

    /// Returns this config with everything from `new` that a reload applies.
    #[must_use]
    pub fn reloaded(&self, new: Self) -> Self {
        Self {
            owner: self.owner.clone(),
            host: self.host,
            port: self.port,
            webhook_port: self.webhook_port,
            remote: reloaded_remote(self.remote.as_ref(), new.remote),
            mailbox_root: self.mailbox_root.clone(),
            search: self.search,
            store: self.store.clone(),
            pipeline: PipelineConfig { queue: self.pipeline.queue.clone(), ..new.pipeline },
            ..new
        }
    }
}

/// The listener stays as it is bound; its certificate and names can change.
fn reloaded_remote(old: Option<&RemoteConfig>, new: Option<RemoteConfig>) -> Option<RemoteConfig> {
    let old = old?;
    let certificate_of = new.unwrap_or_else(|| old.clone());
    Some(RemoteConfig { listen: old.listen, ..certificate_of })
}

impl TunnelConfig {
    /// Returns the keys whose values differ in `new`.
    pub fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        let common = [
            ("enabled", self.enabled != new.enabled),
            ("strangers", self.strangers != new.strangers),
            ("debounce", self.debounce != new.debounce),
            ("binding", self.binding != new.binding),
            ("bindings", self.bindings != new.bindings),
            ("max_mb_per_day", self.max_mb_per_day != new.max_mb_per_day),
            ("max_file_mb", self.max_file_mb != new.max_file_mb),
            ("receipt", self.receipt != new.receipt),
        ];
        let mut keys: Vec<_> =
            common.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect();
        keys.extend(self.adapter.changed_keys(new.adapter.as_ref()));
        keys
    }

    /// Tells whether a running tunnel can take the new values of these keys. Otherwise it is
    /// stopped and started again, with new connections.
    pub fn applies_live(&self, keys: &[&'static str]) -> bool {
        let live = |key| LIVE_KEYS.contains(key) || self.adapter.live_keys().contains(key);
        keys.iter().all(live)
    }
}

#[derive(Default)]
struct ConfigChanges(Vec<ConfigChange>);

impl ConfigChanges {
    fn push(&mut self, name: &str, old: &impl Display, new: &impl Display, live: bool) {
        let (old, new) = (old.to_string(), new.to_string());
        if old != new {
            self.0.push(ConfigChange { what: format!("{name}: {old} becomes {new}"), live });
        }
    }

    fn live(&mut self, name: &str, old: &impl Display, new: &impl Display) {
        self.push(name, old, new, true);
    }

    fn restart(&mut self, name: &str, old: &impl Display, new: &impl Display) {
        self.push(name, old, new, false);
    }

    fn ms(&mut self, name: &str, old: Duration, new: Duration) {
        self.live(name, &old.as_millis(), &new.as_millis());
    }

    fn debounce(
        &mut self,
        of: &str,
        old: monoco_core::merge::Debounce,
        new: monoco_core::merge::Debounce,
    ) {
        self.ms(&format!("{of}debounce window_ms"), old.window, new.window);
        self.ms(&format!("{of}debounce max_wait_ms"), old.max_wait, new.max_wait);
    }

    fn remote(&mut self, old: Option<&RemoteConfig>, new: Option<&RemoteConfig>) {
        let listen = |remote: Option<&RemoteConfig>| match remote {
            Some(remote) => remote.listen.to_string(),
            None => "off".to_owned(),
        };
        self.restart("remote listen", &listen(old), &listen(new));
        let (Some(old), Some(new)) = (old, new) else { return };
        let names = |remote: &RemoteConfig| {
            remote.names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        self.live("remote names", &names(old), &names(new));
        let files = [
            ("remote certificate", &old.certificate, &new.certificate),
            ("remote key", &old.key, &new.key),
        ];
        for (name, old, new) in files {
            self.live(name, &old.display(), &new.display());
        }
    }

    fn tunnels(&mut self, old: &Config, new: &Config) {
        let mut push = |what: String| self.0.push(ConfigChange { what, live: true });
        for (id, tunnel) in old.running() {
            match new.tunnels.get(id) {
                Some(next) if next.enabled => {
                    let names = tunnel.changed_keys(next);
                    if !names.is_empty() {
                        push(format!("tunnel {id}: changed {}", names.join(", ")));
                    }
                }
                Some(_) => push(format!("tunnel {id}: turned off")),
                None => push(format!("tunnel {id}: removed")),
            }
        }
        for (id, _) in new.running() {
            match old.tunnels.get(id) {
                Some(before) if before.enabled => {}
                Some(_) => push(format!("tunnel {id}: turned on")),
                None => push(format!("tunnel {id}: added")),
            }
        }
    }
}
