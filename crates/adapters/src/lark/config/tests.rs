//! Tests of the keys of a Lark tunnel.

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
        Ok(Secret::new("from-a-file"))
    }
}

fn parse(yaml: &str) -> Result<LarkConfig, String> {
    let file = ConfigFile::parse(yaml).unwrap();
    LarkConfig::parse(&file.root(&SecretFiles).unwrap(), true).map_err(|error| error.to_string())
}

const APP: &str = "app_id: cli_a1\napp_secret: s3cret\n";

#[test]
fn defaults_are_those_of_the_documentation() {
    let config = parse(APP).unwrap();
    assert_eq!((config.mode, config.host), (LarkMode::Stream, LarkHost::Feishu));
    assert_eq!(config.base_url.shown(), "https://open.feishu.cn");
    assert_eq!((config.catch_up, config.send_rate), (Some(DEFAULT_CATCH_UP), DEFAULT_SEND_RATE));
    assert_eq!(ProviderConfig::mode(&config), "stream");
    assert!(!format!("{config:?}").contains("s3cret"));
    let lark = parse(&format!("{APP}host: lark\ncatch_up: off\n")).unwrap();
    assert_eq!(lark.base_url.shown(), "https://open.larksuite.com");
    assert_eq!(lark.catch_up, None);
    let webhook = parse(&format!("{APP}mode: webhook\nencrypt_key_file: /key\n")).unwrap();
    assert_eq!(ProviderConfig::mode(&webhook), "push");
    assert_eq!(webhook.encrypt_key.expose(), "from-a-file");
    assert!(parse(&format!("{APP}mode: webhook\nverification_token: vt\n")).is_ok());
    let robot = parse("robot_url: https://open.feishu.cn/open-apis/bot/v2/hook/x\n").unwrap();
    assert_eq!(ProviderConfig::mode(&robot), "send");
    assert!(parse(&format!("{APP}base_url: http://127.0.0.1:8080\n")).is_ok());
}

#[test]
fn errors_name_the_key_and_no_secret() {
    for (yaml, words) in [
        ("mode: stream\n", "app_id: is missing; set `app_id` and `app_secret`"),
        ("app_id: cli_a1\n", "app_secret: is missing; set it, `app_secret_file`"),
        ("app_secret: SECRET\n", "app_secret: needs the app that it belongs to"),
        ("app_id: 'cli_a/../b'\napp_secret: SECRET\n", "app_id: not the id of an app"),
        ("app_id: ding1\napp_secret: SECRET\n", "app_id: not the id of an app"),
        ("robot_secret: SECRET\n", "robot_secret: needs the robot that it belongs to"),
        ("robot_url: SECRET\n", "robot_url: expected the whole webhook of the robot"),
        (&format!("{APP}mode: webhook\n"), "encrypt_key: is missing; `mode: webhook` needs"),
        (&format!("{APP}mode: socket\n"), "mode"),
        (&format!("{APP}host: feishu.cn\n"), "host"),
        (&format!("{APP}encrypt_key_command: x\n"), "is needed for every request"),
        (&format!("{APP}verification_token_command: x\n"), "is needed for every request"),
        (&format!("{APP}base_url: http://example.com/\n"), "base_url: expected https://"),
        (&format!("{APP}catch_up: 99d\n"), "expected `off` or 1s to 30d"),
        ("ap_id: x\n", "unknown key `ap_id`; did you mean `app_id`?"),
    ] {
        let error = parse(yaml).unwrap_err();
        assert!(error.contains(words), "{yaml}: {error}");
        assert!(!error.contains("SECRET"), "{error}");
    }
    let file = ConfigFile::parse("mode: webhook").unwrap();
    let section = file.root(&SecretFiles).unwrap();
    assert!(LarkConfig::parse(&section, false).is_ok(), "a disabled tunnel may be empty");
}

#[test]
fn every_changed_key_is_named() {
    let old = parse(APP).unwrap();
    assert!(old.changed_keys(&old.clone()).is_empty());
    let new = "app_id: cli_b2\napp_secret: t\nmode: webhook\nhost: lark\nverification_token: v\n\
               encrypt_key: e\nrobot_url: https://open.larksuite.com/x\nrobot_secret: r\n\
               catch_up: off\nsend_rate: 1/s\n";
    let changed = old.changed_keys(&parse(new).unwrap());
    let all = [
        "mode",
        "host",
        "base_url",
        "app_id",
        "app_secret",
        "verification_token",
        "encrypt_key",
        "robot_url",
        "robot_secret",
        "catch_up",
        "send_rate",
    ];
    assert_eq!(changed, all);
}
