//! Sender and recipients of a mail, as named in its header.
//!
//! For mails that are submitted without an envelope, as by `sendmail -t`. Addresses are
//! taken as written: a name that is encoded (RFC 2047) may contain a comma, but an address
//! is never encoded.

use std::collections::BTreeSet;

use super::address::AddressList;
use super::edit::{Edit, apply};
use super::head::{fields, line_at, unfold};

/// Addresses in a mail. They are extracted, not validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The only address of `From`, or else that of `Sender`.
    pub from: Option<String>,
    /// `To`, `Cc` and `Bcc`, or the `Resent-` fields of a resent mail.
    pub to: Vec<String>,
}

/// A field is not a list of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidEnvelope {
    pub field: &'static str,
    pub why: &'static str,
}

/// Reads the addresses of a mail.
///
/// # Errors
///
/// [`InvalidEnvelope`] for a field that two readers could understand differently.
pub fn envelope(mail: &[u8]) -> Result<Envelope, InvalidEnvelope> {
    let resent = ["Resent-To", "Resent-Cc", "Resent-Bcc"];
    let is_resent = fields(mail).any(|field| resent.iter().any(|name| field.is(mail, name)));
    let (to, from) = match is_resent {
        true => (resent, ["Resent-From", "Resent-Sender"]),
        false => (["To", "Cc", "Bcc"], ["From", "Sender"]),
    };
    let mut envelope = Envelope::default();
    let mut seen = BTreeSet::new();
    for name in to {
        let found = addresses(mail, name)?;
        envelope.to.extend(found.into_iter().filter(|address| seen.insert(address.clone())));
    }
    for name in from {
        let mut found = addresses(mail, name)?;
        found.dedup();
        if let ([_], Some(one)) = (found.as_slice(), found.first()) {
            envelope.from = Some(one.clone());
            break;
        }
    }
    Ok(envelope)
}

/// Removes the `Bcc` fields of a mail.
pub fn without_bcc(mail: &[u8]) -> Vec<u8> {
    let hidden =
        |name: &str| ["Bcc", "Resent-Bcc"].iter().any(|bcc| bcc.eq_ignore_ascii_case(name));
    let edits: Vec<_> = fields(mail)
        .filter(|field| str::from_utf8(&mail[field.name.clone()]).is_ok_and(hidden))
        .map(|field| {
            let end = line_at(mail, field.value.end).map_or(mail.len(), |rest| rest.end);
            Edit { at: field.name.start..end, with: Vec::new() }
        })
        .collect();
    apply(mail, &edits)
}

/// The addresses of all fields of that name.
fn addresses(mail: &[u8], name: &'static str) -> Result<Vec<String>, InvalidEnvelope> {
    let mut all = Vec::new();
    for field in fields(mail).filter(|field| field.is(mail, name)) {
        let value = unfold(&mail[field.value]);
        let read = AddressList::read(&String::from_utf8_lossy(&value)).strict();
        all.extend(read.map_err(|why| InvalidEnvelope { field: name, why })?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_has_sender_and_recipients() {
        let mail =
            b"From: Ann <ann@x.test>\r\nTO: bob@x.test,\r\n carl@x.test\r\nto: dora@x.test\r\n\
                     Cc: bob@x.test\r\nBcc: eve@x.test\r\n\r\nTo: nobody@x.test\r\n";
        let found = envelope(mail).unwrap();
        assert_eq!(found.from.as_deref(), Some("ann@x.test"));
        assert_eq!(found.to, ["bob@x.test", "carl@x.test", "dora@x.test", "eve@x.test"]);
        let two = b"From: a@x.test, b@x.test\nSender: b@x.test\n\nhi";
        assert_eq!(envelope(two).unwrap().from.as_deref(), Some("b@x.test"));
        let without_recipient = b"From: a@x.test, b@x.test\n\nhi";
        assert_eq!(envelope(without_recipient).unwrap(), Envelope::default());
        let resent = b"Resent-To: new@x.test\nResent-From: fwd@x.test\nFrom: ann@x.test\n\
                       To: old@x.test\n\nhi";
        let found = envelope(resent).unwrap();
        assert_eq!(
            (found.from.as_deref(), found.to),
            (Some("fwd@x.test"), vec!["new@x.test".into()])
        );
        assert_eq!(
            envelope(b"Bcc: <a@x.test\n\n").unwrap_err().to_string(),
            "Bcc: a < without its >"
        );
    }

    #[test]
    fn only_bcc_fields_are_removed() {
        let mail = b"From: a@x.test\r\nBCC: eve@x.test,\r\n\tmal@x.test\r\nX-Bcc: x\r\n\
                     Resent-Bcc: y@x.test\r\nSubject: s\xe9\r\n\r\nBcc: text\r\n";
        let kept = b"From: a@x.test\r\nX-Bcc: x\r\nSubject: s\xe9\r\n\r\nBcc: text\r\n";
        assert_eq!(without_bcc(mail), kept);
        assert_eq!(without_bcc(kept), kept);
        assert_eq!(without_bcc(b""), b"");
    }
}
