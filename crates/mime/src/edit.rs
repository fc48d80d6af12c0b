//! Edits of a mail: one field replaced or added, everything else copied.

use std::ops::Range;

use super::head::{fields, head_end, is_name, line_break};
use super::word;

/// Replacement of one range of a mail.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    /// What is taken out.
    pub at: Range<usize>,
    /// What is put in.
    pub with: Vec<u8>,
}

/// Applies edits that are in order and do not overlap.
pub(super) fn apply(mail: &[u8], edits: &[Edit]) -> Vec<u8> {
    let more: usize = edits.iter().map(|edit| edit.with.len()).sum();
    let mut out = Vec::with_capacity(mail.len() + more);
    let mut copied = 0;
    for edit in edits {
        out.extend_from_slice(&mail[copied..edit.at.start]);
        out.extend_from_slice(&edit.with);
        copied = edit.at.end;
    }
    out.extend_from_slice(&mail[copied..]);
    out
}

/// Replaces the subject, or adds one at the end of the header.
///
/// Of several `Subject` fields the first is replaced. Control characters become spaces, so
/// that a subject cannot add a field. Non-ASCII text is encoded (RFC 2047).
pub fn with_subject(mail: &[u8], subject: &str) -> Vec<u8> {
    let Some(found) = fields(mail).find(|field| field.is(mail, "Subject")) else {
        return with_header(mail, "Subject", subject);
    };
    let name = &mail[found.name.clone()];
    let with = word::field(name, subject, line_break(mail));
    apply(mail, &[Edit { at: found.name.start..found.value.end, with }])
}

/// Adds a field at the end of the header. The value is cleaned and encoded as in
/// [`with_subject`]; invalid characters of the name become `-`.
pub fn with_header(mail: &[u8], name: &str, value: &str) -> Vec<u8> {
    let break_ = line_break(mail);
    let name: Vec<u8> = name.bytes().map(|b| if is_name(b) { b } else { b'-' }).collect();
    let name = if name.is_empty() { b"X-".to_vec() } else { name };
    let end = head_end(mail);
    let is_cut = end > 0 && mail[end - 1] != b'\n';
    let mut with = if is_cut { break_.to_vec() } else { Vec::new() };
    with.extend(word::field(&name, value, break_));
    with.extend_from_slice(break_);
    apply(mail, &[Edit { at: end..end, with }])
}
