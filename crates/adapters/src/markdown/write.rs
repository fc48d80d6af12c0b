//! Writes Markdown from the texts of chat providers.

/// Appends text that is no markup to Markdown. Only characters that would change its meaning
/// are escaped.
pub fn push_text(out: &mut String, text: &str) {
    let chars: Vec<char> = text.chars().collect();
    let last_link = chars.windows(2).rposition(|pair| pair == [']', '(']);
    for (at, &c) in chars.iter().enumerate() {
        let before =
            at.checked_sub(1).map_or_else(|| out.chars().last(), |at| chars.get(at).copied());
        let after = chars.get(at + 1).copied();
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let special = match c {
            '*' | '`' => true,
            '\\' => after.is_none_or(|c| c.is_ascii_punctuation()),
            '_' => !(is_word(before) && is_word(after)),
            '~' => before == Some('~') || after == Some('~'),
            '<' => after.is_some_and(|c| c.is_ascii_alphabetic() || "/!?".contains(c)),
            '[' => last_link.is_some_and(|last| at < last),
            '&' => is_entity(&chars[at + 1..]),
            '#' => is_line_start(out) && after.is_none_or(|c| c == '#' || c.is_whitespace()),
            '>' => is_line_start(out),
            _ => false,
        };
        if special {
            out.push('\\');
        }
        out.push(c);
    }
}

/// Tells whether Markdown would read these characters after an `&` as a character reference.
fn is_entity(rest: &[char]) -> bool {
    let name = rest.iter().take(32).position(|&c| !(c.is_ascii_alphanumeric() || c == '#'));
    name.is_some_and(|end| end > 0 && rest[end] == ';')
}

/// Tells whether the next character starts a line, after the marks of quotes.
fn is_line_start(out: &str) -> bool {
    let line = out.rsplit('\n').next().unwrap_or_default();
    line.trim_start_matches(['>', ' ']).is_empty()
}

/// Appends a link. A label that is the address itself is written once.
pub fn push_link(out: &mut String, url: &str, label: Option<&str>) {
    let scheme_end =
        url.find("://").map_or_else(|| url.find(':').map(|at| at + 1), |at| Some(at + 3));
    let bare = scheme_end.map_or(url, |at| &url[at..]);
    let has_scheme = scheme_end.is_some();
    let plain = !url.contains(['<', '>', ' ', '\n']);
    match label.map(str::trim).filter(|label| !label.is_empty() && *label != url && *label != bare)
    {
        None if has_scheme && plain => {
            out.push('<');
            out.push_str(url);
            out.push('>');
        }
        None => push_text(out, url),
        Some(label) => {
            out.push('[');
            let mut text = String::new();
            push_text(&mut text, label);
            out.push_str(&text.replace('\n', " ").replace(']', "\\]"));
            out.push_str("](");
            for c in url.chars() {
                match c {
                    '(' => out.push_str("%28"),
                    ')' => out.push_str("%29"),
                    '<' => out.push_str("%3C"),
                    '>' => out.push_str("%3E"),
                    ' ' => out.push_str("%20"),
                    c if c.is_control() => {}
                    c => out.push(c),
                }
            }
            out.push(')');
        }
    }
}

/// Appends code within a line.
pub fn push_code(out: &mut String, code: &str) {
    let ticks = "`".repeat(longest_run(code) + 1);
    let pad = if code.starts_with('`') || code.ends_with('`') { " " } else { "" };
    out.push_str(&format!("{ticks}{pad}{}{pad}{ticks}", code.replace('\n', " ")));
}

/// Appends a block of code on lines of its own.
pub fn push_code_block(out: &mut String, code: &str) {
    let fence = "`".repeat((longest_run(code) + 1).max(3));
    end_line(out);
    out.push_str(&format!("{fence}\n{}\n{fence}\n", code.trim_matches('\n')));
}

/// Returns the length of the longest run of backticks.
fn longest_run(code: &str) -> usize {
    code.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// Ends the last line, if it is not ended.
pub fn end_line(out: &mut String) {
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
}

/// Starts a paragraph: ends the last line and adds a blank line.
pub fn end_paragraph(out: &mut String) {
    end_line(out);
    if !out.is_empty() && !out.ends_with("\n\n") {
        out.push('\n');
    }
}

/// Returns `markdown` as a quotation.
pub fn quoted(markdown: &str) -> String {
    let lines = markdown.trim_end().lines();
    lines.map(|line| format!("> {line}").trim_end().to_owned() + "\n").collect()
}
