//! Encryption and signatures of HTTP events.

use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::random::random_bytes;
use crate::signature::hex;

const BLOCK: usize = 16;

/// Encrypts an event: AES-256-CBC with the hash of the key, PKCS#7 padding, the IV first, base64.
pub fn encrypt(key: &str, text: &str) -> String {
    encrypt_with(key, text, random_bytes())
}

fn encrypt_with(key: &str, text: &str, iv: [u8; BLOCK]) -> String {
    let cipher = Aes256::new(&Sha256::digest(key.as_bytes()));
    let padding = BLOCK - text.len() % BLOCK;
    let mut plain = text.as_bytes().to_vec();
    // At most 16.
    plain.resize(text.len() + padding, u8::try_from(padding).unwrap_or_default());
    let (mut out, mut last) = (iv.to_vec(), iv);
    for block in plain.chunks_exact(BLOCK) {
        for (byte, plain) in last.iter_mut().zip(block) {
            *byte ^= plain;
        }
        let mut block = last.into();
        cipher.encrypt_block(&mut block);
        last = block.into();
        out.extend_from_slice(&last);
    }
    STANDARD.encode(out)
}

/// Returns `X-Lark-Signature`: a plain hash, not an HMAC, over the bytes of the body.
pub fn signature(key: &str, timestamp: u64, nonce: &str, body: &str) -> String {
    let text = format!("{timestamp}{nonce}{key}{body}");
    hex(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_and_signature_match_the_vectors_computed_with_another_library() {
        let iv = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let text = r#"{"challenge":"c1","token":"vt","type":"url_verification"}"#;
        let encrypted = encrypt_with("test-encrypt-key", text, iv);
        assert_eq!(
            encrypted,
            "AAECAwQFBgcICQoLDA0OD47mz+aMA6ocLBGE+7lXLVeZi57jTTTEKzmH9SQ/cndt57AJt8i+24AjQBG4viDv\
             ZBh882V3Tlhe31aiIIE8C/g="
        );
        let body = format!(r#"{{"encrypt":"{encrypted}"}}"#);
        assert_eq!(
            signature("test-encrypt-key", 1_700_000_000, "abc", &body),
            "5405655a97e4fca078a0860049d03c73b62164c8c860de20a26b315652b8b7b8"
        );
    }
}
