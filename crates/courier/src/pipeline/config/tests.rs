//! Valid pipelines and what they are parsed to, and changes of a reload.

use std::time::Duration;

use monoco_core::retry::{Backoff, RetryPolicy};

use super::*;
use crate::config::Config;
use crate::pipeline::external::exec::ExecTransport;
use crate::pipeline::external::http::HttpTransport;
use crate::pipeline::external::rspamd::RspamdTransport;
use crate::pipeline::external::tube::TubeTransport;
use crate::pipeline::external::{WhenDown, WorkerTransport};
use crate::pipeline::workers::block::BlockConfig;
use crate::pipeline::workers::footer::FooterConfig;
use crate::pipeline::workers::limit::LimitConfig;
use crate::pipeline::workers::merge::MergeConfig;
use crate::pipeline::workers::spam::{RulePart, SpamConfig, SpamRule};
use crate::pipeline::workers::subject::SubjectConfig;
use crate::pipeline::workers::trash::TrashConfig;

mod rejected;

/// A secret of Standard Webhooks.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn env(name: &str) -> Option<String> {
    let value = match name {
        "HOME" => "/home/ann",
        "WORKER_SECRET" => SECRET,
        "RSPAMD_PASSWORD" | "LOUD" => "hunter2-hunter2",
        "CHAIN" => "footer",
        "N" => "7",
        "EMPTY" => "",
        _ => return None,
    };
    Some(value.to_owned())
}

fn parse(pipeline: &str) -> Result<PipelineConfig, String> {
    let text = format!("courier: {{pipeline: {{{pipeline}}}}}");
    Config::parse(&text, &env).map(|config| config.pipeline).map_err(|error| error.to_string())
}

#[track_caller]
fn good(pipeline: &str) -> PipelineConfig {
    parse(pipeline).unwrap_or_else(|error| panic!("{error}\n{pipeline}"))
}

#[track_caller]
fn bad(pipeline: &str) -> String {
    match parse(pipeline) {
        Ok(settings) => panic!("taken:\n{pipeline}\n{settings:#?}"),
        Err(error) => error,
    }
}

/// The worker `w` with these keys.
#[track_caller]
fn worker<T: Worker + Clone>(keys: &str) -> T {
    named(&good(&format!("workers: {{w: {{{keys}}}}}")), "w")
}

#[track_caller]
fn external(keys: &str) -> ExternalWorkerConfig {
    worker(keys)
}

#[track_caller]
fn named<T: Worker + Clone>(settings: &PipelineConfig, name: &str) -> T {
    let worker = &settings.workers[&name.parse::<WorkerName>().unwrap()];
    downcast::<T>(&**worker).unwrap_or_else(|| panic!("{worker:?}")).clone()
}

fn inbound(settings: &PipelineConfig) -> String {
    chain(settings, ChainDirection::Inbound, None)
}

fn outbound(settings: &PipelineConfig) -> String {
    chain(settings, ChainDirection::Outbound, None)
}

fn chain(settings: &PipelineConfig, direction: ChainDirection, tunnel: Option<&str>) -> String {
    let tunnel = tunnel.map(|tunnel| tunnel.parse().unwrap());
    let chain = settings.chain(direction, tunnel.as_ref());
    chain.0.iter().map(WorkerName::as_str).collect::<Vec<_>>().join(" ")
}

#[test]
fn default_pipeline_skips_both_chains() {
    let empty = Config::parse("", &env).unwrap().pipeline;
    for text in ["", "queue: store", "tunnels: , workers: , inbound: ", "workers: {block: }"] {
        assert_eq!(good(text), empty, "{text}");
    }
    assert_eq!(Config::parse("courier: {pipeline: }", &env).unwrap().pipeline, empty);
    assert_eq!(empty.queue, QueueKind::Store);
    assert_eq!((inbound(&empty).as_str(), outbound(&empty).as_str()), ("block deliver", "send"));
    for direction in ChainDirection::ALL {
        assert_eq!(empty.routing(direction), PipelineRouting::default(), "{direction:?}");
    }
    // Every worker of a chain exists.
    let names: Vec<_> = empty.workers.keys().map(WorkerName::as_str).collect();
    assert_eq!(names, ["block", "deliver", "send"]);
}

#[test]
fn empty_chain_consists_of_its_end() {
    let settings = good("inbound: [], outbound: [], tunnels: {ci: {inbound: [], outbound: }}");
    assert_eq!((inbound(&settings).as_str(), outbound(&settings).as_str()), ("deliver", "send"));
    assert_eq!(chain(&settings, ChainDirection::Inbound, Some("ci")), "deliver");
    assert_eq!(settings.tunnels.values().next().unwrap().outbound, None);
}

#[test]
fn tunnel_can_have_its_own_chains() {
    let settings = good(
        "inbound: [block, spam, deliver], \
         tunnels: {ci: {inbound: [deliver], outbound: [tagger, send]}, mail: , web: {}}, \
         workers: {spam: {rules: [{name: a, text: b, score: 1}]}, tagger: {kind: exec, command: [t]}}",
    );
    let of = |direction, tunnel| chain(&settings, direction, tunnel);
    assert_eq!(of(ChainDirection::Inbound, None), "block spam deliver");
    assert_eq!(of(ChainDirection::Inbound, Some("mail")), "block spam deliver");
    assert_eq!(of(ChainDirection::Inbound, Some("ci")), "deliver");
    assert_eq!(of(ChainDirection::Outbound, Some("ci")), "tagger send");
    assert_eq!(of(ChainDirection::Outbound, None), "send");
    assert_eq!(settings.tunnels.len(), 1, "a tunnel without chains is left out");
    let through = settings.routing(ChainDirection::Inbound);
    assert!(through.all && !through.tunnels[&"ci".parse().unwrap()]);
    let through = settings.routing(ChainDirection::Outbound);
    assert!(!through.all && through.tunnels[&"ci".parse().unwrap()]);
}

#[test]
fn ends_can_have_other_names() {
    let settings = good(
        "inbound: [home], outbound: [bin], tunnels: {ci: {inbound: [trash], outbound: [trash]}}, \
         workers: {home: {kind: deliver}, bin: {kind: trash}, news: {kind: send, tunnel: work-mail}}",
    );
    assert_eq!((inbound(&settings).as_str(), outbound(&settings).as_str()), ("home", "bin"));
    assert_eq!(named::<TrashConfig>(&settings, "bin"), TrashConfig);
    let tunnel = Some("work-mail".parse().unwrap());
    assert_eq!(named::<SendConfig>(&settings, "news"), SendConfig { tunnel });
    assert_eq!(named::<SendConfig>(&good(""), "send"), SendConfig { tunnel: None });
}

#[test]
fn built_in_workers_read_their_keys() {
    let block: BlockConfig = worker("kind: block, senders: ['@spam.example', a@b.c, did:web:x]");
    assert_eq!(block.senders, ["@spam.example", "a@b.c", "did:web:x"]);
    assert!(block.recipients.is_empty());

    let subject: SubjectConfig = worker("kind: subject, template: '[News] {subject}'");
    assert_eq!(subject, SubjectConfig::new("[News] {subject}").unwrap());
    let footer: FooterConfig = worker("kind: footer, text: a, html: b");
    assert_eq!(footer, FooterConfig::new("a", Some("b")).unwrap());

    let merge = |keys: &str| worker::<MergeConfig>(&format!("kind: merge, {keys}"));
    let merging =
        |secs, max_letters| MergeConfig { window: Duration::from_secs(secs), max_letters };
    assert_eq!(merge(""), merging(60, 100));
    assert_eq!(merge("window_s: 1, most: 2"), merging(1, 2));
    assert_eq!(merge("window_s: 86400, most: 1000"), merging(86_400, 1_000));

    let limit: LimitConfig = worker("kind: limit, per_recipient: 10/min, per_tunnel: 1000/h");
    let rate = |text: &str| Some(text.parse().unwrap());
    let wanted =
        LimitConfig { per_recipient: rate("10/min"), per_domain: None, per_tunnel: rate("1000/h") };
    assert_eq!(limit, wanted);
}

#[test]
fn spam_reads_rules_and_rspamd() {
    const RULES: &str = "rules: [{name: casino, subject: '(?i)casino', score: 3}, \
        {name: shout, text: '[A-Z]{20}', score: 2.5}, \
        {name: friend, from: '@example\\.com$', score: -5}, {name: list, to: '^all@', score: 1}, \
        {name: bulk, header: 'Precedence: bulk', score: 1}]";
    let spam: SpamConfig = worker(&format!("kind: spam, threshold: 4.5, {RULES}"));
    let rule = |name, score, key, text| {
        let (part, pattern) = RulePart::parse(key, text).unwrap();
        SpamRule::new(name, score, part, pattern).unwrap()
    };
    let rules = vec![
        rule("casino", 3.0, "subject", "(?i)casino"),
        rule("shout", 2.5, "text", "[A-Z]{20}"),
        rule("friend", -5.0, "from", r"@example\.com$"),
        rule("list", 1.0, "to", "^all@"),
        rule("bulk", 1.0, "header", "Precedence: bulk"),
    ];
    assert_eq!(spam, SpamConfig::new(4.5, rules.clone()).unwrap());
    let by_default = SpamConfig::new(5.0, rules).unwrap();
    let rspamd = external(&format!("kind: spam, rspamd: 'http://127.0.0.1:11333', {RULES}"));
    let WorkerTransport::Rspamd(RspamdTransport { target, password, rules }) = rspamd.transport
    else {
        panic!("{rspamd:?}")
    };
    assert_eq!((target.shown().as_str(), password), ("http://127.0.0.1:11333", None));
    assert_eq!(rules, by_default);
    assert_eq!((rspamd.parallel, rspamd.timeout), (4, Duration::from_secs(30)));
    let rspamd =
        external("kind: spam, rspamd: 'http://localhost:1/', password: '${RSPAMD_PASSWORD}'");
    let WorkerTransport::Rspamd(RspamdTransport { password: Some(password), rules, .. }) =
        rspamd.transport
    else {
        panic!("{rspamd:?}")
    };
    assert_eq!(password.expose(), "hunter2-hunter2");
    assert_eq!(rules, SpamConfig::new(5.0, Vec::new()).unwrap());
    let rspamd = external("kind: spam, rspamd: 'http://[::1]:11333', password: '${EMPTY}'");
    let WorkerTransport::Rspamd(transport) = rspamd.transport else { panic!("{rspamd:?}") };
    assert_eq!(transport.password, None);
    external("kind: spam, rspamd: 'https://rspamd.example.com'");
    external("kind: spam, rspamd: 'https://10.0.0.1', allow_private: true");
}

#[test]
fn external_workers_have_defaults_and_limits() {
    let exec = external("kind: exec, command: [python3, score.py]");
    let WorkerTransport::Exec(ExecTransport { command, memory }) = &exec.transport else {
        panic!("{exec:?}")
    };
    assert_eq!((command.join(" ").as_str(), *memory), ("python3 score.py", 512 << 20));
    let retry =
        RetryPolicy { backoff: Backoff::DEFAULT, max_attempts: Some(4), give_up_after: None };
    assert_eq!((exec.timeout, exec.retry, exec.parallel), (Duration::from_secs(30), retry, 2));
    assert_eq!((exec.when_down, exec.readdress), (WhenDown::Hold, false));

    let http = external(
        "kind: http, url: 'http://127.0.0.1:1/w', allow_private: true, secret: '${WORKER_SECRET}', \
         timeout_s: 3600, retries: 0, when_down: skip, readdress: true, parallel: 64",
    );
    let WorkerTransport::Http(HttpTransport { target, secret }) = &http.transport else {
        panic!("{http:?}")
    };
    assert_eq!((target.shown().as_str(), secret.expose()), ("http://127.0.0.1:1", SECRET));
    assert_eq!(
        (http.timeout.as_secs(), http.retry.max_attempts, http.parallel),
        (3_600, Some(1), 64)
    );
    assert_eq!((http.when_down, http.readdress), (WhenDown::Skip, true));

    let tube = external("kind: beanstalkd, when_down: dead, retries: 100, timeout_s: 1");
    let WorkerTransport::Tube(transport) = &tube.transport else { panic!("{tube:?}") };
    let TubeTransport { server, tube: letters, results } = transport;
    assert_eq!(server.to_string(), "beanstalkd://127.0.0.1:11300");
    assert_eq!((letters.as_str(), results.as_str()), ("monoco.worker.w", "monoco.results"));
    assert_eq!((tube.when_down, tube.parallel), (WhenDown::Dead, 1_000));
    assert_eq!((tube.retry.max_attempts, tube.timeout.as_secs()), (Some(101), 1));
    let http = external("kind: http, url: 'https://example.com/w', secret: '${WORKER_SECRET}'");
    assert_eq!(http.parallel, 4);
}

#[test]
fn tube_worker_uses_the_server_of_the_queue_by_default() {
    let server = |pipeline: &str| {
        let worker: ExternalWorkerConfig = named(&good(pipeline), "w");
        let WorkerTransport::Tube(tube) = worker.transport else { panic!("{pipeline}") };
        tube.server.to_string()
    };
    let queue = "queue: 'beanstalkd://queue.example:1'";
    let default = server(&format!("{queue}, workers: {{w: {{kind: beanstalkd}}}}"));
    assert_eq!(default, "beanstalkd://queue.example:1");
    let own = "workers: {w: {kind: beanstalkd, server: 'beanstalkd://own', tube: t, results: r}}";
    assert_eq!(server(&format!("{queue}, {own}")), "beanstalkd://own:11300");
    let QueueKind::Beanstalkd(address) = good(queue).queue else { panic!("the store") };
    assert_eq!(address.to_string(), "beanstalkd://queue.example:1");
}

#[test]
fn variables_and_home_are_expanded() {
    let exec =
        external("kind: exec, command: ['~/bin/w', '~/x', 'a~/x', '${N}'], parallel: '${N}'");
    let WorkerTransport::Exec(exec_transport) = exec.transport else { panic!("not a command") };
    assert_eq!(exec_transport.command, ["/home/ann/bin/w", "/home/ann/x", "a~/x", "7"]);
    assert_eq!(exec.parallel, 7);
    let settings = good(
        "outbound: ['${CHAIN}', '${END:-send}'], workers: {footer: {text: '${N} lines'}, \
         limit: {per_domain: '${N}/min'}, two: {kind: '${CHAIN}', text: x}}",
    );
    assert_eq!(outbound(&settings), "footer send");
    let limit: LimitConfig = named(&settings, "limit");
    assert_eq!(limit.per_domain.unwrap().to_string(), "7/min");
}

#[test]
fn secrets_can_be_in_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    let path = path.display();
    let http = external(&format!("kind: http, url: 'https://example.com', secret_file: {path}"));
    let WorkerTransport::Http(http) = http.transport else { panic!("not http") };
    assert_eq!(http.secret.expose(), SECRET);
    let rspamd = format!("kind: spam, rspamd: 'http://127.0.0.1:11333', password_file: {path}");
    let WorkerTransport::Rspamd(transport) = external(&rspamd).transport else {
        panic!("not rspamd")
    };
    assert_eq!(transport.password.unwrap().expose(), SECRET);
    let both = bad(&format!("workers: {{w: {{{rspamd}, password: x}}}}"));
    let wanted = "courier.pipeline.workers.w.password_file: `password` is set as well; \
                  set only one of them";
    assert_eq!(both, wanted);
}

#[test]
fn errors_debug_output_and_changes_show_no_secret() {
    const HTTP: &str = "kind: http, url: 'https://example.com/${LOUD}', secret: ";
    const RSPAMD: &str = "kind: spam, rspamd: 'http://localhost', password: ";
    let loud = good(&format!(
        "workers: {{a: {{{HTTP} '${{WORKER_SECRET}}'}}, b: {{{RSPAMD} '${{LOUD}}'}}}}"
    ));
    let debug = format!("{loud:?}");
    assert!(!debug.contains("hunter2") && !debug.contains("MfKQ9r8"), "{debug}");
    let other = good(&format!(
        "workers: {{a: {{{HTTP} c2l4dGVlbiBieXRlcyBvciBtb3Jl}}, b: {{{RSPAMD} x}}}}"
    ));
    let said = changes(&loud, &other);
    assert_eq!(said, ["pipeline worker a: changed secret", "pipeline worker b: changed password"]);
    for keys in [
        format!("{HTTP} hunter2-hunter2"),
        format!("{HTTP} [hunter2-hunter2]"),
        format!("{HTTP} hunter2, secret_file: /x"),
        format!("{HTTP} '${{WORKER_SECRET}}', timeout_s: '${{LOUD}}'"),
        format!("{HTTP} '${{WORKER_SECRET}}', when_down: '${{LOUD}}'"),
        format!("{RSPAMD} \"hunter2\\n\""),
        format!("{RSPAMD} {{hunter2: 1}}"),
        format!("{RSPAMD} hunter2, readdress: true"),
        "kind: http, url: 'https://ann:hunter2@example.com', secret: x".to_owned(),
        "kind: spam, rspamd: 'https://ann:hunter2@example.com'".to_owned(),
        "kind: spam, rules: [{name: '${LOUD}', text: '(', score: 1}]".to_owned(),
        "kind: spam, rules: [{name: a, text: '(${LOUD}', score: 1}]".to_owned(),
        "kind: spam, rules: [{name: '${LOUD}', text: a, score: 1}, \
         {name: '${LOUD}', text: b, score: 1}]"
            .to_owned(),
        "kind: subject, template: '{${LOUD}}'".to_owned(),
        "kind: beanstalkd, server: '${LOUD}'".to_owned(),
        "kind: beanstalkd, tube: '${LOUD} '".to_owned(),
        "kind: exec, command: ['${LOUD}/x']".to_owned(),
        "kind: '${LOUD}'".to_owned(),
    ] {
        let said = bad(&format!("workers: {{w: {{{keys}}}}}"));
        assert!(!said.contains("hunter2"), "{keys}\n{said}");
    }
}

fn changes(old: &PipelineConfig, new: &PipelineConfig) -> Vec<String> {
    old.changes(new).iter().map(ToString::to_string).collect()
}

#[test]
fn reload_describes_changes() {
    let empty = good("");
    assert_eq!(changes(&empty, &empty), [""; 0]);
    let full = good(
        "queue: 'beanstalkd://127.0.0.1', inbound: [spam, deliver], \
         outbound: [subject, merge, trash], tunnels: {ci: {outbound: [tagger, send]}}, \
         workers: {spam: {rules: [{name: a, text: b, score: 1}]}, subject: {template: x}, \
         block: {senders: [a@b.c]}, send: {tunnel: ci}, tagger: {kind: exec, command: [t]}}",
    );
    assert_eq!(
        changes(&empty, &full),
        [
            "pipeline queue: store becomes beanstalkd://127.0.0.1:11300 (after a restart)",
            "pipeline inbound: [block, deliver] becomes [spam, deliver]",
            "pipeline outbound: [send] becomes [subject, merge, trash]",
            "pipeline outbound of ci: the common chain becomes [tagger, send]",
            "pipeline worker block: changed senders",
            "pipeline worker send: changed tunnel",
            "pipeline worker spam: added",
            "pipeline worker subject: added",
            "pipeline worker tagger: added",
        ]
    );
    let back = changes(&full, &empty);
    assert!(back.contains(&"pipeline worker tagger: removed".to_owned()), "{back:?}");
    assert_eq!(changes(&full, &full), [""; 0]);
}

#[test]
fn reload_names_the_changed_keys_of_a_worker() {
    const RSPAMD: &str = "kind: spam, rspamd: 'http://localhost'";
    const RULES: &str = "rules: [{name: a, text: b, score: 1}]";
    const URL: &str = "secret: '${WORKER_SECRET}', url: 'https://example.com/";
    for (old, new, wanted) in [
        ("kind: subject, template: a", "kind: subject, template: b", "template"),
        ("kind: footer, text: a", "kind: footer, text: a, html: b", "html"),
        ("kind: merge", "kind: merge, window_s: 1, most: 2", "window_s, most"),
        ("kind: merge", "kind: merge, window_s: 60", ""),
        (
            "kind: limit, per_recipient: 1/s, per_domain: 1/s",
            "kind: limit, per_domain: 2/s, per_tunnel: 1/s",
            "per_recipient, per_domain, per_tunnel",
        ),
        ("kind: trash", "kind: deliver", "kind"),
        ("kind: send", "kind: send, tunnel: ci", "tunnel"),
        ("kind: block", "kind: block, recipients: [a@b.c]", "recipients"),
        (
            &format!("kind: spam, {RULES}"),
            &format!("kind: spam, {RULES}, threshold: 6"),
            "threshold or rules",
        ),
        (&format!("kind: spam, {RULES}"), &format!("{RSPAMD}, {RULES}"), "rspamd"),
        (RSPAMD, &format!("{RSPAMD}, password: a, {RULES}"), "threshold or rules, password"),
        (RSPAMD, "kind: spam, rspamd: 'http://localhost:2'", "rspamd"),
        (
            "kind: exec, command: [a]",
            "kind: exec, command: [b], memory_mb: 16, timeout_s: 1, retries: 1, when_down: skip, \
             readdress: true, parallel: 1",
            "command, memory_mb, timeout_s, retries, when_down, readdress, parallel",
        ),
        (&format!("kind: http, {URL}a'"), &format!("kind: http, {URL}b'"), "url"),
        (
            "kind: beanstalkd",
            "kind: beanstalkd, server: 'beanstalkd://b', tube: b, results: c, in_flight: 1",
            "server, tube, results, in_flight",
        ),
        ("kind: exec, command: [a], parallel: 4", &format!("kind: http, {URL}'"), "kind"),
    ] {
        let of = |keys: &str| good(&format!("workers: {{w: {{{keys}}}}}"));
        let said = changes(&of(old), &of(new)).join("; ");
        let wanted = match wanted {
            "" => String::new(),
            names => format!("pipeline worker w: changed {names}"),
        };
        assert_eq!(said, wanted, "{old} → {new}");
    }
}
