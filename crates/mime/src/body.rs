//! Selects which parts of a mail are its text and which are attachments.

use super::charset::Charset;
use super::part::MailPart;
use super::scan::{MimePart, MimeTree};

/// Bytes of a text that decide whether it is blank.
const BLANK_CHECK: usize = 16 * 1024;

/// Text and attachments of a mail or of a multipart in it.
#[derive(Debug, Default)]
pub(super) struct MailBody<'m> {
    /// Texts that belong together, in their order.
    pub texts: Vec<MailPart<'m>>,
    pub attachments: Vec<MailPart<'m>>,
}

/// What is needed to read any part of a mail.
#[derive(Clone, Copy)]
pub(super) struct BodyReader<'m, 't> {
    pub mail: &'m [u8],
    pub tree: &'t MimeTree,
    /// Charset of undeclared text in headers.
    pub hint: Option<Charset>,
}

impl<'m> BodyReader<'m, '_> {
    /// Reads a part with everything in it. The scan limits the depth.
    pub fn read(&self, index: usize) -> MailBody<'m> {
        let part = &self.tree.parts[index];
        if part.children.is_empty() {
            return self.leaf(part, index == 0);
        }
        // An attached multipart has no text for the mail around it.
        let is_attached = part.disposition.word == "attachment" && index != 0;
        match part.kind() {
            _ if is_attached => self.as_attachments(part),
            "multipart/alternative" => self.alternative(part),
            "multipart/related" | "multipart/signed" => self.first_with_attachments(part),
            _ => {
                let mut body = MailBody::default();
                for child in &part.children {
                    body.add(self.read(*child));
                }
                body
            }
        }
    }

    fn leaf(&self, part: &MimePart, is_whole_mail: bool) -> MailBody<'m> {
        let leaf = MailPart::new(self.mail, part, self.hint);
        // A file name does not make the only part of a mail an attachment.
        let is_file = match is_whole_mail {
            true => part.disposition.word == "attachment",
            false => part.is_file,
        };
        let mut body = MailBody::default();
        if leaf.is_text() && !is_file {
            body.texts.push(leaf);
        } else if !leaf.encoded().is_empty() || leaf.name.is_some() {
            body.attachments.push(leaf);
        }
        body
    }

    /// One of several forms of the same text: the first plain one that is not blank, else the
    /// last, which is the richest. Attachments of all forms are kept, such as invitations and
    /// the images of HTML.
    fn alternative(&self, part: &MimePart) -> MailBody<'m> {
        let mut forms: Vec<_> = part.children.iter().map(|child| self.read(*child)).collect();
        let is_plain = |body: &MailBody<'_>| {
            !body.texts.is_empty() && body.texts.iter().all(|text| !text.is_html())
        };
        let is_blank = |body: &MailBody<'_>| body.texts.iter().all(is_blank);
        let plain = forms.iter().position(|body| is_plain(body) && !is_blank(body));
        let rich = || forms.iter().rposition(|body| !is_blank(body));
        let chosen = plain.or_else(rich);
        let texts = chosen.map(|index| std::mem::take(&mut forms[index].texts));
        let attachments = forms.into_iter().flat_map(|form| form.attachments);
        // Other forms of the text, such as `text/x-amp-html`, are no attachments.
        let is_form = |part: &MailPart<'_>| {
            part.name.is_none()
                && part.mime_type.starts_with("text/")
                && part.mime_type != "text/calendar"
        };
        MailBody {
            texts: texts.unwrap_or_default(),
            attachments: attachments.filter(|part| !is_form(part)).collect(),
        }
    }

    /// The first child has the text; the others belong to it, such as images or a signature.
    fn first_with_attachments(&self, part: &MimePart) -> MailBody<'m> {
        let mut body = MailBody::default();
        for (number, child) in part.children.iter().enumerate() {
            let child = self.read(*child);
            if number == 0 {
                body = child;
            } else {
                body.attachments.extend(child.texts);
                body.attachments.extend(child.attachments);
            }
        }
        body
    }

    fn as_attachments(&self, part: &MimePart) -> MailBody<'m> {
        let mut body = MailBody::default();
        for child in &part.children {
            let child = self.read(*child);
            body.attachments.extend(child.texts);
            body.attachments.extend(child.attachments);
        }
        body
    }
}

impl<'m> MailBody<'m> {
    fn add(&mut self, other: Self) {
        self.texts.extend(other.texts);
        self.attachments.extend(other.attachments);
    }
}

/// Whether a text shows nothing. Tags of HTML count as text.
fn is_blank(part: &MailPart<'_>) -> bool {
    let is_invisible =
        |c: char| c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200d}' | '\u{feff}');
    part.text(BLANK_CHECK).text.chars().all(is_invisible)
}
