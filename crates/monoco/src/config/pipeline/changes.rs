//! What a reload changes in the post office, in words. Only the queue waits for a restart.

use std::collections::BTreeSet;
use std::fmt::Display;

use monoco_core::letter::{Chain, WorkerName};

use super::super::changes::Change;
use super::workers;
use crate::postoffice::settings::{How, Outside, OwnChains, QueueKind, Settings, Worker};

/// What `new` says differently, without secrets.
pub fn changes(old: &Settings, new: &Settings) -> Vec<Change> {
    let (mut waits, mut said) = (Vec::new(), Vec::new());
    note(&mut waits, "queue", &queue(&old.queue), &queue(&new.queue));
    note(&mut said, "inbound", &list(Some(&old.inbound)), &list(Some(&new.inbound)));
    note(&mut said, "outbound", &list(Some(&old.outbound)), &list(Some(&new.outbound)));
    let tunnels: BTreeSet<_> = old.tunnels.keys().chain(new.tunnels.keys()).collect();
    let none = OwnChains::default();
    for id in tunnels {
        let old = old.tunnels.get(id).unwrap_or(&none);
        let new = new.tunnels.get(id).unwrap_or(&none);
        let (from, to) = (list(old.inbound.as_ref()), list(new.inbound.as_ref()));
        note(&mut said, &format!("inbound of {id}"), &from, &to);
        let (from, to) = (list(old.outbound.as_ref()), list(new.outbound.as_ref()));
        note(&mut said, &format!("outbound of {id}"), &from, &to);
    }
    said.extend(of_workers(old, new));
    let change = |what, live| Change { what: format!("pipeline {what}"), live };
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
fn of_workers(old: &Settings, new: &Settings) -> Vec<String> {
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
fn differences(old: &Worker, new: &Worker) -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut note = |name, differs: bool| {
        if differs {
            names.push(name);
        }
    };
    match (old, new) {
        (Worker::Block(old), Worker::Block(new)) => {
            note("senders", old.senders != new.senders);
            note("recipients", old.recipients != new.recipients);
        }
        (Worker::Spam(old), Worker::Spam(new)) => note("threshold or rules", old != new),
        (Worker::Subject(old), Worker::Subject(new)) => note("template", old != new),
        (Worker::Footer(old), Worker::Footer(new)) => note("text or html", old != new),
        (Worker::Merge(old), Worker::Merge(new)) => {
            note("window_s", old.window != new.window);
            note("most", old.most != new.most);
        }
        (Worker::Limit(old), Worker::Limit(new)) => {
            note("per_recipient", old.per_recipient != new.per_recipient);
            note("per_domain", old.per_domain != new.per_domain);
            note("per_tunnel", old.per_tunnel != new.per_tunnel);
        }
        (Worker::Send { tunnel: old }, Worker::Send { tunnel: new }) => note("tunnel", old != new),
        (Worker::Outside(old), Worker::Outside(new)) => names = of_outside(old, new),
        (Worker::Spam(_), Worker::Outside(_)) | (Worker::Outside(_), Worker::Spam(_)) => {
            note("rspamd", true);
        }
        (old, new) => note("kind", old != new),
    }
    names
}

fn of_outside(old: &Outside, new: &Outside) -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut note = |name, differs: bool| {
        if differs {
            names.push(name);
        }
    };
    let at_once = match &new.how {
        How::Beanstalkd { .. } => "in_flight",
        How::Exec { .. } | How::Http { .. } | How::Rspamd { .. } => "parallel",
    };
    match (&old.how, &new.how) {
        (How::Exec { command, memory }, How::Exec { command: new_command, memory: new_memory }) => {
            note("command", command != new_command);
            note("memory_mb", memory != new_memory);
        }
        (How::Http { target, secret }, How::Http { target: new_target, secret: new_secret }) => {
            note("url", target != new_target);
            note("secret", secret != new_secret);
        }
        (
            How::Beanstalkd { address, tube, results },
            How::Beanstalkd { address: new_address, tube: new_tube, results: new_results },
        ) => {
            note("server", address != new_address);
            note("tube", tube != new_tube);
            note("results", results != new_results);
        }
        (
            How::Rspamd { target, password, rules },
            How::Rspamd { target: new_target, password: new_password, rules: new_rules },
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
