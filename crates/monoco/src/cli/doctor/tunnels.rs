//! Checks of tunnels: their health, and a test of their connections and credentials.
//!
//! The tests run at the same time and for a limited time, so that the command stays quick.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use monoco_core::did::TunnelId;
use serde_json::json;

use super::DoctorCheck;
use super::health::tunnel_check;
use crate::cli::client::{Client, segment};
use crate::cli::tunnel::file;
use monoco_courier::api::views::health::{AdapterHealth, HealthView};
use monoco_courier::api::views::tunnels::TunnelTestView;
use monoco_courier::config::{Config, TunnelConfig};
use monoco_courier::home::Home;

/// How long the test of one tunnel may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How many tunnels are tested at the same time.
const TESTS_AT_ONCE: usize = 32;

/// How many tunnels are tested. More would take longer than a user waits.
const MAX_TESTS: usize = 256;

/// Checks the tunnels of a running courier, which tests them with its own environment.
pub(super) async fn running(home: &Home, health: &HealthView) -> Vec<DoctorCheck> {
    let Ok(client) = Client::find(home) else { return Vec::new() };
    let tunnels = health.adapters.iter().enumerate().map(async |(number, (id, health))| {
        let is_off = health.status == "paused" || is_turned_off(health);
        if is_off || number >= MAX_TESTS {
            return tunnel_check(id, health);
        }
        let path = format!("/api/v1/tunnels/{}/test", segment(id));
        let body = json!({});
        let test = client.post::<TunnelTestView>(&path, &body);
        match tokio::time::timeout(TEST_TIMEOUT, test).await {
            Ok(Ok(test)) => test_check(id, &test, tunnel_check(id, health)),
            // It does not run; its health says why.
            Ok(Err(_)) => tunnel_check(id, health),
            Err(_) => too_slow(id),
        }
    });
    stream::iter(tunnels).buffered(TESTS_AT_ONCE).collect().await
}

/// Checks the tunnels of a config while no courier runs.
pub(super) async fn configured(config: &Config) -> Vec<DoctorCheck> {
    let tunnels = config.running().take(MAX_TESTS).map(async |(id, tunnel)| {
        let adapter = match file::build(id.clone(), tunnel) {
            Ok(adapter) => adapter,
            Err(error) => {
                let detail = format!("{id} cannot run: {}", error.message);
                return DoctorCheck::fail("tunnel", detail, "fix its config");
            }
        };
        match tokio::time::timeout(TEST_TIMEOUT, adapter.probe()).await {
            Ok(probe) => {
                let healthy = DoctorCheck::ok("tunnel", format!("{id} can connect"));
                test_check(id.as_str(), &probe.into(), healthy)
            }
            Err(_) => too_slow(id.as_str()),
        }
    });
    stream::iter(tunnels).buffered(TESTS_AT_ONCE).collect().await
}

fn is_turned_off(health: &AdapterHealth) -> bool {
    health.last_error.as_deref().is_some_and(|error| error.contains("turned off"))
}

/// The result of a test; `healthy` when it found no problem.
fn test_check(id: &str, test: &TunnelTestView, healthy: DoctorCheck) -> DoctorCheck {
    if let Some(error) = &test.error {
        let hint = match test.error_kind.as_deref() {
            Some("permanent") => {
                format!("correct its credentials or permissions; see `monoco tunnel test {id}`")
            }
            _ => format!("check the network; `monoco tunnel test {id}` repeats the test"),
        };
        return DoctorCheck::fail("tunnel", format!("{id}: {error}"), hint);
    }
    match test.warnings.first() {
        Some(_) if healthy.hint.is_none() => {
            let detail = format!("{id}: {}", test.warnings.join("; "));
            let hint = format!("fix it at the provider; see `monoco tunnel test {id}`");
            DoctorCheck::warn("tunnel", detail, hint)
        }
        _ => healthy,
    }
}

fn too_slow(id: &str) -> DoctorCheck {
    let detail = format!("{id}: the test did not end within {} s", TEST_TIMEOUT.as_secs());
    DoctorCheck::warn("tunnel", detail, format!("`monoco tunnel test {id}` waits longer"))
}

/// Finds two tunnels with the same credentials. The provider would send each message to only one
/// of them.
pub(super) fn shared_credentials(config: &Config) -> Option<DoctorCheck> {
    let connecting: Vec<_> = config.running().filter(|(id, tunnel)| connects(id, tunnel)).collect();
    let pairs = connecting.iter().enumerate();
    let mut pairs =
        pairs.flat_map(|(number, one)| connecting[..number].iter().map(move |it| (it, one)));
    let ((a, _), (b, _)) = pairs.find(|((_, a), (_, b))| have_same_credentials(a, b))?;
    let detail = format!("tunnels {a} and {b} have the same credentials");
    let hint = "remove one of them: the provider sends each message to only one connection";
    Some(DoctorCheck::fail("tunnel", detail, hint))
}

fn connects(id: &TunnelId, tunnel: &TunnelConfig) -> bool {
    file::build(id.clone(), tunnel).is_ok_and(|adapter| adapter.opens_connection())
}

fn have_same_credentials(a: &TunnelConfig, b: &TunnelConfig) -> bool {
    if a.provider != b.provider {
        return false;
    }
    let questions = monoco_adapters::registry::find(a.provider).map_or(&[][..], |it| it.questions);
    let changed = a.adapter.changed_keys(b.adapter.as_ref());
    let mut keys = questions.iter().filter(|question| question.required).map(|it| it.key);
    !questions.is_empty()
        && keys.all(|key| !changed.contains(&key.split('.').next().unwrap_or(key)))
}

#[cfg(test)]
mod tests {
    use super::super::CheckState;
    use super::*;

    #[test]
    fn tunnels_with_the_same_credentials_are_named() {
        let account = |name: &str, address: &str| {
            format!(
                "{name}: {{ provider: email, address: {address}, password: a, description: {name}, \
                 imap: {{ host: mail.example.com }} }}"
            )
        };
        let check = |accounts: &[String]| {
            let config = format!("courier: {{ adapters: {{ {} }} }}", accounts.join(", "));
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), config).unwrap();
            let config = Config::load(file.path(), true, &|_| None).unwrap();
            shared_credentials(&config).map(|check| check.detail)
        };
        let (ann, bob) = (account("ann", "a@example.com"), account("bob", "b@example.com"));
        assert_eq!(check(&[ann.clone(), bob]), None);
        let same = check(&[ann, account("again", "a@example.com")]).unwrap();
        assert_eq!(same, "tunnels again and ann have the same credentials");
    }

    #[test]
    fn failed_test_and_warnings_are_reported() {
        let test = |text: &str| {
            let healthy = DoctorCheck::ok("tunnel", "work is quiet");
            test_check("work", &serde_json::from_str(text).unwrap(), healthy)
        };
        assert_eq!(test(r#"{"ok":true,"checks":[]}"#).state, CheckState::Ok);
        let failed =
            test(r#"{"ok":false,"checks":[],"error":"invalid_auth","error_kind":"permanent"}"#);
        assert_eq!(
            (failed.state, failed.detail.as_str()),
            (CheckState::Fail, "work: invalid_auth")
        );
        assert!(failed.hint.unwrap().starts_with("correct its credentials"));
        let warned = test(r#"{"ok":true,"checks":[],"warnings":["missing scope files:read"]}"#);
        assert_eq!(warned.state, CheckState::Warn);
    }
}
