//! Random ids of tickets, tokens, messages and connections. All are URL-safe.

use crate::signature::hex;

/// Returns random bytes of the system.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The system's generator fails only before it is seeded at boot.
    let _ = getrandom::fill(&mut bytes);
    bytes
}

/// Returns 32 hexadecimal digits.
pub fn random_hex() -> String {
    hex(&random_bytes::<16>())
}

/// Returns a UUID of version 4.
pub fn random_uuid() -> String {
    let mut bytes = random_bytes::<16>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hex(&bytes);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}

/// Returns a number below `end`, or 0 when `end` is 0.
pub fn random_below(end: usize) -> usize {
    let number = u64::from_le_bytes(random_bytes());
    usize::try_from(number % (end.max(1) as u64)).unwrap_or(0)
}
