//! Tests of the conversion of blocks into Markdown.

use serde_json::json;

use super::*;

fn name(id: &str) -> Option<String> {
    match id {
        "U1" => Some("Ann".to_owned()),
        "C1" => Some("general".to_owned()),
        _ => None,
    }
}

fn converted(blocks: Value) -> BlockText {
    let context = TextContext::new(&name);
    to_markdown(blocks.as_array().unwrap(), &context)
}

fn rich(elements: Value) -> String {
    let text = converted(json!([{"type": "rich_text", "elements": elements}]));
    assert!(text.unknown.is_empty(), "{text:?}");
    text.markdown
}

fn section(elements: Value) -> Value {
    json!({"type": "rich_text_section", "elements": elements})
}

#[test]
fn inline_elements_become_markdown() {
    let styled = |style: &str| json!({"type": "text", "text": style, "style": {style: true}});
    for (element, markdown) in [
        (json!({"type": "text", "text": "a *b*"}), "a \\*b\\*"),
        (styled("bold"), "**bold**"),
        (styled("italic"), "*italic*"),
        (styled("strike"), "~~strike~~"),
        (styled("code"), "`code`"),
        (json!({"type": "text", "text": " x ", "style": {"bold": true}}), " **x** "),
        (json!({"type": "link", "url": "https://e.com", "text": "e"}), "[e](https://e.com)"),
        (json!({"type": "link", "url": "https://e.com"}), "<https://e.com>"),
        (json!({"type": "user", "user_id": "U1"}), "@Ann"),
        (json!({"type": "user", "user_id": "U2"}), "@U2"),
        (json!({"type": "usergroup", "usergroup_id": "S1"}), "@S1"),
        (json!({"type": "channel", "channel_id": "C1"}), "#general"),
        (json!({"type": "broadcast", "range": "channel"}), "@channel"),
        (json!({"type": "emoji", "name": "+1", "unicode": "1f44d-1f3fb"}), "👍🏻"),
        (json!({"type": "emoji", "name": "party_parrot"}), ":party_parrot:"),
        (json!({"type": "date", "timestamp": 1, "fallback": "Jan 1"}), "Jan 1"),
        (json!({"type": "color", "value": "#ff0000"}), "#ff0000"),
    ] {
        let shown = rich(json!([section(json!([{"type": "text", "text": "."}, element.clone()]))]));
        assert_eq!(shown, format!(".{markdown}").trim_end(), "{element}");
    }
}

#[test]
fn lists_quotes_and_code_become_markdown() {
    let item = |text: &str| section(json!([{"type": "text", "text": text}]));
    let shown = rich(json!([
        item("Steps:"),
        {"type": "rich_text_list", "style": "ordered", "indent": 0, "elements": [item("one"), item("two\nlines")]},
        {"type": "rich_text_list", "style": "bullet", "indent": 1, "elements": [item("deep")]},
        {"type": "rich_text_list", "style": "ordered", "indent": 0, "offset": 2, "elements": [item("three")]},
        {"type": "rich_text_quote", "elements": [{"type": "text", "text": "said\nso"}]},
        {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": "let a = `b`;"}]},
        item("end"),
    ]));
    assert_eq!(
        shown,
        "Steps:\n1. one\n2. two\n   lines\n   - deep\n3. three\n\n> said\n> so\n\n```\nlet a = `b`;\n```\nend"
    );
}

#[test]
fn blocks_of_apps_become_markdown() {
    let text = converted(json!([
        {"type": "header", "text": {"type": "plain_text", "text": "Deploy"}},
        {"type": "section", "text": {"type": "mrkdwn", "text": "*v1* by <@U1>"},
         "fields": [{"type": "mrkdwn", "text": "_ok_"}, {"type": "plain_text", "text": "a*b"}]},
        {"type": "divider"},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": "now"},
            {"type": "image", "image_url": "https://e.com/a.png", "alt_text": "logo"}]},
        {"type": "image", "image_url": "https://e.com/b.png", "alt_text": "b",
         "title": {"type": "plain_text", "text": "Graph"}},
        {"type": "actions", "elements": [{"type": "button", "text": {"type": "plain_text", "text": "Go"}}]},
        {"type": "table", "rows": [[{"type": "raw_text", "text": "a"}, {"type": "raw_text", "text": "b|c"}],
                                   [{"type": "raw_text", "text": "1"}, {"type": "raw_text", "text": "2"}]]},
    ]));
    assert_eq!(
        text.markdown,
        "## Deploy\n\n**v1** by @Ann\n*ok*\na\\*b\n\n---\n\nnow [logo](https://e.com/a.png)\n\n\
         [Graph](https://e.com/b.png)\n\n[Go] \n\n| a | b\\|c |\n| --- | --- |\n| 1 | 2 |"
    );
    assert!(text.unknown.is_empty());
}

#[test]
fn unknown_blocks_and_elements_are_named() {
    let text = converted(json!([{"type": "hologram", "depth": 3}]));
    assert_eq!(text.markdown, "[hologram: this version cannot show it]");
    assert_eq!(text.unknown, ["hologram"]);
    let inner = section(json!([{"type": "wave"}]));
    let text = converted(json!([{"type": "rich_text", "elements": [inner, {"type": "rich_x"}]}]));
    assert_eq!(text.unknown, ["wave", "rich_x"]);
    assert_eq!(converted(json!([7, null, "x", {}])).unknown.len(), 4, "nothing panics");
}
