//! Tests of the keys of a Telegram tunnel.

use super::super::tests::{SecretFiles, TOKEN, config as parse};
use super::*;
use monoco_core::config::ConfigFile;

fn with_token(lines: &str) -> Result<TelegramConfig, String> {
    parse(&format!("token: {TOKEN}\n{lines}"))
}

#[test]
fn defaults_are_polling_and_the_limits_of_telegram() {
    let config = with_token("").unwrap();
    assert_eq!((config.mode, config.poll), (TelegramMode::Poll, Duration::from_secs(50)));
    assert_eq!(config.base_url.shown(), "https://api.telegram.org");
    assert_eq!(config.rates, TelegramRates { chat: DEFAULT_SEND_RATE, group: DEFAULT_GROUP_RATE });
    assert!(!config.delete_webhook && config.webhook_url.is_none());
    assert_eq!(ProviderConfig::mode(&config), "poll");
    assert!(!format!("{config:?}").contains("AAHdq"));
    let file = parse("token_file: /run/token").unwrap();
    assert!(matches!(file.token, Some(SecretSource::Value(_))));
    let command = parse("token_command: pass show telegram").unwrap();
    assert!(matches!(command.token, Some(SecretSource::Command(_))));
}

#[test]
fn webhook_needs_a_secret() {
    let lines =
        "mode: webhook\nsecret_token: s-3_cret\nwebhook_url: https://h.example.com/webhooks/t";
    let config = with_token(lines).unwrap();
    assert_eq!((config.mode, ProviderConfig::mode(&config)), (TelegramMode::Webhook, "push"));
    assert_eq!(config.webhook_url.as_deref(), Some("https://h.example.com/webhooks/t"));
}

#[test]
fn errors_name_the_key_and_never_a_secret() {
    for (lines, want) in [
        ("mode: webhook", "secret_token: is missing"),
        ("mode: webhook\nsecret_token: canary!", "secret_token: expected 1 to 256 characters"),
        ("mode: webhook\nsecret_token_command: [x]", "secret_token_command: the secret is needed"),
        ("mode: webhook\nsecret_token: a\nwebhook_url: http://h.example.com", "webhook_url: "),
        (
            "mode: webhook\nsecret_token: a\ndelete_webhook: true",
            "delete_webhook: needs `mode: poll`",
        ),
        ("secret_token: canary", "secret_token: needs `mode: webhook`"),
        ("webhook_url: https://h.example.com", "webhook_url: needs `mode: webhook`"),
        ("mode: stream", "mode: "),
        ("poll_s: 51", "poll_s: "),
        ("send_rate: fast", "send_rate: "),
        ("base_url: http://api.telegram.org", "base_url: "),
        ("tokn: x", "unknown key `tokn`; did you mean `token`?"),
    ] {
        let error = with_token(lines).unwrap_err();
        assert!(error.contains(want) && !error.contains("canary"), "{lines}: {error}");
    }
    for (yaml, want) in [
        ("mode: poll", "token: is missing; set it, `token_file` or `token_command`"),
        ("token: canary", "token: not a bot token"),
        ("token: '1:can/ary'", "token: not a bot token"),
    ] {
        let error = parse(yaml).unwrap_err();
        assert!(error.contains(want) && !error.contains("can"), "{yaml}: {error}");
    }
    let file = ConfigFile::parse("mode: webhook").unwrap();
    let section = file.root(&SecretFiles).unwrap();
    assert!(TelegramConfig::parse(&section, false).is_ok(), "a disabled tunnel may be empty");
}

#[test]
fn emulator_on_this_machine_may_use_http() {
    for url in ["http://127.0.0.1:8664", "http://localhost:8664/", "http://[::1]:8664"] {
        assert!(with_token(&format!("base_url: {url}")).is_ok(), "{url}");
    }
}

#[test]
fn changed_keys_are_named_and_rates_apply_live() {
    let old = with_token("").unwrap();
    let new = with_token("send_rate: 5/s\ngroup_rate: 10/min").unwrap();
    let keys = ProviderConfig::changed_keys(&old, &new);
    assert_eq!(keys, ["send_rate", "group_rate"]);
    assert!(keys.iter().all(|key| TelegramConfig::LIVE_KEYS.contains(key)));
    let new = parse("token: '1:x'\nmode: webhook\nsecret_token: a").unwrap();
    assert_eq!(ProviderConfig::changed_keys(&old, &new), ["mode", "token", "secret_token"]);
    assert!(ProviderConfig::changed_keys(&old, &old.clone()).is_empty());
}
