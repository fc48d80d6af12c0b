//! Seeded random numbers: uniform, exponential and Zipf.

/// SplitMix64. The same seed gives the same numbers on every machine.
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to and without 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        // The upper half of the product of a 32-bit number and `end` is below `end`.
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    /// A number of the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// The Zipf distribution: rank `k` of 1 to `count` has a probability in proportion to `k^-exponent`.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    pub count: f64,
    pub exponent: f64,
}

impl Zipf {
    /// Draws a rank; 1 is the most popular one.
    ///
    /// A number is drawn from the continuous density `x^-exponent` between 1 and `count + 1`, and its
    /// integer part `k` is accepted in proportion to `k^-exponent` over the mass of that density
    /// between `k` and `k + 1`. This ratio is largest for `k = 1`, so it is divided by that of 1.
    pub fn draw(&self, random: &mut Random) -> f64 {
        let (all, first) = (self.mass(1.0, self.count + 1.0), self.mass(1.0, 2.0));
        loop {
            let rank = self.inverse(random.unit() * all).floor().clamp(1.0, self.count);
            let accepted = rank.powf(-self.exponent) * first / self.mass(rank, rank + 1.0);
            if random.unit() < accepted {
                return rank;
            }
        }
    }

    /// Share of the first rank.
    pub fn top_share(&self) -> f64 {
        1.0 / self.sum(self.count)
    }

    /// Number of ranks whose share is at least `share`.
    pub fn ranks_above(&self, share: f64) -> f64 {
        let rank = (self.top_share() / share).powf(1.0 / self.exponent);
        rank.floor().clamp(0.0, self.count)
    }

    /// Mean of the ranks.
    pub fn mean(&self) -> f64 {
        let numbers = Self { exponent: self.exponent - 1.0, ..*self };
        numbers.sum(self.count) / self.sum(self.count)
    }

    /// The sum of `k^-exponent` up to `end`: its first terms exactly, the others by the integral
    /// with half of the first and the last term.
    fn sum(&self, end: f64) -> f64 {
        let exact = end.min(1_000.0);
        let term = |rank: f64| rank.powf(-self.exponent);
        let mut sum: f64 = (1..=exact as u32).map(|rank| term(f64::from(rank))).sum();
        if end > exact {
            sum += self.mass(exact, end) + (term(end) - term(exact)) / 2.0;
        }
        sum
    }

    /// The integral of `x^-exponent`.
    fn mass(&self, from: f64, to: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 {
            (to / from).ln()
        } else {
            (to.powf(power) - from.powf(power)) / power
        }
    }

    /// The number up to which the integral from 1 is `mass`.
    fn inverse(&self, mass: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { mass.exp() } else { (1.0 + mass * power).powf(1.0 / power) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_means_of_their_distributions() {
        let mut random = Random::new(1);
        let count = 200_000;
        let mean = |mut draw: Box<dyn FnMut() -> f64>| {
            (0..count).map(|_| draw()).sum::<f64>() / f64::from(count)
        };
        let mut other = Random::new(2);
        let unit = mean(Box::new(move || random.unit()));
        assert!((unit - 0.5).abs() < 0.005, "{unit}");
        let exponential = mean(Box::new(move || other.exponential(3.0)));
        assert!((exponential - 3.0).abs() < 0.03, "{exponential}");
        let mut random = Random::new(3);
        let below = mean(Box::new(move || f64::from(random.below(7))));
        assert!((below - 3.0).abs() < 0.02, "{below}");
    }

    #[test]
    fn zipf_ranks_are_drawn_by_their_shares() {
        for exponent in [0.5, 1.0, 2.0] {
            let zipf = Zipf { count: 50.0, exponent };
            let (mut random, mut seen) = (Random::new(4), [0_u32; 51]);
            for _ in 0..200_000 {
                seen[zipf.draw(&mut random) as usize] += 1;
            }
            let sum: f64 = (1..=50).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1, 2, 7, 50] {
                let expected = (rank as f64).powf(-exponent) / sum;
                let share = f64::from(seen[rank]) / 200_000.0;
                let tolerance = 5.0 * (expected / 200_000.0).sqrt();
                assert!((share - expected).abs() < tolerance, "{exponent} {rank}: {share}");
            }
            assert!((zipf.top_share() - 1.0 / sum).abs() < 1e-9);
        }
    }

    #[test]
    fn sums_of_many_ranks_agree_with_adding_them() {
        for exponent in [0.6, 1.0, 2.0] {
            let zipf = Zipf { count: 300_000.0, exponent };
            let sum: f64 = (1..=300_000).map(|rank| f64::from(rank).powf(-exponent)).sum();
            assert!((zipf.sum(zipf.count) / sum - 1.0).abs() < 1e-6, "{exponent}");
        }
        let zipf = Zipf { count: 1_000.0, exponent: 1.0 };
        assert_eq!(zipf.ranks_above(zipf.top_share() / 10.0), 10.0);
        assert!((Zipf { count: 3.0, exponent: 0.0 }.mean() - 2.0).abs() < 1e-9);
    }
}
