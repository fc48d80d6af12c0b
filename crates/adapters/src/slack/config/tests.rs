//! Tests of the keys of a Slack tunnel.

use std::path::Path;

use monoco_core::config::{ConfigEnvironment, ConfigFile};

use super::*;
use crate::chat_config::DEFAULT_CATCH_UP;

struct SecretFiles;

impl ConfigEnvironment for SecretFiles {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
        Ok(Secret::new("xoxb-from-a-file"))
    }
}

fn parse(yaml: &str) -> Result<SlackConfig, String> {
    let file = ConfigFile::parse(yaml).unwrap();
    SlackConfig::parse(&file.root(&SecretFiles).unwrap(), true).map_err(|error| error.to_string())
}

const SOCKET: &str = "app_token: xapp-1\nbot_token: xoxb-1\n";

#[test]
fn defaults_are_socket_mode_and_a_day() {
    let config = parse(SOCKET).unwrap();
    assert_eq!((config.mode, config.catch_up), (SlackMode::Socket, Some(DEFAULT_CATCH_UP)));
    assert_eq!(config.base_url.shown(), "https://slack.com");
    assert_eq!((config.send_rate, config.accepts_bots), (DEFAULT_SEND_RATE, false));
    assert!(parse(&format!("{SOCKET}bots: accept\n")).unwrap().accepts_bots);
    let file = parse("app_token: xapp-1\nbot_token_file: /run/token\n").unwrap();
    assert!(matches!(file.bot_token, Some(SecretSource::Value(_))));
    let command = parse("app_token: xapp-1\nbot_token_command: pass show slack\n").unwrap();
    assert!(matches!(command.bot_token, Some(SecretSource::Command(_))));
    let webhook = "mode: webhook\nbot_token: xoxb-1\nsigning_secret: s\ncatch_up: off\n";
    let webhook = parse(webhook).unwrap();
    assert_eq!((webhook.mode, webhook.catch_up), (SlackMode::Webhook, None));
    assert_eq!(
        parse(&format!("{SOCKET}catch_up: 7d\n")).unwrap().catch_up.unwrap().as_secs(),
        604_800
    );
    assert!(parse(&format!("{SOCKET}base_url: http://127.0.0.1:8080/api/\n")).is_ok());
}

#[test]
fn invalid_values_are_named_without_the_secret() {
    for (yaml, words) in [
        ("bot_token: xoxb-1\n", "app_token: is missing; set it, `app_token_file` or"),
        ("app_token: xapp-1\n", "bot_token: is missing"),
        ("app_token: xoxb-SECRET\nbot_token: xoxb-1\n", "expected one that starts with xapp-"),
        ("app_token: xapp-1\nbot_token: xoxp-SECRET\n", "expected one that starts with xoxb-"),
        ("app_token: xapp-1\nbot_token: 'xoxb-SEC RET'\n", "expected one that starts with xoxb-"),
        ("mode: webhook\nbot_token: xoxb-1\n", "signing_secret: is missing; `mode: webhook` needs"),
        ("mode: rtm\n", "mode"),
        ("bot_tokn: x\n", "unknown key `bot_tokn`; did you mean `bot_token`?"),
        (&format!("{SOCKET}base_url: http://example.com/\n"), "base_url: expected https://"),
        (&format!("{SOCKET}base_url: http://10.0.0.1/\n"), "base_url: expected https://"),
        (&format!("{SOCKET}catch_up: 5 hours\n"), "expected `off` or 1s to 30d, such as 24h"),
        (&format!("{SOCKET}catch_up: 99d\n"), "expected `off` or 1s to 30d"),
        (&format!("{SOCKET}send_rate: fast\n"), "invalid rate"),
        (&format!("{SOCKET}signing_secret_command: x\n"), "needed for every request"),
    ] {
        let error = parse(yaml).unwrap_err();
        assert!(error.contains(words), "{yaml}: {error}");
        assert!(!error.contains("SECRET") && !error.contains("RET"), "{error}");
    }
}

#[test]
fn every_changed_key_is_named() {
    let old = parse(SOCKET).unwrap();
    assert!(old.changed_keys(&old.clone()).is_empty());
    let new = "mode: webhook\nsigning_secret: s\nbot_token: xoxb-2\ncatch_up: off\nsend_rate: 2/s\n\
               base_url: https://slack.example.com/api/\n";
    let changed = old.changed_keys(&parse(new).unwrap());
    let all =
        ["mode", "app_token", "bot_token", "signing_secret", "base_url", "catch_up", "send_rate"];
    assert_eq!(changed, all);
}
