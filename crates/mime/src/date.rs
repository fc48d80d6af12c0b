//! Dates of mail headers (RFC 5322), with the obsolete and some broken forms.

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
/// Named zones of RFC 822, in hours from UTC.
const ZONES: [(&str, i64); 8] = [
    ("est", -5),
    ("edt", -4),
    ("cst", -6),
    ("cdt", -5),
    ("mst", -7),
    ("mdt", -6),
    ("pst", -8),
    ("pdt", -7),
];
/// Longest value that is read, in bytes.
const MAX_VALUE: usize = 256;

/// Reads a date as milliseconds since 1970 in UTC. `None` when it names no existing time.
///
/// The day of the week is not checked. Unknown zones count as UTC, as RFC 5322 requires. A
/// leap second counts as the second before it.
pub fn parse(value: &str) -> Option<i64> {
    let value =
        without_comments(&value[..value.floor_char_boundary(MAX_VALUE)]).to_ascii_lowercase();
    let mut date = DateParts::default();
    let clock = clock_range(&value)?;
    let (hour, minute, second) = read_clock(&value[clock.clone()])?;
    for word in words(&value[..clock.start]) {
        date.add(word)?;
    }
    let mut offset = None;
    for word in value[clock.end..].split_whitespace() {
        match read_zone(word) {
            Some(minutes) if offset.is_none() => offset = Some(minutes),
            // The form of `asctime` has the year behind the clock.
            _ if date.year.is_none() => date.add(word)?,
            // `+0800 CST`: the first zone counts.
            _ => {}
        }
    }
    let (year, month, day) = (full_year(date.year?)?, date.month?, date.day?);
    if !(1..=days_of(year, month)).contains(&day) {
        return None;
    }
    let minutes = (days_since_1970(year, month, day) * 24 + hour) * 60 + minute;
    Some(((minutes - offset.unwrap_or(0)) * 60 + second) * 1_000)
}

#[derive(Default)]
struct DateParts {
    day: Option<i64>,
    month: Option<i64>,
    /// The digits of the year, because two of them mean another century.
    year: Option<(i64, usize)>,
}

impl DateParts {
    /// Takes one word of the date; `None` when it has no place in one.
    fn add(&mut self, word: &str) -> Option<()> {
        if let Ok(number) = word.parse::<u32>() {
            let number = i64::from(number);
            match (self.day, self.month) {
                (None, _) if word.len() <= 2 => self.day = Some(number),
                _ if self.year.is_none() => self.year = Some((number, word.len())),
                _ => return None,
            }
            return Some(());
        }
        let start = word.get(..3)?;
        match MONTHS.iter().position(|month| *month == start) {
            Some(index) if self.month.is_none() => self.month = i64::try_from(index + 1).ok(),
            _ if ["mon", "tue", "wed", "thu", "fri", "sat", "sun"].contains(&start) => {}
            _ => return None,
        }
        Some(())
    }
}

/// Words of the date. Some senders write `21-Nov-2026`.
fn words(date: &str) -> impl Iterator<Item = &str> {
    date.split(|c: char| c.is_whitespace() || matches!(c, ',' | '-' | '.'))
        .filter(|word| !word.is_empty())
}

/// Range of `09:55:06` in the value; blanks around colons belong to it.
fn clock_range(value: &str) -> Option<std::ops::Range<usize>> {
    let first = value.find(':')?;
    let before = value[..first].trim_end();
    let start = before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let mut end = first;
    while value[end..].trim_start().starts_with(':') {
        end = value.len() - value[end..].trim_start().len() + 1;
        end = value.len() - value[end..].trim_start().len();
        let is_digit = |c: char| c.is_ascii_digit() || c == '.';
        end += value[end..].find(|c| !is_digit(c)).unwrap_or(value.len() - end);
    }
    Some(start..end)
}

fn read_clock(clock: &str) -> Option<(i64, i64, i64)> {
    let mut numbers = clock.split(':').map(|number| {
        let whole = number.trim().split('.').next()?;
        if whole.len() > 2 { None } else { whole.parse::<u8>().ok().map(i64::from) }
    });
    let (hour, minute) = (numbers.next()??, numbers.next()??);
    let second = numbers.next().unwrap_or(Some(0))?;
    let is_time = hour < 24 && minute < 60 && second <= 60 && numbers.next().is_none();
    is_time.then_some((hour, minute, second.min(59)))
}

/// Offset of a zone in minutes; `None` for a word that is no zone.
fn read_zone(word: &str) -> Option<i64> {
    let word = word.trim_matches([',', ';']);
    // `GMT+0800` is broken and common.
    let number = word.trim_start_matches("gmt").trim_start_matches("utc");
    if let Some(digits) = number.strip_prefix(['+', '-']) {
        let digits = digits.replace(':', "");
        let value: i64 = digits.parse::<u16>().ok()?.into();
        let minutes = match digits.len() {
            4 if value % 100 < 60 => value / 100 * 60 + value % 100,
            1 | 2 => value * 60,
            _ => return None,
        };
        let sign = if number.starts_with('-') { -1 } else { 1 };
        return (minutes < 24 * 60).then_some(sign * minutes);
    }
    if !word.bytes().all(|byte| byte.is_ascii_alphabetic()) || word.is_empty() {
        return None;
    }
    let hours = ZONES.iter().find(|(name, _)| *name == word).map_or(0, |(_, hours)| *hours);
    Some(hours * 60)
}

/// Years of two digits are of 1950 to 2049; years of three digits count from 1900.
fn full_year((year, digits): (i64, usize)) -> Option<i64> {
    match digits {
        1 | 2 if year < 50 => Some(2000 + year),
        1..=3 => Some(1900 + year),
        4 if year >= 1900 => Some(year),
        _ => None,
    }
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01, in the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // The year starts in March here, so that the leap day is its last.
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// Replaces comments, which may nest, by a space.
fn without_comments(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut depth = 0_usize;
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '(' => {
                depth += 1;
                out.push(' ');
            }
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn dates_are_read_in_all_forms() {
        let want = Some(880_127_706_000);
        for value in [
            "Fri, 21 Nov 1997 09:55:06 -0600",
            "21 Nov 1997 09:55:06 -0600",
            "Fri, 21 Nov 97 09:55:06 -0600",
            "Fri, 21 Nov 097 09:55:06 -0600",
            "Fri, 21 Nov 1997 09(comment):   55  :  06 -0600",
            "fri,21-nov-1997 09:55:06 CST",
            "Friday, 21 November 1997 09:55:06 -0600 (CST (\\) really))",
            "Fri Nov 21 15:55:06 1997",
            "Fri Nov 21 15:55:06 GMT 1997",
            "Fri, 21 Nov 1997 15:55:06",
            "Fri, 21 Nov 1997 15:55:06 Z",
            "Fri, 21 Nov 1997 15:55:06 -0000",
            "Fri, 21 Nov 1997 15:55:06.123 UT",
            "Fri, 21 Nov 1997 23:55:06 GMT+0800",
            "Fri, 21 Nov 1997 23:55:06 +08:00",
            "Mon, 21 Nov 1997 23:55:06 +0800 CST",
        ] {
            assert_eq!(parse(value), want, "{value}");
        }
        assert_eq!(parse("1 Jan 1970 00:00 +0000"), Some(0));
        assert_eq!(parse("31 Dec 1969 23:59:59 +0000"), Some(-1_000));
        assert_eq!(parse("29 Feb 2000 12:00:00 +0000"), Some(951_825_600_000));
        assert_eq!(parse("31 Dec 2016 23:59:60 +0000"), Some(1_483_228_799_000));
        assert_eq!(parse("1 Jan 2026 00:00:00 +1400"), Some(1_767_175_200_000));
    }

    #[test]
    fn times_that_do_not_exist_are_not_dates() {
        for value in [
            "",
            "yesterday",
            "29 Feb 1900 12:00:00 +0000",
            "31 Apr 2026 12:00:00 +0000",
            "0 Apr 2026 12:00:00 +0000",
            "1 Foo 2026 12:00:00 +0000",
            "1 Apr 2026 24:00:00 +0000",
            "1 Apr 2026 12:60:00 +0000",
            "1 Apr 2026",
            "1 Apr 12:00:00",
            "1 Apr 99999 12:00:00 +0000",
            "1 Apr 1234 12:00:00 +0000",
            "1 Apr 2026 ::: +0000",
            "1 Apr 2026 12:99999999999999999999 +0000",
            ":",
            "((((((((",
            "日本 1 Apr 2026 1",
        ] {
            assert_eq!(parse(value), None, "{value}");
        }
        assert_eq!(parse(&"(".repeat(1_000_000)), None);
        assert_eq!(parse(&"12:".repeat(100_000)), None);
    }
}
