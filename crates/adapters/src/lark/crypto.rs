//! Decryption and signatures of HTTP events, and the signature of custom robots.

use aws_lc_rs::cipher::{AES_256, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use monoco_core::hex;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

const BLOCK_BYTES: usize = 16;

/// Decrypts the value of `encrypt`: base64 of an IV and of AES-256-CBC, with the SHA-256 of the
/// Encrypt Key as key and PKCS#7 padding. `None` when it was not encrypted with this key.
pub(super) fn decrypt(encrypt_key: &str, encrypted: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(encrypted.trim()).ok()?;
    let (iv, text) = bytes.split_at_checked(BLOCK_BYTES)?;
    if text.is_empty() || text.len() % BLOCK_BYTES != 0 {
        return None;
    }
    let key: [u8; 32] = Sha256::digest(encrypt_key.as_bytes()).into();
    let key = UnboundCipherKey::new(&AES_256, &key).ok()?;
    let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
    let iv: [u8; BLOCK_BYTES] = iv.try_into().ok()?;
    let mut text = text.to_vec();
    let plain = key.decrypt(&mut text, DecryptionContext::Iv128(FixedLength::from(iv))).ok()?;
    Some(plain.to_vec())
}

/// Tells whether `signature` is that of a request: lower-case hex of the SHA-256 of timestamp,
/// nonce, Encrypt Key and body.
pub(super) fn is_signature(
    signature: &str,
    timestamp: &str,
    nonce: &str,
    encrypt_key: &str,
    body: &[u8],
) -> bool {
    let hash = Sha256::new()
        .chain_update(timestamp)
        .chain_update(nonce)
        .chain_update(encrypt_key)
        .chain_update(body)
        .finalize();
    is_same(&hex::encode(&hash), signature)
}

/// Compares two secrets in constant time.
pub(super) fn is_same(expected: &str, found: &str) -> bool {
    bool::from(expected.as_bytes().ct_eq(found.as_bytes()))
}

/// Returns the signature of a custom robot: the HMAC of nothing, with timestamp and secret as key.
pub(super) fn robot_signature(secret: &str, timestamp_s: i64) -> String {
    let key = format!("{timestamp_s}\n{secret}");
    let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes());
    let mac = mac.expect("HMAC accepts keys of any length");
    STANDARD.encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector in Lark's documentation.
    #[test]
    fn published_vector_is_decrypted() {
        let plain = decrypt("test key", "P37w+VZImNgPEO1RBhJ6RtKl7n6zymIbEG1pReEzghk=");
        assert_eq!(plain.unwrap(), b"hello world");
    }

    const ENCRYPTED: &str = "AAECAwQFBgcICQoLDA0OD47mz+aMA6ocLBGE+7lXLVeZi57jTTTEKzmH9SQ/cndt57A\
                             Jt8i+24AjQBG4viDvZBh882V3Tlhe31aiIIE8C/g=";

    #[test]
    fn computed_vectors_are_decrypted_and_signed() {
        let plain = decrypt("test-encrypt-key", ENCRYPTED).unwrap();
        assert_eq!(plain, br#"{"challenge":"c1","token":"vt","type":"url_verification"}"#);
        let body = format!(r#"{{"encrypt":"{ENCRYPTED}"}}"#);
        let signature = "5405655a97e4fca078a0860049d03c73b62164c8c860de20a26b315652b8b7b8";
        let check = |signature: &str, timestamp, nonce, key, body: &str| {
            is_signature(signature, timestamp, nonce, key, body.as_bytes())
        };
        assert!(check(signature, "1700000000", "abc", "test-encrypt-key", &body));
        assert!(!check(signature, "1700000001", "abc", "test-encrypt-key", &body));
        assert!(!check(signature, "1700000000", "abd", "test-encrypt-key", &body));
        assert!(!check(signature, "1700000000", "abc", "other", &body));
        assert!(!check(signature, "1700000000", "abc", "test-encrypt-key", &format!("{body} ")));
        assert!(!check("", "1700000000", "abc", "test-encrypt-key", &body));
        assert!(!check(&signature[1..], "1700000000", "abc", "test-encrypt-key", &body));
    }

    #[test]
    fn what_was_not_encrypted_with_the_key_is_rejected() {
        assert_eq!(decrypt("other", ENCRYPTED), None);
        for text in ["", "AAEC", "not base64!", "AAECAwQFBgcICQoLDA0ODw==", &ENCRYPTED[..40]] {
            assert_eq!(decrypt("test-encrypt-key", text), None, "{text}");
        }
    }

    #[test]
    fn robot_signature_is_that_of_the_computed_vector() {
        let signature = robot_signature("demo", 1_599_360_473);
        assert_eq!(signature, "l1N0gAcBjdwBvGm1xMjOF0XSyaLRpR7tuO5dHfhAYc8=");
    }
}
