//! Many mails in one: a `multipart/digest`.

use sha2::{Digest, Sha256};

use super::head::{fields, line_break};
use super::word;

/// What the digest takes over from its first mail.
const TAKEN: [&str; 5] = ["From", "To", "Cc", "Reply-To", "Date"];

/// Puts mails into one, as they are.
///
/// It comes from whom the first comes, on its date and to its recipients. It has no
/// `Message-ID`: the sending server adds one. The same mails and seed make the same
/// digest.
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
        // A part of a digest is a mail unless it says otherwise, so it has no header.
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

/// A boundary that is in none of the mails.
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
