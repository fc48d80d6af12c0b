//! Envelope ids: tokens by which a delivery status notification proves that it is about a mail
//! that this courier has sent.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use monoco_core::record::RecordId;
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// The key of the tokens. A forged notification cannot contain the token of a delivery, because
/// only the servers on the way of its mail have seen it.
#[derive(Clone)]
pub struct EnvelopeKey([u8; 32]);

impl EnvelopeKey {
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Returns the envelope id of a delivery: its id, a dot, and its token.
    pub fn envelope_id(&self, delivery: &RecordId) -> String {
        format!("{delivery}.{}", self.token(delivery))
    }

    /// Returns the delivery of an envelope id, or `None` when its token is not the delivery's.
    /// Servers may change the case.
    pub fn read(&self, envelope_id: &str) -> Option<RecordId> {
        let envelope_id = envelope_id.trim().to_ascii_lowercase();
        let (delivery, token) = envelope_id.split_once('.')?;
        let delivery = delivery.parse().ok()?;
        self.verify(token, &delivery).then_some(delivery)
    }

    /// Returns the token of a delivery: 32 hex digits.
    fn token(&self, delivery: &RecordId) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC accepts a key of any length");
        mac.update(delivery.to_string().as_bytes());
        let token = mac.finalize().into_bytes();
        token[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn verify(&self, token: &str, delivery: &RecordId) -> bool {
        token.as_bytes().ct_eq(self.token(delivery).as_bytes()).into()
    }
}

impl fmt::Debug for EnvelopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnvelopeKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_id_proves_its_delivery() {
        let [first, second]: [RecordId; 2] =
            ["0", "1"].map(|digit| format!("dlv_{}", digit.repeat(48)).parse().unwrap());
        let key = EnvelopeKey::new([7; 32]);
        let id = key.envelope_id(&first);
        assert_eq!(id.len(), 85, "RFC 3461 allows 100");
        assert_eq!(key.read(&id), Some(first));
        assert_eq!(key.read(&id.to_uppercase()), Some(first));
        let (_, token) = id.split_once('.').unwrap();
        for forged in [format!("{second}.{token}"), format!("{first}."), token.to_owned()] {
            assert_eq!(key.read(&forged), None, "{forged}");
        }
        assert_eq!(EnvelopeKey::new([8; 32]).read(&id), None);
        assert_eq!(format!("{key:?}"), "EnvelopeKey(…)");
    }
}
