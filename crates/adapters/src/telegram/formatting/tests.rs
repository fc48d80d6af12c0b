//! Tests of Markdown as text with entities.

use proptest::prelude::*;

use super::*;

/// The text, and each entity as `kind offset length`.
fn shown(markdown: &str) -> (String, Vec<String>) {
    let formatted = EntityText::from_markdown(markdown);
    let entity = |entity: &Value| {
        let more = entity["url"].as_str().or(entity["language"].as_str());
        let more = more.map(|more| format!(" {more}")).unwrap_or_default();
        let kind = entity["type"].as_str().unwrap();
        format!("{kind} {} {}{more}", entity["offset"], entity["length"])
    };
    let json = formatted.entities_json();
    (formatted.text, json.as_array().unwrap().iter().map(entity).collect())
}

#[test]
fn marks_become_entities() {
    for (markdown, text, entities) in [
        ("plain", "plain", vec![]),
        ("**bold** and *italic*", "bold and italic", vec!["bold 0 4", "italic 9 6"]),
        ("~~gone~~ `code`", "gone code", vec!["strikethrough 0 4", "code 5 4"]),
        ("***both***", "both", vec!["bold 0 4", "italic 0 4"]),
        ("😀 **b**", "😀 b", vec!["bold 3 1"]),
        ("# Title\n\ntext", "Title\n\ntext", vec!["bold 0 5"]),
        ("[here](https://x.example)", "here", vec!["text_link 0 4 https://x.example"]),
        ("[here](ftp://x)", "here (ftp://x)", vec![]),
        ("[Ann](tg://user?id=42)", "Ann", vec!["text_mention 0 3"]),
        (
            "![chart](https://x.example/c.png)",
            "chart",
            vec!["text_link 0 5 https://x.example/c.png"],
        ),
        ("> quoted\n\nafter", "quoted\n\nafter", vec!["blockquote 0 6"]),
        ("```rust\nfn x() {}\n```", "fn x() {}", vec!["pre 0 9 rust"]),
        ("- a\n- b\n  - c\n", "• a\n• b\n    • c", vec![]),
        ("3. a\n4. b", "3. a\n4. b", vec![]),
        ("- [x] done\n- [ ] open", "• ☑ done\n• ☐ open", vec![]),
        ("a\n\n---\n\nb", "a\n\n———\n\nb", vec![]),
        ("**a `c` b**", "a c b", vec!["bold 0 2", "code 2 1", "bold 3 2"]),
        ("a\nb", "a\nb", vec![]),
        ("<b>x</b> & \\*y\\*", "<b>x</b> & *y*", vec![]),
        ("- a\n\n  b\n- c", "• a\nb\n• c", vec![]),
        ("text\n\n- a", "text\n\n• a", vec![]),
        ("", "", vec![]),
    ] {
        let entities: Vec<_> = entities.into_iter().map(str::to_owned).collect();
        assert_eq!(shown(markdown), (text.to_owned(), entities), "{markdown:?}");
    }
}

#[test]
fn table_is_aligned_code() {
    let (text, entities) = shown("| a | bb |\n| - | - |\n| 1 | **2** |\n\nend");
    assert_eq!(text, "a | bb\n--|---\n1 | 2\n\nend");
    assert_eq!(entities, ["pre 0 19"]);
}

proptest! {
    #[test]
    fn entities_are_within_the_text(markdown in "[a *_`~>\\n#\\[\\]()😀|-]{0,60}") {
        let formatted = EntityText::from_markdown(&markdown);
        let length = formatted.length();
        for entity in &formatted.entities {
            prop_assert!(entity.length > 0 && entity.offset + entity.length <= length, "{formatted:?}");
        }
    }
}
