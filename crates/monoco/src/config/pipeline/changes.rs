//! What a reload changes in the post office, in words. Only the queue waits for a restart.

use std::collections::BTreeSet;
use std::fmt::Display;

use monoco_core::letter::{Chain, WorkerName};

use super::super::changes::ConfigChange;
use super::workers;
use crate::pipeline::config::{
    ExternalWorkerConfig, PipelineConfig, QueueKind, TunnelChains, WorkerConfig, WorkerTransport,
};

/// What `new` says differently, without secrets.
pub fn changes(old: &PipelineConfig, new: &PipelineConfig) -> Vec<ConfigChange> {
    let (mut waits, mut said) = (Vec::new(), Vec::new());
    note(&mut waits, "queue", &queue(&old.queue), &queue(&new.queue));
    note(&mut said, "inbound", &list(Some(&old.inbound)), &list(Some(&new.inbound)));
    note(&mut said, "outbound", &list(Some(&old.outbound)), &list(Some(&new.outbound)));
    let tunnels: BTreeSet<_> = old.tunnels.keys().chain(new.tunnels.keys()).collect();
    let none = TunnelChains::default();
    for id in tunnels {
        let old = old.tunnels.get(id).unwrap_or(&none);
        let new = new.tunnels.get(id).unwrap_or(&none);
        let (from, to) = (list(old.inbound.as_ref()), list(new.inbound.as_ref()));
        note(&mut said, &format!("inbound of {id}"), &from, &to);
        let (from, to) = (list(old.outbound.as_ref()), list(new.outbound.as_ref()));
        note(&mut said, &format!("outbound of {id}"), &from, &to);
    }
    said.extend(of_workers(old, new));
    let change = |what, live| ConfigChange { what: format!("pipeline {what}"), live };
    let waits = waits.into_iter().map(|what| change(what, false));
    waits.chain(said.into_iter().map(|what| change(what, true))).collect()
}

fn note(said: &mut Vec<String>, name: &str, old: &impl Display, new: &impl Display) {
    let (old, new) = (old.to_string(), new.to_string());
    if old != new {
        said.push(format!("{name}: {old} becomes {new}"));
    }
}

fn queue(queue: &QueueKind) -> String {
    match queue {
        QueueKind::Store => "store".to_owned(),
        QueueKind::Beanstalkd(address) => address.to_string(),
    }
}

fn list(chain: Option<&Chain>) -> String {
    let Some(chain) = chain else { return "as for everybody".to_owned() };
    let names: Vec<_> = chain.0.iter().map(WorkerName::as_str).collect();
    format!("[{}]", names.join(", "))
}

/// Built-in workers that need no settings are always there, named or not.
fn of_workers(old: &PipelineConfig, new: &PipelineConfig) -> Vec<String> {
    let names: BTreeSet<_> = old.workers.keys().chain(new.workers.keys()).collect();
    let mut said = Vec::new();
    for name in names {
        let usual = workers::usual(name);
        let old = old.workers.get(name).or(usual.as_ref());
        let new = new.workers.get(name).or(usual.as_ref());
        match (old, new) {
            (Some(old), Some(new)) => {
                let names = differences(old, new);
                if !names.is_empty() {
                    said.push(format!("worker {name}: changed {}", names.join(", ")));
                }
            }
            (None, Some(_)) => said.push(format!("worker {name}: added")),
            (Some(_), None) => said.push(format!("worker {name}: removed")),
            (None, None) => {}
        }
    }
    said
}

/// The settings that `new` has differently, by name.
fn differences(old: &WorkerConfig, new: &WorkerConfig) -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut note = |name, differs: bool| {
        if differs {
            names.push(name);
        }
    };
    match (old, new) {
        (WorkerConfig::Block(old), WorkerConfig::Block(new)) => {
            note("senders", old.senders != new.senders);
            note("recipients", old.recipients != new.recipients);
        }
        (WorkerConfig::Spam(old), WorkerConfig::Spam(new)) => {
            note("threshold or rules", old != new)
        }
        (WorkerConfig::Subject(old), WorkerConfig::Subject(new)) => note("template", old != new),
        (WorkerConfig::Footer(old), WorkerConfig::Footer(new)) => note("text or html", old != new),
        (WorkerConfig::Merge(old), WorkerConfig::Merge(new)) => {
            note("window_s", old.window != new.window);
            note("most", old.most != new.most);
        }
        (WorkerConfig::Limit(old), WorkerConfig::Limit(new)) => {
            note("per_recipient", old.per_recipient != new.per_recipient);
            note("per_domain", old.per_domain != new.per_domain);
            note("per_tunnel", old.per_tunnel != new.per_tunnel);
        }
        (WorkerConfig::Send { tunnel: old }, WorkerConfig::Send { tunnel: new }) => {
            note("tunnel", old != new)
        }
        (WorkerConfig::Outside(old), WorkerConfig::Outside(new)) => names = of_outside(old, new),
        (WorkerConfig::Spam(_), WorkerConfig::Outside(_))
        | (WorkerConfig::Outside(_), WorkerConfig::Spam(_)) => {
            note("rspamd", true);
        }
        (old, new) => note("kind", old != new),
    }
    names
}

fn of_outside(old: &ExternalWorkerConfig, new: &ExternalWorkerConfig) -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut note = |name, differs: bool| {
        if differs {
            names.push(name);
        }
    };
    let at_once = match &new.how {
        WorkerTransport::Beanstalkd { .. } => "in_flight",
        WorkerTransport::Exec { .. }
        | WorkerTransport::Http { .. }
        | WorkerTransport::Rspamd { .. } => "parallel",
    };
    match (&old.how, &new.how) {
        (
            WorkerTransport::Exec { command, memory },
            WorkerTransport::Exec { command: new_command, memory: new_memory },
        ) => {
            note("command", command != new_command);
            note("memory_mb", memory != new_memory);
        }
        (
            WorkerTransport::Http { target, secret },
            WorkerTransport::Http { target: new_target, secret: new_secret },
        ) => {
            note("url", target != new_target);
            note("secret", secret != new_secret);
        }
        (
            WorkerTransport::Beanstalkd { address, tube, results },
            WorkerTransport::Beanstalkd {
                address: new_address,
                tube: new_tube,
                results: new_results,
            },
        ) => {
            note("server", address != new_address);
            note("tube", tube != new_tube);
            note("results", results != new_results);
        }
        (
            WorkerTransport::Rspamd { target, password, rules },
            WorkerTransport::Rspamd {
                target: new_target,
                password: new_password,
                rules: new_rules,
            },
        ) => {
            note("threshold or rules", rules != new_rules);
            note("rspamd", target != new_target);
            note("password", password != new_password);
        }
        _ => note("kind", true),
    }
    note("timeout_s", old.timeout != new.timeout);
    note("retries", old.retry != new.retry);
    note("when_down", old.when_down != new.when_down);
    note("readdress", old.readdress != new.readdress);
    note(at_once, old.at_once != new.at_once);
    names
}
