//! Points in time: milliseconds since 1970 in UTC, and their RFC 3339 form.

use std::time::Duration;

use jiff::{SignedDuration, civil};
use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 in UTC.
///
/// Everything that is stored, sorted or compared uses the hub's clock in this form. Times
/// that a sender states are content.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    pub const fn ms(self) -> i64 {
        self.0
    }

    /// Returns the time since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid time; expected RFC 3339, such as 2026-02-06T20:45:00Z")]
pub struct InvalidTime;

/// The start of 1970 on the calendar.
const EPOCH: civil::DateTime = civil::date(1970, 1, 1).at(0, 0, 0, 0);

impl Timestamp {
    /// Writes RFC 3339 in UTC with milliseconds: `2026-02-06T20:45:00.000Z`.
    ///
    /// A time outside of the years 0 to 9999 is written as the nearest one inside.
    pub fn rfc3339(self) -> String {
        format!("{:.3}Z", self.civil())
    }

    /// Writes the form used in file names: `20260206T204500`.
    pub fn compact(self) -> String {
        let at = self.civil();
        let (date, time) = (at.date(), at.time());
        format!(
            "{:04}{:02}{:02}T{:02}{:02}{:02}",
            date.year(),
            date.month(),
            date.day(),
            time.hour(),
            time.minute(),
            time.second()
        )
    }

    /// Reads RFC 3339, in any offset, to the millisecond. The second 60 counts as 59.
    ///
    /// # Errors
    ///
    /// [`InvalidTime`] when the text has another form or names a day that does not exist.
    pub fn from_rfc3339(text: &str) -> Result<Self, InvalidTime> {
        Self::parse(text).ok_or(InvalidTime)
    }

    /// jiff accepts all of ISO 8601 (no seconds, no hyphens, years of six digits), so the
    /// form is checked here and jiff checks the calendar.
    fn parse(text: &str) -> Option<Self> {
        let (date_time, rest) = text.split_at_checked(19)?;
        let separators = [(4, "-"), (7, "-"), (10, "Tt "), (13, ":"), (16, ":")];
        let form = date_time.char_indices().all(|(at, c)| {
            match separators.iter().find(|(place, _)| *place == at) {
                Some((_, allowed)) => allowed.contains(c),
                None => c.is_ascii_digit(),
            }
        });
        if !form {
            return None;
        }
        let at: civil::DateTime = date_time.parse().ok()?;
        let (fraction, zone) = rest.split_at(rest.find(['Z', 'z', '+', '-'])?);
        let ms = match fraction.strip_prefix('.') {
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                format!("{digits:0<3}")[..3].parse::<i64>().ok()?
            }
            None if fraction.is_empty() => 0,
            _ => return None,
        };
        let since_epoch = i64::try_from(at.duration_since(EPOCH).as_millis()).ok()?;
        Some(Self(since_epoch + ms - offset_minutes(zone)? * 60_000))
    }

    /// The day and the time of day in UTC.
    fn civil(self) -> civil::DateTime {
        let first = civil::date(0, 1, 1).at(0, 0, 0, 0);
        EPOCH.saturating_add(SignedDuration::from_millis(self.0)).max(first)
    }
}

/// Reads `Z` or an offset such as `+02:00`.
fn offset_minutes(zone: &str) -> Option<i64> {
    let number = |text: &str, most: i64| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| digits && *number <= most)
    };
    let sign = match zone.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return zone.eq_ignore_ascii_case("z").then_some(0),
    };
    let (hours, minutes) = zone[1..].split_once(':')?;
    Some(sign * (number(hours, 23)? * 60 + number(minutes, 59)?))
}

/// Serializes a time as RFC 3339, for `#[serde(with)]`.
pub mod rfc3339 {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::Timestamp;

    pub fn serialize<S: Serializer>(time: &Timestamp, writer: S) -> Result<S::Ok, S::Error> {
        writer.serialize_str(&time.rfc3339())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(reader)?;
        Timestamp::from_rfc3339(&text).map_err(de::Error::custom)
    }
}

/// Serializes an optional time as RFC 3339, for `#[serde(with)]`.
pub mod rfc3339_maybe {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::Timestamp;

    pub fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        writer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => writer.serialize_str(&time.rfc3339()),
            None => writer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        reader: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(reader)?;
        text.map(|text| Timestamp::from_rfc3339(&text).map_err(de::Error::custom)).transpose()
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_as_rfc3339() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_770_410_700_000, "2026-02-06T20:45:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_ms(ms).rfc3339(), text);
            assert_eq!(Timestamp::from_rfc3339(text), Ok(Timestamp::from_ms(ms)));
        }
        assert_eq!(Timestamp::from_ms(1_770_410_700_000).compact(), "20260206T204500");
        let read = |text: &str| Timestamp::from_rfc3339(text).map(Timestamp::rfc3339);
        assert_eq!(read("2026-02-06T22:45:00+02:00").unwrap(), "2026-02-06T20:45:00.000Z");
        assert_eq!(read("2026-02-06 15:15:00.1234567-05:30").unwrap(), "2026-02-06T20:45:00.123Z");
        let nanoseconds = "2026-02-06t20:45:00.123456789999z";
        assert_eq!(read(nanoseconds).unwrap(), "2026-02-06T20:45:00.123Z");
        assert_eq!(read("2016-12-31T23:59:60Z").unwrap(), "2016-12-31T23:59:59.000Z");
        for bad in [
            "",
            "2026-02-06",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-02-06T24:00:00Z",
            "2026-02-06T20:45:00",
            "2026-02-06T20:45:00.Z",
            "2026-02-06T20:45:00+2:00",
            "+026-02-06T20:45:00Z",
            "2026-02-06T20:45:00Zx",
            "２０２６-02-06T20:45:00Z",
            "1770410700000",
            "2026-02-06T20:45Z",
            "20260206T204500Z",
            "2026-02-06T20:45:00,5Z",
            "2026-02-06T20:45:61Z",
            "2026-02-06T20:45:00+24:00",
            "2026-02-06T20:45:00Z[UTC]",
        ] {
            assert_eq!(read(bad), Err(InvalidTime), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_time_is_read_back_unchanged(ms in -62_135_596_800_000_i64..253_402_300_800_000) {
            let time = Timestamp::from_ms(ms);
            proptest::prop_assert_eq!(Timestamp::from_rfc3339(&time.rfc3339()), Ok(time));
        }
    }

    #[test]
    fn times_beyond_the_calendar_are_written_as_its_ends() {
        let text = |ms| Timestamp::from_ms(ms).rfc3339();
        assert_eq!(text(i64::MAX), "9999-12-31T23:59:59.999Z");
        assert_eq!(text(i64::MIN), "0000-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_ms(i64::MAX).compact(), "99991231T235959");
    }

    #[test]
    fn adding_never_wraps_and_since_is_never_negative() {
        let end = Timestamp::from_ms(i64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Timestamp::from_ms(5).since(Timestamp::from_ms(9)), Duration::ZERO);
        assert_eq!(Timestamp::from_ms(9).since(Timestamp::from_ms(5)), Duration::from_millis(4));
    }
}
