//! Converts a raw mail to a letter, with the options of `sendmail`.

use monoco_core::letter::{InvalidLetter, Letter};
use serde_json::{Value, json};

/// Envelope given beside a mail. Missing parts are taken from its header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvelopeOptions {
    pub from: Option<String>,
    pub to: Vec<String>,
    pub tunnel: Option<String>,
}

/// Converts a mail to the JSON of a letter, which the doorman checks.
///
/// When the recipients are taken from the header, the `Bcc` field is removed.
///
/// # Errors
///
/// Fails when the bytes are not a mail, or when sender or recipients are neither given nor in
/// the header.
pub fn letter(mail: &[u8], options: EnvelopeOptions) -> Result<Value, InvalidLetter> {
    let invalid = |field: &str, why: String| InvalidLetter { field: field.to_owned(), why };
    let mail = without_envelope_line(mail);
    monoco_mime::check(mail).map_err(|error| invalid("data", error.to_string()))?;
    let EnvelopeOptions { from, to, tunnel } = options;
    let mut letter = Letter::default();
    letter.set_bytes(if to.is_empty() { monoco_mime::without_bcc(mail) } else { mail.to_vec() });
    let header = match (&from, to.is_empty()) {
        (Some(_), false) => monoco_mime::Envelope::default(),
        _ => monoco_mime::envelope(mail).map_err(|error| invalid("data", error.to_string()))?,
    };
    let missing =
        "missing: no sender is given, and the From and Sender fields of the mail name none";
    let from = from.or(header.from).ok_or_else(|| invalid("from", missing.to_owned()))?;
    let to = if to.is_empty() { header.to } else { to };
    if to.is_empty() {
        let why =
            "missing: no recipient is given, and the To, Cc and Bcc fields of the mail name none";
        return Err(invalid("to", why.to_owned()));
    }
    if let Some(tunnel) = tunnel {
        letter.extra.insert("tunnel".to_owned(), tunnel.into());
    }
    Ok(json!({"from": from, "to": to, "data": letter.data, "extra": letter.extra}))
}

/// Removes the `From ` line that mbox files have before each mail.
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
    fn missing_addresses_are_taken_from_the_header() {
        let made = letter(MAIL, EnvelopeOptions::default()).unwrap();
        let data = "From: Ann <ann@x.test>\nTo: bob@x.test\nSubject: hi\n\ntext\n";
        let wanted = json!({"from": "ann@x.test", "to": ["bob@x.test", "eve@x.test"],
                            "data": data, "extra": {}});
        assert_eq!(made, wanted);
    }

    #[test]
    fn given_addresses_are_used_and_the_mail_is_unchanged() {
        let options = EnvelopeOptions {
            from: Some("me@x.test".to_owned()),
            to: vec!["you@x.test".to_owned()],
            tunnel: Some("mail".to_owned()),
        };
        let made = letter(b"Bcc: <broken\n\nhi", options).unwrap();
        let wanted = json!({"from": "me@x.test", "to": ["you@x.test"],
                            "data": "Bcc: <broken\n\nhi", "extra": {"tunnel": "mail"}});
        assert_eq!(made, wanted);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_kept_as_latin1() {
        let options =
            EnvelopeOptions { to: vec!["b@x.test".to_owned()], ..EnvelopeOptions::default() };
        let made = letter(b"From: a@x.test\n\ncaf\xe9", options).unwrap();
        assert_eq!(made["extra"], json!({"charset": "latin-1"}));
        assert_eq!(made["data"], "From: a@x.test\n\ncaf\u{e9}");
    }

    #[test]
    fn mail_without_addresses_is_rejected() {
        for (mail, field) in [
            (&b""[..], "data"),
            (b"no header\n", "data"),
            (b"From: a@x.test\n\nhi", "to"),
            (b"To: a@x.test\n\nhi", "from"),
            (b"From: a@x.test\nTo: <b@x.test\n\nhi", "data"),
            (b"From: a@x.test\nTo: undisclosed-recipients:;\n\nhi", "to"),
        ] {
            let error = letter(mail, EnvelopeOptions::default()).unwrap_err();
            assert_eq!(error.field, field, "{error}");
        }
    }
}
