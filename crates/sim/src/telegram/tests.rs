//! Texts, entities and markup of the emulated Telegram.

use serde_json::{Value, json};

use super::format::{detect_entities, formatted, utf16_len};

fn parsed(text: &str, mode: &str) -> (String, Vec<Value>) {
    let result = formatted(text, mode, None).unwrap();
    (result.text, result.entities)
}

fn rejected(text: &str, mode: &str) -> String {
    let failure = formatted(text, mode, None).unwrap_err();
    assert_eq!(failure.code, 400);
    failure.description.trim_start_matches("Bad Request: can't parse entities: ").to_owned()
}

#[test]
fn positions_count_utf16_code_units() {
    assert_eq!(utf16_len("a\u{1f600}b"), 4);
}

#[test]
fn mentions_commands_and_links_are_found_in_plain_text() {
    let found =
        detect_entities("/start@monoco0_bot \u{1f600} @monoco0_bot, see https://example.com/a. @x");
    let expected = json!([
        {"type": "bot_command", "offset": 0, "length": 18},
        {"type": "mention", "offset": 22, "length": 12},
        {"type": "url", "offset": 40, "length": 21},
    ]);
    assert_eq!(json!(found), expected);
}

#[test]
fn html_becomes_text_with_nested_entities() {
    let source = "<b>bold <i>both</i></b> <a href=\"https://example.com/?a=1&amp;b=2\">link</a> &lt;\u{1f600}<code>x</code>";
    let (text, entities) = parsed(source, "HTML");
    assert_eq!(text, "bold both link <\u{1f600}x");
    let expected = json!([
        {"type": "bold", "offset": 0, "length": 9},
        {"type": "italic", "offset": 5, "length": 4},
        {"type": "text_link", "offset": 10, "length": 4, "url": "https://example.com/?a=1&b=2"},
        {"type": "code", "offset": 18, "length": 1},
    ]);
    assert_eq!(json!(entities), expected);
    let (text, entities) = parsed("<pre><code class=\"language-rust\">fn</code></pre>", "html");
    assert_eq!(text, "fn");
    let pre = json!([{"type": "pre", "offset": 0, "length": 2, "language": "rust"}]);
    assert_eq!(json!(entities), pre);
}

#[test]
fn broken_html_is_rejected_with_its_place() {
    let cases = [
        ("a <x>b</x>", "Unsupported start tag \"x\" at byte offset 2"),
        ("<b>a", "Can't find end tag corresponding to start tag \"b\""),
        ("<b>a</i>", "Unmatched end tag at byte offset 4, expected \"</b>\", found \"</i>\""),
        ("a</b>", "Unexpected end tag at byte offset 1"),
        ("1 < 2", "Unclosed start tag at byte offset 2"),
    ];
    for (text, reason) in cases {
        assert_eq!(rejected(text, "HTML"), reason, "{text}");
    }
}

#[test]
fn markdown_v2_becomes_text_with_entities() {
    let source =
        "*bold _both_* __under__ ||spoiler|| ~no~ `a*b` [li\\-nk](https://example.com/) 1\\.5";
    let (text, entities) = parsed(source, "MarkdownV2");
    assert_eq!(text, "bold both under spoiler no a*b li-nk 1.5");
    let kinds: Vec<_> = entities.iter().map(|entity| entity["type"].as_str().unwrap()).collect();
    let expected = ["bold", "italic", "underline", "spoiler", "strikethrough", "code", "text_link"];
    assert_eq!(kinds, expected);
    assert_eq!(entities[6]["url"], "https://example.com/");
    let (text, entities) = parsed("```rust\nfn a() {}\n```", "MarkdownV2");
    assert_eq!(text, "fn a() {}");
    assert_eq!(entities[0]["language"], "rust");
    let (text, entities) = parsed("intro\n>one\n>two\nend", "MarkdownV2");
    assert_eq!(text, "intro\none\ntwo\nend");
    assert_eq!((&entities[0]["type"], &entities[0]["offset"]), (&json!("blockquote"), &json!(6)));
}

#[test]
fn reserved_characters_and_open_marks_of_markdown_v2_are_rejected() {
    let reserved = "Character '.' is reserved and must be escaped with the preceding '\\'";
    assert_eq!(rejected("Hello.", "MarkdownV2"), reserved);
    let open = "Can't find end of Bold entity at byte offset 2";
    assert_eq!(rejected("a *b", "MarkdownV2"), open);
    let open = "Can't find end of Code entity at byte offset 0";
    assert_eq!(rejected("`b", "MarkdownV2"), open);
    assert_eq!(
        rejected("a *b", "Markdown"),
        "Can't find end of the entity starting at byte offset 2"
    );
    assert!(formatted("a", "YAML", None).is_err());
}

#[test]
fn given_entities_are_moved_and_cut_when_white_space_is_removed() {
    let bold = json!([
        {"type": "bold", "offset": 0, "length": 100},
        {"type": "italic", "offset": 90, "length": 5},
    ]);
    let result = formatted("  ab ", "", Some(&bold)).unwrap();
    assert_eq!(result.text, "ab");
    assert_eq!(json!(result.entities), json!([{"type": "bold", "offset": 0, "length": 2}]));
    let (_, entities) = parsed("<b>a</b> @monoco0_bot <code>@other_bot</code>", "HTML");
    let kinds: Vec<_> = entities.iter().map(|entity| entity["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["bold", "mention", "code"]);
    assert!(formatted("a", "", Some(&json!([{"offset": 0, "length": 1}]))).is_err());
}
