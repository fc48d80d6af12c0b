//! Inserts a footer into one text part, in the charset and encoding of the part.

use memchr::memmem;

use super::charset::Charset;
use super::content::ContentType;
use super::edit::Edit;
use super::footer::{FooterText, Untouched};
use super::head::{Field, break_of, fields_from};
use super::scan::MimePart;
use super::transfer::{Transfer, place_in_printable, to_base64, to_printable};

/// Longest line that mail allows without encoding.
const MAX_LINE: usize = 998;

/// Edits of one part.
#[derive(Debug)]
pub(super) struct Insertion {
    /// In the order of their positions.
    pub edits: Vec<Edit>,
    /// Offset of the footer in the decoded content.
    at: usize,
    /// What is put there.
    text: String,
}

/// A text part, decoded.
struct InsertionTarget<'m> {
    mail: &'m [u8],
    part: &'m MimePart,
    raw: &'m [u8],
    transfer: Transfer,
    charset: Charset,
    content: &'m [u8],
    line_break: &'static [u8],
}

/// The encoded footer, and how the header of the part must change.
struct Written {
    bytes: Vec<u8>,
    charset: Charset,
    /// Whether the part has to become UTF-8 for it.
    to_utf8: bool,
    /// Whether the part has to become quoted-printable for it.
    to_printable: bool,
}

/// Computes the edits that insert the footer into a part.
pub(super) fn insert(
    mail: &[u8],
    part: &MimePart,
    footer: &FooterText,
    line_break: &'static [u8],
) -> Result<Insertion, Untouched> {
    let (transfer, charset) = reading(part)?;
    let raw = &mail[part.body.clone()];
    let decoded = transfer.decode(raw);
    let content = decoded.ok_or_else(|| broken("its base64 is damaged"))?;
    if content.ends_with(b"\r") {
        return Err(broken("its text ends in a CR without LF"));
    }
    let target =
        InsertionTarget { mail, part, raw, transfer, charset, content: &content, line_break };
    target.refuse_pgp()?;
    let is_html = part.kind() == "text/html";
    let (at, text) = if is_html { target.html(footer) } else { target.plain(footer) };
    let written = if is_html { target.write_html(&text) } else { target.write_plain(&text) }?;
    let edits = target.edits(at, &written)?;
    Ok(Insertion { edits, at, text: written.charset.decode(&written.bytes).into_owned() })
}

/// Whether the new part is the old one plus the footer.
pub(super) fn is_inserted(
    mail: &[u8],
    before: &MimePart,
    edited: &[u8],
    after: &MimePart,
    insertion: &Insertion,
) -> bool {
    let (Ok(old), Ok(new)) = (reading(before), reading(after)) else { return false };
    let old_content = old.0.decode(&mail[before.body.clone()]).unwrap_or_default();
    let new_content = new.0.decode(&edited[after.body.clone()]).unwrap_or_default();
    let whole = old.1.decode(&old_content);
    let start = old.1.decode(old_content.get(..insertion.at).unwrap_or_default());
    let found = new.1.decode(&new_content);
    let (Some(end), Some(rest)) = (whole.strip_prefix(&*start), found.strip_prefix(&*start)) else {
        return false;
    };
    rest.strip_prefix(insertion.text.as_str()) == Some(end)
}

/// Transfer encoding and charset of a part.
fn reading(part: &MimePart) -> Result<(Transfer, Charset), Untouched> {
    let transfer = Transfer::read(&part.transfer).ok_or_else(|| {
        Untouched::CantEncode(format!("unknown transfer encoding {:?}", part.transfer))
    })?;
    let name = part.content.get("charset");
    let charset = Charset::find(name.as_deref()).filter(|charset| charset.can_append());
    let charset = charset.filter(|_| part.content.is_single("charset")).ok_or_else(|| {
        let name = String::from_utf8_lossy(name.as_deref().unwrap_or_default()).into_owned();
        Untouched::CantEncode(format!("the text is in the charset {name:?}"))
    })?;
    Ok((transfer, charset))
}

fn broken(why: &str) -> Untouched {
    Untouched::Broken(why.to_owned())
}

impl InsertionTarget<'_> {
    /// Rejects text with an inline PGP signature or encryption.
    fn refuse_pgp(&self) -> Result<(), Untouched> {
        let is_html = self.part.kind() == "text/html";
        for at in memmem::find_iter(self.content, b"-----BEGIN PGP ") {
            let armour = &self.content[at..];
            // A quoted PGP block does not count. HTML has no lines.
            let counts = is_html || at == 0 || self.content[at - 1] == b'\n';
            if counts && armour.starts_with(b"-----BEGIN PGP SIGNED MESSAGE-----") {
                return Err(Untouched::Signed);
            }
            if counts && armour.starts_with(b"-----BEGIN PGP MESSAGE-----") {
                return Err(Untouched::Encrypted);
            }
        }
        Ok(())
    }

    /// Line break of the content. Base64 content may differ from the mail.
    fn content_break(&self) -> &'static str {
        let own = match self.transfer {
            Transfer::Base64 => break_of(self.content).unwrap_or(self.line_break),
            _ => self.line_break,
        };
        if own == b"\n" { "\n" } else { "\r\n" }
    }

    /// Appends the text on lines of its own; the final line break stays as it was.
    fn at_end(&self, text: &str) -> (usize, String) {
        let line_break = self.content_break();
        let is_open = !self.content.is_empty() && !self.content.ends_with(b"\n");
        let has_end =
            self.content.ends_with(b"\n") || self.content.is_empty() && !self.is_followed();
        let before = if is_open { line_break } else { "" };
        let after = if has_end { line_break } else { "" };
        (self.content.len(), format!("{before}{text}{after}"))
    }

    /// Position and text of the footer in plain text.
    fn plain(&self, footer: &FooterText) -> (usize, String) {
        let is_flowed = self
            .part
            .content
            .get("format")
            .is_some_and(|format| format.eq_ignore_ascii_case(b"flowed"));
        let mut lines = vec!["-- ".to_owned()];
        lines.extend(clean_lines(&footer.text).into_iter().map(|line| {
            // RFC 3676: without stuffing, the line would be a quote or lose its space.
            let is_stuffed = is_flowed && [" ", ">", "From "].iter().any(|s| line.starts_with(s));
            if is_stuffed { format!(" {line}") } else { line }
        }));
        self.at_end(&lines.join(self.content_break()))
    }

    /// Position and text of the footer in HTML.
    fn html(&self, footer: &FooterText) -> (usize, String) {
        let line_break = self.content_break();
        let inner = match &footer.html {
            Some(html) => clean_lines(html).join(line_break),
            None => {
                let lines: Vec<_> = clean_lines(&footer.text).iter().map(|l| escape(l)).collect();
                lines.join(&format!("<br>{line_break}"))
            }
        };
        let block = format!("<div class=\"monoco-footer\">{inner}</div>");
        let end = last_end_tag(self.content, b"body");
        match end.or_else(|| last_end_tag(self.content, b"html")) {
            Some(at) => (at, format!("{block}{line_break}")),
            None => self.at_end(&block),
        }
    }

    /// Whether the part is declared as 7 bit and is ASCII.
    fn is_seven_bit(&self) -> bool {
        self.transfer == Transfer::SevenBit && self.content.is_ascii()
    }

    /// Encodes the text in the charset of the part; `None` when readers could disagree on
    /// the charset.
    fn encode(&self, text: &str) -> Option<Vec<u8>> {
        let bytes = self.charset.encode(text)?;
        (bytes.is_ascii() || self.part.content.is_clear("charset")).then_some(bytes)
    }

    /// In HTML every character can be written in ASCII.
    fn write_html(&self, text: &str) -> Result<Written, Untouched> {
        let bytes = self.encode(text).filter(|b| b.is_ascii() || !self.is_seven_bit());
        let bytes = bytes.or_else(|| self.charset.encode(&in_ascii(text)));
        let bytes = bytes.ok_or_else(|| Untouched::CantEncode("not even in ASCII".to_owned()))?;
        Ok(Written { bytes, charset: self.charset, to_utf8: false, to_printable: false })
    }

    fn write_plain(&self, text: &str) -> Result<Written, Untouched> {
        let own = self.encode(text);
        let to_utf8 = own.is_none();
        if to_utf8 && !(self.content.is_ascii() && self.charset.has_ascii()) {
            let why = "the charset of the text lacks some of its characters";
            return Err(Untouched::CantEncode(why.to_owned()));
        }
        let charset = if to_utf8 { Charset::UTF_8 } else { self.charset };
        let bytes = own.unwrap_or_else(|| text.as_bytes().to_vec());
        let to_printable = !bytes.is_ascii() && self.is_seven_bit();
        Ok(Written { bytes, charset, to_utf8, to_printable })
    }

    /// Edits of up to two header fields and of the content.
    fn edits(&self, at: usize, written: &Written) -> Result<Vec<Edit>, Untouched> {
        let mut edits = Vec::new();
        if written.to_utf8 {
            edits.push(self.charset_edit()?);
        }
        if written.to_printable {
            edits.push(self.field_edit("Content-Transfer-Encoding", "quoted-printable"));
        }
        if self.part.head.start == 0 && !edits.is_empty() && self.field("MIME-Version").is_none() {
            edits.push(self.field_edit("MIME-Version", "1.0"));
        }
        // Added fields are at the end, after changed ones.
        edits.sort_by_key(|edit| edit.at.start);
        edits.push(self.content_edit(at, written)?);
        Ok(edits)
    }

    fn content_edit(&self, at: usize, written: &Written) -> Result<Edit, Untouched> {
        let body = self.part.body.clone();
        let bytes = &written.bytes;
        let whole = || [&self.content[..at], bytes, &self.content[at..]].concat();
        let mut edit = match self.transfer {
            Transfer::Base64 => {
                let mut with = to_base64(&whole(), self.line_break);
                if self.raw.ends_with(b"\n") || self.raw.is_empty() && !self.is_followed() {
                    with.extend_from_slice(self.line_break);
                }
                Edit { at: body, with }
            }
            Transfer::QuotedPrintable => self.printable_edit(at, bytes)?,
            _ if written.to_printable => {
                Edit { at: body, with: to_printable(&whole(), self.line_break) }
            }
            _ if bytes.split(|byte| *byte == b'\n').any(|line| line.len() > MAX_LINE) => {
                let why = format!("it has a line of more than {MAX_LINE} bytes");
                return Err(Untouched::CantEncode(why));
            }
            _ => Edit { at: body.start + at..body.start + at, with: bytes.clone() },
        };
        if self.is_followed() && !self.part.has_break {
            // An empty part had no line break to share with the boundary.
            edit.with.extend_from_slice(self.line_break);
        }
        Ok(edit)
    }

    /// Whether a boundary follows the part.
    fn is_followed(&self) -> bool {
        self.part.body.end < self.mail.len()
    }

    /// Inserts into quoted-printable content without changing the rest.
    fn printable_edit(&self, at: usize, bytes: &[u8]) -> Result<Edit, Untouched> {
        let place = place_in_printable(self.raw, at);
        let before = &self.raw[..place];
        let mut with = Vec::new();
        let line = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        if line.trim_ascii_end().ends_with(b"=") {
            // A soft break with trailing spaces is one for some readers only.
            if !line.ends_with(b"=") {
                return Err(broken("its text ends in an unclear soft break"));
            }
            with.extend_from_slice(self.line_break);
        } else if !line.is_empty() && !bytes.starts_with(b"\r\n") && !bytes.starts_with(b"\n") {
            with.push(b'=');
            with.extend_from_slice(self.line_break);
        }
        with.extend(to_printable(bytes, self.line_break));
        let place = self.part.body.start + place;
        Ok(Edit { at: place..place, with })
    }

    fn field(&self, name: &str) -> Option<Field> {
        let mail = &self.mail[..self.part.head.end];
        fields_from(mail, self.part.head.start).find(|field| field.is(mail, name))
    }

    /// Sets a field, or adds it at the end of the part's header.
    fn field_edit(&self, name: &str, value: &str) -> Edit {
        if let Some(field) = self.field(name) {
            return Edit { at: field.value, with: format!(" {value}").into_bytes() };
        }
        let end = self.part.head.end;
        let mut with = format!("{name}: {value}").into_bytes();
        with.extend_from_slice(self.line_break);
        Edit { at: end..end, with }
    }

    /// Makes the part's charset UTF-8, in place if it is named.
    fn charset_edit(&self) -> Result<Edit, Untouched> {
        let Some(field) = self.field("Content-Type") else {
            return Ok(self.field_edit("Content-Type", "text/plain; charset=utf-8"));
        };
        let value = &self.mail[field.value.clone()];
        let content = ContentType::read(value);
        if content.has("charset") && !content.is_clear("charset") {
            return Err(Untouched::CantEncode("what the charset is called is unclear".to_owned()));
        }
        if let Some(parameter) = content.plain("charset") {
            let start = field.value.start;
            let at = start + parameter.place.start..start + parameter.place.end;
            return Ok(Edit { at, with: b"utf-8".to_vec() });
        }
        if content.has("charset") {
            return Err(Untouched::CantEncode("the charset is written in pieces".to_owned()));
        }
        let is_ready = value.trim_ascii_end().ends_with(b";");
        let with = if is_ready { " charset=utf-8" } else { "; charset=utf-8" };
        Ok(Edit { at: field.value.end..field.value.end, with: with.as_bytes().to_vec() })
    }
}

/// The lines of a footer without unsafe characters.
fn clean_lines(text: &str) -> Vec<String> {
    let is_bad = |c: char| c.is_control() && c != '\t';
    let line = |line: &str| line.replace(is_bad, "").trim_end().to_owned();
    text.trim_end().lines().map(line).collect()
}

fn escape(line: &str) -> String {
    line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// HTML with numeric references for non-ASCII characters.
fn in_ascii(html: &str) -> String {
    let mut out = String::with_capacity(html.len());
    for c in html.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            out.push_str(&format!("&#{};", u32::from(c)));
        }
    }
    out
}

/// Where the last `</name>` starts, in any case and with any blanks.
fn last_end_tag(content: &[u8], name: &[u8]) -> Option<usize> {
    (0..content.len()).rev().filter(|at| content[*at] == b'<').find(|at| {
        let Some(rest) = content[*at + 1..].strip_prefix(b"/") else { return false };
        let is_name = rest.get(..name.len()).is_some_and(|n| n.eq_ignore_ascii_case(name));
        is_name && rest[name.len()..].trim_ascii_start().starts_with(b">")
    })
}
