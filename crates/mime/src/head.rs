//! Lines, and the fields of a header section.

use std::ops::Range;

use memchr::memchr;

/// One line of a mail. Only LF ends it, with or without a CR before.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderLine {
    pub start: usize,
    /// Offset of the line break.
    pub text_end: usize,
    /// Offset of the next line.
    pub end: usize,
}

impl HeaderLine {
    /// The line without its line break.
    pub fn text<'m>(&self, mail: &'m [u8]) -> &'m [u8] {
        &mail[self.start..self.text_end]
    }
}

pub(super) fn line_at(mail: &[u8], start: usize) -> Option<HeaderLine> {
    let rest = mail.get(start..).filter(|rest| !rest.is_empty())?;
    let Some(length) = memchr(b'\n', rest) else {
        return Some(HeaderLine { start, text_end: mail.len(), end: mail.len() });
    };
    let end = start + length + 1;
    Some(HeaderLine { start, text_end: without_break(mail, start, end), end })
}

/// `end` without the line break before it, but not before `start`.
pub(super) fn without_break(mail: &[u8], start: usize, end: usize) -> usize {
    let text = &mail[start..end];
    let text = text.strip_suffix(b"\r\n").or_else(|| text.strip_suffix(b"\n")).unwrap_or(text);
    start + text.len()
}

/// Line break of the first complete line.
pub(super) fn break_of(mail: &[u8]) -> Option<&'static [u8]> {
    let end = memchr(b'\n', mail)?;
    Some(if mail[..end].ends_with(b"\r") { b"\r\n" } else { b"\n" })
}

/// Line break to use for inserted lines: that of the first line.
pub(super) fn line_break(mail: &[u8]) -> &'static [u8] {
    break_of(mail).unwrap_or(b"\r\n")
}

/// Kind of a line in a header section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    /// Empty: the end of the header.
    Blank,
    Field,
    /// Continuation of the field before it.
    Folded,
    /// Not allowed in a header.
    Other,
}

/// Classifies a line without its line break.
pub(super) fn sort(text: &[u8]) -> LineKind {
    match text.first() {
        None => LineKind::Blank,
        Some(b' ' | b'\t') => LineKind::Folded,
        Some(_) => match text.iter().position(|byte| !is_name(*byte)) {
            Some(end) if end > 0 && text[end] == b':' => LineKind::Field,
            _ => LineKind::Other,
        },
    }
}

/// Whether a field's name may have this byte.
pub(super) fn is_name(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b':'
}

/// Position of a field.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub name: Range<usize>,
    /// What follows the colon, without the last line break.
    pub value: Range<usize>,
}

impl Field {
    /// Whether it has this name, in any case.
    pub fn is(&self, mail: &[u8], name: &str) -> bool {
        mail[self.name.clone()].eq_ignore_ascii_case(name.as_bytes())
    }
}

/// Iterates over the fields of a header section.
pub(super) struct HeaderFields<'m> {
    mail: &'m [u8],
    at: usize,
}

/// The fields of the mail's own header.
pub(super) fn fields(mail: &[u8]) -> HeaderFields<'_> {
    HeaderFields { mail, at: envelope_line(mail) }
}

/// The fields from `start` on. The caller has cut the mail behind them.
pub(super) fn fields_from(mail: &[u8], start: usize) -> HeaderFields<'_> {
    if start == 0 { fields(mail) } else { HeaderFields { mail, at: start } }
}

/// Length of the mbox `From ` line before a mail. It is not a field; inserted fields
/// follow it.
pub(super) fn envelope_line(mail: &[u8]) -> usize {
    match line_at(mail, 0) {
        Some(line) if mail.starts_with(b"From ") => line.end,
        _ => 0,
    }
}

/// Offset of the end of the header: the blank line, the first line that is not a field, or
/// the end.
pub(super) fn head_end(mail: &[u8]) -> usize {
    let mut fields = fields(mail);
    fields.by_ref().for_each(drop);
    fields.at
}

impl HeaderFields<'_> {
    /// Offset of what follows the fields that were read.
    pub fn position(&self) -> usize {
        self.at
    }
}

impl Iterator for HeaderFields<'_> {
    type Item = Field;

    fn next(&mut self) -> Option<Field> {
        let mut line = line_at(self.mail, self.at)?;
        // A continuation line without a field: readers skip it.
        while sort(line.text(self.mail)) == LineKind::Folded {
            self.at = line.end;
            line = line_at(self.mail, self.at)?;
        }
        if sort(line.text(self.mail)) != LineKind::Field {
            return None;
        }
        let start = self.at;
        let colon = line.text(self.mail).iter().position(|byte| *byte == b':')?;
        self.at = line.end;
        while let Some(next) = line_at(self.mail, self.at)
            && sort(next.text(self.mail)) == LineKind::Folded
        {
            line = next;
            self.at = line.end;
        }
        let name = start..start + colon;
        Some(Field { value: name.end + 1..line.text_end, name })
    }
}

/// The value on one line, trimmed.
pub(super) fn unfold(value: &[u8]) -> Vec<u8> {
    let mut flat = Vec::with_capacity(value.len());
    let mut at = 0;
    while let Some(line) = line_at(value, at) {
        flat.extend_from_slice(line.text(value));
        at = line.end;
    }
    flat.trim_ascii().to_vec()
}
