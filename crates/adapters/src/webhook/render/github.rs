//! Converts GitHub events into Markdown.
//!
//! The repository is the session, the issue or pull request the thread, and the delivery's
//! GUID the id, which stays the same when GitHub redelivers an event. Events that are not
//! known here become JSON.

use monoco_core::did::TunnelId;
use monoco_core::inbound::{ChatSessionKind, InboundAttachment, InboundMessage, MAX_NAME_BYTES};
use monoco_core::time::Timestamp;
use reqwest::Url;
use serde_json::Value;

use super::super::FieldMap;
use super::super::inbound::{build_message, fields, header, parse, scalar, unreadable};
use crate::{WebhookError, WebhookRequest};

/// How many commits of a push are listed.
const MAX_COMMITS: usize = 20;

/// Places of the time in payloads, the most specific first.
const TIMES: [&str; 8] = [
    "/comment/updated_at",
    "/review/submitted_at",
    "/issue/updated_at",
    "/pull_request/updated_at",
    "/discussion/updated_at",
    "/release/published_at",
    "/workflow_run/updated_at",
    "/head_commit/timestamp",
];

/// Converts a GitHub request whose signature has been verified. Values that `map` points at
/// have priority. [`WebhookError::Unreadable`] names the field that is wrong.
pub(in crate::webhook) fn read(
    tunnel: &TunnelId,
    map: &FieldMap,
    request: &WebhookRequest<'_>,
) -> Result<(InboundMessage, Vec<InboundAttachment>), WebhookError> {
    let value = payload(request)?;
    let event = header(request.headers, "x-github-event").unwrap_or_else(|| "event".to_owned());
    let mut fields = fields(&value, &[map])?;
    let repository = at(&value, "/repository/full_name").or(at(&value, "/organization/login"));
    if let (None, Some(name)) = (&fields.session_id, repository) {
        fields.session_id = Some(name.clone());
        fields.session_name = fields.session_name.or(Some(name));
        fields.session_kind = fields.session_kind.or(Some(ChatSessionKind::Group));
    }
    let subject = subject(&value);
    fields.id = fields.id.or_else(|| header(request.headers, "x-github-delivery"));
    fields.thread_key = fields
        .thread_key
        .or_else(|| subject.and_then(|it| at(it, "/number")).map(|number| format!("#{number}")));
    fields.from_id = fields.from_id.or_else(|| at(&value, "/sender/login"));
    fields.title = fields.title.or_else(|| subject.and_then(|it| at(it, "/title")).map(short));
    fields.text = fields.text.or_else(|| describe(&event, &value));
    // The JSON does not contain the name of the event.
    fields.heading = Some(heading(&event, &value));
    fields.at = fields.at.or_else(|| {
        let texts = TIMES.iter().filter_map(|pointer| value.pointer(pointer)?.as_str());
        texts.filter_map(|text| Timestamp::from_rfc3339(text).ok()).find(|time| time.ms() >= 0)
    });
    build_message(tunnel, request, &value, fields)
}

/// Returns the JSON of a request. By default, GitHub sends it inside a form.
fn payload(request: &WebhookRequest<'_>) -> Result<Value, WebhookError> {
    let kind = header(request.headers, "content-type").unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return parse(request.body);
    }
    let form = std::str::from_utf8(request.body).ok().and_then(|text| {
        // The query of a URL has the same format as a form.
        let mut url = Url::parse("form:").ok()?;
        url.set_query(Some(text));
        let (_, json) = url.query_pairs().find(|(key, _)| key == "payload")?;
        Some(json.into_owned())
    });
    let form = form.ok_or_else(|| unreadable("the form has no field `payload`".to_owned()))?;
    parse(form.as_bytes())
}

/// Returns the issue, pull request or discussion of an event.
fn subject(value: &Value) -> Option<&Value> {
    ["issue", "pull_request", "discussion"].iter().find_map(|key| value.get(key))
}

/// Describes an event in Markdown; `None` for events that are not known here.
fn describe(event: &str, value: &Value) -> Option<String> {
    let about = |key: &str| {
        let it = value.get(key)?;
        let title = subject(value).and_then(|subject| at(subject, "/title"));
        let title = title.or(at(it, "/name")).or(at(it, "/tag_name")).unwrap_or_default();
        Some((title, at(it, "/body"), at(it, "/html_url")))
    };
    let (title, body, link) = match event {
        "issues" => about("issue")?,
        "pull_request" => about("pull_request")?,
        "issue_comment" => about("comment")?,
        "release" => about("release")?,
        "workflow_run" => {
            let (name, _, link) = about("workflow_run")?;
            let run = |pointer| at(value, pointer);
            let state = run("/workflow_run/conclusion").or(run("/workflow_run/status"));
            let branch = run("/workflow_run/head_branch").unwrap_or_default();
            (format!("{name}: {} on {branch}", state.unwrap_or_default()), None, link)
        }
        "push" => describe_push(value)?,
        "ping" => (at(value, "/zen").unwrap_or_default(), None, None),
        _ => return None,
    };
    let head = format!("{}: {title}", heading(event, value));
    let parts = [Some(head), body.filter(|body| !body.trim().is_empty()), link];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
}

fn heading(event: &str, value: &Value) -> String {
    let action = at(value, "/action").map(|action| format!(" {action}")).unwrap_or_default();
    format!("**{event}**{action}")
}

/// A title, a body and a link.
type GithubText = (String, Option<String>, Option<String>);

fn describe_push(value: &Value) -> Option<GithubText> {
    let commits = value.get("commits")?.as_array()?;
    let branch = at(value, "/ref")?;
    let branch = branch.strip_prefix("refs/heads/").unwrap_or(&branch);
    let what = match value {
        _ if value["deleted"] == true => "deleted".to_owned(),
        _ if value["forced"] == true => format!("{} commits, forced", commits.len()),
        _ if commits.len() == 1 => "1 commit".to_owned(),
        _ => format!("{} commits", commits.len()),
    };
    let mut lines: Vec<_> = commits.iter().take(MAX_COMMITS).map(commit).collect();
    if commits.len() > MAX_COMMITS {
        lines.push(format!("- … and {} more", commits.len() - MAX_COMMITS));
    }
    Some((format!("{branch}: {what}"), Some(lines.join("\n")), at(value, "/compare")))
}

fn commit(commit: &Value) -> String {
    let id: String = at(commit, "/id").unwrap_or_default().chars().take(7).collect();
    let message = at(commit, "/message").unwrap_or_default();
    let author = at(commit, "/author/name").unwrap_or_default();
    format!("- `{id}` {} ({author})", message.lines().next().unwrap_or_default())
}

fn at(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).and_then(scalar)
}

/// Cuts a title at the limit of names.
fn short(mut title: String) -> String {
    title.truncate(title.floor_char_boundary(MAX_NAME_BYTES));
    title
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use monoco_core::inbound::InboundMessage;

    use super::*;

    fn convert(
        event: &str,
        kind: &str,
        map: &FieldMap,
        body: &[u8],
    ) -> Result<InboundMessage, WebhookError> {
        let mut headers = HeaderMap::new();
        headers.insert("x-github-event", event.parse().unwrap());
        headers
            .insert("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958".parse().unwrap());
        headers.insert("content-type", kind.parse().unwrap());
        let request = WebhookRequest { headers: &headers, body, now: Timestamp::from_ms(0) };
        read(&"github".parse().unwrap(), map, &request).map(|(message, _)| message)
    }

    fn message_of(event: &str, body: &str) -> InboundMessage {
        convert(event, "application/json", &FieldMap::default(), body.as_bytes()).unwrap()
    }

    /// Returns session, thread, author, time and title in one line, and the text.
    fn summary(message: &InboundMessage) -> (String, String) {
        let thread = message.session.thread_key.as_deref().unwrap_or("-");
        let title = message.title.as_deref().unwrap_or("-");
        let at = message.at.map_or_else(|| "-".to_owned(), Timestamp::rfc3339);
        let (session, from) = (&message.session.id, &message.from.id);
        (format!("{session} {thread} {from} {at} {title}"), message.text.clone())
    }

    #[test]
    fn known_events_become_markdown() {
        for (event, body, want, text) in [
            (
                "issues",
                include_str!("../../../testdata/webhook/github_issues.json"),
                "example/alpha #12 ann 2026-02-06T20:45:00.000Z The build is red",
                "**issues** opened: The build is red\n\n\
                 Since `3f2a1b0`.\n\n@monoco::alpha please have a look.\n\n\
                 https://github.com/example/alpha/issues/12",
            ),
            (
                "issue_comment",
                include_str!("../../../testdata/webhook/github_issue_comment.json"),
                "example/alpha #12 ben 2026-02-06T20:51:30.000Z The build is red",
                "**issue_comment** created: The build is red\n\nIt was the cache.\n\n\
                 https://github.com/example/alpha/issues/12#issuecomment-3900112233",
            ),
            (
                "pull_request",
                include_str!("../../../testdata/webhook/github_pull_request.json"),
                "example/alpha #13 cleo 2026-02-06T21:10:00.000Z Clear the cache",
                "**pull_request** closed: Clear the cache\n\n\
                 https://github.com/example/alpha/pull/13",
            ),
            (
                "push",
                include_str!("../../../testdata/webhook/github_push.json"),
                "example/alpha - cleo 2026-02-06T21:05:00.000Z -",
                "**push**: main: 2 commits\n\n\
                 - `77aa88b` cache: forget what is old (Cleo)\n\
                 - `9a8b7c6` docs: say so (Cleo)\n\n\
                 https://github.com/example/alpha/compare/3f2a1b0c9d8e...9a8b7c6d5e4f",
            ),
            (
                "ping",
                include_str!("../../../testdata/webhook/github_ping.json"),
                "example/alpha - ann - -",
                "**ping**: Keep it logically awesome.",
            ),
            (
                "release",
                include_str!("../../../testdata/webhook/github_release.json"),
                "example/alpha - ann 2026-02-07T08:00:00.000Z -",
                "**release** published: Quieter\n\n- the cache forgets\n\n\
                 https://github.com/example/alpha/releases/tag/v1.2.0",
            ),
            (
                "workflow_run",
                include_str!("../../../testdata/webhook/github_workflow_run.json"),
                "example/alpha - cleo 2026-02-06T21:20:00.000Z -",
                "**workflow_run** completed: CI: failure on main\n\n\
                 https://github.com/example/alpha/actions/runs/12345678901",
            ),
        ] {
            let message = message_of(event, body);
            assert_eq!(summary(&message), (want.to_owned(), text.to_owned()), "{event}");
            assert_eq!(message.id, "72d3162e-cc78-11e3-81ab-4c9367dc0958");
            assert_eq!(message.session.kind, ChatSessionKind::Group);
            assert_eq!(message.session.name.as_deref(), Some("example/alpha"));
        }
    }

    #[test]
    fn unknown_event_becomes_json() {
        let body = include_str!("../../../testdata/webhook/github_star.json");
        let message = message_of("star", body);
        assert_eq!(summary(&message).0, "example/alpha - dan - -");
        let json = message.text.strip_prefix("**star** created\n\n```json\n").unwrap();
        let json: Value = serde_json::from_str(json.strip_suffix("\n```").unwrap()).unwrap();
        assert_eq!(json, serde_json::from_str::<Value>(body).unwrap());
    }

    #[test]
    fn a_form_is_read_like_json() {
        let form = "a=b&payload=%7B%22zen%22%3A%22a+b%26%23%C3%A9%22%7D";
        let kind = "application/x-www-form-urlencoded; charset=utf-8";
        let message = convert("ping", kind, &FieldMap::default(), form.as_bytes()).unwrap();
        assert_eq!(message.text, "**ping**: a b&#é");
        for bad in [&b"zen=1"[..], b"", b"payload=%7B", b"\xff"] {
            let refused = convert("ping", kind, &FieldMap::default(), bad);
            assert!(matches!(refused, Err(WebhookError::Unreadable(_))), "{refused:?}");
        }
    }

    #[test]
    fn map_has_priority_over_known_fields() {
        let at = |pointer: &str| Some(pointer.to_owned());
        let map = FieldMap { session_id: at("/hook_id"), text: at("/zen"), ..FieldMap::default() };
        let body = include_bytes!("../../../testdata/webhook/github_ping.json");
        let message = convert("ping", "application/json", &map, body).unwrap();
        assert_eq!((message.session.id.as_str(), message.session.name.as_deref()), ("4711", None));
        assert_eq!(message.text, "Keep it logically awesome.");
    }

    #[test]
    fn incomplete_payloads_are_accepted() {
        for (event, body, text) in [
            (
                "push",
                r#"{"ref": "refs/tags/v1", "commits": []}"#,
                "**push**: refs/tags/v1: 0 commits",
            ),
            (
                "push",
                r#"{"ref": "refs/heads/x", "commits": [], "deleted": true}"#,
                "**push**: x: deleted",
            ),
            ("push", r#"{"ref": 1, "commits": {}}"#, "**push**\n\n```json"),
            ("issues", r#"{"issue": null}"#, "**issues**: "),
            ("issues", r#"{"action": "opened"}"#, "**issues** opened\n\n```json"),
            ("ping", "[]", "**ping**: "),
            ("ping", "null", "**ping**: "),
        ] {
            let message = message_of(event, body);
            assert!(message.text.starts_with(text), "{body}: {}", message.text);
            assert_eq!(
                (message.session.id.as_str(), message.from.id.as_str()),
                ("github", "unknown")
            );
        }
        let many = format!(r#"{{"ref": "r", "commits": [{}]}}"#, vec!["{}"; 25].join(","));
        assert!(message_of("push", &many).text.ends_with("\n- … and 5 more"));
        let long = format!(r#"{{"issue": {{"title": "{}"}}}}"#, "é".repeat(1000));
        assert_eq!(message_of("issues", &long).title.unwrap().len(), MAX_NAME_BYTES);
    }
}
