//! Rate limits by reserved time slots.
//!
//! Each key (a recipient, a domain, a tunnel) has a point in time up to which it is reserved.
//! A letter reserves the next slot of all its keys when it arrives, and is due then. So a
//! million letters behind a limit are rows with a due time; none is read before its slot, and
//! letters to one recipient keep their order.

use std::fmt;
use std::str::FromStr;

use crate::time::Timestamp;

mod pacer;

pub use pacer::SendPacer;

/// A number of letters per time span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number per span, and in one burst.
    pub count: u32,
    pub span_ms: u64,
}

/// The known rate limits of a provider. A message or part that is sent must fit into all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendLimits {
    /// Limits of each address.
    pub per_target: Vec<Rate>,
    /// Limits of all addresses of the tunnel together: the same for every kind of address that
    /// they apply to, and empty for the others.
    pub per_tunnel: Vec<Rate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid rate; expected a whole number from 1 and s, min, h or day, such as 10/min")]
pub struct InvalidRate;

/// The time up to which a key is reserved, in microseconds since 1970.
///
/// Milliseconds would be too coarse for fast rates.
pub type ReservedUntil = i64;

impl Rate {
    /// The distance of two slots, in microseconds.
    fn step(&self) -> i64 {
        let step = u128::from(self.span_ms) * 1_000 / u128::from(self.count.max(1));
        i64::try_from(step).unwrap_or(i64::MAX).max(1)
    }

    /// How early the letters of a burst may be sent, in microseconds.
    fn tolerance(&self) -> i64 {
        self.step().saturating_mul(i64::from(self.count.max(1)) - 1)
    }
}

/// Reserves the next slot of all `keys` together. Returns its time, and the new reservation
/// of each key.
pub fn reserve(
    keys: &[(Rate, Option<ReservedUntil>)],
    now: Timestamp,
) -> (Timestamp, Vec<ReservedUntil>) {
    let now_us = now.ms().saturating_mul(1_000);
    let turn = |(rate, reserved): &(Rate, Option<ReservedUntil>)| {
        reserved.map_or(now_us, |reserved| reserved.saturating_sub(rate.tolerance()))
    };
    let at = keys.iter().map(turn).fold(now_us, i64::max);
    let next = |(rate, reserved): &(Rate, Option<ReservedUntil>)| {
        reserved.unwrap_or(at).max(at).saturating_add(rate.step())
    };
    let due = Timestamp::from_ms(at.saturating_add(999) / 1_000);
    (due.max(now), keys.iter().map(next).collect())
}

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let (count, unit) = text.trim().split_once('/').ok_or(InvalidRate)?;
        let count = count.trim().parse().ok().filter(|count| *count > 0).ok_or(InvalidRate)?;
        let span_ms = match unit.trim() {
            "s" | "sec" | "second" => 1_000,
            "m" | "min" | "minute" => 60_000,
            "h" | "hour" => 3_600_000,
            "d" | "day" => 86_400_000,
            _ => return Err(InvalidRate),
        };
        Ok(Self { count, span_ms })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.span_ms {
            1_000 => "s",
            60_000 => "min",
            3_600_000 => "h",
            _ => "day",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    /// The due times of letters that all arrive at `0`.
    fn dues(rate: Rate, letters: usize) -> Vec<i64> {
        let mut reserved = None;
        (0..letters)
            .map(|_| {
                let (due, next) = reserve(&[(rate, reserved)], Timestamp::from_ms(0));
                reserved = Some(next[0]);
                due.ms()
            })
            .collect()
    }

    #[test]
    fn burst_is_due_at_once_and_the_rest_in_its_slots() {
        assert_eq!(dues(rate("3/min"), 7), [0, 0, 0, 20_000, 40_000, 60_000, 80_000]);
        assert_eq!(dues(rate("1/s"), 3), [0, 1_000, 2_000]);
        assert_eq!(dues(rate("3000/s"), 3_003)[2_999..], [0, 1, 1, 1]);
    }

    #[test]
    fn idle_time_allows_one_burst_and_no_more() {
        let rate = rate("2/s");
        let (_, reserved) = reserve(&[(rate, Some(-10_000_000))], Timestamp::from_ms(0));
        let (second, reserved) = reserve(&[(rate, Some(reserved[0]))], Timestamp::from_ms(0));
        let (third, _) = reserve(&[(rate, Some(reserved[0]))], Timestamp::from_ms(0));
        assert_eq!((second.ms(), third.ms()), (0, 500));
    }

    #[test]
    fn slowest_key_decides_for_all_keys() {
        let (slow, fast) = (rate("1/min"), rate("100/s"));
        let (due, reserved) =
            reserve(&[(slow, Some(60_000_000)), (fast, None)], Timestamp::from_ms(0));
        assert_eq!(due.ms(), 60_000);
        assert_eq!(reserved, [120_000_000, 60_010_000]);
    }

    #[test]
    fn rates_are_read_as_they_are_written() {
        for text in ["10/min", "1/s", "100/h", "4294967295/day"] {
            assert_eq!(rate(text).to_string(), text);
        }
        assert_eq!(rate(" 5 / minute "), rate("5/min"));
        for text in ["", "10", "0/min", "-1/s", "1.5/s", "10/week", "10/", "/s", "5000000000/s"] {
            assert_eq!(text.parse::<Rate>(), Err(InvalidRate), "{text}");
        }
    }

    proptest! {
        #[test]
        fn span_has_at_most_twice_the_count_and_order_is_kept(
            count in 1_u32..50, gaps in prop::collection::vec(0_i64..3_000, 1..200),
        ) {
            let rate = Rate { count, span_ms: 1_000 };
            let (mut reserved, mut now, mut last) = (None, 0, 0);
            let mut dues = Vec::new();
            for gap in gaps {
                now += gap;
                let (due, next) = reserve(&[(rate, reserved)], Timestamp::from_ms(now));
                prop_assert!(due.ms() >= now.max(last));
                (reserved, last) = (Some(next[0]), due.ms());
                dues.push(due.ms());
            }
            for (at, due) in dues.iter().enumerate() {
                let within = dues[at..].iter().take_while(|other| **other < due + 1_000).count();
                prop_assert!(within <= 2 * count as usize, "{within} in a span of {count}");
            }
        }

        #[test]
        fn extreme_values_do_not_overflow(count in 1_u32.., span_ms in 1_u64.., reserved: Option<i64>, now: i64) {
            let (due, next) = reserve(&[(Rate { count, span_ms }, reserved)], Timestamp::from_ms(now));
            prop_assert!(due.ms() >= now && next.len() == 1);
        }
    }
}
