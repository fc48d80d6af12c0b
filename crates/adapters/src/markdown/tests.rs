//! Splitting by properties and examples, and the walk through a text.

use proptest::prelude::*;
use pulldown_cmark::{Event, Options, Parser};

use super::{MarkdownMark, MarkdownSink, split, walk};

fn bytes(text: &str) -> usize {
    text.len()
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

fn utf16(text: &str) -> usize {
    text.encode_utf16().count()
}

const MEASURES: [fn(&str) -> usize; 3] = [bytes, chars, utf16];

/// The text that a reader sees, without white space.
fn visible(markdown: &str) -> String {
    let events = Parser::new_ext(markdown, Options::ENABLE_STRIKETHROUGH);
    let texts = events.filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) | Event::Html(text) | Event::InlineHtml(text) => {
            Some(text.into_string())
        }
        _ => None,
    });
    texts.collect::<String>().split_whitespace().collect()
}

fn is_subsequence(text: &str, of: &str) -> bool {
    let mut found = of.chars();
    text.chars().filter(|c| !c.is_whitespace()).all(|c| found.any(|f| f == c))
}

/// An element that must stay whole, and the text around it.
fn element() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z]{1,12}",
        2 => "[中文字符。，]{1,12}",
        1 => "`[a-z][a-z *_]{0,10}[a-z]`",
        1 => "\\*\\*[a-z]{1,8} [a-z]{1,8}\\*\\*",
        1 => "_[a-z]{1,8} [a-z]{1,8}_",
        1 => "\\[[a-z]{1,8} [a-z]{1,8}\\]\\(https://[a-z]{1,8}\\.example/[a-z]{1,8}\\)",
    ]
}

fn block() -> impl Strategy<Value = String> {
    let lines = prop::collection::vec("[ ]{0,4}[a-z*_`(]{1,30}", 1..30);
    prop_oneof![
        4 => prop::collection::vec(element(), 1..40).prop_map(|words| words.join(" ")),
        1 => prop::collection::vec(element(), 1..12).prop_map(|words| format!("- {}", words.join("\n- "))),
        1 => lines.prop_map(|lines| format!("~~~~rust\n{}\n~~~~", lines.join("\n"))),
    ]
}

proptest! {
    #[test]
    fn pieces_of_any_text_fit_and_lose_nothing(
        text in "[a-z *_`~\\[\\]()<>#\n\\\\&;!|1.中🙂-]{0,300}",
        max in 1_usize..70,
    ) {
        for size in MEASURES {
            let pieces = split(&text, &size, max);
            for piece in &pieces {
                prop_assert!(size(piece) <= max || chars(piece) == 1, "{max}: {piece:?}");
            }
            let all = pieces.concat();
            prop_assert!(is_subsequence(&text, &all), "{text:?} in {pieces:?}");
        }
    }

    #[test]
    fn elements_stay_whole(
        blocks in prop::collection::vec(prop::collection::vec(element(), 1..40), 1..6),
        max in 80_usize..300,
    ) {
        let text: Vec<_> = blocks.iter().map(|block| block.join(" ")).collect();
        let text = text.join("\n\n");
        for size in MEASURES {
            let pieces = split(&text, &size, max);
            for element in blocks.iter().flatten() {
                let is_plain = element.chars().all(char::is_alphanumeric);
                let count = |text: &str| text.matches(element.as_str()).count();
                let found: usize = pieces.iter().map(|piece| count(piece)).sum();
                prop_assert!(is_plain || is_cjk_text(element) || found == count(&text),
                    "{element:?} of {text:?} in {pieces:?}");
            }
        }
    }

    #[test]
    fn reader_sees_the_same_text(blocks in prop::collection::vec(block(), 1..8), max in 100_usize..400) {
        let text = blocks.join("\n\n");
        for size in MEASURES {
            let pieces = split(&text, &size, max);
            let seen: String = pieces.iter().map(|piece| visible(piece)).collect();
            prop_assert_eq!(&seen, &visible(&text), "{:?} in {:?}", text, pieces);
            for piece in &pieces {
                prop_assert!(size(piece) <= max, "{piece:?}");
                prop_assert_eq!(piece.matches("~~~~").count() % 2, 0, "{:?}", piece);
            }
        }
    }
}

fn is_cjk_text(text: &str) -> bool {
    !text.is_ascii()
}

#[test]
fn text_is_cut_at_the_best_place() {
    for (text, max, want) in [
        ("short", 10, &["short"][..]),
        ("", 10, &[""]),
        ("one\n\ntwo three\n\nfour", 16, &["one\n\ntwo three", "four"]),
        ("alpha beta gamma", 11, &["alpha beta", "gamma"]),
        ("first line\nsecond line\nthird", 24, &["first line\nsecond line", "third"]),
        ("aaaaaaaaaaaaaaaaaaaaaaaa", 10, &["aaaaaaaaaa", "aaaaaaaaaa", "aaaa"]),
        ("see `a b c` now", 9, &["see", "`a b c`", "now"]),
        ("see [a b](http://c.d) now", 20, &["see", "[a b](http://c.d)", "now"]),
        ("> quoted words that are long", 20, &["> quoted words that", "> are long"]),
        ("x&amp;y", 4, &["x", "&amp", ";y"]),
        ("aaaaaa&amp;b", 9, &["aaaaaa", "&amp;b"]),
    ] {
        assert_eq!(split(text, &bytes, max), want, "{text:?}");
    }
}

#[test]
fn fence_is_closed_and_opened_again() {
    let text = "before\n\n```rust\nlet a = 1;\nlet b = 2;\n\nlet c = 3;\nlet d = 4;\n```\n\nafter";
    let pieces = split(text, &bytes, 36);
    assert_eq!(pieces.iter().map(|piece| visible(piece)).collect::<String>(), visible(text));
    assert!(pieces.iter().all(|piece| piece.matches("```").count() % 2 == 0), "{pieces:?}");
    assert!(pieces.iter().all(|piece| piece.len() <= 36), "{pieces:?}");
    assert_eq!(pieces[0], "before\n\n```rust\nlet a = 1;\n```");
    assert_eq!(pieces[1], "```rust\nlet b = 2;\n\nlet c = 3;\n```");
    // A fence that fits stays whole.
    let pieces = split("some words\n\n```\na\nb\nc\n```", &bytes, 16);
    assert_eq!(pieces, ["some words", "```\na\nb\nc\n```"]);
    // In a quotation the marks are repeated.
    let pieces = split("> ```\n> aaaa aaaa\n> bbbb bbbb\n> cccc cccc\n> ```", &bytes, 32);
    assert!(pieces.len() > 1, "{pieces:?}");
    for piece in &pieces {
        assert!(piece.lines().all(|line| line.starts_with('>')), "{piece:?}");
        assert_eq!(piece.matches("```").count(), 2, "{piece:?}");
    }
}

#[test]
fn emphasis_that_is_longer_than_a_piece_is_closed_and_opened_again() {
    let pieces = split("**some words that are all bold and too long**", &bytes, 24);
    assert_eq!(pieces, ["**some words that are**", "**all bold and too**", "**long**"]);
    let pieces = split("`some words that are all code`", &bytes, 20);
    assert!(
        pieces.iter().all(|piece| piece.starts_with('`') && piece.ends_with('`')),
        "{pieces:?}"
    );
}

#[test]
fn long_text_is_split_quickly() {
    let text = "some **bold** words and `code`\n\n".repeat(30_000);
    let begin = std::time::Instant::now();
    let pieces = split(&text, &utf16, 4_000);
    assert!(pieces.len() > 200 && begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

/// Writes the parts of a text in a short form.
#[derive(Default)]
struct Outline(String);

impl MarkdownSink for Outline {
    fn mark(&mut self, mark: &MarkdownMark, is_start: bool) {
        self.0 += &if is_start { format!("<{mark:?}>") } else { "</>".to_owned() };
    }

    fn text(&mut self, text: &str) {
        self.0 += text;
    }

    fn code(&mut self, text: &str) {
        self.0 += &format!("`{text}`");
    }

    fn line_break(&mut self) {
        self.0 += "|";
    }

    fn rule(&mut self) {
        self.0 += "---";
    }

    fn task(&mut self, is_done: bool) {
        self.0 += if is_done { "[x]" } else { "[ ]" };
    }
}

#[test]
fn long_words_are_split_without_reading_them_again_for_each_character() {
    let word = "a".repeat(1 << 20);
    for (markdown, decoration) in [(word.clone(), 0), (format!("```\n{word}\n```"), 8)] {
        let pieces = split(&markdown, &bytes, 4000);
        assert!(pieces.iter().all(|piece| piece.len() <= 4000));
        let letters: usize = pieces.iter().map(|piece| piece.matches('a').count()).sum();
        assert_eq!(letters, word.len());
        assert_eq!(pieces.len(), word.len().div_ceil(4000 - decoration));
    }
}

#[test]
fn references_are_whole_and_a_long_run_of_letters_is_none() {
    let is_whole = |pieces: &[String]| pieces.iter().all(|it| it.contains('&') == it.contains(';'));
    assert!(is_whole(&split("abcdefg&amp;hijklmnop", &bytes, 10)));
    let long = format!("&{};", "a".repeat(80));
    assert!(split(&long, &bytes, 20).iter().all(|piece| piece.len() <= 20));
}

#[test]
fn walk_passes_marks_text_and_numbers() {
    for (markdown, want) in [
        ("# a *b*", "<Heading(1)>a <Italic>b</></>"),
        ("a\nb `c`", "<Paragraph>a|b `c`</>"),
        ("3. a\n4. b", "<List(Some(3))><Item(Some(3))>a</><Item(Some(4))>b</></>"),
        ("- [x] a", "<List(None)><Item(None)>[x]a</></>"),
        ("```rs x\na\n```", "<CodeBlock(Some(\"rs\"))>a\n</>"),
        ("[a](b) ~~c~~", "<Paragraph><Link(\"b\")>a</> <Strike>c</></>"),
        ("> a\n\n---", "<Quote><Paragraph>a</></>---"),
        ("<b>&lt;", "<Paragraph><b><</>"),
    ] {
        let mut outline = Outline::default();
        walk(markdown, &mut outline);
        assert_eq!(outline.0, want, "{markdown:?}");
    }
}
