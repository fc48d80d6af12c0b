//! Tests of the conversion of Markdown into blocks and mrkdwn.

use proptest::prelude::*;

use super::super::blocks::to_markdown;
use super::super::markup::TextContext;
use super::*;

fn round_trip(markdown: &str) -> String {
    let name = |id: &str| Some(id.to_owned());
    to_markdown(&blocks(markdown), &TextContext::new(&name)).markdown
}

#[test]
fn markdown_is_the_same_after_a_round_trip() {
    for markdown in [
        "hello",
        "**bold** *italic* ~~struck~~ `code`",
        "a\nb\n\nc",
        "- one\n- two\n   - deep\n- three",
        "1. one\n2. two",
        "3. three\n4. four",
        "before\n- one\n\n> quoted\n> text\n\nafter",
        "```\nlet a = 1;\n\nlet b = 2;\n```",
        "[label](https://example.com)",
        "<https://example.com>",
        "a\n\n---\n\nb",
    ] {
        assert_eq!(round_trip(markdown), markdown);
    }
}

#[test]
fn markdown_becomes_elements() {
    let inline = |markdown: &str| {
        let blocks = blocks(markdown);
        blocks[0]["elements"][0]["elements"].clone()
    };
    for (markdown, elements) in [
        (
            "hi <@U012AB> there",
            json!([
            {"type": "text", "text": "hi "}, {"type": "user", "user_id": "U012AB"},
            {"type": "text", "text": " there"}]),
        ),
        ("<!channel> <@nope> <@U1", json!([{"type": "text", "text": "<!channel> <@nope> <@U1"}])),
        (
            "see https://e.com/a, ok",
            json!([
            {"type": "text", "text": "see "}, {"type": "link", "url": "https://e.com/a"},
            {"type": "text", "text": ", ok"}]),
        ),
        (
            "`https://e.com`",
            json!([
            {"type": "text", "text": "https://e.com", "style": {"code": true}}]),
        ),
        ("[x](javascript:alert)", json!([{"type": "text", "text": "x (javascript:alert)"}])),
        ("# Title", json!([{"type": "text", "text": "Title", "style": {"bold": true}}])),
        ("<b>x</b>", json!([{"type": "text", "text": "<b>x</b>"}])),
        (
            "![alt](https://e.com/i.png)",
            json!([
            {"type": "link", "url": "https://e.com/i.png", "text": "alt"}]),
        ),
    ] {
        assert_eq!(inline(markdown), elements, "{markdown}");
    }
    let table = blocks("| a | bb |\n| - | - |\n| **ccc** | d |");
    let code = &table[0]["elements"][0]["elements"][0]["text"];
    assert_eq!(code, "a   | bb\n----|---\nccc | d");
    let tasks = mrkdwn(&blocks("- [x] done\n- [ ] open"));
    assert_eq!(tasks, "• ☑ done\n• ☐ open");
}

#[test]
fn mrkdwn_for_notifications_is_escaped() {
    for (markdown, expected) in [
        ("**a** & <b>", "*a* &amp; &lt;b&gt;"),
        ("[x|y](https://e.com/?a|b)", "<https://e.com/?a%7Cb|x|y>"),
        ("> q\n> r", "&gt; q\n&gt; r"),
        ("```\na < b\n```", "```a &lt; b```"),
        ("1. a\n2. b\n   - c", "1. a\n2. b\n    • c"),
        ("<@U012AB> *i*", "<@U012AB> _i_"),
    ] {
        assert_eq!(mrkdwn(&blocks(markdown)), expected, "{markdown}");
    }
    let plain = plain_blocks("*not* bold <@U012AB>");
    assert_eq!(plain[0]["elements"][0]["elements"][0]["text"], "*not* bold ");
}

/// Returns all texts of blocks in order.
fn texts(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| texts(item, out)),
        Value::Object(entries) => {
            for key in ["elements", "text"] {
                if let Some(value) = entries.get(key) {
                    texts(value, out);
                }
            }
        }
        Value::String(text) => out.push_str(text),
        _ => {}
    }
}

proptest! {
    #[test]
    fn no_word_is_lost(words in proptest::collection::vec("[a-z]{1,8}", 1..40), seed in any::<u64>()) {
        let marks = [" ", "\n", "\n\n", "\n- ", "\n> ", " **x** ", "\n1. ", "\n   - ", " `y` ", "\n---\n\n", "\n```\n"];
        let mut markdown = String::new();
        for (at, word) in words.iter().enumerate() {
            markdown.push_str(word);
            markdown.push_str(marks[(usize::try_from(seed % 97).unwrap() + at * 7) % marks.len()]);
        }
        let mut shown = String::new();
        texts(&Value::Array(blocks(&markdown)), &mut shown);
        for word in &words {
            prop_assert!(shown.contains(word.as_str()), "{word} of {markdown:?} in {shown:?}");
        }
    }

    #[test]
    fn any_text_is_converted(markdown in "\\PC{0,200}") {
        let blocks = blocks(&markdown);
        mrkdwn(&blocks);
        prop_assert!(blocks.iter().all(|block| block["type"].is_string()));
    }
}
