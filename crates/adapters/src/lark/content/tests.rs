//! Tests of the contents, kind by kind.

use serde_json::json;

use super::*;

fn name(id: &str) -> Option<String> {
    match id {
        "ou_ann" => Some("Ann".to_owned()),
        "oc_ops" => Some("Ops".to_owned()),
        _ => None,
    }
}

fn read_with(kind: &str, content: &str, mentions: &[Value]) -> (LarkContent, Vec<String>) {
    let context = TextContext::new(&name);
    let source = ContentSource { message_id: "om_1", kind, content, mentions };
    let found = read(source, &context);
    (found, context.take_mentions())
}

fn shown(kind: &str, content: &Value) -> LarkContent {
    read_with(kind, &content.to_string(), &[]).0
}

#[test]
fn marks_in_a_text_become_names() {
    let mentions = [
        json!({"key": "@_user_1", "id": {"open_id": "ou_bot"}, "name": "Bot"}),
        json!({"key": "@_user_2", "id": {"open_id": "ou_ann"}, "name": ""}),
        // The form of histories.
        json!({"key": "@_user_10", "id": "ou_eve", "id_type": "open_id", "name": "Eve"}),
    ];
    let content = json!({"text": "@_user_1 and @_user_2, @_user_10! @_all @_user_9 a@_b"});
    let (found, names) = read_with("text", &content.to_string(), &mentions);
    assert_eq!(found.markdown, "@Bot and @Ann, @Eve! @all @\\_user_9 a@\\_b");
    assert_eq!(names, ["Bot", "Ann", "Eve", "all"]);
    assert!(found.is_complete);
}

#[test]
fn markdown_in_plain_text_is_escaped() {
    let found = shown("text", &json!({"text": "2 * 3 * 4\n# not a heading\n<b>"}));
    assert_eq!(found.markdown, "2 \\* 3 \\* 4\n\\# not a heading\n\\<b>");
}

#[test]
fn post_becomes_markdown_with_files() {
    let post = json!({"title": "Build", "content": [
        [{"tag": "text", "text": "The "}, {"tag": "text", "text": "build ", "style": ["bold", "italic"]},
         {"tag": "a", "href": "https://ci.example.com", "text": "log"},
         {"tag": "text", "text": "x < y", "style": ["code"]}],
        [{"tag": "at", "user_id": "@_user_1", "user_name": "Ann"}, {"tag": "at", "user_id": "all"},
         {"tag": "emotion", "emoji_type": "SMILE"}],
        [{"tag": "img", "image_key": "img_1"}, {"tag": "media", "file_key": "file_1", "image_key": "i"}],
        [{"tag": "code_block", "language": "GO", "text": "a := 1\n"}],
        [{"tag": "hr"}],
        [{"tag": "md", "text": "**done**"}],
        [{"tag": "text", "text": "gone", "style": ["lineThrough"]}],
    ]});
    let found = shown("post", &post);
    assert_eq!(
        found.markdown,
        "**Build**\n\nThe ***build*** [log](https://ci.example.com)`x < y`\n@Ann@all:SMILE:\n\
         [image][video]\n```\na := 1\n```\n\n---\n\n**done**\n~~gone~~"
    );
    assert!(found.is_complete);
    let names: Vec<_> = found.artifacts.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["", ""], "they are known when the files are fetched");
    let handle: Value = serde_json::from_str(found.artifacts[0].fetch.as_ref().unwrap()).unwrap();
    assert_eq!(
        handle,
        json!({"message_id": "om_1", "key": "img_1", "kind": "image", "stem": "image"})
    );
    let wrapped = shown("post", &json!({"en_us": {"content": [[{"tag": "text", "text": "hi"}]]}}));
    assert_eq!(wrapped.markdown, "hi");
    let unknown = shown("post", &json!({"content": [[{"tag": "new", "text": "words"}]]}));
    assert_eq!((unknown.markdown.as_str(), unknown.is_complete), ("words", false));
}

#[test]
fn files_are_announced_with_their_names() {
    for (kind, content, markdown, name, mime_type) in [
        ("image", json!({"image_key": "img_1"}), "[image]", "", ""),
        ("file", json!({"file_key": "file_1", "file_name": "a.zip"}), "[file: a.zip]", "a.zip", ""),
        ("audio", json!({"file_key": "file_1", "duration": 2500}), "[audio, 3 s]", "", ""),
        (
            "media",
            json!({"file_key": "file_1", "file_name": "v.mp4", "image_key": "i", "duration": 1000}),
            "[video, 1 s]",
            "v.mp4",
            "",
        ),
        (
            "merge_forward",
            json!({}),
            "[forwarded conversation; its messages are attached]",
            "forwarded.md",
            "text/markdown",
        ),
    ] {
        let found = shown(kind, &content);
        assert_eq!(found.markdown, markdown);
        let [file] = found.artifacts.as_slice() else { panic!("{kind}: {found:?}") };
        assert_eq!((file.name.as_str(), file.mime_type.as_str()), (name, mime_type), "{kind}");
        assert!(file.fetch.is_some());
    }
    assert_eq!(shown("sticker", &json!({"file_key": "s"})).artifacts, []);
    assert_eq!(shown("image", &json!({"image_key": "x".repeat(4096)})).artifacts, []);
}

#[test]
fn other_kinds_have_a_line_of_words() {
    for (kind, content, want) in [
        ("sticker", json!({"file_key": "s"}), "[sticker]"),
        ("share_chat", json!({"chat_id": "oc_ops"}), "[shared chat: Ops]"),
        ("share_chat", json!({"chat_id": "oc_x"}), "[shared chat: oc_x]"),
        ("share_user", json!({"user_id": "ou_ann"}), "[shared contact: Ann]"),
        (
            "location",
            json!({"name": "Office", "longitude": "116.4", "latitude": "39.9"}),
            "[location: Office (39.9, 116.4)]",
        ),
        (
            "system",
            json!({"template": "{from_user} invited {to_chatters}.", "from_user": ["Ann"],
                   "to_chatters": ["Bob", "Eve"]}),
            "[Ann invited Bob, Eve.]",
        ),
        ("vote", json!({"topic": "Lunch", "options": ["a", "b"]}), "[vote: Lunch: a, b]"),
        (
            "share_calendar_event",
            json!({"summary": "Review", "start_time": "1700000000000", "end_time": "1700003600"}),
            "[calendar event: Review from 2023-11-14T22:13:20.000Z to 2023-11-14T23:13:20.000Z]",
        ),
        ("hongbao", json!({"text": "luck"}), "[red envelope: luck]"),
        ("folder", json!({"file_name": "docs"}), "[folder: docs]"),
        ("video_chat", json!({"topic": "Standup"}), "[video meeting: Standup]"),
        (
            "todo",
            json!({"summary": {"title": "", "content": [[{"tag": "text", "text": "buy"}]]},
                   "due_time": "1700000000000"}),
            "[task]\n\nbuy\n\ndue 2023-11-14T22:13:20.000Z",
        ),
    ] {
        let found = shown(kind, &content);
        assert_eq!((found.markdown.as_str(), found.is_complete), (want, true), "{kind}");
    }
}

#[test]
fn words_of_cards_are_shown_and_the_payload_is_needed() {
    for card in [
        json!({"title": "Alert", "elements": [[{"tag": "text", "text": "disk "},
               {"tag": "a", "href": "https://x.example", "text": "log"}]]}),
        json!({"header": {"title": {"tag": "plain_text", "content": "Alert"}},
               "elements": [{"tag": "div", "text": {"tag": "lark_md", "content": "disk "}},
                            {"tag": "a", "href": "https://x.example", "text": "log"}]}),
        json!({"schema": "2.0", "header": {"title": {"tag": "plain_text", "content": "Alert"}},
               "body": {"elements": [{"tag": "markdown", "content": "disk "},
                                     {"tag": "a", "href": "https://x.example", "text": "log"}]}}),
    ] {
        let found = shown("interactive", &card);
        assert_eq!(
            found.markdown,
            "[card; the payload is attached]\n\n**Alert**\n\ndisk\n\n[log](https://x.example)"
        );
        assert!(!found.is_complete);
    }
    let mut deep = json!({"tag": "text", "text": "CANARY"});
    for _ in 0..100 {
        deep = json!({"tag": "column", "elements": [deep]});
    }
    assert!(!shown("interactive", &json!({"elements": [deep]})).markdown.contains("CANARY"));
}

#[test]
fn unknown_kinds_and_invalid_content_are_marked() {
    let unknown = shown("hologram", &json!({"x": 1}));
    assert!(unknown.markdown.contains("kind hologram: this version cannot show it"));
    assert!(!unknown.is_complete);
    for content in ["", "not json", r#"{"text":"\ud800"}"#, "{\"text\":"] {
        let (found, _) = read_with("text", content, &[]);
        assert!(found.markdown.contains("its content is not valid JSON"), "{content}");
        assert!(!found.is_complete);
    }
    for content in ["null", "[]", "7", r#""text""#, r#"{"text":{"a":1}}"#] {
        let (found, _) = read_with("text", content, &[]);
        assert_eq!(found.markdown, "", "{content}");
    }
    assert!(!shown("a]\n\u{1b}[31m", &json!({})).markdown.contains('\u{1b}'));
}
