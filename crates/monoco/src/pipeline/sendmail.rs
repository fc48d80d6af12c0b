//! A mail as it is becomes a letter, as programs hand it to sendmail.

use monoco_core::letter::{InvalidLetter, Letter};
use serde_json::{Value, json};

/// What is said of a mail beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvelopeOptions {
    /// Who sends it; without it, whom its header names.
    pub from: Option<String>,
    /// Whom it is for; without it, whom its header names.
    pub to: Vec<String>,
    /// The tunnel it goes through.
    pub tunnel: Option<String>,
}

/// The letter that a mail becomes, for the doorman to check.
///
/// When its header says whom it is for, it goes without its `Bcc`: those are not to be
/// seen by the others.
///
/// # Errors
///
/// When it is no mail, or its header does not say whom it is from or for.
pub fn letter(mail: &[u8], named: EnvelopeOptions) -> Result<Value, InvalidLetter> {
    let bad = |field: &str, why: String| InvalidLetter { field: field.to_owned(), why };
    let mail = without_envelope_line(mail);
    monoco_mime::check(mail).map_err(|error| bad("data", error.to_string()))?;
    let EnvelopeOptions { from, to, tunnel } = named;
    let mut letter = Letter::default();
    letter.set_bytes(if to.is_empty() { monoco_mime::without_bcc(mail) } else { mail.to_vec() });
    let header = match (&from, to.is_empty()) {
        (Some(_), false) => monoco_mime::Envelope::default(),
        _ => monoco_mime::envelope(mail).map_err(|error| bad("data", error.to_string()))?,
    };
    let missing = "no address is given, and the mail's From and Sender do not name one";
    let from = from.or(header.from).ok_or_else(|| bad("from", missing.to_owned()))?;
    let to = if to.is_empty() { header.to } else { to };
    if to.is_empty() {
        let why = "no address is given, and none is in the mail's To, Cc and Bcc";
        return Err(bad("to", why.to_owned()));
    }
    if let Some(tunnel) = tunnel {
        letter.extra.insert("tunnel".to_owned(), tunnel.into());
    }
    Ok(json!({"from": from, "to": to, "data": letter.data, "extra": letter.extra}))
}

/// Mailbox files have a line before each mail that is not part of it.
fn without_envelope_line(mail: &[u8]) -> &[u8] {
    let line = mail.iter().position(|byte| *byte == b'\n');
    match line {
        Some(end) if mail.starts_with(b"From ") => &mail[end + 1..],
        _ => mail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIL: &[u8] = b"From ann Mon Jan  1 00:00:00 2026\nFrom: Ann <ann@x.test>\n\
                          To: bob@x.test\nBcc: eve@x.test\nSubject: hi\n\ntext\n";

    #[test]
    fn the_header_names_whom_nobody_named() {
        let made = letter(MAIL, EnvelopeOptions::default()).unwrap();
        let data = "From: Ann <ann@x.test>\nTo: bob@x.test\nSubject: hi\n\ntext\n";
        let wanted = json!({"from": "ann@x.test", "to": ["bob@x.test", "eve@x.test"],
                            "data": data, "extra": {}});
        assert_eq!(made, wanted);
    }

    #[test]
    fn whoever_is_named_counts_and_the_mail_stays_as_it_is() {
        let named = EnvelopeOptions {
            from: Some("me@x.test".to_owned()),
            to: vec!["you@x.test".to_owned()],
            tunnel: Some("mail".to_owned()),
        };
        let made = letter(b"Bcc: <broken\n\nhi", named).unwrap();
        let wanted = json!({"from": "me@x.test", "to": ["you@x.test"],
                            "data": "Bcc: <broken\n\nhi", "extra": {"tunnel": "mail"}});
        assert_eq!(made, wanted);
    }

    #[test]
    fn bytes_that_are_no_text_survive() {
        let named =
            EnvelopeOptions { to: vec!["b@x.test".to_owned()], ..EnvelopeOptions::default() };
        let made = letter(b"From: a@x.test\n\ncaf\xe9", named).unwrap();
        assert_eq!(made["extra"], json!({"charset": "latin-1"}));
        assert_eq!(made["data"], "From: a@x.test\n\ncaf\u{e9}");
    }

    #[test]
    fn a_mail_that_names_nobody_is_refused() {
        for (mail, field) in [
            (&b""[..], "data"),
            (b"no header\n", "data"),
            (b"From: a@x.test\n\nhi", "to"),
            (b"To: a@x.test\n\nhi", "from"),
            (b"From: a@x.test\nTo: <b@x.test\n\nhi", "data"),
            (b"From: a@x.test\nTo: undisclosed-recipients:;\n\nhi", "to"),
        ] {
            let refused = letter(mail, EnvelopeOptions::default()).unwrap_err();
            assert_eq!(refused.field, field, "{refused}");
        }
    }
}
