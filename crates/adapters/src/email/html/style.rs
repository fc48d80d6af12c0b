//! Finds out whether an element is shown, from its attributes and from style sheets.

use std::collections::HashSet;

use super::tokens::HtmlTag;

/// Limit of selectors that are kept of all style sheets of a mail.
const MAX_SELECTORS: usize = 1_000;
/// Limit of classes of one element that are looked up.
const MAX_CLASSES: usize = 32;

/// What the attributes of an element say about its visibility.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TagVisibility {
    /// Nothing inside of it is shown.
    pub is_hidden: bool,
    /// Whether its text is too small to be seen; `None` when it has the size of the text
    /// around it.
    pub is_tiny: Option<bool>,
}

/// Offset to the left or top from which an element is outside of the page, in pixels.
const OUTSIDE: f64 = -500.0;

/// Finds out whether a tag is shown, from its attributes and the style sheets of the mail.
pub(super) fn visibility(tag: &HtmlTag<'_>, sheets: &HidingRules) -> TagVisibility {
    let style = tag.get("style").map(|style| without_comments(style).to_ascii_lowercase());
    let own = style.as_deref().map(declared).unwrap_or_default();
    let is_hidden =
        own.is_hidden || tag.get("hidden").is_some() || !own.is_shown && sheets.hides(tag);
    TagVisibility { is_hidden, is_tiny: own.is_tiny }
}

/// What declarations of CSS say about visibility.
#[derive(Clone, Copy, Debug, Default)]
struct DeclaredVisibility {
    is_hidden: bool,
    /// Whether `display` is set to something else than `none`.
    is_shown: bool,
    is_tiny: Option<bool>,
}

/// Reads declarations in lower case, without comments.
fn declared(style: &str) -> DeclaredVisibility {
    let mut found = DeclaredVisibility::default();
    let (mut has_no_size, mut has_no_overflow) = (false, false);
    for declaration in style.split(';') {
        let Some((name, value)) = declaration.split_once(':') else { continue };
        let value = value.trim().trim_end_matches("!important").trim();
        match name.trim() {
            "display" => {
                found.is_hidden |= value == "none";
                found.is_shown = value != "none";
            }
            "visibility" => found.is_hidden |= matches!(value, "hidden" | "collapse"),
            "opacity" => found.is_hidden |= number(value).is_some_and(|(size, _)| size < 0.05),
            "max-height" | "max-width" => found.is_hidden |= is_zero(value),
            "height" | "width" => has_no_size |= is_zero(value),
            "overflow" => has_no_overflow |= value == "hidden",
            "left" | "top" | "text-indent" | "margin-left" | "margin-top" => {
                found.is_hidden |= number(value).is_some_and(|(size, _)| size <= OUTSIDE);
            }
            "font-size" => found.is_tiny = number(value).map(is_tiny),
            _ => {}
        }
    }
    found.is_hidden |= has_no_size && has_no_overflow;
    found
}

/// Rules of style sheets that hide elements by name, class or id.
#[derive(Debug, Default)]
pub(super) struct HidingRules {
    /// `p`, `.class`, `#id`, `p.class` or `p#id`; names are in lower case.
    selectors: HashSet<String>,
}

impl HidingRules {
    /// Adds the rules of a style sheet. Rules for some devices (`@media`) and selectors of
    /// several elements do not count.
    pub fn read(&mut self, sheet: &str) {
        let sheet = without_comments(sheet).to_ascii_lowercase();
        let mut rest = sheet.as_str();
        while let Some((prelude, behind)) = rest.split_once('{') {
            // `@charset "utf-8";` precedes a rule.
            let prelude = prelude.rsplit(';').next().unwrap_or_default().trim();
            if prelude.starts_with('@') {
                rest = behind_block(behind);
                continue;
            }
            let (body, next) = behind.split_once('}').unwrap_or((behind, ""));
            rest = next;
            let found = declared(body);
            if found.is_hidden || found.is_tiny == Some(true) {
                let selectors = prelude.trim_start_matches(['}', '<', '!', '-']).split(',');
                let selectors = selectors.map(str::trim).filter(|selector| is_simple(selector));
                let room = MAX_SELECTORS.saturating_sub(self.selectors.len());
                self.selectors.extend(selectors.take(room).map(str::to_owned));
            }
        }
    }

    fn hides(&self, tag: &HtmlTag<'_>) -> bool {
        if self.selectors.is_empty() {
            return false;
        }
        let classes = tag.get("class").unwrap_or_default().split_ascii_whitespace();
        let names = classes.take(MAX_CLASSES).map(|class| format!(".{class}"));
        let id = tag.get("id").map(|id| format!("#{}", id.trim()));
        let has = |name: &str| self.selectors.contains(&name.to_ascii_lowercase());
        has(&tag.name)
            || names.chain(id).any(|name| has(&name) || has(&format!("{}{name}", tag.name)))
    }
}

/// Whether a selector names one kind of element, without its place in the page.
fn is_simple(selector: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    let marks = selector.chars().filter(|c| !is_name(*c)).collect::<String>();
    !selector.is_empty()
        && matches!(marks.as_str(), "" | "." | "#")
        && !selector.ends_with(['.', '#'])
}

/// What follows a block with blocks inside, behind its opening brace.
fn behind_block(text: &str) -> &str {
    let mut depth = 1_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[at + 1..];
        }
    }
    ""
}

/// Whether an image is a tracking pixel or a spacer.
pub(super) fn is_pixel(tag: &HtmlTag<'_>) -> bool {
    let is_small = |name| tag.get(name).and_then(number).is_some_and(|(size, _)| size <= 2.0);
    is_small("width") || is_small("height")
}

/// A number and its unit.
fn number(value: &str) -> Option<(f64, &str)> {
    let value = value.trim();
    let is_digit = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
    let end = value.find(|c| !is_digit(c)).unwrap_or(value.len());
    Some((value[..end].parse().ok()?, value[end..].trim()))
}

fn is_zero(value: &str) -> bool {
    number(value).is_some_and(|(size, _)| size == 0.0)
}

fn is_tiny((size, unit): (f64, &str)) -> bool {
    match unit {
        "px" | "pt" => size <= 1.0,
        "em" | "rem" => size < 0.1,
        "%" => size < 10.0,
        _ => size == 0.0,
    }
}

fn without_comments(style: &str) -> String {
    let mut out = String::with_capacity(style.len());
    let mut rest = style;
    while let Some((before, behind)) = rest.split_once("/*") {
        out.push_str(before);
        rest = behind.split_once("*/").map_or("", |(_, rest)| rest);
    }
    out + rest
}
