//! Formats tables for people: one line per row, no wider than the terminal, with short ids and
//! local times.
//!
//! Commands accept a short id wherever they accept an id.

use jiff::tz::TimeZone;
use monoco_core::did::{Did, Endpoint};
use monoco_core::letter::LetterId;
use monoco_core::mail::MailId;
use monoco_core::object::ObjId;
use monoco_core::record::RecordId;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Width when stdout is not a terminal.
const DEFAULT_WIDTH: usize = 80;

/// Width below which a terminal's size is ignored.
const MIN_WIDTH: usize = 40;

/// Spaces between two columns.
const GAP: usize = 2;

/// Widths to which texts are cut, at first and if that is not enough. Then ids are cut too.
const TEXT_WIDTHS: [usize; 2] = [9, 4];

/// Hex digits of a short id. Among a million ids, two share their digits with a probability of
/// 0.2 %.
const SHORT_ID_DIGITS: usize = 12;

/// Times in a table, and times of a single object.
const MINUTES: &str = "%Y-%m-%d %H:%M";
const SECONDS: &str = "%Y-%m-%d %H:%M:%S";

/// One cell as it is shown.
struct ShownCell {
    text: String,
    /// Ids, times and numbers are useless when they are cut.
    whole: bool,
}

/// Returns the lines of a table. Columns without any value are left out.
pub fn lines(names: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let used: Vec<usize> =
        (0..names.len()).filter(|at| rows.iter().any(|row| !row[*at].is_empty())).collect();
    let shown: Vec<Vec<ShownCell>> =
        rows.iter().map(|row| used.iter().map(|at| shown(&row[*at])).collect()).collect();
    let names: Vec<&str> = used.iter().map(|at| names[*at]).collect();
    let widths = widths(&names, &shown, terminal_width());
    let bold = |at: usize| style("\u{1b}[1m", &pad(&names[at].to_uppercase(), widths[at]));
    let header = join((0..names.len()).map(bold));
    let body = shown.iter().map(|row| {
        join(row.iter().enumerate().map(|(at, cell)| {
            let text = pad(&cell.text, widths[at]);
            match colour(names[at], &cell.text) {
                Some(colour) => style(colour, &text),
                None => text,
            }
        }))
    });
    std::iter::once(header).chain(body).collect()
}

/// Returns one line that is printed without a header, cut to the width of the terminal.
pub fn line(cells: &[String]) -> String {
    let line = join(cells.iter().filter(|cell| !cell.is_empty()).map(|cell| shown(cell).text));
    pad(&line, terminal_width()).trim_end().to_owned()
}

/// Formats an RFC 3339 time in the local time zone, to the second. Other text is returned
/// unchanged.
pub fn local_time(text: &str) -> String {
    zoned(text, SECONDS).unwrap_or_else(|| text.to_owned())
}

fn zoned(text: &str, format: &str) -> Option<String> {
    // Most texts are not times; the parser would look at each of them.
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(at.to_zoned(TimeZone::system()).strftime(format).to_string())
}

/// Formats one cell: ids short, times local, shadow DIDs as `tunnel:account`.
fn shown(text: &str) -> ShownCell {
    if let Some(text) = zoned(text, MINUTES).or_else(|| short_id(text)) {
        return ShownCell { text, whole: true };
    }
    let parts: Vec<_> = text.split(", ").map(short_did).collect();
    let whole = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    ShownCell { text: parts.join(", "), whole }
}

/// Shortens an id; `None` when the text is not an id.
fn short_id(text: &str) -> Option<String> {
    // All records of one message start with the same digits; the last ones tell them apart.
    if text.parse::<RecordId>().is_ok() {
        let (kind, digits) = text.split_at(4);
        let (start, end) = (&digits[..SHORT_ID_DIGITS - 4], &digits[digits.len() - 4..]);
        return Some(format!("{kind}{start}..{end}"));
    }
    if let Ok(LetterId { seq, .. }) = text.parse() {
        return Some(format!("ltr_{seq}"));
    }
    let digits = if text.parse::<ObjId>().is_ok() {
        text.find(':')? + 1
    } else if text.parse::<MailId>().is_ok() {
        text.find('_')? + 1
    } else {
        return None;
    };
    text.get(..digits + SHORT_ID_DIGITS).map(str::to_owned)
}

/// Formats a shadow DID as `tunnel:account`. Other text is returned unchanged.
fn short_did(text: &str) -> String {
    let endpoint = text.parse::<Did>().ok().and_then(|did| did.endpoint());
    match endpoint {
        // Decoding an account can yield characters that control the terminal.
        Some(Endpoint { account, tunnel, .. }) => {
            format!("{tunnel}:{}", super::output::escape_line(&account))
        }
        None => text.to_owned(),
    }
}

/// Returns the width of each column, so that a line has at most `limit` columns.
fn widths(names: &[&str], rows: &[Vec<ShownCell>], limit: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = names.iter().map(|name| name.width()).collect();
    let mut whole = vec![true; names.len()];
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            widths[at] = widths[at].max(cell.text.width());
            whole[at] &= cell.whole;
        }
    }
    for text in TEXT_WIDTHS {
        shrink(&mut widths, limit, |at| if whole[at] { usize::MAX } else { text });
    }
    shrink(&mut widths, limit, |_| 1);
    widths
}

/// Makes the widest columns narrower, but none narrower than `least`, until a line fits.
fn shrink(widths: &mut [usize], limit: usize, least: impl Fn(usize) -> usize) {
    let gaps = GAP * widths.len().saturating_sub(1);
    let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(limit);
    while excess > 0 {
        let widest = (0..widths.len()).filter(|at| widths[*at] > least(*at));
        let Some(widest) = widest.max_by_key(|at| widths[*at]) else { return };
        widths[widest] -= 1;
        excess -= 1;
    }
}

/// Cuts or pads a text to a width.
fn pad(text: &str, width: usize) -> String {
    let full = text.width();
    if full <= width {
        return format!("{text}{}", " ".repeat(width - full));
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        let next = used + c.width().unwrap_or(0);
        if next >= width {
            break;
        }
        out.push(c);
        used = next;
    }
    format!("{out}…{}", " ".repeat(width.saturating_sub(used + 1)))
}

fn join(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
}

fn style(code: &str, text: &str) -> String {
    let word = text.trim_end();
    format!("{code}{word}\u{1b}[0m{}", &text[word.len()..])
}

/// Returns the colour of a state: red for what needs a person, yellow for what may need one,
/// green for success. Other states and other columns have no colour.
fn colour(column: &str, text: &str) -> Option<&'static str> {
    if !matches!(column, "state" | "status") {
        return None;
    }
    match text.to_ascii_lowercase().as_str() {
        "dead" | "deadletter" | "failed" | "fail" | "down" | "deaf" => Some("\u{1b}[31m"),
        "uncertain" | "held" | "degraded" | "warn" => Some("\u{1b}[33m"),
        "sent" | "completed" | "readed" | "done" | "ok" | "hearing" => Some("\u{1b}[32m"),
        _ => None,
    }
}

/// Returns the width of the terminal on stdout.
fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .map(|size| usize::from(size.ws_col))
        .ok()
        .filter(|width| *width >= MIN_WIDTH)
        .unwrap_or(DEFAULT_WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_dids_are_short() {
        let record = format!("dlv_{}{}", "ab".repeat(16), "0123456789abcdef");
        let object = format!("cymsg:{}", "0f".repeat(32));
        let mail = format!("webhook_{}", "1a".repeat(12));
        for (text, expected) in [
            (record.as_str(), "dlv_abababab..cdef"),
            (object.as_str(), "cymsg:0f0f0f0f0f0f"),
            (mail.as_str(), "webhook_1a1a1a1a1a1a"),
            ("did:msgtunnel:joe%40example%2Ecom.addr.mail", "mail:joe@example.com"),
            ("did:monoco:me, did:msgtunnel:ou_7.user.lark", "did:monoco:me, lark:ou_7"),
            ("did:msgtunnel:%1B%5B2J.user.lark", "lark:\\u{1b}[2J"),
            ("did:msgtunnel:lark", "did:msgtunnel:lark"),
            ("ltr_7_00000abc", "ltr_7"),
            ("plain text", "plain text"),
        ] {
            assert_eq!(shown(text).text, expected);
        }
    }

    #[test]
    fn wide_columns_are_cut_first_and_numbers_last() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let long =
            "漢字 and a long text that does not fit into the line of a table at all".repeat(2);
        let rows = [row(["123456789012", "short", &long]), row(["1", "words", "é"])];
        let table = lines(&["number", "word", "text"], &rows);
        for line in &table {
            let plain = line.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
            assert!(plain.width() <= DEFAULT_WIDTH, "{plain}");
        }
        assert!(table[1].starts_with("123456789012  short  漢字 and"), "{table:?}");
        assert!(table[1].ends_with('…'), "{table:?}");
        assert_eq!(pad("漢字漢字", 4), "漢… ");
        // Even a table of numbers only is cut before it is wider than the terminal.
        let row = ["123456"; 3].map(|text| ShownCell { text: text.to_owned(), whole: true });
        let rows = [Vec::from(row)];
        assert_eq!(widths(&["a", "b", "c"], &rows, 16).iter().sum::<usize>(), 12);
    }
}
