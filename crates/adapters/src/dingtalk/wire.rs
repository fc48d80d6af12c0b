//! The JSON of the protocol: opening a stream, frames and their acknowledgements, and answers of
//! the two APIs.
//!
//! `data` of a frame and of an acknowledgement is JSON inside a JSON string.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The topic of messages to the robot.
pub(super) const ROBOT_TOPIC: &str = "/v1.0/im/bot/messages/get";

/// The name of this client, which DingTalk shows in the console.
const USER_AGENT: &str = concat!("monoco-rust/", env!("CARGO_PKG_VERSION"));

/// The body of `POST /v1.0/gateway/connections/open`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OpenStreamRequest<'a> {
    client_id: &'a str,
    client_secret: &'a str,
    subscriptions: [StreamSubscription; 2],
    ua: &'static str,
}

#[derive(Serialize)]
struct StreamSubscription {
    #[serde(rename = "type")]
    kind: &'static str,
    topic: &'static str,
}

impl<'a> OpenStreamRequest<'a> {
    pub(super) fn new(client_id: &'a str, client_secret: &'a str) -> Self {
        let subscriptions = [
            StreamSubscription { kind: "EVENT", topic: "*" },
            StreamSubscription { kind: "CALLBACK", topic: ROBOT_TOPIC },
        ];
        Self { client_id, client_secret, subscriptions, ua: USER_AGENT }
    }
}

/// Where to connect. The ticket is valid once, for 90 s, so it is never stored or shown.
#[derive(Deserialize)]
pub(super) struct StreamTicket {
    pub(super) endpoint: String,
    pub(super) ticket: String,
}

impl fmt::Debug for StreamTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamTicket(…)")
    }
}

/// One text frame of the server.
#[derive(Debug, Deserialize)]
pub(super) struct StreamFrame {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) headers: StreamHeaders,
    #[serde(default)]
    pub(super) data: Value,
}

/// The headers of a frame that are used. A `disconnect` can lack all but the topic.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StreamHeaders {
    pub(super) topic: String,
    pub(super) message_id: String,
    pub(super) event_id: String,
    pub(super) event_type: String,
    pub(super) event_born_time: Value,
}

impl StreamFrame {
    /// Returns `data` as the text that an echo repeats.
    pub(super) fn data_text(&self) -> String {
        match &self.data {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// Returns the JSON in `data`, or `None` when it is not JSON.
    pub(super) fn data_json(&self) -> Option<Value> {
        parse_nested(&self.data)
    }
}

/// Returns the JSON in a value that is an object or a string with an object in it.
pub(super) fn parse_nested(value: &Value) -> Option<Value> {
    match value {
        Value::String(text) => {
            serde_json::from_str(text).ok().filter(|value: &Value| value.is_object())
        }
        Value::Object(_) => Some(value.clone()),
        _ => None,
    }
}

/// Returns an acknowledgement. `data` is put into a string.
fn ack(code: u16, message_id: &str, message: &str, data: &str) -> String {
    json!({
        "code": code,
        "headers": {"contentType": "application/json", "messageId": message_id},
        "message": message,
        "data": data,
    })
    .to_string()
}

/// Acknowledges a message to the robot that has been stored. The server ignores the data.
pub(super) fn callback_ack(message_id: &str) -> String {
    ack(200, message_id, "OK", r#"{"response":null}"#)
}

/// Answers a callback of a topic that was not subscribed to.
pub(super) fn unknown_topic_ack(message_id: &str) -> String {
    ack(404, message_id, "topic not found", r#"{"response":null}"#)
}

/// Acknowledges an event: `SUCCESS` when it is stored, otherwise `LATER`, so that it is sent
/// again.
pub(super) fn event_ack(message_id: &str, is_stored: bool) -> String {
    let status = if is_stored { "SUCCESS" } else { "LATER" };
    let data = json!({"status": status, "message": ""}).to_string();
    ack(200, message_id, "OK", &data)
}

/// Answers a `ping` with its own data.
pub(super) fn ping_ack(message_id: &str, data: &str) -> String {
    ack(200, message_id, "OK", data)
}

/// An answer of either API. The newer one has `code` and `message`, the older one `errcode` and
/// `errmsg`, and the protection against overload `status` and `wait`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ApiAnswer {
    #[serde(deserialize_with = "text_or_number")]
    pub(super) code: String,
    #[serde(deserialize_with = "text_or_number")]
    pub(super) message: String,
    pub(super) errcode: Option<i64>,
    #[serde(deserialize_with = "text_or_number")]
    pub(super) errmsg: String,
    #[serde(rename = "sub_code", alias = "subCode", deserialize_with = "text_or_number")]
    pub(super) sub_code: String,
    /// 1111: the address of this machine is banned for `wait` minutes.
    pub(super) status: Option<i64>,
    pub(super) wait: Option<u64>,
    pub(super) process_query_key: Option<String>,
    pub(super) invalid_staff_id_list: Option<Vec<String>>,
    pub(super) flow_controlled_staff_id_list: Option<Vec<String>>,
    pub(super) filtered_staff_id_list: Option<Vec<String>>,
    #[serde(rename = "media_id")]
    pub(super) media_id: Option<String>,
    pub(super) download_url: Option<String>,
}

impl ApiAnswer {
    /// Parses a body. A body that is not the JSON of an answer is an empty answer.
    pub(super) fn parse(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    /// Tells whether the answer says what happened to a message: that it was accepted, or which
    /// users do not get it.
    pub(super) fn is_about_a_message(&self) -> bool {
        let lists = [
            &self.invalid_staff_id_list,
            &self.flow_controlled_staff_id_list,
            &self.filtered_staff_id_list,
        ];
        let has_key = self.process_query_key.as_ref().is_some_and(|key| !key.is_empty());
        let has_list = lists.iter().any(|list| list.as_ref().is_some_and(|list| !list.is_empty()));
        let is_accepted =
            self.errcode == Some(0) || (self.errcode.is_none() && (has_key || has_list));
        self.code.is_empty() && is_accepted
    }
}

/// Reads a text, or a number as text; anything else is empty.
fn text_or_number<'de, D: serde::Deserializer<'de>>(reader: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(reader)? {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    })
}

/// A token of either API.
#[derive(Deserialize)]
pub(super) struct TokenAnswer {
    #[serde(alias = "accessToken")]
    pub(super) access_token: String,
    #[serde(alias = "expireIn", alias = "expires_in", default)]
    pub(super) expires_in: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_opened_for_events_and_robot_messages() {
        let request = serde_json::to_value(OpenStreamRequest::new("dingapp", "s3cret")).unwrap();
        assert_eq!(request["clientId"], "dingapp");
        assert_eq!(request["clientSecret"], "s3cret");
        assert_eq!(
            request["subscriptions"],
            json!([{"type": "EVENT", "topic": "*"}, {"type": "CALLBACK", "topic": ROBOT_TOPIC}])
        );
        let ticket: StreamTicket =
            serde_json::from_str(r#"{"endpoint": "wss://x/connect", "ticket": "t-1"}"#).unwrap();
        assert!(!format!("{ticket:?}").contains("t-1"));
    }

    #[test]
    fn data_of_a_frame_is_json_in_a_string() {
        let frame = |text: &str| serde_json::from_str::<StreamFrame>(text).unwrap();
        let callback = frame(
            r#"{"specVersion":"1.0","type":"CALLBACK","headers":{"messageId":"m-1","topic":"/x",
                "time":"1690362102194"},"data":"{\"msgId\":\"1\"}"}"#,
        );
        assert_eq!(callback.headers.message_id, "m-1");
        assert_eq!(callback.data_json(), Some(json!({"msgId": "1"})));
        let bare = frame(r#"{"type":"SYSTEM","headers":{"topic":"disconnect"}}"#);
        assert_eq!((bare.headers.message_id.as_str(), bare.data_text().as_str()), ("", ""));
        assert_eq!(frame(r#"{"type":"X","data":{"a":1}}"#).data_json(), Some(json!({"a": 1})));
        assert_eq!(frame(r#"{"type":"X","data":"not json"}"#).data_json(), None);
        assert!(serde_json::from_str::<StreamFrame>("{}").is_err());
    }

    #[test]
    fn acknowledgements_have_the_data_that_the_server_expects() {
        let read = |text: String| -> (Value, Value) {
            let value: Value = serde_json::from_str(&text).unwrap();
            let data = serde_json::from_str(value["data"].as_str().unwrap()).unwrap();
            (value, data)
        };
        let (callback, data) = read(callback_ack("m-1"));
        assert_eq!(callback["code"], 200);
        assert_eq!(callback["headers"]["messageId"], "m-1");
        assert_eq!(callback["headers"]["contentType"], "application/json");
        assert_eq!(data, json!({"response": null}));
        assert_eq!(read(event_ack("m", true)).1["status"], "SUCCESS");
        assert_eq!(read(event_ack("m", false)).1["status"], "LATER");
        assert_eq!(read(unknown_topic_ack("m")).0["code"], 404);
        assert_eq!(read(ping_ack("m", r#"{"opaque":"o-1"}"#)).1, json!({"opaque": "o-1"}));
    }

    #[test]
    fn answers_of_both_apis_are_read() {
        let new = ApiAnswer::parse(br#"{"code":"InvalidAuthentication","message":"expired"}"#);
        assert_eq!((new.code.as_str(), new.errcode), ("InvalidAuthentication", None));
        let old = ApiAnswer::parse(br#"{"errcode":130101,"errmsg":"send too fast"}"#);
        assert_eq!((old.errcode, old.errmsg.as_str()), (Some(130_101), "send too fast"));
        let ban = ApiAnswer::parse(br#"{"status":1111,"wait":5,"source":"x5","punish":"deny"}"#);
        assert_eq!((ban.status, ban.wait), (Some(1111), Some(5)));
        let sent =
            ApiAnswer::parse(br#"{"processQueryKey":"k","flowControlledStaffIdList":["u"]}"#);
        assert_eq!(sent.process_query_key.as_deref(), Some("k"));
        assert_eq!(sent.flow_controlled_staff_id_list, Some(vec!["u".to_owned()]));
        for body in ["<xml/>", "", "[]", r#"{"errcode":"x"}"#] {
            assert_eq!(ApiAnswer::parse(body.as_bytes()).errcode, None, "{body}");
        }
        let new: TokenAnswer =
            serde_json::from_str(r#"{"accessToken":"a","expireIn":7200}"#).unwrap();
        let old: TokenAnswer =
            serde_json::from_str(r#"{"access_token":"a","expires_in":7200}"#).unwrap();
        assert_eq!((new.access_token, new.expires_in), (old.access_token, old.expires_in));
    }
}
