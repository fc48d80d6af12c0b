//! Unique messages of 1 KiB of text.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Size of a message in bytes.
pub const SIZE: usize = 1024;

/// Generates messages that differ from those of every other generator.
///
/// A store that identifies messages by their content would do no work for a repeated
/// message. Only letters and digits, so that JSON needs no escapes.
pub struct Payload {
    text: [u8; SIZE],
    generator: u32,
    count: u64,
}

impl Payload {
    pub fn new() -> Self {
        static GENERATORS: AtomicU32 = AtomicU32::new(0);
        const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";
        // xorshift with a fixed seed: does not compress, and is the same in every run.
        let generator = GENERATORS.fetch_add(1, Relaxed);
        let mut noise = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(generator);
        let text = std::array::from_fn(|_| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            LETTERS[(noise >> 59) as usize]
        });
        Self { text, generator, count: 0 }
    }

    pub fn next(&mut self) -> &[u8; SIZE] {
        let name = format!("{:08x}x{:016x}x", self.generator, self.count);
        self.text[..name.len()].copy_from_slice(name.as_bytes());
        self.count += 1;
        &self.text
    }
}
