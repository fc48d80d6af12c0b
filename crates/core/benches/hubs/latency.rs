//! Latencies in buckets of one percent, so that memory does not grow with the messages.

/// Buckets per factor of two: neighbours differ by 1.1 %.
const BUCKETS_PER_DOUBLING: f64 = 64.0;

/// Latencies from 1 ns to 10 days.
const BUCKETS: usize = 50 * BUCKETS_PER_DOUBLING as usize;

#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: f64,
}

impl Latencies {
    pub fn new() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, sum_ns: 0.0 }
    }

    pub fn add(&mut self, ns: u64) {
        let bucket = ((ns.max(1) as f64).log2() * BUCKETS_PER_DOUBLING) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.sum_ns += ns as f64;
    }

    pub fn mean_ms(&self) -> f64 {
        self.sum_ns / self.count.max(1) as f64 / 1e6
    }

    /// The latency that this share of all messages does not exceed.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                // The middle of the bucket.
                return ((bucket as f64 + 0.5) / BUCKETS_PER_DOUBLING).exp2() / 1e6;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent() {
        let mut latencies = Latencies::new();
        for us in 1..=10_000 {
            latencies.add(us * 1_000);
        }
        assert!((latencies.mean_ms() - 5.0005).abs() < 1e-9);
        for (share, ms) in [(0.5, 5.0), (0.99, 9.9), (0.999, 9.99), (0.0, 0.001)] {
            let found = latencies.quantile_ms(share);
            assert!((found / ms - 1.0).abs() < 0.011, "{share}: {found}");
        }
        assert_eq!(Latencies::new().quantile_ms(0.5), 0.0);
    }
}
