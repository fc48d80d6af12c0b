//! Adds a footer to the text parts of a mail, or says why the mail is not changed.

use super::edit::{Edit, apply};
use super::head::line_break;
use super::insert::{Insertion, insert, is_inserted};
use super::scan::{MimePart, MimeTree, scan};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FooterText {
    /// For plain text; it follows a line `-- `.
    pub text: String,
    /// For HTML; derived from `text` when `None`.
    pub html: Option<String>,
}

/// Why a mail is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untouched {
    /// A change would break the signature.
    #[error("the mail is signed")]
    Signed,
    /// There is nothing to read in it.
    #[error("the mail is encrypted")]
    Encrypted,
    /// It has attachments only, or nothing.
    #[error("the mail has no text to put a footer under")]
    NoTextPart,
    /// The footer can't be written in the way that the text is.
    #[error("the footer can't be written there: {0}")]
    CantEncode(String),
    /// The text is nested deeper than [`super::MAX_DEPTH`].
    #[error("the parts of the mail are nested too deep")]
    TooDeep,
    /// Readers might see different things in it.
    #[error("the mail is malformed: {0}")]
    Broken(String),
}

/// Adds a footer to the text of a mail.
///
/// All text alternatives get it, plain and HTML; in other multiparts the first text.
/// Attachments and attached mails never do. Bytes outside the text do not change, except
/// the header of a part whose charset or encoding must change.
///
/// A mail with a `DKIM-Signature` is changed, and the signature no longer verifies: sign
/// after this step.
///
/// # Errors
///
/// [`Untouched`] when the mail is signed or encrypted, has no text, or is ambiguous.
pub fn with_footer(mail: &[u8], footer: &FooterText) -> Result<Vec<u8>, Untouched> {
    let tree = scan(mail);
    if !tree.parts[0].has_blank && tree.parts[0].body.is_empty() {
        return Err(Untouched::NoTextPart);
    }
    let texts = texts_of(&tree, 0)?;
    if let Some(flaw) = tree.flaw {
        return Err(Untouched::Broken(flaw.to_owned()));
    }
    if texts.is_empty() {
        return Err(Untouched::NoTextPart);
    }
    let mut edits: Vec<Edit> = Vec::new();
    let mut insertions = Vec::new();
    for index in texts {
        let insertion = insert(mail, &tree.parts[index], footer, line_break(mail))?;
        edits.extend(insertion.edits.iter().cloned());
        insertions.push((index, insertion));
    }
    let edited = apply(mail, &edits);
    if !is_only_that(mail, &tree, &edited, &insertions) {
        // The footer contains a boundary, or the text ends within an encoded sequence.
        return Err(Untouched::CantEncode("the mail would read differently with it".to_owned()));
    }
    Ok(edited)
}

/// The text parts that get the footer. Not deeper than the scan.
fn texts_of(tree: &MimeTree, index: usize) -> Result<Vec<usize>, Untouched> {
    let part = &tree.parts[index];
    if let Some(closed) = closed(part) {
        return Err(closed);
    }
    if let Some(flaw) = part.flaw {
        return Err(Untouched::Broken(flaw.to_owned()));
    }
    if part.is_file {
        return Ok(Vec::new());
    }
    if part.too_deep {
        return Err(Untouched::TooDeep);
    }
    let is_alternative = part.kind() == "multipart/alternative";
    match part.kind() {
        "text/plain" | "text/html" => return Ok(vec![index]),
        _ if !part.is_multipart() => return Ok(Vec::new()),
        _ => {}
    }
    let mut texts = Vec::new();
    for child in &part.children {
        texts.extend(texts_of(tree, *child)?);
        if !texts.is_empty() && !is_alternative {
            break;
        }
    }
    Ok(texts)
}

/// Why this part and its children must not be changed.
fn closed(part: &MimePart) -> Option<Untouched> {
    match part.kind() {
        "multipart/signed" => Some(Untouched::Signed),
        "multipart/encrypted" | "application/pgp-encrypted" => Some(Untouched::Encrypted),
        "application/pkcs7-mime" | "application/x-pkcs7-mime" => {
            let kind = part.content.get("smime-type").unwrap_or_default();
            let is_signed = kind.eq_ignore_ascii_case(b"signed-data");
            Some(if is_signed { Untouched::Signed } else { Untouched::Encrypted })
        }
        _ => None,
    }
}

/// Checks that a reader of the edited mail finds the same parts and texts, plus the
/// footer. Only such mails are returned.
fn is_only_that(
    mail: &[u8],
    old: &MimeTree,
    edited: &[u8],
    inserted: &[(usize, Insertion)],
) -> bool {
    let new = scan(edited);
    if new.flaw.is_some() || new.parts.len() != old.parts.len() {
        return false;
    }
    old.parts.iter().zip(&new.parts).enumerate().all(|(index, (before, after))| {
        let same = before.kind() == after.kind()
            && before.children == after.children
            && before.is_file == after.is_file;
        let text = inserted.iter().find(|(text, _)| *text == index);
        same && match text {
            Some((_, insertion)) => is_inserted(mail, before, edited, after, insertion),
            None => {
                mail[before.head.clone()] == edited[after.head.clone()]
                    && (before.is_multipart()
                        || mail[before.body.clone()] == edited[after.body.clone()])
            }
        }
    })
}
