//! Removes secrets from a payload before it is attached to a message.

use serde_json::Value;

/// What stands for a removed value.
const REMOVED: &str = "[removed]";

/// Parts of the names of keys whose values are secrets: session webhooks let anyone write into a
/// chat, and download codes fetch its files.
const SECRET_KEYS: [&str; 8] =
    ["webhook", "token", "secret", "ticket", "password", "downloadcode", "accesskey", "signature"];

/// Parts of texts that are links with a secret.
const SECRET_LINKS: [&str; 4] = ["sendbysession", "access_token=", "session=", "ticket="];

/// Returns a copy of a payload without secrets. Strings with JSON in them are searched too.
pub(super) fn redacted(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| {
                let lower = key.to_lowercase();
                let is_time = lower.ends_with("time");
                let is_secret = SECRET_KEYS.iter().any(|part| lower.contains(part)) && !is_time;
                let value = if is_secret { Value::from(REMOVED) } else { redacted(value) };
                (key.clone(), value)
            };
            Value::Object(entries.iter().map(entry).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(redacted).collect()),
        Value::String(text) => redacted_text(text),
        other => other.clone(),
    }
}

fn redacted_text(text: &str) -> Value {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(nested) = serde_json::from_str::<Value>(text)
    {
        return Value::from(redacted(&nested).to_string());
    }
    let lower = text.to_lowercase();
    if SECRET_LINKS.iter().any(|part| lower.contains(part)) {
        return Value::from(REMOVED);
    }
    Value::from(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_removed_wherever_they_are() {
        let payload = json!({
            "sessionWebhook": "https://oapi.dingtalk.com/robot/sendBySession?session=canary",
            "sessionWebhookExpiredTime": 1_690_367_502_152_i64,
            "content": "{\"downloadCode\":\"canary\",\"fileName\":\"a.zip\"}",
            "list": [{"accessToken": "canary"}, "see https://x/?session=canary", "fine"],
            "msgId": "m",
        });
        let shown = redacted(&payload);
        assert!(!shown.to_string().contains("canary"), "{shown}");
        assert_eq!(shown["sessionWebhookExpiredTime"], 1_690_367_502_152_i64);
        assert_eq!(shown["msgId"], "m");
        assert_eq!(shown["list"][2], "fine");
        assert!(shown["content"].as_str().unwrap().contains("a.zip"));
    }
}
