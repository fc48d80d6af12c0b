//! The metrics of e-mail accounts: tasks, rounds and what is left on the server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use monoco_core::did::TunnelId;
use monoco_core::email::task::TaskStatus;
use monoco_core::email::{EmailAccount, ScanReport};
use monoco_store::EmailTaskCounts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::courier::tunnels::TunnelRegistry;

/// The counters and gauges of all e-mail accounts.
#[derive(Debug, Default)]
pub struct EmailMetrics {
    tasks: Family<StatusLabels, Gauge<i64, AtomicI64>>,
    backlog: Family<AccountLabels, Gauge<i64, AtomicI64>>,
    last_round: Family<ResultLabels, Gauge<i64, AtomicI64>>,
    last_round_seconds: Family<AccountLabels, Gauge<f64, AtomicU64>>,
    mails: Family<ResultLabels, Counter>,
    rounds: Family<AccountLabels, Counter>,
    round_seconds: Family<AccountLabels, Counter<f64, AtomicU64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AccountLabels {
    account: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    account: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    account: String,
    status: &'static str,
}

impl EmailMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "email_tasks",
            "E-mail tasks by account and status; copies of known mails have the status copy",
            metrics.tasks.clone(),
        );
        registry.register(
            "email_backlog",
            "Mails on the server that were not fetched yet at the end of the last round",
            metrics.backlog.clone(),
        );
        registry.register(
            "email_last_round_mails",
            "Mails of the last round by account and result",
            metrics.last_round.clone(),
        );
        registry.register(
            "email_last_round_seconds",
            "Duration of the last round",
            metrics.last_round_seconds.clone(),
        );
        registry.register(
            "email_mails",
            "Mails of all rounds since the account was started, by account and result",
            metrics.mails.clone(),
        );
        registry.register(
            "email_rounds",
            "Rounds since the account was started",
            metrics.rounds.clone(),
        );
        registry.register(
            "email_round_seconds",
            "Duration of all rounds since the account was started",
            metrics.round_seconds.clone(),
        );
        metrics
    }

    /// Sets all metrics. Accounts that were removed are not shown.
    pub fn set(
        &self,
        accounts: &[EmailAccount],
        tasks: &BTreeMap<TunnelId, EmailTaskCounts>,
        tunnels: &TunnelRegistry,
    ) {
        self.tasks.clear();
        self.backlog.clear();
        self.last_round.clear();
        self.last_round_seconds.clear();
        self.mails.clear();
        self.rounds.clear();
        self.round_seconds.clear();
        for account in accounts {
            let name = || account.tunnel.to_string();
            let labels = AccountLabels { account: name() };
            let counts = tasks.get(&account.tunnel);
            for status in TaskStatus::ALL {
                let count = counts.and_then(|counts| counts.statuses.get(&status));
                let labels = StatusLabels { account: name(), status: status.as_str() };
                self.tasks.get_or_create(&labels).set(count.copied().unwrap_or(0));
            }
            let copies = StatusLabels { account: name(), status: "copy" };
            self.tasks.get_or_create(&copies).set(counts.map_or(0, |counts| counts.copies));
            let Some(round) = account.last_scan else { continue };
            self.backlog.get_or_create(&labels).set(gauge(round.backlog));
            self.last_round_seconds.get_or_create(&labels).set(seconds(round.duration_ms));
            for (result, count) in results(&round) {
                let labels = ResultLabels { account: name(), result };
                self.last_round.get_or_create(&labels).set(gauge(count));
            }
        }
        for tunnel in tunnels.running().iter().filter(|tunnel| tunnel.adapter.email().is_some()) {
            let totals = tunnel.rounds();
            let name = || tunnel.adapter.id().to_string();
            let labels = AccountLabels { account: name() };
            if let Some(backlog) = tunnel.health().backlog {
                self.backlog.get_or_create(&labels).set(gauge(backlog));
            }
            let rounds = self.rounds.get_or_create(&labels);
            rounds.inner().store(totals.rounds, Ordering::Relaxed);
            let elapsed = seconds(totals.sum.duration_ms);
            let total = self.round_seconds.get_or_create(&labels);
            total.inner().store(elapsed.to_bits(), Ordering::Relaxed);
            for (result, count) in results(&totals.sum) {
                let counter = self.mails.get_or_create(&ResultLabels { account: name(), result });
                counter.inner().store(count, Ordering::Relaxed);
            }
        }
    }
}

fn results(report: &ScanReport) -> [(&'static str, u64); 6] {
    [
        ("registered", report.registered),
        ("copy", report.copies),
        ("forwarded", report.forwarded),
        ("skipped", report.skipped),
        ("failed", report.failed),
        ("retried", report.retried),
    ]
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
