//! Splits HTML into tags and text, in linear time and without recursion.
//!
//! Follows the tokenizer of the HTML standard where the result is visible: comments, quoted
//! attributes, raw text of scripts and styles, character references. It accepts any text.

use std::borrow::Cow;

use super::entities;

/// The attributes that decide what is shown.
const ATTRIBUTES: [&str; 11] =
    ["alt", "class", "height", "hidden", "href", "id", "role", "src", "start", "style", "width"];

/// Elements whose content is not HTML. It is never shown.
const RAW_TEXT: [&str; 8] =
    ["iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum HtmlToken<'h> {
    Text(Cow<'h, str>),
    Open(HtmlTag<'h>),
    /// An end tag, by its name in lower case.
    Close(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HtmlTag<'h> {
    /// The name in lower case.
    pub name: String,
    attributes: Vec<(&'static str, Cow<'h, str>)>,
    /// Content of an element that has no HTML, such as a style sheet.
    pub raw_text: &'h str,
}

impl HtmlTag<'_> {
    /// The first attribute of that name, decoded.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_ref())
    }
}

/// Iterates over the tokens of an HTML text.
pub(super) struct HtmlTokens<'h> {
    rest: &'h str,
}

impl<'h> HtmlTokens<'h> {
    pub fn new(html: &'h str) -> Self {
        Self { rest: html }
    }

    /// Skips what starts with `<!` or `<?`, or with `</` and no name.
    fn skip_comment(&mut self) {
        let Some(comment) = self.rest.strip_prefix("<!--") else {
            self.skip_past(">");
            return;
        };
        // `<!-->` and `<!--->` are complete comments.
        for end in [">", "->"] {
            if let Some(rest) = comment.strip_prefix(end) {
                self.rest = rest;
                return;
            }
        }
        let mut from = 0;
        while let Some(at) = comment[from..].find("--").map(|at| from + at + 2) {
            let behind = &comment[at..];
            if let Some(rest) = behind.strip_prefix('>').or_else(|| behind.strip_prefix("!>")) {
                self.rest = rest;
                return;
            }
            from = at - 1;
        }
        // An open comment hides the rest, as in browsers.
        self.rest = "";
    }

    fn skip_past(&mut self, end: &str) {
        self.rest = match self.rest.find(end) {
            Some(at) => &self.rest[at + end.len()..],
            None => "",
        };
    }

    /// Reads a tag whose name starts at `start`.
    fn tag(&mut self, start: usize) -> HtmlTag<'h> {
        let inner = &self.rest[start..];
        let is_end = |c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>');
        let length = inner.find(is_end).unwrap_or(inner.len());
        let name = inner[..length].to_ascii_lowercase();
        let mut tag = HtmlTag { name, ..HtmlTag::default() };
        self.rest = &inner[length..];
        loop {
            let is_gap = |c: char| c.is_ascii_whitespace() || c == '/';
            self.rest = self.rest.trim_start_matches(is_gap);
            if let Some(rest) = self.rest.strip_prefix('>') {
                self.rest = rest;
                return tag;
            }
            if self.rest.is_empty() {
                return tag;
            }
            self.attribute(&mut tag);
        }
    }

    fn attribute(&mut self, tag: &mut HtmlTag<'h>) {
        // A name may start with an equals sign.
        let skipped = self.rest.chars().next().map_or(0, char::len_utf8);
        let is_end = |c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>' | '=');
        let length = self.rest[skipped..].find(is_end).map_or(self.rest.len(), |at| skipped + at);
        let (name, rest) = self.rest.split_at(length);
        self.rest = rest;
        let behind = rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
        let value = match behind.strip_prefix('=') {
            Some(value) => {
                self.rest = value.trim_start_matches(|c: char| c.is_ascii_whitespace());
                self.value()
            }
            None => "",
        };
        let known = ATTRIBUTES.iter().find(|known| known.eq_ignore_ascii_case(name));
        if let Some(known) = known
            && tag.get(known).is_none()
        {
            tag.attributes.push((known, entities::decode(value, true)));
        }
    }

    fn value(&mut self) -> &'h str {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        let (value, rest) = match quote {
            Some(quote) => {
                let inner = &self.rest[1..];
                inner.split_once(quote).unwrap_or((inner, ""))
            }
            None => {
                let is_end = |c: char| c.is_ascii_whitespace() || c == '>';
                self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()))
            }
        };
        self.rest = rest;
        value
    }

    /// The content of a raw text element up to its end tag.
    fn raw_text(&mut self, name: &str) -> &'h str {
        let whole = self.rest;
        let mut from = 0;
        while let Some(at) = self.rest[from..].find("</").map(|at| from + at) {
            let behind = &self.rest[at + 2..];
            let is_name = behind.get(..name.len()).is_some_and(|n| n.eq_ignore_ascii_case(name));
            let next = behind.get(name.len()..).and_then(|rest| rest.chars().next());
            if is_name && next.is_none_or(|c| c.is_ascii_whitespace() || matches!(c, '/' | '>')) {
                self.rest = &whole[at..];
                return &whole[..at];
            }
            from = at + 2;
        }
        self.rest = "";
        whole
    }
}

impl<'h> Iterator for HtmlTokens<'h> {
    type Item = HtmlToken<'h>;

    fn next(&mut self) -> Option<HtmlToken<'h>> {
        loop {
            let mut behind = self.rest.strip_prefix('<').unwrap_or_default().chars();
            let kind = (behind.next(), behind.next());
            match kind {
                _ if self.rest.is_empty() => return None,
                (Some('!' | '?'), _) => self.skip_comment(),
                (Some('/'), Some(c)) if c.is_ascii_alphabetic() => {
                    return Some(HtmlToken::Close(self.tag(2).name));
                }
                (Some('/'), Some(_)) => self.skip_past(">"),
                (Some(c), _) if c.is_ascii_alphabetic() => {
                    let mut tag = self.tag(1);
                    if RAW_TEXT.contains(&tag.name.as_str()) {
                        tag.raw_text = self.raw_text(&tag.name);
                    }
                    return Some(HtmlToken::Open(tag));
                }
                _ => return Some(HtmlToken::Text(self.text())),
            }
        }
    }
}

impl<'h> HtmlTokens<'h> {
    /// Text up to the next tag or comment. A `<` that starts neither is text.
    fn text(&mut self) -> Cow<'h, str> {
        let mut from = 0;
        let end = loop {
            let Some(at) = self.rest[from..].find('<').map(|at| from + at) else {
                break self.rest.len();
            };
            let next = self.rest[at + 1..].chars().next();
            let is_tag = next.is_some_and(|c| c.is_ascii_alphabetic() || "!?/".contains(c));
            // `</` at the end of the text is text.
            if is_tag && self.rest.len() > at + 2 && at > 0 {
                break at;
            }
            from = at + 1;
        };
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        entities::decode(text, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(html: &str) -> String {
        let show = |token| match token {
            HtmlToken::Text(text) => format!("{text:?}"),
            HtmlToken::Open(tag) => {
                let attributes =
                    tag.attributes.iter().map(|(name, value)| format!(" {name}={value}"));
                format!("<{}{}>", tag.name, attributes.collect::<String>())
            }
            HtmlToken::Close(name) => format!("</{name}>"),
        };
        HtmlTokens::new(html).map(show).collect()
    }

    #[test]
    fn html_is_split_as_browsers_do() {
        for (html, want) in [
            ("a<b>c</b>d", "\"a\"<b>\"c\"</b>\"d\""),
            ("<A HREF='x y' Title=no>", "<a href=x y>"),
            ("<a href=x?a&amp;b>", "<a href=x?a&b>"),
            ("<a href=x href=y>", "<a href=x>"),
            ("<img/src=x/alt=\"a>b\">", "<img src=x/alt=\"a>\"b\\\">\""),
            ("<p a=\"1\"style='x'>", "<p style=x>"),
            ("<br/><hr />", "<br><hr>"),
            ("a<!-- <b> -->c<!-->d<!--->e<!--x--!>f", "\"a\"\"c\"\"d\"\"e\"\"f\""),
            ("a<!-- open", "\"a\""),
            ("<!DOCTYPE html><?xml x?></ x>y", "\"y\""),
            ("<![CDATA[x]]>y", "\"y\""),
            ("1 < 2 <3 <", "\"1 < 2 <3 <\""),
            ("<script>if (a</b) </scripty></SCRIPT >x", "<script></script>\"x\""),
            ("<style>x", "<style>"),
            ("<title><b></title><b>", "<title></title><b>"),
            ("<a", "<a>"),
            ("<a href", "<a href=>"),
            ("<a href=", "<a href=>"),
            ("<a href='", "<a href=>"),
            ("</", "\"</\""),
            ("<é>", "\"<é>\""),
            ("&lt;b&gt;", "\"<b>\""),
            ("", ""),
        ] {
            assert_eq!(shown(html), want, "{html}");
        }
    }
}
