//! The messages: 1 KiB of plain text each, no two alike.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes in a message.
pub const SIZE: usize = 1024;

/// Makes messages, different from those of every other maker.
///
/// Different, because a store that names messages by their content would do no
/// work for the second of two equal ones. Letters and digits only, so that a
/// message is as long in JSON as it is on its own.
pub struct Payload {
    text: [u8; SIZE],
    maker: u32,
    made: u64,
}

impl Payload {
    /// Another maker.
    pub fn new() -> Self {
        static MAKERS: AtomicU32 = AtomicU32::new(0);
        const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";
        // A fixed xorshift: noise that does not compress, the same every run.
        let maker = MAKERS.fetch_add(1, Relaxed);
        let mut noise = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(maker);
        let text = std::array::from_fn(|_| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            LETTERS[(noise >> 59) as usize]
        });
        Self { text, maker, made: 0 }
    }

    /// The next message.
    pub fn next(&mut self) -> &[u8; SIZE] {
        let name = format!("{:08x}x{:016x}x", self.maker, self.made);
        self.text[..name.len()].copy_from_slice(name.as_bytes());
        self.made += 1;
        &self.text
    }
}
