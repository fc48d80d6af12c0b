//! Tests of the config file: defaults, errors, secrets, variables and changes.

use std::any::Any;
use std::collections::HashSet;

use monoco_adapters::webhook::{WebhookConfig, WebhookVerification};
use monoco_core::chat_receipt::Reaction;
use monoco_core::letter::{ChainDirection, WorkerName};
use monoco_store::PipelineRouting;

use super::changes::ConfigChange;
use super::error_table::error_cases;
use super::*;

/// A secret of Standard Webhooks.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The environment of all these tests.
fn env(name: &str) -> Option<String> {
    match name {
        "HOME" => Some("/home/ann".to_owned()),
        "CI_SECRET" | "WORKER_SECRET" | "RSPAMD_PASSWORD" => Some(SECRET.to_owned()),
        "GITHUB_SECRET" | "ALERTS_TOKEN" => Some("hush-hush".to_owned()),
        "PORT" => Some("9000".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

#[track_caller]
fn good(text: &str) -> Config {
    Config::parse(text, &env).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[track_caller]
fn bad(text: &str) -> String {
    match Config::parse(text, &env) {
        Ok(config) => panic!("accepted:\n{text}\n{config:#?}"),
        Err(error) => error.to_string(),
    }
}

/// A config with one webhook tunnel that has these keys.
fn hook(keys: &str) -> String {
    format!("courier: {{adapters: {{ci: {{provider: webhook, {keys}}}}}}}")
}

#[track_caller]
fn webhook(tunnel: &TunnelConfig) -> &WebhookConfig {
    (tunnel.adapter.as_ref() as &dyn Any).downcast_ref().unwrap()
}

#[test]
fn documented_config_is_valid() {
    let page = include_str!("../../../../docs/config.md");
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let example = example.unwrap();
    let config = good(example);
    let tunnels: Vec<_> = config.tunnels.keys().map(TunnelId::as_str).collect();
    assert_eq!(tunnels, ["alerts", "ci", "github", "local", "pager", "stub"]);
    // What it says are the defaults are the defaults.
    let default = good("");
    assert_eq!((config.port, config.webhook_port), (default.port, default.webhook_port));
    assert_eq!(config.debounce, default.debounce);
    assert_eq!(config.claims, default.claims);
    assert_eq!(config.retention, default.retention);
    assert_eq!(config.owner, default.owner);
    assert_eq!(config.log_level, default.log_level);
    assert_eq!(config.pipeline, default.pipeline);
}

#[test]
fn documented_pipeline_is_valid_and_states_the_defaults() {
    let page = include_str!("../../../../docs/config.md");
    let example = page.split("```yaml\n").nth(2).and_then(|rest| rest.split("```").next());
    let example = example.unwrap();
    let config = good(example).pipeline;
    // A worker of each of the 12 kinds; `spam` is shown as rspamd.
    let kinds: HashSet<_> = config.workers.values().map(|worker| worker.kind()).collect();
    assert_eq!(kinds.len(), 12, "{kinds:?}");
    // A setting that its line calls the default makes no difference when it is left out.
    let is_default = |line: &&str| line.contains("# default");
    assert!(example.lines().filter(is_default).count() > 15);
    let shorter: Vec<_> = example.lines().filter(|line| !is_default(line)).collect();
    assert_eq!(good(&shorter.join("\n")).pipeline, config);
}

#[test]
fn empty_file_is_valid_and_gives_the_defaults() {
    for text in [
        "",
        "\n\n",
        "# nothing yet\n",
        "---\n",
        "courier:\n",
        "courier: {}\n",
        "courier:\n  service:\n  storage:\n  debounce:\n  claims:\n  retention:\n  adapters:\n",
        "courier: {adapters: {stub: }}",
        "\u{feff}courier: {}\n",
    ] {
        let config = good(text);
        assert_eq!(config.owner, default_owner());
        assert_eq!((config.host.to_string().as_str(), config.port), ("127.0.0.1", 8644));
        assert_eq!((config.webhook_port, config.log_level), (8645, Level::INFO));
        assert_eq!(config.debounce, Debounce::DEFAULT);
        assert_eq!(
            config.claims,
            ClaimsConfig { term: LeaseDuration::DEFAULT, retry: RetryPolicy::CLAIM }
        );
        assert_eq!(config.deliveries, RetryPolicy::DELIVERY);
        let retention = config.retention;
        assert_eq!((retention.inbound_days, retention.archive_days), (30, 30));
        assert_eq!((retention.trash_days, retention.events_days), (30, 90));
        let home = Home::new("/home/ann/.monoco".into());
        assert_eq!(config.mailbox(&home), Path::new("/home/ann/.monoco/mailbox"));
        let names: Vec<_> =
            config.running().map(|(id, tunnel)| (id.as_str(), tunnel.provider)).collect();
        assert_eq!(names, [("stub", "stub")]);
    }
}

#[test]
fn complete_example_is_valid() {
    let config = good(
        "# ~/.monoco/courier/config.yaml
courier:
  owner: did:monoco:me           # whose INBOX direct messages reach
  service:   { host: localhost, port: 8644, webhook_port: 8645, log_level: info }
  storage:   { mailbox_root: ~/.monoco/mailbox, store: sqlite }      # or postgres://…
  debounce:  { window_ms: 5000, max_wait_ms: 30000 }
  claims:    { timeout_s: 300, max_retries: 3, backoff_ms: 1000, max_backoff_ms: 30000 }
  deliveries: { give_up_after: 24h }                                 # and max_attempts; default unlimited
  retention: { inbound_days: 30, archive_days: 30, trash_days: 30, events_days: 90 }
  pipeline:
    queue: store                 # or beanstalkd://127.0.0.1:11300
    inbound:  [block, deliver]
    outbound: [send]
    workers:                     # foreign workers and settings of built-in ones
      tagger: { kind: beanstalkd, timeout_s: 30, when_down: hold }
      limit:  { per_recipient: 10/min, per_domain: 100/min }
  adapters:                      # one entry, one tunnel; its key is the tunnel's id
    github:    { provider: webhook, verify: github, secret: '${GITHUB_SECRET}', binding: alpha }
    ci:        { provider: webhook, verify: standard, secret: '${CI_SECRET}', send_to: https://ci.example.com/hook,
                 debounce: { window_ms: 1000 }, strangers: accept, dedupe_s: 60, template: '**{{ status }}** {{ url }}' }
",
    );
    assert_eq!(config.mailbox_root.as_deref(), Some(Path::new("/home/ann/.monoco/mailbox")));
    let tunnel = |name: &str| &config.tunnels[&name.parse::<TunnelId>().unwrap()];
    let github = tunnel("github");
    assert_eq!(github.binding.as_deref(), Some("alpha"));
    let settings = webhook(github);
    assert_eq!(settings.verify, WebhookVerification::Github);
    assert_eq!(settings.secret.expose(), "hush-hush");
    let ci = tunnel("ci");
    assert_eq!(ci.debounce.window, Duration::from_secs(1));
    assert_eq!(ci.debounce.max_wait, Duration::from_secs(30), "the rest is the courier's");
    let settings = webhook(ci);
    assert_eq!(settings.secret.expose(), SECRET);
    assert_eq!(settings.send_to.as_deref(), Some("https://ci.example.com/hook"));
    let workers: Vec<_> = config.pipeline.workers.keys().map(WorkerName::as_str).collect();
    assert_eq!(workers, ["block", "deliver", "limit", "send", "tagger"]);
    for direction in ChainDirection::ALL {
        let through = config.pipeline.routing(direction);
        assert_eq!(through, PipelineRouting::default(), "no chain names what is set up");
    }
}

#[test]
fn unknown_key_is_reported_with_the_nearest_known_one() {
    for (text, wanted) in [
        ("currier: {}", "line 1, column 1: unknown key `currier`; did you mean `courier`?"),
        (
            "courier:\n  debounse: {}",
            "line 2, column 3: unknown key `debounse`; did you mean `debounce`?",
        ),
        (
            "courier:\n  service:\n    prot: 1",
            "line 3, column 5: unknown key `prot`; did you mean `port`?",
        ),
        ("courier: {storage: {mailboxroot: /x}}", "did you mean `mailbox_root`?"),
        ("courier: {debounce: {windowms: 1}}", "did you mean `window_ms`?"),
        ("courier: {claims: {timeout: 1}}", "did you mean `timeout_s`?"),
        ("courier: {retention: {archive_day: 1}}", "did you mean `archive_days`?"),
        ("courier: {adapters: {stub: {enable: true}}}", "did you mean `enabled`?"),
        (
            "courier: {zzzzzzzzzzzzz: 1}",
            "unknown key `zzzzzzzzzzzzz`; known keys are owner, service",
        ),
        (&hook("secrets: x"), "did you mean `secret`?"),
        (&hook("secret: x, debounce: {window: 1}"), "did you mean `window_ms`?"),
        (&hook("secret: x, map: {txt: /a}"), "did you mean `text`?"),
        (&hook("secret: x, verify: {haeder: X-Sig}"), "did you mean `header`?"),
        ("courier: {\"\\u001b[31m\": 1}", "unknown key `\\u{1b}[31m`"),
    ] {
        let said = bad(text);
        assert!(said.contains(wanted), "{text}\nsaid   {said}\nwanted {wanted}");
        assert!(said.starts_with("line "), "{said}");
    }
}

/// Each line is followed by the error that it causes.
const INVALID_VALUES: &str = r#"
courier: {service: {host: 0.0.0.0}}
    courier.service.host: expected localhost, 127.0.0.1 or ::1
courier: {service: {host: example.com}}
    for other machines set `courier.remote`, which uses TLS
courier: {remote: {listen: '0.0.0.0:8646', names: [hub.example.com]}}
    courier.remote.certificate: missing; other machines can use the API only with TLS:
    set `certificate` and `key` to PEM files
courier: {remote: {certificate: /a.pem, listen: '0.0.0.0:8646', names: [hub.example.com]}}
    courier.remote.key: missing; other machines can use the API only with TLS:
    set `certificate` and `key` to PEM files
courier: {remote: {certificate: /a.pem, key: /b.pem, names: [hub.example.com]}}
    courier.remote.listen: is missing
courier: {remote: {certificate: /a.pem, key: /b.pem, listen: '8646', names: [hub.example.com]}}
    courier.remote.listen: found "8646", expected an address and a port, such as 0.0.0.0:8646
courier: {remote: {certificate: /a.pem, key: /b.pem, listen: '0.0.0.0:8646'}}
    courier.remote.names: expected the names by which clients reach this machine,
    such as [hub.example.com]; they must be in the certificate
courier: {remote: {certificate: /a.pem, key: /b.pem, listen: '0.0.0.0:8646', names: ['https://hub']}}
    courier.remote.names: found "https://hub", not a host name or an IP address; expected a name such as
    hub.example.com, without port
courier: {remote: {tls: false}}
    unknown key `tls`; known keys are listen, certificate, key, names
courier: {service: {port: 65536}}
    courier.service.port: expected a number from 0 to 65535, found "65536"
courier: {service: {port: -1}}
    found "-1"
courier: {service: {port: 80.5}}
    found "80.5"
courier: {service: {port: [1]}}
    line 1, column 27: expected a single value here
courier: {service: {port: 8645}}
    courier.service.webhook_port: must differ from the port of the API
courier: {service: {log_level: inof}}
    expected error, warn, info, debug or trace, found "inof"; did you mean info?
courier: {storage: {mailbox_root: mail}}
    expected an absolute path or one with ~/, found "mail"
courier: {storage: {mailbox_root: ~bob/mail}}
    expected an absolute path
courier: {storage: {store: mysql}}
    courier.storage.store: unknown store; expected sqlite, or a URL that starts with postgres://
courier: {storage: {durability: replicated}}
    courier.storage.durability: only a store in PostgreSQL has this key
courier: {storage: {store: 'postgres://db/hub', objects: s3://bucket}}
    courier.storage.objects: expected s3://KEY:SECRET@bucket: the access key is missing; escape @ as %40
courier: {storage: {store: 'postgres://db/hub', objects: disk}}
    courier.storage.objects: unknown place of attachments; expected database, or a URL that starts with s3://
courier: {storage: {objects_file: /etc/bucket}}
    courier.storage.objects_file: only a store in PostgreSQL has this key
courier: {debounce: {window_ms: 600001}}
    courier.debounce.window_ms: expected a number from 0 to 600000
courier: {debounce: {window_ms: 31000}}
    courier.debounce.max_wait_ms: 30000 is less than window_ms, 31000
courier: {claims: {timeout_s: 0}}
    courier.claims.timeout_s: expected a number from 1 to 86400
courier: {claims: {max_retries: many}}
    found "many"
courier: {claims: {backoff_ms: 5000, max_backoff_ms: 10}}
    10 is less than backoff_ms, 5000
courier: {retention: {archive_days: 0}}
    expected a number from 1 to 36500
courier: {deliveries: {give_up_after: 24}}
    such as 90s, 30m, 24h or 7d
courier: {deliveries: {give_up_after: 0s}}
    such as 90s, 30m, 24h or 7d
courier: {deliveries: {max_attempts: 0}}
    expected a number from 1 to 1000000
courier: {adapters: {ci: {}}}
    courier.adapters.ci: `provider` is missing
courier: {adapters: {ci: {provider: webhok}}}
    unknown provider "webhok"; did you mean webhook?
courier: {adapters: {slack: {provider: webhook}}}
    the tunnel is called slack, but `provider` is "webhook"
courier: {adapters: {stub: {secret: x}}}
    line 1, column 29: unknown key `secret`; known keys are provider, enabled
courier: {adapters: {stub: {enabled: yes}}}
    courier.adapters.stub.enabled: expected true or false, found "yes"
courier: {adapters: {stub: {strangers: droop}}}
    did you mean drop?
courier: {adapters: {stub: {binding: ''}}}
    courier.adapters.stub.binding: expected a label
courier: {adapters: {stub: {bindings: {c1: "a\nb"}}}}
    courier.adapters.stub.bindings.c1: expected a label
courier: {service: {port: '${NOT_SET}'}}
    courier.service.port: the variable NOT_SET is not set
courier: {service: {port: 1, port: 2}}
    duplicate key `port`
courier: &a {owner: *a}
    anchors and aliases are not supported
courier: {service: {port: "1}}
    not valid YAML
courier: 1
    expected keys and values here
- a
    expected keys and values here
"#;

#[test]
fn invalid_values_are_rejected_with_what_is_expected() {
    let others: [(&str, &str); 14] = [
        ("courier: {owner: ann}", "courier.owner: "),
        ("courier: {adapters: {CI: {provider: webhook}}}", "courier.adapters.CI: "),
        (
            &hook("verify: github"),
            "courier.adapters.ci.secret: missing or empty: a tunnel without a secret does not start",
        ),
        (&hook("verify: github, secret: ''"), "a tunnel without a secret does not start"),
        (&hook("verify: github, secret: '${EMPTY}'"), "a tunnel without a secret does not start"),
        (&hook("verify: github, secret: a, secret_file: /b"), "`secret` is set as well"),
        (
            &hook("verify: github, secret_file: /nowhere/at/all"),
            "courier.adapters.ci.secret_file: cannot read /nowhere/at/all",
        ),
        (&hook("verify: githib, secret: a"), "did you mean github?"),
        (
            &hook("verify: {encoding: hex}, secret: a"),
            "courier.adapters.ci.verify.header: is missing",
        ),
        (&hook("verify: {header: X-Sig, encoding: hax}, secret: a"), "did you mean hex?"),
        (
            &hook("verify: github, secret: a, send_to: 'file:///etc/passwd'"),
            "courier.adapters.ci.send_to: ",
        ),
        (&hook("verify: github, secret: a, allow_private: maybe"), "expected true or false"),
        (
            &hook("verify: github, secret: '${NOT_SET}'"),
            "courier.adapters.ci.secret: the variable NOT_SET is not set",
        ),
        ("courier: {}\n---\ncourier: {}\n", "second YAML document"),
    ];
    let others = others.map(|(text, wanted)| (text, wanted.to_owned()));
    for (text, wanted) in error_cases(INVALID_VALUES).into_iter().chain(others) {
        let said = bad(text);
        assert!(said.contains(&wanted), "{text}\nsaid   {said}\nwanted {wanted}");
    }
    let unset = |text| Config::parse(text, &env).unwrap_err().unset;
    assert!(unset("courier: {owner: '${NOT_SET}'}") && !unset("courier: {owner: ann}"));
    let deep = format!("courier: {}{}", "{a: ".repeat(100), "}".repeat(100));
    assert!(bad(&deep).contains("too deeply"), "{}", bad(&deep));
}

#[test]
fn values_of_every_kind_may_come_from_variables() {
    let config = good("courier: {service: {port: '${PORT}', webhook_port: \"${WEB:-9001}\"}}");
    assert_eq!((config.port, config.webhook_port), (9000, 9001));
    let config = good("courier:\n  service:\n    port: ${PORT}\n");
    assert_eq!(config.port, 9000);
    let config = good(
        "courier: {storage: {mailbox_root: '${HOME}/m'}, adapters: {stub: {binding: '$${x}'}}}",
    );
    assert_eq!(config.mailbox_root.as_deref(), Some(Path::new("/home/ann/m")));
    let stub = &config.tunnels[&"stub".parse::<TunnelId>().unwrap()];
    assert_eq!(stub.binding.as_deref(), Some("${x}"));
}

#[test]
fn disabled_tunnel_may_lack_required_keys() {
    let config = good(&hook("enabled: false"));
    assert_eq!(config.tunnels.len(), 2);
    let running: Vec<_> = config.running().map(|(id, _)| id.as_str()).collect();
    assert_eq!(running, ["stub"]);
    let config = good("courier: {adapters: {stub: {enabled: false}}}");
    assert_eq!(config.running().count(), 0);
}

#[test]
fn secret_is_read_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, format!("{SECRET}\r\n")).unwrap();
    let config = good(&hook(&format!("secret_file: {}", path.display())));
    let ci = &config.tunnels[&"ci".parse::<TunnelId>().unwrap()];
    let settings = webhook(ci);
    assert_eq!(settings.secret.expose(), SECRET);
    std::fs::write(&path, "\n").unwrap();
    assert!(bad(&hook(&format!("secret_file: {}", path.display()))).contains("empty"));
}

#[test]
fn errors_and_debug_output_never_show_a_secret() {
    let config = good(&hook("secret: '${CI_SECRET}'"));
    assert!(!format!("{config:?}").contains("MfKQ9r8"), "{config:?}");
    // Whatever is wrong around it, and wherever it got to by mistake.
    const LOUD: &str = "hunter2-hunter2";
    for text in [
        hook(&format!("secret: {LOUD}, verify: standard")),
        hook(&format!("secret: {LOUD}, verify: githib")),
        hook(&format!("secret: [{LOUD}]")),
        hook(&format!("secret: {{{LOUD}: 1}}")),
        hook(&format!("secret: {LOUD}, secret: {LOUD}")),
        hook(&format!("secret: {LOUD}, send_to: 'ftp://x'")),
        hook(&format!("secret: &{LOUD} a")),
        hook(&format!("secret: *{LOUD}")),
        hook(&format!("secret: !{LOUD} a")),
        hook(&format!("map: {LOUD}")),
        hook(&format!("debounce: {LOUD}")),
        hook(&format!("secret: \"{LOUD}")),
        hook(&format!("secret: '{LOUD}")),
        hook(&format!("secret: {LOUD}, verify: {{header: X, prefix: [1]}}")),
        format!("courier: {{adapters: {{ci: {LOUD}}}}}"),
        format!("courier: {{adapters: [{LOUD}]}}"),
        format!("courier: {{adapters: {LOUD}}}"),
        format!(
            "courier:\n  adapters:\n    ci:\n      provider: webhook\n      secret: {LOUD}: x\n"
        ),
        format!("courier:\n  adapters:\n    ci:\n      secret: {LOUD}\n     verify: x\n"),
        format!("courier:\n\tadapters: {LOUD}\n"),
        format!("courier: {{storage: {{store: {LOUD}}}}}"),
    ] {
        let said = bad(&text);
        assert!(!said.contains("hunter2"), "{text}\n{said}");
    }
}

#[test]
fn missing_file_counts_as_empty_unless_it_was_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    assert_eq!(Config::load(&path, false, &env).unwrap().port, 8644);
    assert!(matches!(Config::load(&path, true, &env), Err(ConfigError::Read { .. })));
    std::fs::write(&path, "courier: {service: {port: x}}").unwrap();
    let said = Config::load(&path, false, &env).unwrap_err().to_string();
    assert!(said.starts_with(&format!("{}: courier.service.port: ", path.display())), "{said}");
    std::fs::write(&path, b"courier: \xff").unwrap();
    assert!(Config::load(&path, false, &env).unwrap_err().to_string().contains("not UTF-8"));
    std::fs::write(&path, "#".repeat(1 << 20)).unwrap();
    assert!(Config::load(&path, false, &env).is_ok());
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    assert!(
        Config::load(&path, false, &env).unwrap_err().to_string().contains("larger than 1 MiB")
    );
    assert!(Config::load(dir.path(), false, &env).is_err(), "a directory");
}

#[test]
fn command_line_overrides_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, "courier: {service: {port: 1000, webhook_port: 1001}}").unwrap();
    let ports = |port, webhook_port| {
        let source =
            ConfigSource { path: path.clone(), explicit: true, port, webhook_port, debug: false };
        let config = source.load().unwrap();
        (config.port, config.webhook_port)
    };
    assert_eq!(ports(None, None), (1000, 1001));
    assert_eq!(ports(Some(7), None), (7, 1001));
    assert_eq!(ports(None, Some(8)), (1000, 8));
    assert_eq!(ports(Some(0), None), (0, 0), "any port means any port for both");
    let source = ConfigSource { path, explicit: true, port: None, webhook_port: None, debug: true };
    assert_eq!(source.load().unwrap().log_level, Level::DEBUG);
}

#[test]
fn mailbox_root_is_read_although_other_keys_are_invalid() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::new(dir.path().to_owned());
    assert_eq!(mailbox(&home).unwrap(), dir.path().join("mailbox"));
    std::fs::create_dir(dir.path().join("courier")).unwrap();
    let text = "courier: {storage: {mailbox_root: /m}, adapters: {ci: {secret: '${NOT_SET}'}}}";
    std::fs::write(home.config(), text).unwrap();
    assert_eq!(mailbox(&home).unwrap(), Path::new("/m"));
}

#[test]
fn reload_reports_live_changes_and_those_that_need_a_restart() {
    let old = good(&hook("secret: '${CI_SECRET}'"));
    let same: Vec<ConfigChange> = old.changes(&good(&hook("secret: '${CI_SECRET}'")));
    assert_eq!(same, []);
    let new = good(
        "courier:
  owner: did:web:ann
  service: { port: 1, webhook_port: 2, host: '::1', log_level: debug }
  storage: { mailbox_root: /m }
  debounce: { window_ms: 1000 }
  claims: { timeout_s: 60, max_retries: 5, backoff_ms: 10, max_backoff_ms: 20 }
  retention: { inbound_days: 4, archive_days: 1, trash_days: 2, events_days: 3 }
  pipeline: { queue: 'beanstalkd://127.0.0.1', outbound: [merge, send] }
  adapters:
    stub: { enabled: false }
    ci: { provider: webhook, verify: github, secret: other, binding: alpha }
    two: { provider: webhook, secret: '${CI_SECRET}' }
",
    );
    let said: Vec<String> = old.changes(&new).iter().map(ConfigChange::to_string).collect();
    assert_eq!(
        said,
        [
            "owner: did:monoco:me becomes did:web:ann (after a restart)",
            "host: 127.0.0.1 becomes ::1 (after a restart)",
            "port: 8644 becomes 1 (after a restart)",
            "webhook_port: 8645 becomes 2 (after a restart)",
            "mailbox_root: the default becomes /m (after a restart)",
            "log_level: INFO becomes DEBUG",
            "debounce window_ms: 5000 becomes 1000",
            "claims timeout_s: 300 becomes 60",
            "claims max_retries: 3 becomes 5",
            "claims backoff_ms: 1000 becomes 10",
            "claims max_backoff_ms: 30000 becomes 20",
            "retention inbound_days: 30 becomes 4",
            "retention archive_days: 30 becomes 1",
            "retention trash_days: 30 becomes 2",
            "retention events_days: 90 becomes 3",
            "pipeline queue: store becomes beanstalkd://127.0.0.1:11300 (after a restart)",
            "pipeline outbound: [send] becomes [merge, send]",
            "tunnel ci: changed debounce, binding, verify, secret",
            "tunnel stub: turned off",
            "tunnel two: added",
        ]
    );
    // What counts at once is taken over, and what remains is what must wait.
    let reloaded = old.reloaded(new.clone());
    assert!(reloaded.changes(&new).iter().all(|change| !change.live));
    assert_eq!(reloaded.changes(&new).len(), 6);
    assert_eq!(reloaded.pipeline.queue, old.pipeline.queue);
    assert_eq!(reloaded.pipeline.outbound, new.pipeline.outbound);
    let back: Vec<String> = new.changes(&old).iter().map(ConfigChange::to_string).collect();
    assert!(back.contains(&"tunnel two: removed".to_owned()), "{back:?}");
    assert!(back.contains(&"tunnel stub: turned on".to_owned()), "{back:?}");
}

#[test]
fn receipts_are_read_for_providers_with_reactions_only() {
    let slack = |receipt: &str| {
        format!(
            "courier: {{adapters: {{slack: {{app_token: xapp-1, bot_token: xoxb-1{receipt}}}}}}}"
        )
    };
    let id: TunnelId = "slack".parse().unwrap();
    let off = good(&slack(""));
    assert!(off.tunnels[&id].receipt.is_off(), "off by default");
    assert_eq!(off.tunnels[&id].reaction_rate(), None);
    let on = good(&slack(", receipt: {kept: eyes, done: ok}"));
    let receipt = on.tunnels[&id].receipt;
    assert_eq!(receipt.kept, Some(Reaction::Eyes));
    assert_eq!((receipt.done, receipt.dead), (Some(Reaction::Okay), None));
    assert!(on.tunnels[&id].reaction_rate().is_some());
    let keys = off.tunnels[&id].changed_keys(&on.tunnels[&id]);
    assert_eq!(keys, ["receipt"]);
    assert!(!on.tunnels[&id].applies_live(&keys), "the tunnel is started again");
    for (config, expected) in [
        (slack(", receipt: {kept: eye}"), "did you mean eyes?"),
        (
            "courier: {adapters: {dingtalk: {app_key: a, app_secret: b, receipt: {kept: eyes}}}}"
                .to_owned(),
            "courier.adapters.dingtalk.receipt: tunnels of the provider dingtalk cannot react to \
             messages, only those of",
        ),
        (hook("secret: s, receipt: {}"), "remove the key"),
    ] {
        let error = bad(&config);
        assert!(error.contains(expected), "{config}: {error}");
    }
}

#[test]
fn url_of_a_store_is_a_secret() {
    let text =
        "courier: {storage: {store: 'postgres://me:hunter2@db/hub', durability: replicated}}";
    let config = good(text);
    let StoreConfig::Postgres(store) = &config.store else { panic!("{:?}", config.store) };
    assert_eq!((store.schema.as_str(), store.durability), ("monoco", Durability::Replicated));
    let shown = format!("{config:?} {}", config.store.place(&Home::new("/home".into())));
    assert!(!shown.contains("hunter2"), "{shown}");
    let said = bad("courier: {storage: {store: 'mysql://me:hunter2@db/hub'}}");
    assert!(said.contains("postgres://") && !said.contains("hunter2"), "{said}");
    let command = good("courier: {storage: {store_command: [pass, show, hub], schema: other}}");
    let StoreConfig::Postgres(store) = command.store else { panic!("{:?}", command.store) };
    assert_eq!(store.url, SecretSource::Command(["pass", "show", "hub"].map(Into::into).to_vec()));
}
