//! Parses times of the command line: RFC 3339, a day, or a duration ago.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use monoco_core::time::Timestamp;

use crate::cli::failure::CliError;

/// Parses `text` relative to `now`, in the time zone of the machine.
pub fn parse(text: &str, now: Timestamp) -> Result<Timestamp, CliError> {
    read(text, now, &TimeZone::system()).ok_or_else(|| {
        CliError::usage(format!(
            "invalid time {text:?}; expected 2026-02-06T20:45:00Z, 2026-02-06 or a duration ago, \
             such as 30m, 2h or 7d"
        ))
    })
}

/// Returns the start of the current day in the time zone of the machine.
pub fn today(now: Timestamp) -> Option<Timestamp> {
    let zone = TimeZone::system();
    let date = jiff::Timestamp::from_millisecond(now.ms()).ok()?.to_zoned(zone.clone()).date();
    midnight(date, &zone)
}

fn read(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    if let Ok(time) = Timestamp::from_rfc3339(text) {
        return Some(time);
    }
    if let Ok(date) = text.parse::<Date>() {
        return midnight(date, zone);
    }
    let unit = text.chars().last()?;
    let seconds: i64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return None,
    };
    let count = &text[..text.len() - unit.len_utf8()];
    let count: i64 = count.parse().ok().filter(|count| *count >= 0)?;
    let ago = seconds.checked_mul(1_000)?.checked_mul(count)?;
    Some(Timestamp::from_ms(now.ms().saturating_sub(ago)))
}

fn midnight(date: Date, zone: &TimeZone) -> Option<Timestamp> {
    let start = date.to_zoned(zone.clone()).ok()?;
    Some(Timestamp::from_ms(start.timestamp().as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_days_and_durations_are_parsed() {
        let now = Timestamp::from_rfc3339("2026-02-06T20:45:00Z").unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let when = |text: &str| read(text, now, &zone).map(Timestamp::rfc3339);
        for (text, expected) in [
            ("2026-02-01T00:00:00Z", "2026-02-01T00:00:00.000Z"),
            ("2026-02-06", "2026-02-05T22:00:00.000Z"),
            ("30s", "2026-02-06T20:44:30.000Z"),
            ("45m", "2026-02-06T20:00:00.000Z"),
            ("2h", "2026-02-06T18:45:00.000Z"),
            ("7d", "2026-01-30T20:45:00.000Z"),
            ("1w", "2026-01-30T20:45:00.000Z"),
        ] {
            assert_eq!(when(text).as_deref(), Some(expected), "{text}");
        }
        for bad in ["", "h", "-2h", "2", "2x", "yesterday", "2026-02-30", "99999999999999999d"] {
            assert_eq!(when(bad), None, "{bad}");
        }
    }
}
