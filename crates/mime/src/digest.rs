//! Combines mails into one `multipart/digest`.

use sha2::{Digest, Sha256};

use super::head::{fields, line_break};
use super::word;

/// Fields that are copied from the first mail.
const TAKEN: [&str; 5] = ["From", "To", "Cc", "Reply-To", "Date"];

/// Combines mails unchanged into one.
///
/// Sender, date and recipients are those of the first mail. There is no `Message-ID`: the
/// sender of the digest adds it. Equal mails and seeds give an equal digest.
pub fn digest(mails: &[&[u8]], subject: &str, boundary_seed: &str) -> Vec<u8> {
    let first = mails.first().copied().unwrap_or_default();
    let line_break = line_break(first);
    let boundary = boundary(mails, boundary_seed);
    let mut out = Vec::with_capacity(mails.iter().map(|mail| mail.len() + 128).sum());
    for name in TAKEN {
        if let Some(field) = fields(first).find(|field| field.is(first, name)) {
            out.extend_from_slice(&first[field.name.start..field.value.end]);
            out.extend_from_slice(line_break);
        }
    }
    let mut lines = vec![
        word::field(b"Subject", subject, line_break),
        b"MIME-Version: 1.0".to_vec(),
        format!("Content-Type: multipart/digest; boundary=\"{boundary}\"").into_bytes(),
    ];
    if mails.iter().any(|mail| !mail.is_ascii()) {
        lines.push(b"Content-Transfer-Encoding: 8bit".to_vec());
    }
    for line in lines {
        out.extend_from_slice(&line);
        out.extend_from_slice(line_break);
    }
    for mail in mails {
        // Parts of a digest are mails by default, so they need no header.
        let start = format!("--{boundary}");
        for piece in [line_break, start.as_bytes(), line_break, line_break, mail] {
            out.extend_from_slice(piece);
        }
    }
    let end = format!("--{boundary}--");
    for piece in [line_break, end.as_bytes(), line_break] {
        out.extend_from_slice(piece);
    }
    out
}

/// Finds a boundary that occurs in none of the mails.
fn boundary(mails: &[&[u8]], seed: &str) -> String {
    let mut hash = Sha256::new().chain_update(seed);
    let simple = name(&hash.clone());
    if !mails.iter().any(|mail| contains(mail, simple.as_bytes())) {
        return simple;
    }
    // The seed may be known, but a mail cannot contain a hash of itself.
    for mail in mails {
        hash.update(mail);
    }
    name(&hash)
}

fn name(hash: &Sha256) -> String {
    let hash: [u8; 32] = hash.clone().finalize().into();
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("=_monoco_{hex}")
}

fn contains(mail: &[u8], words: &[u8]) -> bool {
    mail.windows(words.len()).any(|window| window == words)
}
