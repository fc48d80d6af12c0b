//! A point in time, as the caller's clock told it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 in UTC.
///
/// Everything that is stored, sorted or compared uses our own clock in this
/// form; what a sender claims about time is content.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant that lies `ms` milliseconds after the start of 1970.
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since 1970.
    pub const fn ms(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not after.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// The text is not a time we understand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a time: want RFC 3339, such as 2026-02-06T20:45:00Z")]
pub struct InvalidTime;

/// A day and a time of day in UTC.
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    secs: i64,
    ms: i64,
}

impl Timestamp {
    /// As RFC 3339 in UTC with milliseconds: `2026-02-06T20:45:00.000Z`.
    pub fn rfc3339(self) -> String {
        let Civil { year, month, day, secs, ms } = self.civil();
        let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }

    /// As it is written in file names: `20260206T204500`.
    pub fn compact(self) -> String {
        let Civil { year, month, day, secs, .. } = self.civil();
        let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
        format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}")
    }

    /// Reads RFC 3339, in any offset, to the millisecond.
    ///
    /// # Errors
    ///
    /// [`InvalidTime`], also for days that no calendar has.
    pub fn from_rfc3339(text: &str) -> Result<Self, InvalidTime> {
        let (date, rest) = text.split_at_checked(10).ok_or(InvalidTime)?;
        let (time, rest) = rest.split_at_checked(9).ok_or(InvalidTime)?;
        let number = |text: &str, from: usize, to: usize| -> Result<i64, InvalidTime> {
            let digits = text.get(from..to).ok_or(InvalidTime)?;
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(InvalidTime);
            }
            digits.parse().map_err(|_| InvalidTime)
        };
        let shaped = date.as_bytes()[4] == b'-'
            && date.as_bytes()[7] == b'-'
            && matches!(time.as_bytes()[0], b'T' | b't' | b' ')
            && time.as_bytes()[3] == b':'
            && time.as_bytes()[6] == b':';
        if !shaped {
            return Err(InvalidTime);
        }
        let (year, month, day) = (number(date, 0, 4)?, number(date, 5, 7)?, number(date, 8, 10)?);
        let (hour, minute) = (number(time, 1, 3)?, number(time, 4, 6)?);
        // A leap second is the last one of its minute.
        let second = number(time, 7, 9)?;
        if hour > 23 || minute > 59 || second > 60 {
            return Err(InvalidTime);
        }
        let days = days(year, month, day).ok_or(InvalidTime)?;
        let zone = rest.find(['Z', 'z', '+', '-']).ok_or(InvalidTime)?;
        let (fraction, zone) = rest.split_at(zone);
        let ms = match fraction.strip_prefix('.') {
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                let padded: String = digits.chars().chain("000".chars()).take(3).collect();
                padded.parse::<i64>().map_err(|_| InvalidTime)?
            }
            None if fraction.is_empty() => 0,
            _ => return Err(InvalidTime),
        };
        let offset = match zone.as_bytes() {
            [b'Z' | b'z'] => 0,
            [sign, _, _, b':', _, _] => {
                let (hours, minutes) = (number(zone, 1, 3)?, number(zone, 4, 6)?);
                if hours > 23 || minutes > 59 {
                    return Err(InvalidTime);
                }
                let minutes = hours * 60 + minutes;
                if *sign == b'-' { -minutes } else { minutes }
            }
            _ => return Err(InvalidTime),
        };
        let secs = days * 86_400 + hour * 3600 + minute * 60 + second.min(59) - offset * 60;
        Ok(Self(secs * 1000 + ms))
    }

    /// The proleptic Gregorian calendar, counted in eras of 400 years.
    fn civil(self) -> Civil {
        let (days, ms) = (self.0.div_euclid(86_400_000), self.0.rem_euclid(86_400_000));
        // Years that start in March have their leap day at the end.
        let days = days + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        Civil {
            year: year + era * 400 + i64::from(month >= 10),
            month: if month < 10 { month + 3 } else { month - 9 },
            day: day - (153 * month + 2) / 5 + 1,
            secs: ms / 1000,
            ms: ms % 1000,
        }
    }
}

/// A time as RFC 3339, for `#[serde(with)]`.
pub mod rfc3339 {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::Timestamp;

    /// Writes it.
    pub fn serialize<S: Serializer>(time: &Timestamp, writer: S) -> Result<S::Ok, S::Error> {
        writer.serialize_str(&time.rfc3339())
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(reader)?;
        Timestamp::from_rfc3339(&text).map_err(de::Error::custom)
    }
}

/// A time that may be missing, as RFC 3339, for `#[serde(with)]`.
pub mod rfc3339_maybe {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::Timestamp;

    /// Writes it.
    pub fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        writer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => writer.serialize_str(&time.rfc3339()),
            None => writer.serialize_none(),
        }
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        reader: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(reader)?;
        text.map(|text| Timestamp::from_rfc3339(&text).map_err(de::Error::custom)).transpose()
    }
}

/// Days from 1970 to a day of the calendar; `None` when it has no such day.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * month + 2) / 5 + day - 1;
    Some(era * 146_097 + year * 365 + year / 4 - year / 100 + of_year - 719_468)
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
    fn times_are_written_and_read_as_everybody_does() {
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
        ] {
            assert_eq!(read(bad), Err(InvalidTime), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_time_comes_back(ms in -62_135_596_800_000_i64..253_402_300_800_000) {
            let time = Timestamp::from_ms(ms);
            proptest::prop_assert_eq!(Timestamp::from_rfc3339(&time.rfc3339()), Ok(time));
        }
    }

    #[test]
    fn adding_never_wraps_and_since_is_never_negative() {
        let end = Timestamp::from_ms(i64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Timestamp::from_ms(5).since(Timestamp::from_ms(9)), Duration::ZERO);
        assert_eq!(Timestamp::from_ms(9).since(Timestamp::from_ms(5)), Duration::from_millis(4));
    }
}
