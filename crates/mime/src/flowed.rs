//! Joins the lines of `format=flowed` text (RFC 3676).

/// Joins the lines that end in a space with the next line of the same quote depth. Quoted
/// lines start with one `> ` per level. A signature separator is never joined.
pub(super) fn unflow(text: &str, deletes_spaces: bool) -> String {
    let mut out = String::with_capacity(text.len());
    // The quote depth of a line that the next one continues.
    let mut open: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let line = line.strip_suffix('\n').unwrap_or(line);
        let body = line.trim_start_matches('>');
        let depth = line.len() - body.len();
        // A space before the text protects it from being read as a quote.
        let body = body.strip_prefix(' ').unwrap_or(body);
        let is_separator = body == "-- ";
        if open != Some(depth) || is_separator {
            if open.is_some() {
                out.push('\n');
            }
            out.extend(std::iter::repeat_n("> ", depth));
        }
        let is_flowed = body.ends_with(' ') && !is_separator;
        let kept = if is_flowed && deletes_spaces { &body[..body.len() - 1] } else { body };
        out.push_str(kept);
        open = is_flowed.then_some(depth);
        if open.is_none() {
            out.push('\n');
        }
    }
    if !text.ends_with('\n') && out.ends_with('\n') {
        out.pop();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::unflow;

    #[test]
    fn lines_are_joined_within_one_quote_depth() {
        for (text, want) in [
            ("a \nb\nc", "a b\nc"),
            ("a \n b", "a b"),
            ("> a \n> b\n>> c \n> d", "> a b\n> > c \n> d"),
            ("a \n> b", "a \n> b"),
            ("sig \n-- \nann", "sig \n-- \nann"),
            (" > not a quote\n From here", "> not a quote\nFrom here"),
            ("\n\na\n", "\n\na\n"),
            ("a \n", "a "),
            ("", ""),
        ] {
            assert_eq!(unflow(text, false), want, "{text:?}");
        }
        assert_eq!(unflow("你 \n好\nx  \ny", true), "你好\nx y");
    }
}
