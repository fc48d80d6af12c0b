//! What is measured and how much, from the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::args::Args;

/// Messages per second while latencies are measured.
pub const MESSAGE_RATE: u64 = 100;

/// Sizes and durations of the benchmark.
pub struct Plan {
    /// Parent directory of all data.
    pub dir: PathBuf,
    /// Repetitions of each rate.
    pub repeats: usize,
    /// Frames of one repetition.
    pub frames: u64,
    /// How long messages arrive while latencies are measured.
    pub latency: Duration,
    /// Number of tunnels whose memory is measured.
    pub tunnels: usize,
    /// Number of tunnels of each network whose memory is measured together.
    pub mixed_tunnels: usize,
    /// Size of the file whose memory is measured, in bytes.
    pub file_bytes: u64,
}

impl Plan {
    pub fn new(args: &Args) -> Self {
        let full = Self {
            dir: args.dir.clone(),
            repeats: 5,
            frames: 20_000,
            latency: Duration::from_secs(30),
            tunnels: 100,
            mixed_tunnels: 25,
            file_bytes: 50 << 20,
        };
        if args.quick {
            let (frames, latency) = (2_000, Duration::from_secs(5));
            Self { repeats: 1, frames, latency, tunnels: 20, mixed_tunnels: 5, ..full }
        } else {
            full
        }
    }
}
