//! Checks tokens and scopes without receiving or sending anything.

use std::sync::atomic::Ordering;

use monoco_core::retry::Failure;

use super::client::{ApiArguments, SlackToken};
use super::config::SlackMode;
use super::workspace::SlackWorkspace;
use crate::ProbeReport;

/// The scopes of the bot, and what is missing without each.
const SCOPES: [(&str, &str); 14] = [
    ("chat:write", "sending messages"),
    ("app_mentions:read", "mentions in channels that the bot is not in"),
    ("channels:history", "messages of public channels"),
    ("groups:history", "messages of private channels"),
    ("im:history", "direct messages"),
    ("mpim:history", "group direct messages"),
    ("channels:read", "names of public channels"),
    ("groups:read", "names of private channels"),
    ("im:read", "direct chats after a gap"),
    ("mpim:read", "names of group direct chats"),
    ("im:write", "direct messages to people that have not written before"),
    ("users:read", "names of people"),
    ("files:read", "receiving files"),
    ("files:write", "sending files"),
];

/// Checks the tokens of a tunnel and returns what was found.
pub(super) async fn probe(
    workspace: &SlackWorkspace,
    mode: SlackMode,
) -> Result<ProbeReport, Failure> {
    let client = &workspace.client;
    let answer = client.call(SlackToken::Bot, "auth.test", ApiArguments::Read(&[])).await;
    let answer = answer.map_err(|error| error.failure)?;
    let field = |key: &str| answer.reply.text(key).unwrap_or("?").to_owned();
    let mut lines = vec![(
        "bot token".to_owned(),
        format!("ok, {} ({}) in {}", field("user"), field("user_id"), field("team")),
    )];
    let mut warnings = Vec::new();
    match missing_scopes(answer.scopes.as_deref()) {
        Some(missing) => warnings.push(missing),
        None => {
            let known = if answer.scopes.is_some() { "ok" } else { "not known" };
            lines.push(("scopes".to_owned(), known.to_owned()));
        }
    }
    if mode == SlackMode::Socket {
        let arguments = ApiArguments::Write(&[]);
        let answer = client.call(SlackToken::App, "apps.connections.open", arguments).await;
        let answer = answer.map_err(|error| error.failure)?;
        // The address is not used, but it shows that a connection can be opened.
        client.hosts.socket(answer.reply.text("url").unwrap_or_default())?;
        lines.push(("app token".to_owned(), "ok, Socket Mode is on".to_owned()));
    }
    if workspace.other_connections.load(Ordering::Relaxed) > 0 {
        let warning = "another process is connected with the same app token, or a lost connection \
                       is not closed yet; Slack sends each message to only one connection";
        warnings.push(warning.to_owned());
    }
    Ok(ProbeReport { lines, warnings })
}

/// Says which scopes are missing, and what does not work without them. Returns `None` when none
/// is missing, or when Slack has not named the scopes.
fn missing_scopes(scopes: Option<&str>) -> Option<String> {
    let given: Vec<_> = scopes?.split(',').map(str::trim).collect();
    let missing = SCOPES.iter().filter(|(scope, _)| !given.contains(scope));
    let missing: Vec<_> = missing.map(|(scope, use_of)| format!("{scope} ({use_of})")).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "missing scopes: {}; add them in OAuth & Permissions and install the app again",
            missing.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_scopes_are_named_with_their_use() {
        let all: Vec<_> = SCOPES.iter().map(|(scope, _)| *scope).collect();
        assert_eq!(missing_scopes(Some(&all.join(", "))), None);
        let line = missing_scopes(Some(&all[..13].join(","))).unwrap();
        assert!(
            line.starts_with("missing scopes: files:write (sending files); add them"),
            "{line}"
        );
        assert_eq!(missing_scopes(None), None, "they are not known");
    }
}
