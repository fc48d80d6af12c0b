//! Finds the parts of a mail in one pass over its lines.
//!
//! A stack holds the open multiparts. A line that is the boundary of one of them ends
//! everything inside it; the outermost is compared first, as other readers do. Where
//! readers might disagree, the tree or the part gets a flaw, and editors must not change
//! it.

use std::ops::Range;

use super::content::ContentType;
use super::head::{
    HeaderLine, LineKind, envelope_line, fields_from, line_at, sort, unfold, without_break,
};
use super::transfer::Transfer;

/// Maximum nesting of multiparts; deeper ones are not entered.
pub const MAX_DEPTH: usize = 32;
/// Limit of parts that are read.
pub const MAX_PARTS: usize = 1_000;
/// Longest boundary. RFC 2046 allows 70 characters.
const MAX_BOUNDARY: usize = 256;

/// A mail's parts. The first is the mail itself.
#[derive(Debug)]
pub(super) struct MimeTree {
    /// In the order in which they start.
    pub parts: Vec<MimePart>,
    /// Why readers might see other parts.
    pub flaw: Option<&'static str>,
    /// Whether there are more parts than [`MAX_PARTS`].
    pub is_full: bool,
}

/// One part of a mail.
#[derive(Debug)]
pub(super) struct MimePart {
    /// Header section without the blank line after it.
    pub head: Range<usize>,
    /// Whether the blank line exists.
    pub has_blank: bool,
    /// Content without the line break that belongs to the next boundary.
    pub body: Range<usize>,
    /// Whether that line break exists.
    pub has_break: bool,
    pub content: ContentType,
    /// `Content-Transfer-Encoding` in lower case; empty when there is none.
    pub transfer: String,
    /// `Content-Disposition`; its word is empty when there is none.
    pub disposition: ContentType,
    /// Whether the part is an attachment.
    pub is_file: bool,
    /// Indexes of the child parts, if this is a multipart that was entered.
    pub children: Vec<usize>,
    /// Whether this is a multipart below the nesting limit.
    pub too_deep: bool,
    /// Why readers might disagree on this part.
    pub flaw: Option<&'static str>,
}

impl MimePart {
    /// Media type; `text/plain` by default.
    pub fn kind(&self) -> &str {
        &self.content.word
    }

    /// Whether it consists of parts.
    pub fn is_multipart(&self) -> bool {
        self.kind().starts_with("multipart/")
    }
}

pub(super) fn scan(mail: &[u8]) -> MimeTree {
    let tree = MimeTree { parts: Vec::new(), flaw: None, is_full: false };
    let mut scan = Scan { mail, tree, open: Vec::new(), current: 0, in_head: false };
    scan.begin(0);
    let mut at = envelope_line(mail);
    while let Some(line) = line_at(mail, at) {
        scan.line(&line);
        at = line.end;
        // The rest belongs to this part.
        if !scan.in_head && scan.open.is_empty() {
            break;
        }
    }
    scan.end_parts(0, mail.len(), mail.len());
    scan.tree
}

/// A multipart whose end has not been found yet.
struct Open {
    part: usize,
    boundary: Vec<u8>,
}

struct Scan<'m> {
    mail: &'m [u8],
    tree: MimeTree,
    open: Vec<Open>,
    /// The part that the next line belongs to.
    current: usize,
    /// Whether that line belongs to its header section.
    in_head: bool,
}

impl Scan<'_> {
    fn line(&mut self, line: &HeaderLine) {
        if let Some((level, is_last)) = self.delimiter(line) {
            self.end_parts(level + 1, without_break(self.mail, 0, line.start), line.start);
            self.open.truncate(level + 1);
            let parent = self.open[level].part;
            if is_last {
                self.open.truncate(level);
                self.current = parent;
            } else if self.tree.parts.len() < MAX_PARTS {
                let child = self.tree.parts.len();
                self.tree.parts[parent].children.push(child);
                self.begin(line.end);
            } else {
                self.tree.flaw = Some("it has too many parts");
                self.tree.is_full = true;
                self.current = parent;
            }
        } else if self.in_head {
            self.head_line(line);
        }
    }

    fn begin(&mut self, start: usize) {
        self.current = self.tree.parts.len();
        self.in_head = true;
        self.tree.parts.push(MimePart {
            head: start..start,
            has_blank: false,
            body: start..start,
            has_break: false,
            content: ContentType::default(),
            transfer: String::new(),
            disposition: ContentType::default(),
            is_file: false,
            children: Vec::new(),
            too_deep: false,
            flaw: None,
        });
    }

    fn head_line(&mut self, line: &HeaderLine) {
        let part = &mut self.tree.parts[self.current];
        match sort(line.text(self.mail)) {
            LineKind::Field => part.head.end = line.end,
            LineKind::Folded => {
                if part.head.is_empty() {
                    part.flaw = Some("its header starts with a line that continues another");
                }
                part.head.end = line.end;
            }
            LineKind::Blank => {
                part.has_blank = true;
                self.end_head(line.start, line.end);
            }
            LineKind::Other => {
                part.flaw = Some("there is no blank line between its header and its text");
                self.end_head(line.start, line.start);
            }
        }
    }

    /// Parses the header section, which has ended.
    fn end_head(&mut self, end: usize, body: usize) {
        self.in_head = false;
        let default = self.default_kind();
        let part = &mut self.tree.parts[self.current];
        part.head.end = end;
        part.body = body..body;
        if bare_cr(&self.mail[part.head.clone()]) {
            part.flaw = Some("there is a CR without LF in its header");
        }
        read_head(&self.mail[..end], part);
        if part.content.word.is_empty() {
            part.content.word = default.to_owned();
        }
        if part.is_multipart() {
            self.open_multipart();
        }
    }

    /// Media type of a part without `Content-Type`.
    fn default_kind(&self) -> &'static str {
        match self.open.last() {
            Some(open) if self.tree.parts[open.part].kind() == "multipart/digest" => {
                "message/rfc822"
            }
            _ => "text/plain",
        }
    }

    fn open_multipart(&mut self) {
        let part = &mut self.tree.parts[self.current];
        let mut boundary = part.content.get("boundary").unwrap_or_default();
        boundary.truncate(boundary.trim_ascii_end().len());
        if !matches!(Transfer::read(&part.transfer), Some(Transfer::SevenBit | Transfer::EightBit))
        {
            part.flaw = Some("it is a multipart that is encoded as a whole");
        } else if boundary.is_empty() {
            part.flaw = Some("it is a multipart without a boundary");
        } else if boundary.len() > MAX_BOUNDARY
            // Some readers take angle brackets for quotes.
            || boundary.starts_with(b"<")
            || !part.content.is_clear("boundary")
        {
            part.flaw = Some("its boundary is unclear");
        }
        // Many senders write such multiparts, and readers show their parts. The flaw keeps
        // editors away.
        if boundary.is_empty() || boundary.len() > MAX_BOUNDARY {
            return;
        }
        if self.open.len() >= MAX_DEPTH {
            part.too_deep = true;
        } else {
            self.open.push(Open { part: self.current, boundary });
        }
    }

    /// Level of the open multipart whose boundary the line is, and whether the line ends
    /// it.
    fn delimiter(&mut self, line: &HeaderLine) -> Option<(usize, bool)> {
        if self.open.is_empty() {
            return None;
        }
        let text = line.text(self.mail);
        if text.contains(&b'\r') && self.hides_delimiter(text) {
            self.tree.flaw = Some("there is a boundary beside a CR without LF");
        }
        let rest = text.strip_prefix(b"--")?;
        let mut found = None;
        let mut starts = false;
        for (level, open) in self.open.iter().enumerate() {
            let Some(tail) = rest.strip_prefix(open.boundary.as_slice()) else { continue };
            starts = true;
            let (is_last, padding) = match tail.strip_prefix(b"--") {
                Some(padding) => (true, padding),
                None => (false, tail),
            };
            if !padding.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
                continue;
            }
            if found.is_some() {
                self.tree.flaw = Some("two boundaries are alike");
            } else {
                found = Some((level, is_last));
            }
        }
        // RFC 2046 lets a reader compare the start of the line only.
        if starts && found.is_none() {
            self.tree.flaw = Some("a line starts like a boundary but is none");
        }
        found
    }

    /// Whether readers that take a bare CR for a line end would see a boundary.
    fn hides_delimiter(&self, text: &[u8]) -> bool {
        text.split(|byte| *byte == b'\r').any(|piece| {
            piece
                .strip_prefix(b"--")
                .is_some_and(|rest| self.open.iter().any(|o| rest.starts_with(&o.boundary)))
        })
    }

    /// Ends the current part and the multiparts around it, except the outermost.
    fn end_parts(&mut self, outermost: usize, end: usize, next: usize) {
        if self.in_head {
            let part = &mut self.tree.parts[self.current];
            let head_end = part.head.end;
            // Without a blank line the text would start in the header.
            part.flaw = part.flaw.or(Some("there is no blank line behind its header"));
            self.end_head(head_end, next);
        }
        let around = self.open.iter().skip(outermost).map(|open| open.part);
        for index in around.chain([self.current]).collect::<Vec<_>>() {
            let part = &mut self.tree.parts[index];
            part.body.end = end.max(part.body.start);
            part.has_break = part.body.end < next;
        }
    }
}

fn bare_cr(head: &[u8]) -> bool {
    head.iter().enumerate().any(|(at, byte)| *byte == b'\r' && head.get(at + 1) != Some(&b'\n'))
}

/// Parses the fields of a part. The first of each name counts.
fn read_head(mail: &[u8], part: &mut MimePart) {
    let (mut kind, mut transfer, mut disposition) = (None, None, None);
    for field in fields_from(mail, part.head.start) {
        for (name, first) in [
            ("Content-Type", &mut kind),
            ("Content-Transfer-Encoding", &mut transfer),
            ("Content-Disposition", &mut disposition),
        ] {
            if first.is_none() && field.is(mail, name) {
                *first = Some(&mail[field.value.clone()]);
            }
        }
    }
    if let Some(kind) = kind.map(ContentType::read) {
        if !is_type(&kind.word) || !kind.is_clean {
            part.flaw = Some("its Content-Type is unclear");
        }
        part.is_file |= kind.has("name");
        part.content = kind;
    }
    // Some readers do not accept comments here, so only the bare word counts.
    let transfer = unfold(transfer.unwrap_or_default()).to_ascii_lowercase();
    part.transfer = String::from_utf8_lossy(&transfer).into_owned();
    if let Some(disposition) = disposition.map(ContentType::read) {
        part.is_file |= disposition.word != "inline" || disposition.has("filename");
        part.disposition = disposition;
    }
}

/// Whether this is `type/subtype`.
pub(super) fn is_type(word: &str) -> bool {
    let is_token = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    word.split_once('/').is_some_and(|(main, sub)| is_token(main) && is_token(sub))
}
