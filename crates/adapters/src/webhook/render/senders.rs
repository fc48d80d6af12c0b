//! Senders whose events have a built-in rendering.

use super::*;

/// A sender whose events are known: how its requests are recognised, where the fields of a
/// message are, and a template for the text.
#[derive(Debug)]
pub(in crate::webhook) struct KnownSender {
    pub(in crate::webhook) name: &'static str,
    /// A header that only this sender has, with the type of the event; it can be empty.
    pub(super) header: &'static str,
    /// Pointers that all have a value in every body of this sender; it can be empty.
    keys: &'static [&'static str],
    pub(in crate::webhook) maps: Vec<FieldMap>,
    pub(super) template: WebhookTemplate,
}

/// Name, header, keys, pointers of the fields, template.
type SenderEntry = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
    &'static str,
);

/// The first entry that matches is used.
const SENDERS: &[SenderEntry] = &[
    (
        "github",
        "x-github-event",
        &[],
        &[
            ("session_id", "/repository/full_name"),
            ("session_id", "/organization/login"),
            ("session_name", "/repository/full_name"),
            ("session_name", "/organization/login"),
            ("thread_key", "/issue/number"),
            ("thread_key", "/pull_request/number"),
            ("thread_key", "/discussion/number"),
            ("from_id", "/sender/login"),
            ("title", "/issue/title"),
            ("title", "/pull_request/title"),
            ("title", "/discussion/title"),
            ("timestamp", "/comment/updated_at"),
            ("timestamp", "/review/submitted_at"),
            ("timestamp", "/issue/updated_at"),
            ("timestamp", "/pull_request/updated_at"),
            ("timestamp", "/discussion/updated_at"),
            ("timestamp", "/release/published_at"),
            ("timestamp", "/workflow_run/updated_at"),
            ("timestamp", "/head_commit/timestamp"),
        ],
        include_str!("senders/github.md"),
    ),
    (
        "gitlab",
        "x-gitlab-event",
        &["/object_kind", "/project/path_with_namespace"],
        &[
            ("session_id", "/project/path_with_namespace"),
            ("session_name", "/project/path_with_namespace"),
            ("thread_key", "/issue/iid"),
            ("thread_key", "/merge_request/iid"),
            ("thread_key", "/object_attributes/iid"),
            ("from_id", "/user/username"),
            ("from_id", "/user_username"),
            ("from_name", "/user/name"),
            ("from_name", "/user_name"),
            ("title", "/issue/title"),
            ("title", "/merge_request/title"),
            ("title", "/object_attributes/title"),
            ("timestamp", "/object_attributes/updated_at"),
            ("timestamp", "/object_attributes/created_at"),
        ],
        include_str!("senders/gitlab.md"),
    ),
    (
        "grafana",
        "",
        &["/alerts", "/orgId"],
        &[("title", "/title"), ("session_id", "/receiver")],
        include_str!("senders/alertmanager.md"),
    ),
    (
        "alertmanager",
        "",
        &["/alerts", "/groupKey"],
        &[("title", "/commonLabels/alertname"), ("session_id", "/receiver")],
        include_str!("senders/alertmanager.md"),
    ),
    (
        "sentry",
        "sentry-hook-resource",
        &[],
        &[
            ("session_id", "/data/issue/project/slug"),
            ("session_id", "/data/project_slug"),
            ("thread_key", "/data/issue/id"),
            ("thread_key", "/data/issue_id"),
            ("from_id", "/actor/name"),
            ("title", "/data/issue/title"),
            ("title", "/data/event/title"),
            ("title", "/data/error/title"),
            ("title", "/data/description_title"),
        ],
        include_str!("senders/sentry.md"),
    ),
    (
        "stripe",
        "",
        &["/type", "/data/object/object", "/api_version"],
        &[("id", "/id"), ("timestamp", "/created"), ("title", "/type")],
        include_str!("senders/stripe.md"),
    ),
    (
        "jira",
        "",
        &["/webhookEvent"],
        &[
            ("session_id", "/issue/fields/project/key"),
            ("session_name", "/issue/fields/project/name"),
            ("thread_key", "/issue/key"),
            ("from_id", "/user/accountId"),
            ("from_id", "/user/name"),
            ("from_id", "/comment/author/accountId"),
            ("from_name", "/user/displayName"),
            ("from_name", "/comment/author/displayName"),
            ("title", "/issue/fields/summary"),
            ("timestamp", "/timestamp"),
        ],
        include_str!("senders/jira.md"),
    ),
    (
        "linear",
        "linear-event",
        &["/webhookTimestamp", "/organizationId", "/data"],
        &[
            ("session_id", "/data/team/key"),
            ("session_name", "/data/team/name"),
            ("thread_key", "/data/issue/identifier"),
            ("thread_key", "/data/identifier"),
            ("from_id", "/actor/id"),
            ("from_name", "/actor/name"),
            ("title", "/data/issue/title"),
            ("title", "/data/title"),
            ("timestamp", "/webhookTimestamp"),
        ],
        include_str!("senders/linear.md"),
    ),
    (
        "slack",
        "",
        &["/event/type", "/event_id", "/team_id"],
        &[
            ("id", "/event_id"),
            ("session_id", "/event/channel"),
            ("thread_key", "/event/thread_ts"),
            ("from_id", "/event/user"),
            ("text", "/event/text"),
            ("timestamp", "/event_time"),
        ],
        include_str!("senders/slack.md"),
    ),
];

static KNOWN: LazyLock<Vec<KnownSender>> = LazyLock::new(|| {
    let known = SENDERS.iter().map(|(name, header, keys, pointers, template)| KnownSender {
        name,
        header,
        keys,
        maps: FieldMap::list(pointers),
        template: WebhookTemplate::compile(template).expect("built-in templates are valid"),
    });
    known.collect()
});

impl KnownSender {
    #[cfg(test)]
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|sender| sender.name)
    }

    /// Returns the sender of a request, if it is known.
    pub(in crate::webhook) fn find(headers: &HeaderMap, value: &Value) -> Option<&'static Self> {
        KNOWN.iter().find(|sender| {
            let named = !sender.header.is_empty() && headers.contains_key(sender.header);
            let has = |pointer: &&str| value.pointer(pointer).is_some_and(|value| !value.is_null());
            named || !sender.keys.is_empty() && sender.keys.iter().all(has)
        })
    }
}
