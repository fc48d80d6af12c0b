//! Tests of texts with entities, and of the way to Markdown and back.

use proptest::prelude::*;
use serde_json::json;

use super::super::formatting::EntityText;
use super::*;

fn entity(kind: &str, offset: i64, length: i64) -> Value {
    json!({"type": kind, "offset": offset, "length": length})
}

fn markdown(text: &str, entities: &[Value]) -> String {
    to_markdown(text, entities).markdown
}

#[test]
fn styles_become_markdown() {
    let link = json!({"type": "text_link", "offset": 0, "length": 4, "url": "https://x.example"});
    let odd = json!({"type": "text_link", "offset": 0, "length": 4, "url": "javascript:x"});
    let pre = json!({"type": "pre", "offset": 0, "length": 3, "language": "rust"});
    let bad = json!({"type": "pre", "offset": 0, "length": 3, "language": "a` b"});
    for (text, entities, want) in [
        ("bold text", vec![entity("bold", 0, 4)], "**bold** text"),
        ("a italic", vec![entity("italic", 2, 6)], "a *italic*"),
        ("gone", vec![entity("strikethrough", 0, 4)], "~~gone~~"),
        ("run ls -l", vec![entity("code", 4, 5)], "run `ls -l`"),
        ("a`b", vec![entity("code", 0, 3)], "``a`b``"),
        ("let\nnext", vec![pre], "```rust\nlet\n```\nnext"),
        ("let", vec![bad], "```\nlet\n```\n"),
        ("said\nnext", vec![entity("blockquote", 0, 4)], "> said\n\nnext"),
        ("here", vec![link], "[here](https://x.example)"),
        ("here", vec![odd], "here (javascript:x)"),
        ("https://a_b.example/*", vec![entity("url", 0, 21)], "<https://a_b.example/*>"),
        ("example.com", vec![entity("url", 0, 11)], "example.com"),
        (
            "under spoiler",
            vec![entity("underline", 0, 5), entity("spoiler", 6, 7)],
            "under spoiler",
        ),
        ("* not a list_ <b>", vec![], "\\* not a list\\_ \\<b>"),
        // Emphasis has no spaces at its ends, and ends with its paragraph.
        (" a \n\nb ", vec![entity("bold", 0, 7)], " **a** \n\n**b** "),
        ("   ", vec![entity("bold", 0, 3)], "   "),
        // Markdown would not read these marks.
        ("a.b.c", vec![entity("bold", 1, 3)], "a.b.c"),
        ("bold italic", vec![entity("bold", 0, 11), entity("italic", 5, 6)], "**bold *italic***"),
    ] {
        assert_eq!(markdown(text, &entities), want, "{text:?} {entities:?}");
    }
}

#[test]
fn offsets_count_utf16_units() {
    assert_eq!(markdown("😀 bold", &[entity("bold", 3, 4)]), "😀 **bold**");
    assert_eq!(markdown("名前 bold", &[entity("bold", 3, 4)]), "名前 **bold**");
    assert_eq!(markdown("a 😀", &[entity("code", 2, 2)]), "a `😀`");
}

#[test]
fn entities_that_do_not_fit_are_ignored() {
    let text = "a 😀 b";
    for (offset, length) in [
        (0, 100),
        (6, 1),
        (100, 1),
        (-1, 2),
        (0, -1),
        (0, 0),
        (3, 2),
        (2, 1),
        (i64::MAX, i64::MAX),
        (1, i64::MAX),
    ] {
        assert_eq!(markdown(text, &[entity("bold", offset, length)]), text, "{offset} {length}");
    }
    assert_eq!(markdown(text, &[json!(7), json!({"type": 3}), Value::Null]), text);
}

#[test]
fn overlapping_entities_are_cut_into_nested_ones() {
    let entities = [entity("bold", 0, 7), entity("italic", 4, 7)];
    assert_eq!(markdown("one two six", &entities), "**one *two*** *six*");
}

#[test]
fn mentions_are_collected_once() {
    let person = json!({"type": "text_mention", "offset": 5, "length": 3,
                        "user": {"id": 7, "first_name": "Bob", "last_name": "Ray"}});
    let entities = [
        entity("mention", 0, 4),
        person,
        entity("bot_command", 9, 8),
        entity("mention", 0, 4),
        entity("bot_command", 9, 3),
    ];
    let found = to_markdown("@ann Bob /go@robo", &entities);
    assert_eq!(found.mentions, ["ann", "Bob Ray", "robo"]);
}

/// Words, each with styles that Markdown can express, as text and entities.
fn styled_words() -> impl Strategy<Value = (String, Vec<Value>)> {
    let word =
        prop_oneof!["[a-z]{1,6}", "[а-я]{1,6}", "[一-三]{1,3}", "x😀y", "a_b", "1[*]2", "q&amp;r"];
    let styles = prop::sample::subsequence(vec!["bold", "italic", "strikethrough"], 0..=3);
    let styled = (word, styles, any::<bool>());
    prop::collection::vec(styled, 1..8).prop_map(|words| {
        let (mut text, mut units, mut entities) = (String::new(), 0, Vec::new());
        for (word, styles, is_code) in words {
            if !text.is_empty() {
                text.push(' ');
                units += 1;
            }
            let length = i64::try_from(word.encode_utf16().count()).unwrap();
            let styles = if is_code && styles.is_empty() { vec!["code"] } else { styles };
            entities.extend(styles.iter().map(|style| entity(style, units, length)));
            text.push_str(&word);
            units += length;
        }
        (text, entities)
    })
}

proptest! {
    #[test]
    fn styled_words_survive_markdown_and_back((text, entities) in styled_words()) {
        let there = to_markdown(&text, &entities).markdown;
        let back = EntityText::from_markdown(&there);
        prop_assert_eq!(&back.text, &text, "{}", there);
        let key = |entity: &Value| (entity["offset"].as_i64(), entity["type"].to_string());
        let mut want = entities;
        let mut found = back.entities_json().as_array().unwrap().clone();
        want.sort_by_key(key);
        found.sort_by_key(key);
        prop_assert_eq!(found, want, "{}", there);
    }

    #[test]
    fn no_text_and_entities_panic(
        text in "[a *_`~>\\n#😀\\[\\]()]{0,30}",
        entities in prop::collection::vec(
            ("bold|italic|code|pre|blockquote|text_link|url|mention", -3_i64..40, -3_i64..40), 0..12),
    ) {
        let entities: Vec<_> = entities
            .iter()
            .map(|(kind, offset, length)| {
                json!({"type": kind, "offset": offset, "length": length, "url": "https://x"})
            })
            .collect();
        let there = to_markdown(&text, &entities).markdown;
        let _ = EntityText::from_markdown(&there);
        let letters = |text: &str| text.chars().filter(|c| *c == 'a' || *c == '😀').count();
        let label = there.matches("https://x").count();
        prop_assert!(letters(&there) >= letters(&text), "{label} {there}");
    }
}
