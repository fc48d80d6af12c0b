//! The workers of the config: of which kind each is, and what that kind takes.

use std::collections::BTreeMap;
use std::time::Duration;

use monoco_core::did::TunnelId;
use monoco_core::letter::{WorkerName, check_address};
use monoco_core::rate_limit::Rate;

use super::super::InvalidConfig;
use super::super::raw::{RawRule, RawWorker};
use super::super::value::{ConfigReader, listed, shown};
use super::{AT, Workers, outside};
use crate::pipeline::config::{LimitConfig, MergeConfig, QueueKind, WorkerConfig};
use crate::pipeline::workers::block::BlockConfig;
use crate::pipeline::workers::footer::FooterConfig;
use crate::pipeline::workers::spam::{RulePattern, SpamConfig, SpamRule};
use crate::pipeline::workers::subject::SubjectConfig;

/// What a worker may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerKind {
    Block,
    Spam,
    Subject,
    Footer,
    Merge,
    Limit,
    Trash,
    Send,
    Deliver,
    Beanstalkd,
    Exec,
    Http,
}

/// Workers of our own: the name says the kind.
pub const BUILT_IN: [(&str, WorkerKind); 9] = [
    ("block", WorkerKind::Block),
    ("spam", WorkerKind::Spam),
    ("subject", WorkerKind::Subject),
    ("footer", WorkerKind::Footer),
    ("merge", WorkerKind::Merge),
    ("limit", WorkerKind::Limit),
    ("trash", WorkerKind::Trash),
    ("send", WorkerKind::Send),
    ("deliver", WorkerKind::Deliver),
];

/// Workers of somebody else.
const FOREIGN: [(&str, WorkerKind); 3] = [
    ("beanstalkd", WorkerKind::Beanstalkd),
    ("exec", WorkerKind::Exec),
    ("http", WorkerKind::Http),
];

/// How many points are spam when nobody says.
const THRESHOLD: f64 = 5.0;

/// Whether a worker of that name needs no `kind`.
pub fn is_built_in(name: &str) -> bool {
    BUILT_IN.iter().any(|(known, _)| *known == name)
}

/// A built-in worker that nobody set up, where it needs no settings.
pub fn usual(name: &WorkerName) -> Option<WorkerConfig> {
    let named = is_built_in(name.as_str());
    let reader = ConfigReader::new(&|_| None);
    named.then(|| one(name, &RawWorker::default(), &QueueKind::Store, &reader).ok()).flatten()
}

/// Checks every worker that is set up, whether a chain names it or not.
pub fn check(
    raw: BTreeMap<String, Option<RawWorker>>,
    queue: &QueueKind,
    reader: &ConfigReader<'_>,
) -> Result<Workers, InvalidConfig> {
    let mut workers = Workers::new();
    for (name, raw) in raw {
        let at = format!("{AT}.workers.{}", name.escape_debug());
        let name: WorkerName =
            name.parse().map_err(|error| InvalidConfig::at(at, format!("{error}")))?;
        let worker = one(&name, &raw.unwrap_or_default(), queue, reader)?;
        workers.insert(name, worker);
    }
    outside::check_tubes(&workers)?;
    Ok(workers)
}

/// Checks one worker.
pub fn one(
    name: &WorkerName,
    raw: &RawWorker,
    queue: &QueueKind,
    reader: &ConfigReader<'_>,
) -> Result<WorkerConfig, InvalidConfig> {
    let at = format!("{AT}.workers.{name}");
    let kind = kind(&at, name, raw, reader)?;
    check_keys(&at, kind, raw)?;
    let worker = match kind {
        WorkerKind::Block => WorkerConfig::Block(BlockConfig {
            senders: addresses(&format!("{at}.senders"), raw.senders.as_deref(), reader)?,
            recipients: addresses(&format!("{at}.recipients"), raw.recipients.as_deref(), reader)?,
        }),
        WorkerKind::Spam => spam(&at, raw, reader)?,
        WorkerKind::Subject => WorkerConfig::Subject(subject(&at, raw, reader)?),
        WorkerKind::Footer => WorkerConfig::Footer(footer(&at, raw, reader)?),
        WorkerKind::Merge => WorkerConfig::Merge(merge(&at, raw, reader)?),
        WorkerKind::Limit => WorkerConfig::Limit(limit(&at, raw, reader)?),
        WorkerKind::Trash => WorkerConfig::Trash,
        WorkerKind::Send => {
            let parsed = |raw| reader.parsed::<TunnelId>(&format!("{at}.tunnel"), raw);
            WorkerConfig::Send { tunnel: raw.tunnel.as_deref().map(parsed).transpose()? }
        }
        WorkerKind::Deliver => WorkerConfig::Deliver,
        WorkerKind::Beanstalkd => outside::beanstalkd(&at, name, raw, queue, reader)?,
        WorkerKind::Exec => outside::exec(&at, raw, reader)?,
        WorkerKind::Http => outside::http(&at, raw, reader)?,
    };
    Ok(worker)
}

/// Its name says it, or `kind` does.
fn kind(
    at: &str,
    name: &WorkerName,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<WorkerKind, InvalidConfig> {
    let kinds: Vec<_> = BUILT_IN.into_iter().chain(FOREIGN).collect();
    let said = reader.one_of(&format!("{at}.kind"), raw.kind.as_deref(), &kinds)?;
    let named = BUILT_IN.iter().find(|(known, _)| *known == name.as_str());
    match (named, said) {
        (Some((known, kind)), Some(said)) if *kind != said => {
            let why =
                format!("its name says {known} and `kind` says otherwise; give it another name");
            Err(InvalidConfig::at(at, why))
        }
        (Some((_, kind)), _) => Ok(*kind),
        (None, Some(said)) => Ok(said),
        (None, None) => {
            let names: Vec<_> = FOREIGN.iter().chain(&BUILT_IN).map(|(name, _)| *name).collect();
            Err(InvalidConfig::at(at, format!("`kind` is missing; want {}", listed(&names))))
        }
    }
}

/// The keys of a kind, beside `kind` itself.
fn keys(kind: WorkerKind) -> &'static [&'static str] {
    match kind {
        WorkerKind::Block => &["senders", "recipients"],
        WorkerKind::Spam => &[
            "threshold",
            "rules",
            "rspamd",
            "password",
            "password_file",
            "allow_private",
            "timeout_s",
            "retries",
            "when_down",
            "parallel",
        ],
        WorkerKind::Subject => &["template"],
        WorkerKind::Footer => &["text", "html"],
        WorkerKind::Merge => &["window_s", "most"],
        WorkerKind::Limit => &["per_recipient", "per_domain", "per_tunnel"],
        WorkerKind::Trash | WorkerKind::Deliver => &[],
        WorkerKind::Send => &["tunnel"],
        WorkerKind::Beanstalkd => &[
            "server",
            "tube",
            "results",
            "in_flight",
            "timeout_s",
            "retries",
            "when_down",
            "readdress",
        ],
        WorkerKind::Exec => {
            &["command", "memory_mb", "timeout_s", "retries", "when_down", "readdress", "parallel"]
        }
        WorkerKind::Http => &[
            "url",
            "secret",
            "secret_file",
            "allow_private",
            "timeout_s",
            "retries",
            "when_down",
            "readdress",
            "parallel",
        ],
    }
}

/// Which keys are there, by name.
fn given(raw: &RawWorker) -> impl Iterator<Item = &'static str> {
    [
        ("senders", raw.senders.is_some()),
        ("recipients", raw.recipients.is_some()),
        ("threshold", raw.threshold.is_some()),
        ("rules", raw.rules.is_some()),
        ("rspamd", raw.rspamd.is_some()),
        ("password", raw.password.is_some()),
        ("password_file", raw.password_file.is_some()),
        ("template", raw.template.is_some()),
        ("text", raw.text.is_some()),
        ("html", raw.html.is_some()),
        ("window_s", raw.window_s.is_some()),
        ("most", raw.most.is_some()),
        ("per_recipient", raw.per_recipient.is_some()),
        ("per_domain", raw.per_domain.is_some()),
        ("per_tunnel", raw.per_tunnel.is_some()),
        ("tunnel", raw.tunnel.is_some()),
        ("server", raw.server.is_some()),
        ("tube", raw.tube.is_some()),
        ("results", raw.results.is_some()),
        ("in_flight", raw.in_flight.is_some()),
        ("command", raw.command.is_some()),
        ("memory_mb", raw.memory_mb.is_some()),
        ("url", raw.url.is_some()),
        ("secret", raw.secret.is_some()),
        ("secret_file", raw.secret_file.is_some()),
        ("allow_private", raw.allow_private.is_some()),
        ("timeout_s", raw.timeout_s.is_some()),
        ("retries", raw.retries.is_some()),
        ("when_down", raw.when_down.is_some()),
        ("readdress", raw.readdress.is_some()),
        ("parallel", raw.parallel.is_some()),
    ]
    .into_iter()
    .filter_map(|(key, given)| given.then_some(key))
}

/// Refuses keys of other kinds: who wrote them expects them to do something.
fn check_keys(at: &str, kind: WorkerKind, raw: &RawWorker) -> Result<(), InvalidConfig> {
    let own = keys(kind);
    if let Some(key) = given(raw).find(|key| !own.contains(key)) {
        let takes = |(_, kind): &&(&str, WorkerKind)| keys(*kind).contains(&key);
        let kinds: Vec<_> =
            BUILT_IN.iter().chain(&FOREIGN).filter(takes).map(|(name, _)| *name).collect();
        return Err(InvalidConfig::at(at, format!("`{key}` is for kind {}", listed(&kinds))));
    }
    // Rules of our own need nobody, so there is nothing to wait for.
    let alone = kind == WorkerKind::Spam && raw.rspamd.is_none();
    match given(raw).find(|key| alone && !["threshold", "rules"].contains(key)) {
        Some(key) => {
            Err(InvalidConfig::at(at, format!("`{key}` goes with `rspamd`, which is not set")))
        }
        None => Ok(()),
    }
}

/// Addresses, and domains as `@example.com`.
fn addresses(
    at: &str,
    raw: Option<&[String]>,
    reader: &ConfigReader<'_>,
) -> Result<Vec<String>, InvalidConfig> {
    let one = |raw: &String| {
        reader.checked(at, raw, |entry| {
            let address = match entry.strip_prefix('@') {
                Some(domain) => format!("anybody@{domain}"),
                None => entry.to_owned(),
            };
            let bad =
                |why| format!("{}: {why}; a whole domain is written @example.com", shown(raw));
            check_address(&address).map(|()| entry.to_owned()).map_err(bad)
        })
    };
    raw.unwrap_or_default().iter().map(one).collect()
}

/// What must be there.
pub fn needed<'r>(at: &str, raw: Option<&'r str>) -> Result<&'r str, InvalidConfig> {
    raw.ok_or_else(|| InvalidConfig::at(at, "is missing"))
}

fn subject(
    at: &str,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<SubjectConfig, InvalidConfig> {
    let at = format!("{at}.template");
    reader.checked(&at, needed(&at, raw.template.as_deref())?, SubjectConfig::new)
}

fn footer(
    at: &str,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<FooterConfig, InvalidConfig> {
    let text = format!("{at}.text");
    let text = reader.text(&text, needed(&text, raw.text.as_deref())?)?;
    let html = raw.html.as_deref();
    let html = html.map(|raw| reader.text(&format!("{at}.html"), raw)).transpose()?;
    FooterConfig::new(&text, html.as_deref()).map_err(|why| InvalidConfig::at(at, why))
}

fn merge(
    at: &str,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<MergeConfig, InvalidConfig> {
    let window = format!("{at}.window_s");
    let window = reader.number_or(&window, raw.window_s.as_deref(), 1..=86_400, 60)?;
    let most = reader.number_or(&format!("{at}.most"), raw.most.as_deref(), 2..=1_000, 100)?;
    Ok(MergeConfig { window: Duration::from_secs(window), most })
}

fn limit(
    at: &str,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<LimitConfig, InvalidConfig> {
    let rate = |key: &str, raw: Option<&str>| {
        raw.map(|raw| reader.parsed::<Rate>(&format!("{at}.{key}"), raw)).transpose()
    };
    let limit = LimitConfig {
        per_recipient: rate("per_recipient", raw.per_recipient.as_deref())?,
        per_domain: rate("per_domain", raw.per_domain.as_deref())?,
        per_tunnel: rate("per_tunnel", raw.per_tunnel.as_deref())?,
    };
    if limit == LimitConfig::default() {
        let why = "want at least one of per_recipient, per_domain and per_tunnel";
        return Err(InvalidConfig::at(at, why));
    }
    Ok(limit)
}

fn spam(
    at: &str,
    raw: &RawWorker,
    reader: &ConfigReader<'_>,
) -> Result<WorkerConfig, InvalidConfig> {
    let rules = raw.rules.as_deref().unwrap_or_default();
    if rules.is_empty() && raw.rspamd.is_none() {
        return Err(InvalidConfig::at(at, "want `rules`, `rspamd` or both"));
    }
    let threshold = format!("{at}.threshold");
    let threshold =
        reader.number_or(&threshold, raw.threshold.as_deref(), 0.001..=1e6, THRESHOLD)?;
    let rule = |(n, raw): (usize, &RawRule)| rule(&format!("{at}.rules[{n}]"), raw, reader);
    let checked = rules.iter().enumerate().map(rule).collect::<Result<_, _>>()?;
    let spam = SpamConfig::new(threshold, checked).map_err(|why| {
        // It calls rules by their names, and such a name may be what a variable holds.
        let plain = |rule: &RawRule| rule.name.as_ref().is_none_or(|name| !name.contains("${"));
        let why = if rules.iter().all(plain) { why } else { "not what they should be".to_owned() };
        InvalidConfig::at(format!("{at}.rules"), why)
    })?;
    match raw.rspamd.as_deref() {
        None => Ok(WorkerConfig::Spam(spam)),
        Some(url) => outside::rspamd(at, url, raw, spam, reader),
    }
}

fn rule(at: &str, raw: &RawRule, reader: &ConfigReader<'_>) -> Result<SpamRule, InvalidConfig> {
    let at_name = format!("{at}.name");
    let raw_name = needed(&at_name, raw.name.as_deref())?;
    let name = reader.text(&at_name, raw_name)?;
    let at_score = format!("{at}.score");
    let score = needed(&at_score, raw.score.as_deref())?;
    let score = reader.number_or(&at_score, Some(score), -1e6..=1e6, 0.0)?;
    let patterns = [
        ("subject", &raw.subject),
        ("text", &raw.text),
        ("from", &raw.from),
        ("to", &raw.to),
        ("header", &raw.header),
    ];
    let mut given = patterns.iter().filter_map(|(key, raw)| Some((key, raw.as_ref()?)));
    let (Some((key, pattern)), None) = (given.next(), given.next()) else {
        return Err(InvalidConfig::at(at, "want one of subject, text, from, to and header"));
    };
    reader.checked(&format!("{at}.{key}"), pattern, |text| {
        let (what, pattern) = RulePattern::read(key, text)?;
        let rule = SpamRule::new(&name, score, what, pattern);
        rule.map_err(|why| match name == raw_name {
            true => one_line(&why),
            false => format!("not what it should be, or the name {raw_name} is not"),
        })
    })
}

/// The parser of patterns draws a picture of several lines before it says what is wrong.
fn one_line(why: &str) -> String {
    match (why.split_once("regex parse error:"), why.rsplit_once("error: ")) {
        (Some((whose, _)), Some((_, what))) => format!("{whose}not a pattern: {what}"),
        _ => why.to_owned(),
    }
}
