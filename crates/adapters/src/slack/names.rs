//! Looks up names at Slack: of accounts, chats and groups of accounts.

use async_trait::async_trait;

use super::client::{ApiErrorKind, SlackApiError, SlackClient};
use super::wire::{ApiReply, list, text};
use crate::names::{NameAnswer, NameCache, NameSource};

#[async_trait]
impl NameSource for SlackClient {
    async fn look_up(&self, cache: &NameCache, id: &str) -> NameAnswer {
        let found = match id.as_bytes().first() {
            Some(b'U' | b'W') => self.read("users.info", &[("user", id)]).await.map(user_name),
            Some(b'C' | b'G' | b'D') => {
                self.read("conversations.info", &[("channel", id)]).await.map(chat_name)
            }
            Some(b'S') => look_up_groups(self, cache, id).await,
            _ => Ok(None),
        };
        match found {
            Ok(name) => NameAnswer::Known(name),
            Err(error) => match error.kind {
                // Without the scope, or for an account that is not visible, there is no name.
                ApiErrorKind::Rejected | ApiErrorKind::Format => NameAnswer::Known(None),
                ApiErrorKind::Throttled { retry_after } => NameAnswer::Later(retry_after),
                ApiErrorKind::Transport | ApiErrorKind::Ambiguous | ApiErrorKind::NoVerdict => {
                    NameAnswer::Later(None)
                }
            },
        }
    }
}

/// Reads all groups at once, because Slack has no method for one.
async fn look_up_groups(
    client: &SlackClient,
    cache: &NameCache,
    id: &str,
) -> Result<Option<String>, SlackApiError> {
    let reply = client.read("usergroups.list", &[]).await?;
    for group in list(reply.value(), "usergroups") {
        if let Some(id) = text(group, "id") {
            cache.insert(id, text(group, "handle").map(str::to_owned));
        }
    }
    Ok(cache.find(id))
}

/// Returns the name that Slack shows for an account.
fn user_name(reply: ApiReply) -> Option<String> {
    let user = &reply.value()["user"];
    let profile = &user["profile"];
    let names = [
        text(profile, "display_name"),
        text(profile, "real_name"),
        text(user, "real_name"),
        text(user, "name"),
    ];
    names.into_iter().flatten().next().map(str::to_owned)
}

fn chat_name(reply: ApiReply) -> Option<String> {
    text(&reply.value()["channel"], "name").map(str::to_owned)
}
