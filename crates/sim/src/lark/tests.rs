//! Events of what people do: content by kind, mentions, replies and topics, and what reaches the bot.

use serde_json::{Value, json};

use super::LarkSim;
use crate::control::SayRequest;
use crate::provider::SimProvider;
use crate::world::World;

struct Fixture {
    sim: LarkSim,
    world: World,
}

impl Fixture {
    fn new() -> Self {
        let sim = LarkSim::new(1);
        let mut world = World::new("http://127.0.0.1:1".to_owned(), sim.settings(), 1);
        sim.populate(&mut world);
        Self { sim, world }
    }

    /// Says something; returns the answer of the control API and the event, if there is one.
    fn say(&mut self, request: Value) -> (Value, Option<Value>) {
        let request: SayRequest = serde_json::from_value(request).unwrap();
        let said = self.sim.say(&mut self.world, &request).unwrap();
        let event = self.world.queue.take_ready(0);
        (said, event.map(|event| serde_json::from_str(&event.payload).unwrap()))
    }

    /// Says something that reaches the bot; returns its message in the event.
    fn message(&mut self, request: Value) -> Value {
        self.say(request).1.unwrap()["event"]["message"].clone()
    }
}

#[test]
fn names_in_a_text_become_placeholders_with_mentions() {
    let mut fixture = Fixture::new();
    let text = "@bob and @cem, not a@example or @nobody; @bob again, @all";
    let message = fixture.message(json!({"chat": "ops", "text": text, "mention": true}));
    let content: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert_eq!(
        content["text"],
        "@_user_1 @_user_2 and @_user_3, not a@example or @nobody; @_user_2 again, @_all"
    );
    let mentions: Vec<_> = message["mentions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mention| (mention["key"].as_str().unwrap(), mention["id"]["open_id"].clone()))
        .collect();
    let expected = [("@_user_1", "ou_bot0"), ("@_user_2", "ou_bob"), ("@_user_3", "ou_cem")];
    assert_eq!(mentions, expected.map(|(key, id)| (key, json!(id))));
    assert_eq!(message["mentions"][0]["mentioned_type"], "bot");
}

#[test]
fn every_kind_has_the_documented_content() {
    let file = |mime: &str| json!([{"name": "a.x", "mime_type": mime, "text": "abc"}]);
    let cases = [
        (json!({"files": file("image/png")}), "image", vec!["image_key"]),
        (json!({"files": file("text/plain")}), "file", vec!["file_key", "file_name"]),
        (json!({"files": file("audio/opus")}), "audio", vec!["duration", "file_key"]),
        (
            json!({"files": file("video/mp4")}),
            "media",
            vec!["duration", "file_key", "file_name", "image_key"],
        ),
        (json!({"kind": "sticker", "files": file("image/png")}), "sticker", vec!["file_key"]),
        (json!({"text": "a", "files": file("image/png")}), "post", vec!["content", "title"]),
        (json!({"kind": "post", "text": "a\nb @bob"}), "post", vec!["content", "title"]),
        (json!({"kind": "interactive", "text": "a"}), "interactive", vec!["elements", "title"]),
        (json!({"kind": "share_chat", "text": "general"}), "share_chat", vec!["chat_id"]),
        (json!({"kind": "share_user", "text": "bob"}), "share_user", vec!["user_id"]),
        (
            json!({"kind": "merge_forward", "blocks": [{"user": "bob", "text": "a"}]}),
            "merge_forward",
            vec!["content"],
        ),
        (json!({"kind": "todo", "blocks": {"task_id": "1"}}), "todo", vec!["task_id"]),
    ];
    for (mut request, kind, keys) in cases {
        request["chat"] = json!("ops");
        let message = Fixture::new().message(request);
        assert_eq!(message["message_type"], kind);
        let content: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
        let mut found: Vec<_> = content.as_object().unwrap().keys().collect();
        found.sort();
        assert_eq!(found, keys, "{kind}");
    }
}

#[test]
fn content_as_a_string_need_not_be_json() {
    let mut fixture = Fixture::new();
    let message = fixture.message(json!({"chat": "ops", "kind": "text", "blocks": "no JSON"}));
    assert_eq!(message["content"], "no JSON");
}

#[test]
fn reply_names_its_parent_and_a_topic_also_its_first_message() {
    let mut fixture = Fixture::new();
    let (first, _) = fixture.say(json!({"chat": "ops", "text": "first"}));
    let (second, event) =
        fixture.say(json!({"chat": "ops", "text": "second", "quote": first["id"]}));
    let message = &event.unwrap()["event"]["message"];
    assert_eq!((&message["parent_id"], &message["root_id"]), (&first["id"], &first["id"]));
    assert_eq!(message["thread_id"], Value::Null);
    let third = fixture.message(json!({"chat": "ops", "text": "third", "quote": second["id"]}));
    assert_eq!((&third["parent_id"], &third["root_id"]), (&second["id"], &first["id"]));

    let topic = fixture.message(json!({"chat": "ops", "text": "in", "thread": second["id"]}));
    assert_eq!((&topic["parent_id"], &topic["root_id"]), (&second["id"], &second["id"]));
    let again = fixture.message(json!({"chat": "ops", "text": "in", "thread": topic["thread_id"]}));
    assert_eq!(again["thread_id"], topic["thread_id"]);
    // In a group of topics every message starts one.
    let message = fixture.message(json!({"chat": "topics", "text": "new"}));
    assert!(message["thread_id"].as_str().unwrap().starts_with("omt_"));
}

#[test]
fn bot_hears_what_its_scopes_and_chats_allow() {
    let mut fixture = Fixture::new();
    let reaches = |fixture: &mut Fixture, chat: &str, mention: bool| {
        let (said, event) = fixture.say(json!({"chat": chat, "text": "x", "mention": mention}));
        assert_eq!(said["reaches_bot"], event.is_some());
        event.is_some()
    };
    assert!(reaches(&mut fixture, "ops", false));
    assert!(!reaches(&mut fixture, "random", true), "the bot is not in the chat");
    let change = json!({"remove": ["im:message.group_msg"]});
    fixture.sim.state().scopes.change(&change).unwrap();
    assert!(!reaches(&mut fixture, "ops", false));
    assert!(reaches(&mut fixture, "ops", true));
    assert!(reaches(&mut fixture, "@ann", false));
}
