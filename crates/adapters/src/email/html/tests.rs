//! Tests of the conversion of HTML mails: what is shown, what is hidden, and hostile input.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn converted(html: &str) -> String {
    let found = html_to_markdown(html, 1 << 20);
    assert!(!found.is_cut);
    found.markdown
}

#[test]
fn text_and_structure_become_markdown() {
    for (html, want) in [
        ("hello", "hello"),
        ("a  b\n\tc&nbsp;&nbsp;d", "a b c d"),
        ("<p>one</p><p>two</p>", "one\n\ntwo"),
        ("<p>one<p>two", "one\n\ntwo"),
        ("a<br>b<br/><br>c", "a\nb\nc"),
        ("<div>a</div><div>b</div>", "a\nb"),
        ("<div>a</div><div><br></div><div>b</div>", "a\nb"),
        ("<h1>Title</h1><h3>Sub <b>x</b></h3>text", "# Title\n\n### Sub x\n\ntext"),
        ("<b>bold</b> and <i>it</i>", "**bold** and *it*"),
        ("x<b> y </b>z", "x **y** z"),
        ("<b></b><b> </b>a", "a"),
        ("<b>a<p>b</b>c", "**a**\n\n**b**c"),
        ("<span>a<p>b</span>c", "a\n\nbc"),
        ("<b><strong>a</strong></b>", "**a**"),
        ("<b>a <i>b</i></b> c", "**a *b*** c"),
        ("<s>old</s>", "~~old~~"),
        ("<ul><li>a<li>b<ul><li>c</ul></ul>d", "- a\n- b\n  - c\n\nd"),
        ("<ol start=3><li><p>a</p></li><li>b</li></ol>", "3. a\n\n4. b"),
        ("<ul><li>a<br>b</li></ul>", "- a\n  b"),
        ("<li>a</li>", "- a"),
        ("<ul><li></li></ul>x", "x"),
        ("<blockquote>a<blockquote>b</blockquote>c</blockquote>d", "> a\n>\n> > b\n>\n> c\n\nd"),
        ("<pre>a\n  b &lt;c&gt;\n</pre>d", "```\na\n  b <c>\n```\n\nd"),
        ("<pre>a```b</pre>", "````\na```b\n````"),
        ("<blockquote><pre>a\n\n\nb</pre></blockquote>", "> ```\n> a\n>\n>\n> b\n> ```"),
        ("use <code>a_b*</code> now", "use `a_b*` now"),
        ("<code>`x`</code>", "`` `x` ``"),
        ("a<hr>b", "a\n\n---\n\nb"),
        ("<q>a</q>", "“a”"),
        ("<dl><dt>a<dd>b</dl>", "a\nb"),
        ("", ""),
    ] {
        assert_eq!(converted(html), want, "{html}");
    }
}

#[test]
fn links_keep_text_and_target() {
    for (html, want) in [
        ("<a href='https://x.test/a'>here</a>", "[here](https://x.test/a)"),
        ("see<a href='https://x.test'> this </a>now", "see [this](https://x.test) now"),
        ("<a href='https://x.test'>https://x.test</a>", "<https://x.test>"),
        ("<a href='mailto:ann@x.test'>ann@x.test</a>", "<ann@x.test>"),
        (
            "<a href='https://evil.test'>https://bank.test</a>",
            "[https://bank.test](https://evil.test)",
        ),
        ("<a href='HTTPS://x.test/a b(c)'>t</a>", "[t](https://x.test/a%20b%28c%29)"),
        ("<a href='https://x.test'><b>t</b></a>", "[**t**](https://x.test)"),
        ("<b><a href='https://x.test'>t</a></b>", "**[t](https://x.test)**"),
        ("<a href='https://x.test'><div>a</div><div>b</div></a>", "[a b](https://x.test)"),
        (
            "<a href='https://x.test'>a<a href='https://y.test'>b</a>",
            "[a](https://x.test)[b](https://y.test)",
        ),
        ("<a href='https://x.test'><table><tr><td>a<td>b</table></a>", "[a b](https://x.test)"),
        ("<a href='https://x.test'><img src=x alt=Logo></a>", "[Logo](https://x.test)"),
        ("<a href='https://x.test'><img src=x></a>", ""),
        ("<a href='#top'>up</a> <a>x</a> <a href='/a'>y</a>", "up x y"),
        ("<a href='javascript:alert(1)'>t</a>", "t"),
        ("<a href=' java\nscript:alert(1)'>t</a>", "t"),
        ("<a href='data:text/html,x'>t</a>", "t"),
        ("<a href='file:///etc/passwd'>t</a>", "t"),
        ("<a href='vbscript:x'>t</a>", "t"),
    ] {
        assert_eq!(converted(html), want, "{html}");
    }
}

#[test]
fn hidden_content_never_appears() {
    for html in [
        "<style>SECRET</style>",
        "<script>SECRET</script>",
        "<SCRIPT>SECRET</SCRIPT\n>",
        "<script><!-- SECRET <script> </script>",
        "<head><title>SECRET</title></head>",
        "<!-- SECRET --><!--[if mso]>SECRET<![endif]-->",
        "<p hidden>SECRET</p>",
        "<div style='display:none'>SECRET<b>SECRET</b></div>",
        "<div style='DISPLAY : None !important'>SECRET</div>",
        "<div style='dis/**/play:none'>SECRET</div>",
        "<div style=\"visibility:hidden\">SECRET</div>",
        "<div style='opacity:0'>SECRET</div>",
        "<div style='max-height:0;overflow:hidden'>SECRET</div>",
        "<div style='height:0px;overflow:hidden'>SECRET</div>",
        "<span style='font-size:0'>SECRET</span>",
        "<span style='font-size:1px;color:#fff'>SECRET</span>",
        "<div style='position:absolute;left:-9999px'>SECRET</div>",
        "<div style='text-indent:-9999px'>SECRET</div>",
        "<svg><text>SECRET</text></svg>",
        "<math><mi>SECRET</mi></math>",
        "<svg><style>SECRET</style><script>SECRET</script></svg>",
        "<template>SECRET</template>",
        "<textarea>SECRET</textarea>",
        "<select><option>SECRET</select>",
        "<iframe>SECRET</iframe>",
        "<noembed>SECRET</noembed>",
        "<video>SECRET</video>",
        "<xmp>SECRET</xmp>",
        "<object data='SECRET'></object>",
        "<img src='https://t.test/SECRET' width=1 height=1 alt=SECRET>",
        "<img src='https://t.test/SECRET'>",
        "<img src='https://t.test/SECRET' alt=''>",
        "<img style='display:none' src='https://t.test/x' alt='SECRET'>",
        "<div style='background:url(https://t.test/SECRET)'></div>",
        "<link href='https://t.test/SECRET'><meta content='SECRET'><base href='https://SECRET'>",
        "<input value=SECRET>",
        "<p title='SECRET'></p>",
        "<style>.x{display:none}</style><p class='y X'>SECRET</p>",
        "<p id=x>SECRET</p><style>/* a */ .a, #x { color: red; DISPLAY: none !important }</style>",
        "<style>@charset 'x'; @media print { .y { color: red } } span.x { font-size: 0 }</style><span class=x>SECRET</span>",
        "<style><!-- u{visibility:hidden} --></style><u>SECRET</u>",
    ] {
        assert_eq!(
            converted(&format!("a {html} b")).replace('\n', " ").replace("  ", " "),
            "a b",
            "{html}"
        );
    }
    // Tag characters spell text that people do not see.
    assert_eq!(converted("a\u{e0041}\u{e0042}\u{200b}b\u{ad}"), "ab");
    // Rules for other devices or places hide nothing, and an own style wins.
    assert_eq!(
        converted("<style>@media print{.x{display:none}}.y .x{display:none}</style><p class=x>y"),
        "y"
    );
    assert_eq!(converted("<style>.x{display:none}</style><p class=x style='display:block'>y"), "y");
    // Text after hidden content is shown.
    assert_eq!(converted("<p style='display:none'>x<p>y"), "y");
    assert_eq!(converted("<svg><p>y"), "y");
    assert_eq!(converted("<td style='font-size:0'><p style='font-size:14px'>y"), "y");
    assert_eq!(converted("<noscript>y</noscript><object>z</object>"), "yz");
}

#[test]
fn images_become_links_with_their_description() {
    for (html, want) in [
        ("<img src='https://x.test/a.png' alt='A [b]'>", "[image: A [b]](https://x.test/a.png)"),
        ("<img src='cid:1' alt='Photo'>", "[image: Photo]"),
        ("<img src='data:image/png;base64,xx' alt='Photo'>", "[image: Photo]"),
        (
            "<img src='https://x.test/a' alt='x](javascript:y)'>",
            "[image: x\\](javascript:y)](https://x.test/a)",
        ),
    ] {
        assert_eq!(converted(html), want, "{html}");
    }
}

#[test]
fn tables_are_readable() {
    let data = "<table border=1><tr><th>Item<th>Price</tr><tr><td>Tea<td>1|2</tr></table>after";
    assert_eq!(converted(data), "| Item | Price |\n| --- | --- |\n| Tea | 1\\|2 |\n\nafter");
    let layout = "<table role=presentation><tr><td>Total:</td><td>12</td></tr><tr><td><p>a</p><p>b</p></td></tr></table>c";
    assert_eq!(converted(layout), "Total: 12\n\na\n\nb\nc");
    let nested = "<table><tr><td><table><tr><td>x</td></tr></table></td></tr></table>";
    assert_eq!(converted(nested), "x");
    let quoted = "<blockquote><table><tr><td>a<td>b<tr><td>c<td>d</table></blockquote>";
    assert_eq!(converted(quoted), "> | a | b |\n> | --- | --- |\n> | c | d |");
    assert_eq!(converted("<table><tr><td>a</div></td></tr></table><td>b</td>"), "a\nb");
    assert_eq!(converted("<table><tr><td></td></tr></table>a"), "a");
}

#[test]
fn text_is_escaped() {
    for (html, want) in [
        ("&lt;script&gt;alert(1)&lt;/script&gt;", "\\<script>alert(1)\\</script>"),
        ("[a](javascript:x)", "[a\\](javascript:x)"),
        ("![a](http://x)", "![a\\](http://x)"),
        ("[a]: http://x", "[a\\]: http://x"),
        ("*a* _b_ `c` snake_case_name", "\\*a\\* \\_b\\_ \\`c\\` snake_case_name"),
        ("# not a heading", "\\# not a heading"),
        ("> not a quote", "\\> not a quote"),
        ("- not a list", "\\- not a list"),
        ("1. not a list", "1\\. not a list"),
        ("--- x<br>===", "\\-\\-\\- x\n\\=\\=\\="),
        ("&amp;lt; AT&amp;T", "\\&lt; AT&T"),
        ("~~a~~", "\\~\\~a\\~\\~"),
        ("https://x.test/a_b/*c*?d=_e", "https://x.test/a_b/*c*?d=_e"),
        ("a\\b", "a\\\\b"),
    ] {
        assert_eq!(converted(html), want, "{html}");
    }
}

#[test]
fn limits_cut_the_text() {
    let found = html_to_markdown(&"<p>word</p>".repeat(1_000), 100);
    assert!(
        found.is_cut && found.markdown.len() <= 100 && found.markdown.starts_with("word\n\nword")
    );
    let long = html_to_markdown(&"é".repeat(MAX_HTML_BYTES), 1 << 20);
    assert!(long.is_cut && long.markdown.len() <= 1 << 20);
}

#[test]
fn hostile_html_takes_linear_time_and_no_stack() {
    let many = 60_000;
    for (name, html) in [
        ("divs", format!("{}deep", "<div>".repeat(many))),
        ("quotes", format!("{}deep{}", "<blockquote>".repeat(many), "<br>x".repeat(many))),
        ("lists", "<ul><li>x".repeat(many)),
        ("tables", format!("{}deep", "<table><tr><td>".repeat(many))),
        ("links", "<a href='https://x.test'>x".repeat(50_000)),
        ("nested links", "<a href='https://x.test'><table><td>x".repeat(50_000)),
        ("styles", "<b><i>x".repeat(many)),
        ("unmatched", format!("{}{}", "<i>".repeat(many), "</b>".repeat(many))),
        (
            "attributes",
            format!("<p {}>x", (0..200_000).map(|n| format!("a{n} ")).collect::<String>()),
        ),
        ("comments", "<!-- x -".repeat(many)),
        ("short comments", "<!---->".repeat(many)),
        ("dashes", format!("<!--{}", "-".repeat(700_000))),
        ("open tags", "<a ".repeat(200_000)),
        ("open quotes", "<a href=\"".repeat(200_000)),
        ("less", "<".repeat(700_000)),
        ("ampersands", "&".repeat(700_000)),
        ("references", "&ampampampampamp".repeat(40_000)),
        ("raw text", format!("<script>{}", "</scrip".repeat(100_000))),
        ("style attribute", format!("<p style='{}'>x", "/*".repeat(200_000))),
        ("code", "<code>`".repeat(many)),
        ("rules", format!("<style>{}</style>", ".a{display:none}".repeat(many))),
        ("blocks", format!("<style>{}", "@a{".repeat(200_000))),
        (
            "classes",
            format!(
                "<style>.b{{display:none}}</style>{}",
                format!("<p class='{}'>", "a ".repeat(500)).repeat(600)
            ),
        ),
        ("cells", "<table>".to_owned() + &"<tr><td>x<td>y".repeat(100_000)),
    ] {
        let start = Instant::now();
        html_to_markdown(&html, 1 << 20);
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(10), "{name}: {taken:?}");
    }
}

/// Pieces that HTML is made of.
fn piece() -> impl Strategy<Value = String> {
    let words = vec![
        "<",
        ">",
        "</",
        "/>",
        "<!--",
        "-->",
        "&",
        "&lt;",
        "&#",
        ";",
        "\"",
        "'",
        "=",
        " ",
        "\n",
        "a",
        "<p>",
        "</p>",
        "<b>",
        "</b>",
        "<a href='https://x.test'>",
        "</a>",
        "<table>",
        "</table>",
        "<tr>",
        "<td>",
        "</td>",
        "<ul>",
        "<ol>",
        "<li>",
        "</ul>",
        "<blockquote>",
        "</blockquote>",
        "<pre>",
        "</pre>",
        "<code>",
        "</code>",
        "<h2>",
        "</h2>",
        "<br>",
        "<hr>",
        "<script>",
        "</script>",
        "<style>",
        "<svg>",
        "</svg>",
        "<div style='display:none'>",
        "</div>",
        "<div>",
        "<img alt=x src=https://y.test>",
        "<q>",
        "</q>",
        "text",
        "é",
        "\u{200b}",
        "`",
        "*",
        "|",
    ];
    prop_oneof![
        10 => prop::sample::select(words).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_html_is_converted(pieces in prop::collection::vec(piece(), 0..80)) {
        let markdown = html_to_markdown(&pieces.concat(), 10_000).markdown;
        prop_assert!(markdown.len() <= 10_000);
        let hidden = ['\0', '\u{200b}'];
        prop_assert!(!markdown.contains(hidden));
    }

    #[test]
    fn hidden_text_stays_hidden(pieces in prop::collection::vec("[a-z <>/='\"&;-]{0,12}", 0..20)) {
        // Whatever precedes an element, its script is not shown.
        let html = format!("{} <script>SECRET</script>", pieces.concat().replace(['<', '\'', '"'], ""));
        prop_assert!(!html_to_markdown(&html, 10_000).markdown.contains("SECRET"));
    }
}
