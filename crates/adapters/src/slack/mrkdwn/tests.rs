//! Tests of the conversion of mrkdwn into Markdown.

use super::*;

fn name(id: &str) -> Option<String> {
    match id {
        "U1" => Some("Ann".to_owned()),
        "C1" => Some("general".to_owned()),
        "S1" => Some("on-call".to_owned()),
        _ => None,
    }
}

fn converted(text: &str) -> String {
    to_markdown(text, &TextContext::new(&name))
}

#[test]
fn every_kind_of_markup_becomes_markdown() {
    for (mrkdwn, markdown) in [
        ("hello", "hello"),
        ("*bold* _italic_ ~struck~ `code`", "**bold** *italic* ~~struck~~ `code`"),
        ("*bold and _italic_*", "**bold and *italic***"),
        ("2*3*4 and snake_case_name", "2\\*3\\*4 and snake_case_name"),
        ("* not bold * nor ** this", "\\* not bold \\* nor \\*\\* this"),
        ("(*bold*), *bold*.", "(**bold**), **bold**."),
        ("`a *b* &lt;c&gt;`", "`a *b* <c>`"),
        (
            "```let a = 1;\nlet b = a &amp;&amp; true;```",
            "```\nlet a = 1;\nlet b = a && true;\n```",
        ),
        ("see:```x```done", "see:\n```\nx\n```\ndone"),
        ("``` not closed", "\\`\\`\\` not closed"),
        ("&gt; quoted\nnot quoted", "> quoted\n\nnot quoted"),
        ("&gt;a\n&gt; b\n\nc", "> a\n> b\n\nc"),
        ("before\n&gt;&gt;&gt; all\nof it", "before\n> all\n> of it"),
        ("<https://example.com>", "<https://example.com>"),
        ("<https://example.com|example.com>", "<https://example.com>"),
        (
            "<https://example.com/a_b?x=1&amp;y=2|the *page*>",
            "[the \\*page\\*](https://example.com/a_b?x=1&y=2)",
        ),
        ("<https://e.com/(a)|x>", "[x](https://e.com/%28a%29)"),
        ("<mailto:joe@example.com|joe@example.com>", "<mailto:joe@example.com>"),
        ("<@U1> and <@U1|ann> and <@U9>", "@Ann and @ann and @U9"),
        ("<#C1> <#C9|random>", "#general #random"),
        ("<!here> <!channel> <!everyone>", "@here @channel @everyone"),
        ("<!subteam^S1> <!subteam^S2|@ops>", "@on-call @ops"),
        ("<!date^1392734382^{date}|Feb 18, 2014>", "Feb 18, 2014"),
        ("a &lt;b&gt; &amp;amp; c", "a \\<b> \\&amp; c"),
        ("# not a heading\n#hashtag", "\\# not a heading\n#hashtag"),
        ("[no](link)", "\\[no](link)"),
        ("a < b", "a < b"),
        ("• one\n• two", "• one\n• two"),
        ("a ` b", "a \\` b"),
        ("", ""),
    ] {
        assert_eq!(converted(mrkdwn), markdown, "{mrkdwn}");
    }
}

#[test]
fn mentions_and_missing_names_are_collected() {
    let context = TextContext::new(&name);
    to_markdown("<@U1> <@U9> <@U1> <!here> <#C9>", &context);
    assert_eq!(context.take_mentions(), ["Ann", "U9", "here"]);
    assert_eq!(context.take_missing().into_iter().collect::<Vec<_>>(), ["C9", "U9"]);
}

#[test]
fn hostile_texts_are_converted_in_linear_time() {
    for piece in [" *a", "_", "<", "`", "~a", "*a*", "*_~", "[", "&gt;", "```"] {
        let text = piece.repeat(40_000 / piece.len());
        let start = std::time::Instant::now();
        converted(&text);
        assert!(start.elapsed().as_secs() < 2, "{piece}: {:?}", start.elapsed());
    }
}
