//! Renders Markdown as HTML for mails. Raw HTML is shown as text, links lead to web and mail
//! addresses only, and images become links, so that a mail loads nothing.

use std::fmt::Write as _;

use pulldown_cmark::{Alignment, CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Schemes that a link may have. A link without a scheme leads nowhere in a mail.
const LINK_SCHEMES: [&str; 3] = ["https://", "http://", "mailto:"];

/// Returns a complete HTML document.
pub fn to_html(markdown: &str) -> String {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut html =
        HtmlWriter { out: String::with_capacity(markdown.len() * 2), ..HtmlWriter::default() };
    html.out.push_str("<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"></head><body>\n");
    for event in Parser::new_ext(markdown, options) {
        html.event(event);
    }
    html.out.push_str("</body></html>\n");
    html.out
}

#[derive(Default)]
struct HtmlWriter {
    out: String,
    /// Whether each open link is written.
    links: Vec<bool>,
    /// The alignments of the columns of the open table.
    columns: Vec<Alignment>,
    column: usize,
    in_table_head: bool,
}

impl HtmlWriter {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => self.text(&text),
            Event::Code(text) => {
                self.out.push_str("<code>");
                self.text(&text);
                self.out.push_str("</code>");
            }
            // A line of a message is a line for its author.
            Event::SoftBreak | Event::HardBreak => self.out.push_str("<br>\n"),
            Event::Rule => self.out.push_str("<hr>\n"),
            Event::TaskListMarker(is_done) => {
                self.out.push_str(if is_done { "&#9745; " } else { "&#9744; " });
            }
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.out.push_str("<p>"),
            Tag::Heading { level, .. } => {
                let _ = write!(self.out, "<{level}>");
            }
            Tag::BlockQuote(_) => self.out.push_str("<blockquote>\n"),
            Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented) => {
                self.out.push_str("<pre><code>");
            }
            Tag::List(None) => self.out.push_str("<ul>\n"),
            Tag::List(Some(start)) => {
                let _ = writeln!(self.out, "<ol start=\"{start}\">");
            }
            Tag::Item => self.out.push_str("<li>"),
            Tag::Table(columns) => {
                self.columns = columns;
                self.out.push_str("<table border=\"1\" cellspacing=\"0\" cellpadding=\"4\">\n");
            }
            Tag::TableHead => {
                (self.column, self.in_table_head) = (0, true);
                self.out.push_str("<tr>");
            }
            Tag::TableRow => {
                self.column = 0;
                self.out.push_str("<tr>");
            }
            Tag::TableCell => {
                let align = match self.columns.get(self.column) {
                    Some(Alignment::Left) => " align=\"left\"",
                    Some(Alignment::Center) => " align=\"center\"",
                    Some(Alignment::Right) => " align=\"right\"",
                    _ => "",
                };
                let _ = write!(self.out, "<{}{align}>", self.cell());
            }
            Tag::Emphasis => self.out.push_str("<em>"),
            Tag::Strong => self.out.push_str("<strong>"),
            Tag::Strikethrough => self.out.push_str("<del>"),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => self.start_link(&dest_url),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.out.push_str("</p>\n"),
            TagEnd::Heading(level) => {
                let _ = writeln!(self.out, "</{level}>");
            }
            TagEnd::BlockQuote(_) => self.out.push_str("</blockquote>\n"),
            TagEnd::CodeBlock => self.out.push_str("</code></pre>\n"),
            TagEnd::List(is_ordered) => {
                self.out.push_str(if is_ordered { "</ol>\n" } else { "</ul>\n" });
            }
            TagEnd::Item => self.out.push_str("</li>\n"),
            TagEnd::Table => self.out.push_str("</table>\n"),
            TagEnd::TableHead => {
                self.in_table_head = false;
                self.out.push_str("</tr>\n");
            }
            TagEnd::TableRow => self.out.push_str("</tr>\n"),
            TagEnd::TableCell => {
                let _ = write!(self.out, "</{}>", self.cell());
                self.column += 1;
            }
            TagEnd::Emphasis => self.out.push_str("</em>"),
            TagEnd::Strong => self.out.push_str("</strong>"),
            TagEnd::Strikethrough => self.out.push_str("</del>"),
            TagEnd::Link | TagEnd::Image if self.links.pop() == Some(true) => {
                self.out.push_str("</a>");
            }
            _ => {}
        }
    }

    /// Opens a link, unless it is within another or its scheme is not allowed.
    fn start_link(&mut self, url: &str) {
        let has_scheme = |scheme: &&str| {
            url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        let is_written = !self.links.contains(&true) && LINK_SCHEMES.iter().any(has_scheme);
        if is_written {
            self.out.push_str("<a href=\"");
            self.text(url);
            self.out.push_str("\">");
        }
        self.links.push(is_written);
    }

    fn cell(&self) -> &'static str {
        if self.in_table_head { "th" } else { "td" }
    }

    fn text(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.out.push_str("&amp;"),
                '<' => self.out.push_str("&lt;"),
                '>' => self.out.push_str("&gt;"),
                '"' => self.out.push_str("&quot;"),
                '\0' => self.out.push('\u{fffd}'),
                _ => self.out.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(markdown: &str) -> String {
        let html = to_html(markdown);
        let start = html.find("<body>\n").unwrap() + 7;
        html[start..html.find("</body>").unwrap()].to_owned()
    }

    #[test]
    fn markdown_becomes_html() {
        for (markdown, html) in [
            ("hi *there*\n**you**", "<p>hi <em>there</em><br>\n<strong>you</strong></p>\n"),
            (
                "# A\n\n- b\n- `c<d`",
                "<h1>A</h1>\n<ul>\n<li>b</li>\n<li><code>c&lt;d</code></li>\n</ul>\n",
            ),
            ("3. x", "<ol start=\"3\">\n<li>x</li>\n</ol>\n"),
            ("> q", "<blockquote>\n<p>q</p>\n</blockquote>\n"),
            ("```rust\n1 < 2\n```", "<pre><code>1 &lt; 2\n</code></pre>\n"),
            (
                "| a | b |\n|---|--:|\n| 1 | 2 |",
                "<table border=\"1\" cellspacing=\"0\" cellpadding=\"4\">\n\
                 <tr><th>a</th><th align=\"right\">b</th></tr>\n\
                 <tr><td>1</td><td align=\"right\">2</td></tr>\n</table>\n",
            ),
            (
                "[x](https://a.example/?q=\"&r)",
                "<p><a href=\"https://a.example/?q=&quot;&amp;r\">x</a></p>\n",
            ),
            ("- [x] done", "<ul>\n<li>&#9745; done</li>\n</ul>\n"),
        ] {
            assert_eq!(body(markdown), html, "{markdown}");
        }
    }

    #[test]
    fn html_scripts_and_images_of_the_text_are_not_active() {
        for markdown in [
            "<script>alert(1)</script>",
            "a <b onclick=x>b</b>",
            "<img src=x onerror=y>",
            "[x](javascript:alert(1))",
            "[x](JaVaScRiPt:alert(1))",
            "[x](data:text/html,y)",
            "[x](vbscript:z)",
            "[x](//a.example)",
            "![t](https://a.example/pixel.png)",
            "[a ![b](https://b.example) c](https://a.example)",
            "<https://a.example/\"onmouseover=x>",
            "```\"><script>\nx\n```",
            "[x]: javascript:y\n\n[x]",
            "<!-- --><style>*{}</style>",
        ] {
            let html = body(markdown).to_lowercase();
            for tag in
                ["<script", "<b ", "<img", "<style", "href=\"javascript", "href=\"data", "<!--"]
            {
                assert!(!html.contains(tag), "{markdown}: {html}");
            }
            assert!(html.matches("<a ").count() <= 1, "{html}");
            assert!(!html.contains("\"onmouseover"), "{html}");
        }
    }
}
