//! Workers outside, as the config describes them: how each is reached, and how long
//! anybody waits for it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use monoco_adapters::Secret;
use monoco_adapters::egress::EgressTarget;
use monoco_adapters::webhook::{WebhookVerification, wire::Signer};
use monoco_core::letter::WorkerName;
use monoco_core::retry::{Backoff, RetryPolicy};

use super::super::InvalidConfig;
use super::super::raw::RawWorker;
use super::super::value::ConfigReader;
use super::workers::needed;
use super::{AT, Workers};
use crate::pipeline::beanstalkd::{BeanstalkdAddress, TubeName};
use crate::pipeline::config::{
    ExternalWorkerConfig, QueueKind, WhenDown, WorkerConfig, WorkerTransport,
};
use crate::pipeline::queue::TUBE;
use crate::pipeline::workers::spam::SpamConfig;

/// Where a beanstalkd is when nobody says.
const BEANSTALKD: &str = "beanstalkd://127.0.0.1:11300";

/// Where answers come when nobody says.
const RESULTS: &str = "monoco.results";

/// A worker behind two tubes.
pub fn beanstalkd(
    at: &str,
    name: &WorkerName,
    raw: &RawWorker,
    queue: &QueueKind,
    reader: &ConfigReader<'_>,
) -> Result<WorkerConfig, InvalidConfig> {
    let address: BeanstalkdAddress = match (raw.server.as_deref(), queue) {
        (Some(raw), _) => reader.parsed(&format!("{at}.server"), raw)?,
        (None, QueueKind::Beanstalkd(address)) => address.clone(),
        (None, QueueKind::Store) => BEANSTALKD.parse().expect("the default address is one"),
    };
    let tube = |key: &str, raw: Option<&str>, default: &str| {
        let at = format!("{at}.{key}");
        match reader.parsed::<TubeName>(&at, raw.unwrap_or(default))? {
            tube if tube.as_str() == TUBE => {
                Err(InvalidConfig::at(at, format!("{TUBE} is the dispatcher's own; want another")))
            }
            tube => Ok(tube),
        }
    };
    let results = tube("results", raw.results.as_deref(), RESULTS)?;
    let tube = tube("tube", raw.tube.as_deref(), &format!("monoco.worker.{name}"))?;
    let at_once = format!("{at}.in_flight");
    let at_once = reader.number_or(&at_once, raw.in_flight.as_deref(), 1..=10_000, 1_000)?;
    outside(at, WorkerTransport::Beanstalkd { address, tube, results }, at_once, raw, reader)
}

/// A letter in a tube says nothing of the worker it is for, so every worker has its
/// own; and in a tube of answers we would take our own letters for answers.
pub fn check_tubes(workers: &Workers) -> Result<(), InvalidConfig> {
    let mut used: BTreeMap<(&BeanstalkdAddress, &TubeName), &WorkerName> = BTreeMap::new();
    let mut answers: BTreeMap<(&BeanstalkdAddress, &TubeName), &WorkerName> = BTreeMap::new();
    for (name, worker) in workers {
        let WorkerConfig::Outside(outside) = worker else { continue };
        let WorkerTransport::Beanstalkd { address, tube, results } = &outside.how else { continue };
        answers.entry((address, results)).or_insert(name);
        if let Some(other) = used.insert((address, tube), name) {
            let why = format!("{tube} is the tube of {other} already");
            return Err(InvalidConfig::at(format!("{AT}.workers.{name}.tube"), why));
        }
    }
    match used.iter().find(|(place, _)| answers.contains_key(place)) {
        None => Ok(()),
        Some((place, name)) => {
            let why = format!("{} is where {} answers; want another", place.1, answers[place]);
            Err(InvalidConfig::at(format!("{AT}.workers.{name}.tube"), why))
        }
    }
}

/// A command.
pub fn exec(
    at: &str,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<WorkerConfig, InvalidConfig> {
    let at_command = format!("{at}.command");
    let bad = |why: &str| Err(InvalidConfig::at(&at_command, why));
    let Some(words) = &raw.command else { return bad("is missing") };
    let word = |raw: &String| reader.at_home(&at_command, raw);
    let command = words.iter().map(word).collect::<Result<Vec<_>, _>>()?;
    let Some(program) = command.first().filter(|program| !program.is_empty()) else {
        return bad("want a program, and its arguments");
    };
    if command.iter().any(|word| word.contains('\0')) {
        return bad("a word can't have a NUL in it");
    }
    if program.contains('/') && !program.starts_with('/') {
        return bad("want an absolute path, ~/…, or a program found in PATH");
    }
    let memory = format!("{at}.memory_mb");
    let memory = reader.number_or(&memory, raw.memory_mb.as_deref(), 16..=65_536_u64, 512)? << 20;
    let at_once = parallel(at, raw, 2, reader)?;
    outside(at, WorkerTransport::Exec { command, memory }, at_once, raw, reader)
}

/// A signed POST.
pub fn http(
    at: &str,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<WorkerConfig, InvalidConfig> {
    let at_url = format!("{at}.url");
    let url = needed(&at_url, raw.url.as_deref())?;
    let allow_private =
        reader.flag(&format!("{at}.allow_private"), raw.allow_private.as_deref())?;
    let target = target(&at_url, url, allow_private.unwrap_or(false), reader)?;
    let secret = reader.secret(at, "secret", raw.secret.as_deref(), raw.secret_file.as_deref())?;
    if secret.is_empty() {
        let why = "missing or empty: a worker without a secret is not asked; \
                   set it to what the worker checks signatures with";
        return Err(InvalidConfig::at(format!("{at}.secret"), why));
    }
    let secret = Secret::new(secret);
    Signer::new(&WebhookVerification::Standard, &secret)
        .map_err(|error| InvalidConfig::at(at, error.to_string()))?;
    let at_once = parallel(at, raw, 4, reader)?;
    outside(at, WorkerTransport::Http { target, secret }, at_once, raw, reader)
}

/// A spam filter, behind rules of our own.
pub fn rspamd(
    at: &str,
    url: &str,
    raw: &RawWorker,
    rules: SpamConfig,
    reader: &ConfigReader<'_>,
) -> Result<WorkerConfig, InvalidConfig> {
    let at_url = format!("{at}.rspamd");
    let text = reader.text(&at_url, url)?;
    // However it is spelt: an origin has one spelling.
    let origin = EgressTarget::parse(&text, true).map(|target| target.shown()).unwrap_or_default();
    let here = is_here(&origin);
    if origin.starts_with("http://") && !here {
        let why = "http:// is for an rspamd on this machine; want https://";
        return Err(InvalidConfig::at(at_url, why));
    }
    let plain = text.split_once("://").is_some_and(|(_, place)| {
        !place.strip_suffix('/').unwrap_or(place).contains(['/', '\\', '?', '#'])
    });
    if !origin.is_empty() && !plain {
        let why = "want only a host and a port, such as http://127.0.0.1:11333";
        return Err(InvalidConfig::at(at_url, why));
    }
    let allow_private =
        reader.flag(&format!("{at}.allow_private"), raw.allow_private.as_deref())?;
    let target = target(&at_url, url, allow_private.unwrap_or(here), reader)?;
    let (given, file) = (raw.password.as_deref(), raw.password_file.as_deref());
    let password = reader.secret(at, "password", given, file)?;
    if !password.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        let why = "want printable ASCII: it is sent as a header";
        return Err(InvalidConfig::at(format!("{at}.password"), why));
    }
    let password = Some(password).filter(|password| !password.is_empty()).map(Secret::new);
    let at_once = parallel(at, raw, 4, reader)?;
    outside(at, WorkerTransport::Rspamd { target, password, rules }, at_once, raw, reader)
}

/// Whether an origin such as `http://127.0.0.1:11333` is on this machine.
fn is_here(origin: &str) -> bool {
    let place = origin.split_once("://").map_or(origin, |(_, place)| place);
    let host = match place.split_once(']') {
        Some((host, _)) => host.trim_start_matches('['),
        None => place.split_once(':').map_or(place, |(host, _)| host),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Where requests go. Its path may be a secret and is not repeated.
fn target(
    at: &str,
    raw: &str,
    allow_private: bool,
    reader: &ConfigReader<'_>,
) -> Result<EgressTarget, InvalidConfig> {
    let text = reader.text(at, raw)?;
    EgressTarget::parse(&text, allow_private).map_err(|error| {
        let why = if text == raw {
            error.to_string()
        } else {
            "with its variables it is no URL that is asked; want one like https://example.com/hook, \
             and allow_private: true for one of your own network"
                .to_owned()
        };
        InvalidConfig::at(at, why)
    })
}

fn parallel(
    at: &str,
    raw: &RawWorker,
    default: usize,
    reader: &ConfigReader<'_>,
) -> Result<usize, InvalidConfig> {
    reader.number_or(&format!("{at}.parallel"), raw.parallel.as_deref(), 1..=64, default)
}

/// What all of them have.
fn outside(
    at: &str,
    how: WorkerTransport,
    at_once: usize,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<WorkerConfig, InvalidConfig> {
    let timeout = format!("{at}.timeout_s");
    let timeout = reader.number_or(&timeout, raw.timeout_s.as_deref(), 1..=3_600, 30)?;
    let retries = format!("{at}.retries");
    let retries: u32 = reader.number_or(&retries, raw.retries.as_deref(), 0..=100, 3)?;
    let words = [("hold", WhenDown::Hold), ("skip", WhenDown::Skip), ("dead", WhenDown::Dead)];
    let when_down = reader.one_of(&format!("{at}.when_down"), raw.when_down.as_deref(), &words)?;
    let readdress = reader.flag(&format!("{at}.readdress"), raw.readdress.as_deref())?;
    let retry = RetryPolicy {
        backoff: Backoff::DEFAULT,
        max_attempts: Some(retries + 1),
        give_up_after: None,
    };
    Ok(WorkerConfig::Outside(Box::new(ExternalWorkerConfig {
        how,
        timeout: Duration::from_secs(timeout),
        retry,
        when_down: when_down.unwrap_or_default(),
        readdress: readdress.unwrap_or(false),
        at_once,
    })))
}
