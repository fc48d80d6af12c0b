//! The text of a Mail as safe HTML, which the web page shows in a sandboxed frame.
//!
//! The text is Markdown: HTML mails were converted when they were received (ADR 10). Raw HTML in it
//! is shown as text. All markup of the result is written here; of the sender there are only escaped
//! texts, and links to `http`, `https` and `mailto`. Images are shown as links, so that opening a
//! Mail sends no request. The headers forbid scripts and requests a second time.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use monoco_adapters::markdown::{MarkdownMark, MarkdownSink, walk};
use monoco_core::claim::Workspace;
use monoco_store::StoreError;

use super::SharedApi;
use super::error::ApiError;
use super::input::PathParams;
use super::mails::mail_id;

const CONTENT_SECURITY_POLICY: &str =
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";

const HEAD: &str = "<!doctype html>\n<html lang=\"und\"><head><meta charset=\"utf-8\"><title>Mail</title><style>\
    body{font:15px/1.55 system-ui,sans-serif;color:#1b2230;background:#fff;margin:14px 16px;overflow-wrap:anywhere}\
    pre,code{font-family:ui-monospace,monospace;font-size:.9em;background:#eef1f5;border-radius:4px}\
    pre{padding:8px 10px;white-space:pre-wrap}code{padding:0 .25em}\
    blockquote{margin:0;padding-left:12px;border-left:3px solid #b9c1cd;color:#5a6475}\
    table{border-collapse:collapse}td,th{border:1px solid #dde2ea;padding:3px 8px;text-align:left}\
    a{color:#1d5fd1}</style></head><body dir=\"auto\">\n";

/// Show the text of a Mail as safe HTML
///
/// For the web page, in a frame with `sandbox`. Links go only to `http`, `https` and `mailto`;
/// images are shown as links.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/messages/{id}/view", operation_id = "view_mail",
    tag = "mails",
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, description = "The text as HTML", body = String, content_type = "text/html"))
))]
pub async fn view(State(api): State<SharedApi>, path: PathParams) -> Result<Response, ApiError> {
    let id = mail_id(&api, &path).await?;
    let row = api.store.mail(&id, &Workspace::shared()).await?;
    if let Some(at) = row.entry.tombstone() {
        return Err(StoreError::Erased { key: id.to_string(), at, by: None }.into());
    }
    let bytes = api.store.object(row.entry.msg_id).await?;
    let msg: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let html = markdown_to_html(msg["content"]["content"].as_str().unwrap_or_default());
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    Ok((headers, html).into_response())
}

/// A whole HTML document with the text.
fn markdown_to_html(markdown: &str) -> String {
    let mut writer = HtmlWriter { html: HEAD.to_owned() };
    walk(markdown, &mut writer);
    writer.html.push_str("\n</body></html>\n");
    writer.html
}

/// Writes marks as elements and everything else as escaped text.
struct HtmlWriter {
    html: String,
}

impl HtmlWriter {
    fn push_escaped(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.html.push_str("&amp;"),
                '<' => self.html.push_str("&lt;"),
                '>' => self.html.push_str("&gt;"),
                '"' => self.html.push_str("&quot;"),
                '\'' => self.html.push_str("&#39;"),
                // They would change the direction of the text behind them.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => self.html.push('\u{fffd}'),
                other => self.html.push(other),
            }
        }
    }

    fn push_element(&mut self, name: &str, is_start: bool) {
        self.html.push_str(if is_start { "<" } else { "</" });
        self.html.push_str(name);
        self.html.push('>');
    }

    /// A link, or its address as text when it may not be followed.
    fn push_link(&mut self, address: &str, is_start: bool) {
        match (is_allowed(address), is_start) {
            (true, true) => {
                self.html.push_str("<a rel=\"noopener noreferrer\" href=\"");
                self.push_escaped(address);
                self.html.push_str("\">");
            }
            (true, false) => self.html.push_str("</a>"),
            (false, true) => {}
            (false, false) => {
                self.html.push_str(" (");
                self.push_escaped(address);
                self.html.push(')');
            }
        }
    }
}

/// Whether a link may be followed. Everything else, such as `javascript:`, is shown as text.
fn is_allowed(address: &str) -> bool {
    let Some((scheme, _)) = address.split_once(':') else { return false };
    ["http", "https", "mailto"].iter().any(|allowed| scheme.eq_ignore_ascii_case(allowed))
}

impl MarkdownSink for HtmlWriter {
    fn mark(&mut self, mark: &MarkdownMark, is_start: bool) {
        match mark {
            MarkdownMark::Paragraph => self.push_element("p", is_start),
            MarkdownMark::Heading(level) => self.push_element(&format!("h{level}"), is_start),
            MarkdownMark::Quote => self.push_element("blockquote", is_start),
            MarkdownMark::List(None) => self.push_element("ul", is_start),
            MarkdownMark::List(Some(_)) => self.push_element("ol", is_start),
            MarkdownMark::Item(Some(number)) if is_start => {
                self.html.push_str(&format!("<li value=\"{number}\">"));
            }
            MarkdownMark::Item(_) => self.push_element("li", is_start),
            MarkdownMark::CodeBlock(_) => self.push_element("pre", is_start),
            MarkdownMark::Table => self.push_element("table", is_start),
            MarkdownMark::TableRow { .. } => self.push_element("tr", is_start),
            MarkdownMark::TableCell => self.push_element("td", is_start),
            MarkdownMark::Bold => self.push_element("strong", is_start),
            MarkdownMark::Italic => self.push_element("em", is_start),
            MarkdownMark::Strike => self.push_element("del", is_start),
            MarkdownMark::Link(address) => self.push_link(address, is_start),
            MarkdownMark::Image(address) => {
                if is_start {
                    self.html.push('🖼');
                }
                self.push_link(address, is_start);
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.push_escaped(text);
    }

    fn code(&mut self, text: &str) {
        self.push_element("code", true);
        self.push_escaped(text);
        self.push_element("code", false);
    }

    fn line_break(&mut self) {
        self.html.push_str("<br>\n");
    }

    fn rule(&mut self) {
        self.html.push_str("<hr>");
    }

    fn task(&mut self, is_done: bool) {
        self.html.push_str(if is_done { "☑ " } else { "☐ " });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(markdown: &str) -> String {
        let html = markdown_to_html(markdown);
        html[HEAD.len()..].trim_end_matches("\n</body></html>\n").to_owned()
    }

    #[test]
    fn markdown_becomes_elements() {
        let cases = [
            (
                "**a** *b* ~~c~~ `d`",
                "<p><strong>a</strong> <em>b</em> <del>c</del> <code>d</code></p>",
            ),
            ("> q", "<blockquote><p>q</p></blockquote>"),
            ("3. x", "<ol><li value=\"3\">x</li></ol>"),
            ("```\n<b>\n```", "<pre>&lt;b&gt;\n</pre>"),
            (
                "[x](https://a.test/?a=1&b=2)",
                "<p><a rel=\"noopener noreferrer\" href=\"https://a.test/?a=1&amp;b=2\">x</a></p>",
            ),
        ];
        for (markdown, html) in cases {
            assert_eq!(body(markdown), html, "{markdown}");
        }
    }

    #[test]
    fn text_of_the_sender_never_becomes_markup() {
        let hostile = [
            "<script>alert(1)</script>",
            "<img src=x onerror=alert(1)>",
            "<svg/onload=alert(1)>",
            "[x](javascript:alert(1))",
            "[x](JaVaScRiPt:alert(1))",
            "[x](data:text/html,<script>alert(1)</script>)",
            "[x](vbscript:x)",
            "[x](\"onmouseover=alert(1))",
            "[x](https://a.test/\"onmouseover=\"alert(1))",
            "![x](https://tracker.test/pixel.png)",
            "<meta http-equiv=refresh content='0;url=https://evil.test'>",
            "<style>@import 'https://evil.test'</style>",
            "<iframe src=https://evil.test>",
            "</body></html><script>alert(1)</script>",
            "<https://evil.test/\"><script>alert(1)</script>>",
        ];
        let written = [
            "p",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "blockquote",
            "ul",
            "ol",
            "li",
            "pre",
            "table",
            "tr",
            "td",
            "strong",
            "em",
            "del",
            "a",
            "code",
            "br",
            "hr",
        ];
        for markdown in hostile {
            let html = body(markdown);
            for element in html.split('<').skip(1) {
                let name = element.trim_start_matches('/');
                let end = name.find(|it: char| !it.is_ascii_alphanumeric()).unwrap_or(name.len());
                assert!(written.contains(&&name[..end]), "{markdown} became {html}");
            }
            for attribute in html.split("href=\"").skip(1) {
                assert!(is_allowed(attribute), "{markdown} became {html}");
                let rest = attribute.split_once('"').unwrap().1;
                assert!(rest.starts_with('>'), "{markdown} became {html}");
            }
        }
    }

    #[test]
    fn direction_of_the_text_cannot_be_changed() {
        assert_eq!(body("\u{202e}gnp.exe"), "<p>\u{fffd}gnp.exe</p>");
    }
}
