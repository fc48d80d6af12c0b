//! Converts mrkdwn, the markup of Slack's texts, into Markdown.
//!
//! | mrkdwn | Markdown |
//! | --- | --- |
//! | `*bold*`, `_italic_`, `~struck~` | `**bold**`, `*italic*`, `~~struck~~` |
//! | `` `code` ``, ```` ```code``` ```` | the same, blocks on lines of their own |
//! | `&gt; quote`, `&gt;&gt;&gt; rest` | `> quote` |
//! | `<https://x\|label>`, `<https://x>` | `[label](https://x)`, `<https://x>` |
//! | `<@U1>`, `<#C1>`, `<!here>`, `<!subteam^S1>` | `@name`, `#name`, `@here`, `@group` |
//! | `<!date^…\|text>` | `text` |

use super::markup::{
    TextContext, end_line, end_paragraph, push_code, push_code_block, push_link, push_text, quoted,
    unescape,
};

const BLOCK_FENCE: &str = "```";

/// Deepest nesting of styles that is converted.
const MAX_DEPTH: usize = 8;

/// Returns the Markdown of a text.
pub(super) fn to_markdown(text: &str, context: &TextContext<'_>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BLOCK_FENCE) {
        let Some((code, after)) = after.split_once(BLOCK_FENCE) else { break };
        push_lines(&mut out, before, context);
        push_code_block(&mut out, &plain(code));
        rest = after.strip_prefix('\n').unwrap_or(after);
    }
    push_lines(&mut out, rest, context);
    out.trim_end().to_owned()
}

/// Appends lines without code blocks.
fn push_lines(out: &mut String, text: &str, context: &TextContext<'_>) {
    let mut lines = text.split('\n');
    let mut first = true;
    let mut was_quote = false;
    while let Some(line) = lines.next() {
        if !first {
            out.push('\n');
        }
        first = false;
        if let Some(start) = line.strip_prefix("&gt;&gt;&gt;") {
            let all: Vec<_> = std::iter::once(start).chain(lines.by_ref()).collect();
            let inner = inline_lines(&all, context);
            end_line(out);
            out.push_str(&quoted(&inner));
            return;
        }
        if let Some(quote) = line.strip_prefix("&gt;") {
            end_line(out);
            let inner = inline_lines(&[quote.strip_prefix(' ').unwrap_or(quote)], context);
            out.push_str(quoted(&inner).trim_end());
            if inner.is_empty() {
                out.push('>');
            }
            was_quote = true;
            continue;
        }
        if std::mem::take(&mut was_quote) && !line.is_empty() {
            // Without a blank line Markdown adds the line to the quotation.
            end_paragraph(out);
        }
        push_inline(out, line, context, 0);
    }
}

fn inline_lines(lines: &[&str], context: &TextContext<'_>) -> String {
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let line = if at == 0 { line.trim_start() } else { line };
        push_inline(&mut out, line, context, 0);
    }
    out
}

/// Appends text with styles, code, links and mentions.
fn push_inline(out: &mut String, text: &str, context: &TextContext<'_>, depth: usize) {
    let mut plain_start = 0;
    let mut at = 0;
    // Marks that have no end in the rest of the text: searching again would take quadratic time.
    let mut unclosed = Vec::new();
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let may_open = match c {
            '`' => !rest[1..].starts_with('`'),
            '<' => true,
            '*' | '_' | '~' => depth < MAX_DEPTH && opens_style(rest, c, text[..at].chars().last()),
            _ => false,
        };
        let found = match c {
            _ if !may_open || unclosed.contains(&c) => None,
            '`' => rest[1..].find('`').map(|end| InlineMarkup::Code(&rest[1..=end])),
            '<' => rest.find('>').map(|end| InlineMarkup::Reference(&rest[1..end])),
            _ => styled(rest, c),
        };
        let Some(found) = found else {
            if may_open && !unclosed.contains(&c) {
                unclosed.push(c);
            }
            at += c.len_utf8();
            continue;
        };
        push_text(out, &unescape(&text[plain_start..at]));
        at += found.length();
        plain_start = at;
        match found {
            InlineMarkup::Code(code) => push_code(out, &plain(code)),
            InlineMarkup::Reference(inner) => push_reference(out, inner, context),
            InlineMarkup::Styled(mark, inner) => {
                let marks = match mark {
                    '*' => "**",
                    '~' => "~~",
                    _ => "*",
                };
                out.push_str(marks);
                push_inline(out, inner, context, depth + 1);
                out.push_str(marks);
            }
        }
    }
    push_text(out, &unescape(&text[plain_start..]));
}

/// A piece of markup and the text inside.
enum InlineMarkup<'a> {
    Code(&'a str),
    Reference(&'a str),
    Styled(char, &'a str),
}

impl InlineMarkup<'_> {
    /// Returns the length with the marks around, in bytes.
    fn length(&self) -> usize {
        match self {
            Self::Code(inner) | Self::Reference(inner) | Self::Styled(_, inner) => inner.len() + 2,
        }
    }
}

/// Tells whether a mark can start styled text: it is at the border of a word.
fn opens_style(rest: &str, mark: char, before: Option<char>) -> bool {
    let inner = rest[1..].chars().next();
    is_border(before, mark) && inner.is_some_and(|c| !c.is_whitespace() && c != mark)
}

/// Returns the text up to the next mark that ends a word.
fn styled(rest: &str, mark: char) -> Option<InlineMarkup<'_>> {
    let mut from = 1;
    while let Some(found) = rest[from..].find(mark) {
        let end = from + found;
        let ends_word = !rest[..end].ends_with(char::is_whitespace);
        if end > 1 && ends_word && is_border(rest[end + 1..].chars().next(), mark) {
            return Some(InlineMarkup::Styled(mark, &rest[1..end]));
        }
        from = end + 1;
    }
    None
}

fn is_border(c: Option<char>, mark: char) -> bool {
    c.is_none_or(|c| !c.is_alphanumeric() && c != mark)
}

/// Appends what stands between `<` and `>`.
fn push_reference(out: &mut String, inner: &str, context: &TextContext<'_>) {
    let (target, label) = match inner.split_once('|') {
        Some((target, label)) => (target, Some(unescape(label))),
        None => (inner, None),
    };
    let label = label.as_deref();
    let shown = match target.split_at_checked(1) {
        Some(("@", id)) => context.mention(id, label),
        Some(("#", id)) => context.chat(id, label),
        Some(("!", command)) => special_mention(command, label, context),
        _ => return push_link(out, &unescape(target), label),
    };
    push_text(out, &shown);
}

/// Returns the text for `<!here>`, `<!subteam^S1>`, `<!date^…>` and the like.
fn special_mention(command: &str, label: Option<&str>, context: &TextContext<'_>) -> String {
    let (name, argument) = command.split_once('^').unwrap_or((command, ""));
    match name {
        "here" | "channel" | "everyone" | "group" => context.broadcast(name),
        "subteam" => context.mention(argument, label),
        _ => label.map_or_else(|| format!("[{name}]"), str::to_owned),
    }
}

/// Returns the text of code: references as addresses or names, escapes replaced.
fn plain(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once('<') {
        let Some((inner, after)) = after.split_once('>') else { break };
        out.push_str(before);
        let (target, label) = inner.split_once('|').unwrap_or((inner, ""));
        out.push_str(if label.is_empty() { target } else { label });
        rest = after;
    }
    out.push_str(rest);
    unescape(&out)
}

#[cfg(test)]
mod tests;
