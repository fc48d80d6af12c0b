//! Checks token, webhook and privacy mode without receiving or sending anything.

use monoco_core::retry::Failure;
use serde_json::{Value, json};

use super::TelegramAdapter;
use super::config::TelegramMode;
use super::notices::bot_name;
use super::wire::{integer, text, time, without_tokens};
use crate::ProbeReport;

/// Checks the bot of a tunnel and returns what was found.
pub(super) async fn probe(adapter: &TelegramAdapter) -> Result<ProbeReport, Failure> {
    let bot = adapter.client.read("getMe", &json!({})).await.map_err(|error| error.failure)?;
    let webhook = adapter.client.read("getWebhookInfo", &json!({})).await;
    let webhook = webhook.map_err(|error| error.failure)?;
    let mut report = bot_report(&bot);
    let config = &adapter.config;
    webhook_report(&webhook, config.mode, config.webhook_url.as_deref(), &mut report);
    if let Some(conflict) = adapter.intake.conflict() {
        report.warnings.push(conflict);
    }
    Ok(report)
}

fn bot_report(bot: &Value) -> ProbeReport {
    let id = integer(bot, "id").unwrap_or_default();
    let found = format!("ok, {} ({id})", bot_name(bot));
    let privacy = match bot["can_read_all_group_messages"] == true {
        true => "off: the bot receives all messages of its groups",
        false => {
            "on: in groups the bot receives only commands, answers and mentions; to receive all \
             messages, turn it off with /setprivacy of @BotFather and add the bot again"
        }
    };
    let lines = vec![("token".to_owned(), found), ("privacy mode".to_owned(), privacy.to_owned())];
    ProbeReport { lines, warnings: Vec::new() }
}

/// Compares the webhook that is set with the mode of the tunnel. URLs are shown without their
/// path, which may be secret.
fn webhook_report(
    info: &Value,
    mode: TelegramMode,
    wanted: Option<&str>,
    report: &mut ProbeReport,
) {
    let url = text(info, "url");
    let pending = integer(info, "pending_update_count").unwrap_or_default();
    report.lines.push(("pending updates".to_owned(), pending.to_string()));
    let warnings = &mut report.warnings;
    match (mode, url) {
        (TelegramMode::Poll, None) => {}
        (TelegramMode::Poll, Some(url)) => warnings.push(format!(
            "a webhook is set at {}, so nothing can be polled; set `mode: webhook`, or \
             `delete_webhook: true` to remove it",
            origin(url)
        )),
        (TelegramMode::Webhook, None) => warnings.push(
            "no webhook is set for this bot, so nothing arrives; set `webhook_url`, or call \
             setWebhook with the same secret_token"
                .to_owned(),
        ),
        (TelegramMode::Webhook, Some(url)) => {
            if wanted.is_some_and(|wanted| wanted != url) {
                warnings.push(format!(
                    "the webhook is set at {}, and not at webhook_url; another program has set it",
                    origin(url)
                ));
            }
            report.lines.push(("webhook".to_owned(), origin(url)));
        }
    }
    if mode == TelegramMode::Webhook
        && let Some(error) = text(info, "last_error_message")
    {
        let at = time(info, "last_error_date").map(|at| at.rfc3339()).unwrap_or_default();
        warnings.push(format!("the last webhook request failed {at}: {}", without_tokens(error)));
    }
}

fn origin(url: &str) -> String {
    reqwest::Url::parse(url)
        .map_or("an invalid URL".to_owned(), |url| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(info: &Value, mode: TelegramMode, wanted: Option<&str>) -> ProbeReport {
        let mut report = ProbeReport::default();
        webhook_report(info, mode, wanted, &mut report);
        report
    }

    #[test]
    fn webhook_that_contradicts_the_mode_is_a_warning() {
        let set =
            json!({"url": "https://hub.example.com/webhooks/canary", "pending_update_count": 3});
        let unset = json!({"url": "", "pending_update_count": 0});
        assert!(found(&unset, TelegramMode::Poll, None).warnings.is_empty());
        let active = found(&set, TelegramMode::Poll, None);
        assert!(active.warnings[0].contains("https://hub.example.com, so nothing"), "{active:?}");
        assert!(!format!("{active:?}").contains("canary"));
        assert_eq!(active.lines, [("pending updates".to_owned(), "3".to_owned())]);
        assert!(
            found(&unset, TelegramMode::Webhook, None).warnings[0].contains("no webhook is set")
        );
        let other = found(&set, TelegramMode::Webhook, Some("https://mine.example.com/"));
        assert!(other.warnings[0].contains("another program"), "{other:?}");
    }

    #[test]
    fn last_error_of_a_webhook_is_shown_with_its_time() {
        let info = json!({"url": "https://a.example.com", "last_error_date": 1_700_000_000,
                          "last_error_message": "Connection refused"});
        let report = found(&info, TelegramMode::Webhook, None);
        let want = "the last webhook request failed 2023-11-14T22:13:20.000Z: Connection refused";
        assert_eq!(report.warnings, [want]);
    }

    #[test]
    fn privacy_mode_is_explained() {
        let bot = json!({"id": 7, "username": "test_bot", "can_read_all_group_messages": false});
        let report = bot_report(&bot);
        assert_eq!(report.lines[0].1, "ok, @test_bot (7)");
        assert!(report.lines[1].1.contains("/setprivacy"), "{report:?}");
    }
}
