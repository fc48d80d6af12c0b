//! Reads and writes text in header fields: encoded words (RFC 2047) and folding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::charset::{Charset, decode_unnamed};
use super::content::hex;
use super::transfer::Transfer;

/// Longest line that is written; RFC 2047 requires 76 for encoded words.
const LINE: usize = 76;
/// Longest word that is not encoded; no line may be longer than 998.
const LONGEST_WORD: usize = 900;
/// Bytes of text per encoded word, which then has 64 characters.
const WORD_BYTES: usize = 39;
/// Longest charset name of an encoded word.
const MAX_CHARSET: usize = 64;

/// Decodes the unfolded value of a field. `hint` is the charset of bytes that are neither
/// ASCII nor UTF-8.
pub(super) fn decode(value: &[u8], hint: Option<Charset>) -> String {
    let mut text = String::with_capacity(value.len());
    let mut run: Option<Run> = None;
    let (mut at, mut plain) = (0, 0);
    while at < value.len() {
        let Some((word, end)) = encoded_word(value, at) else {
            at += 1;
            continue;
        };
        let between = &value[plain..at];
        match &mut run {
            // A character may be split between words of one run.
            Some(open) if is_blank(between) && open.name == word.name => {
                open.bytes.extend_from_slice(&word.bytes);
            }
            _ => {
                let is_joined = run.is_some() && is_blank(between);
                finish(&mut run, &mut text);
                if !is_joined {
                    text.push_str(&decode_unnamed(between, hint));
                }
                run = Some(word);
            }
        }
        (at, plain) = (end, end);
    }
    finish(&mut run, &mut text);
    text.push_str(&decode_unnamed(&value[plain..], hint));
    text
}

/// Consecutive encoded words of one charset.
struct Run {
    name: String,
    charset: Charset,
    bytes: Vec<u8>,
}

fn finish(run: &mut Option<Run>, text: &mut String) {
    if let Some(run) = run.take() {
        text.push_str(&run.charset.decode(&run.bytes));
    }
}

fn is_blank(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' ' | b'\t'))
}

/// Reads `=?charset?B?text?=` at `at`. Returns where it ends.
fn encoded_word(value: &[u8], at: usize) -> Option<(Run, usize)> {
    let rest = value[at..].strip_prefix(b"=?")?;
    let name_end = rest.iter().take(MAX_CHARSET).position(|byte| *byte == b'?')?;
    // RFC 2231 lets a language follow.
    let name = rest[..name_end].split(|byte| *byte == b'*').next()?.to_ascii_lowercase();
    let charset = Charset::find(Some(&name))?;
    let rest = &rest[name_end + 1..];
    let [method, b'?', rest @ ..] = rest else { return None };
    let length = rest.iter().position(|byte| matches!(byte, b'?' | b' ' | b'\t'))?;
    if !rest[length..].starts_with(b"?=") {
        return None;
    }
    let bytes = match method {
        b'B' | b'b' => Transfer::Base64.decode_some(&rest[..length]).into_owned(),
        b'Q' | b'q' => from_q(&rest[..length]),
        _ => return None,
    };
    let name = String::from_utf8_lossy(&name).into_owned();
    Some((Run { name, charset, bytes }, at + 2 + name_end + 1 + 2 + length + 2))
}

fn from_q(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let code = text.get(at + 1..at + 3).filter(|_| byte == b'=').and_then(hex);
        bytes.push(code.unwrap_or(if byte == b'_' { b' ' } else { byte }));
        at += if code.is_some() { 3 } else { 1 };
    }
    bytes
}

/// Makes a text safe for a header: one line, trimmed, without control characters.
pub(super) fn clean(value: &str) -> String {
    let is_break = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let line: String = value.chars().map(|c| if is_break(c) { ' ' } else { c }).collect();
    line.trim_matches(' ').to_owned()
}

/// Writes a field, folded and encoded, without the line break after it.
pub fn field(name: &[u8], value: &str, line_break: &[u8]) -> Vec<u8> {
    let mut out = name.to_vec();
    out.push(b':');
    let mut column = out.len();
    for (number, unit) in units(&clean(value)).iter().enumerate() {
        // Some readers do not accept a line with the name only, so a long word stays
        // beside it.
        let may_fold = number > 0 || unit.contains("=?");
        if column + unit.len() > LINE && may_fold {
            out.extend_from_slice(line_break);
            column = 0;
        }
        out.extend_from_slice(unit.as_bytes());
        column += unit.len();
    }
    out
}

/// Splits a value where it may be folded. Each unit starts with the spaces before it.
///
/// Text from the first to the last non-ASCII word is encoded; the words around it stay
/// readable, and addresses among them stay valid.
fn units(value: &str) -> Vec<String> {
    let words = words(value);
    if words.iter().any(|word| word.len() > LONGEST_WORD) {
        return encoded_words(" ", value);
    }
    let needs = |word: &&str| !word.is_ascii() || word.contains("=?");
    let Some(first) = words.iter().position(needs) else {
        return words.iter().map(|word| (*word).to_owned()).enumerate().map(lead).collect();
    };
    let last = words.iter().rposition(needs).unwrap_or(first);
    let blanks = &words[first][..words[first].len() - words[first].trim_start_matches(' ').len()];
    let middle = words[first..=last].concat();
    let start = words[..first].iter().map(|word| (*word).to_owned());
    let units = start.chain(encoded_words(blanks, middle.trim_start_matches(' ')));
    let end = words[last + 1..].iter().map(|word| (*word).to_owned());
    units.chain(end).enumerate().map(lead).collect()
}

/// A space separates the colon and the value.
fn lead((number, unit): (usize, String)) -> String {
    if number == 0 && !unit.starts_with(' ') { format!(" {unit}") } else { unit }
}

/// Splits a line into words, each with the spaces before it.
fn words(value: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut start = 0;
    let mut in_word = false;
    for (at, c) in value.char_indices() {
        if c == ' ' && in_word {
            words.push(&value[start..at]);
            start = at;
        }
        in_word = c != ' ';
    }
    if start < value.len() {
        words.push(&value[start..]);
    }
    words
}

/// Writes text as encoded words, the first after `blanks`. Readers ignore spaces between
/// them.
pub fn encoded_words(blanks: &str, text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for c in text.chars() {
        let piece = pieces.last_mut().filter(|piece| piece.len() + c.len_utf8() <= WORD_BYTES);
        match piece {
            Some(piece) => piece.push(c),
            None => pieces.push(c.to_string()),
        }
    }
    let word = |piece: &String| format!("=?UTF-8?B?{}?=", STANDARD.encode(piece));
    let blanks = std::iter::once(blanks).chain(std::iter::repeat(" "));
    pieces.iter().zip(blanks).map(|(piece, blank)| format!("{blank}{}", word(piece))).collect()
}
