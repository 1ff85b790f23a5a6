//! Sizes and durations as people write them: `2MiB`, `10GiB`, `64KiB`, `1000`; `5ms`, `2s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serializer;

/// Suffixes a size may carry, with the bytes they stand for. Decimal ones are refused: whether `MB` means 10^6 or 2^20
/// is a guess, and a bench must not guess.
const UNITS: [(&str, u64); 6] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct Size(pub u64);

impl Size {
    /// The bytes as a `u32`, for settings that are one; `None` from 4 GiB on.
    pub fn to_u32(self) -> Option<u32> {
        u32::try_from(self.0).ok()
    }
}

/// Why a text is no size or duration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not a number with a known suffix.
    #[error(
        "{text:?} is no size: write bytes, or a number with KiB, MiB, GiB or TiB, for instance 2MiB"
    )]
    Size {
        /// As given.
        text: String,
    },
    /// More bytes than a 64-bit number holds.
    #[error("{text:?} is more bytes than can be counted")]
    TooLarge {
        /// As given.
        text: String,
    },
    /// Not a number with a unit of time.
    #[error(
        "{text:?} is no duration: write seconds, or a number with us, ms, s, m, h or d, for instance 5 or 5ms"
    )]
    Duration {
        /// As given.
        text: String,
    },
    /// No time, where some has to pass.
    #[error("{text:?} is no time at all: write more than 0, for instance 5ms")]
    NoTime {
        /// As given.
        text: String,
    },
    /// More time than anybody waits.
    #[error("{text:?} is longer than {days} day(s): write less, for instance 5s")]
    TooLong {
        /// As given.
        text: String,
        /// How long it may be.
        days: u64,
    },
}

/// Splits `12.5MiB` into `12.5` and `MiB`.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

impl FromStr for Size {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::Size {
            text: text.to_owned(),
        };
        let too_large = || ParseError::TooLarge {
            text: text.to_owned(),
        };
        let (number, suffix) = split(text);
        let number = number.replace('_', "");
        let unit = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(suffix))
            .map(|(_, bytes)| *bytes)
            .ok_or_else(wrong)?;
        match number.split_once('.') {
            None if number.bytes().all(|b| b.is_ascii_digit()) && !number.is_empty() => {
                let number: u64 = number.parse().map_err(|_| too_large())?;
                number.checked_mul(unit).map(Size).ok_or_else(too_large)
            }
            Some(_) if unit > 1 => {
                let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit as f64;
                if bytes >= u64::MAX as f64 {
                    return Err(too_large());
                }
                Ok(Size(bytes as u64))
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Size {
    /// Exact where a suffix allows it (`2MiB`), else with two digits (`1.50GiB`), so that it can be read at a glance.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes) = UNITS
            .iter()
            .rev()
            .find(|(name, bytes)| self.0 >= *bytes && !name.is_empty())
            .copied()
            .unwrap_or(("B", 1));
        if self.0.is_multiple_of(bytes) {
            f.pad(&format!("{}{name}", self.0 / bytes))
        } else {
            f.pad(&format!("{:.2}{name}", self.0 as f64 / bytes as f64))
        }
    }
}

/// The most days of any duration: so it can be added to any time.
const DAYS_MAX: u64 = 365;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads `250us`, `5ms`, `2s`, `1m`, `12h`, `7d`, of at most a year; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    at_most(duration_in(text)?, DAYS_MAX, text)
}

fn duration_in(text: &str) -> Result<Duration, ParseError> {
    let wrong = || ParseError::Duration {
        text: text.to_owned(),
    };
    let (number, suffix) = split(text);
    let seconds = match suffix {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 60.0 * 60.0,
        "d" => DAY.as_secs_f64(),
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    // It is not below 0, so what is no duration is too long for one.
    Ok(Duration::try_from_secs_f64(number * seconds).unwrap_or(Duration::MAX))
}

/// The same for how long somebody looks at something: more than no time, and at most a day.
pub fn parse_span(text: &str) -> Result<Duration, ParseError> {
    let span = parse_duration(text)?;
    if span.is_zero() {
        let text = text.to_owned();
        return Err(ParseError::NoTime { text });
    }
    at_most(span, 1, text)
}

/// The same for how long something is kept: more than no time, and at most a hundred years.
pub fn parse_age(text: &str) -> Result<Duration, ParseError> {
    let age = duration_in(text)?;
    if age.is_zero() {
        let text = text.to_owned();
        return Err(ParseError::NoTime { text });
    }
    at_most(age, 100 * DAYS_MAX, text)
}

fn at_most(duration: Duration, days: u64, text: &str) -> Result<Duration, ParseError> {
    if duration.as_secs_f64() > DAY.as_secs_f64() * days as f64 {
        let text = text.to_owned();
        return Err(ParseError::TooLong { text, days });
    }
    Ok(duration)
}

/// A duration so that [`parse_duration`] reads it back.
pub fn show_duration(duration: Duration) -> String {
    format!("{}us", duration.as_micros())
}

/// A duration in JSON, as `serialize_with` wants it: seconds.
pub fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// MiB per second; 0 when no time passed.
pub fn mib_per_s(bytes: u64, elapsed: Duration) -> f64 {
    per_s(bytes as f64 / (1 << 20) as f64, elapsed)
}

/// Events per second; 0 when no time passed.
pub fn per_s(n: f64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() {
        0.0
    } else {
        n / elapsed.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("1000", 1000),
            ("64KiB", 64 << 10),
            ("2MiB", 2 << 20),
            ("2mib", 2 << 20),
            (" 10 GiB ", 10 << 30),
            ("1.5GiB", 3 << 29),
            ("1_000_000", 1_000_000),
            ("7B", 7),
            ("0", 0),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_and_says_what_to_write() {
        for text in [
            "", "MiB", "2MB", "2 M", "-1", "1.5", "1.2.3MiB", "0x10", "2MiBs", "½GiB",
        ] {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(error.contains("2MiB"), "{error}");
        }
        for text in ["99999999999999999999", "17179869184GiB", "99999999999.5TiB"] {
            assert!(
                matches!(text.parse::<Size>(), Err(ParseError::TooLarge { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes_print_so_that_they_parse() {
        for (bytes, text) in [
            (0, "0B"),
            (1000, "1000B"),
            (2 << 20, "2MiB"),
            (3 << 29, "1.50GiB"),
            (10 << 30, "10GiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)));
        }
    }

    #[test]
    fn durations_both_ways() {
        for (text, micros) in [
            ("250us", 250),
            ("5ms", 5_000),
            ("2s", 2_000_000),
            ("1", 1_000_000),
            ("1m", 60_000_000),
            ("12h", 43_200_000_000),
            ("7d", 604_800_000_000),
        ] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(duration.as_micros(), micros);
            assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }
        for text in ["", "ms", "5 years", "-1s", "1e400s"] {
            let error = parse_duration(text).expect_err(text).to_string();
            assert!(error.contains("write seconds, or"), "{error}");
        }
        for text in [
            "10000000000000000000s",
            "99999999999999999999999m",
            "525601m",
        ] {
            let error = parse_duration(text).expect_err(text).to_string();
            assert!(error.contains("365 day"), "{error}");
        }
    }

    #[test]
    fn an_age_is_some_time_and_at_most_a_hundred_years() {
        for (text, days) in [("7d", 7.0), ("36500d", 36_500.0), ("36h", 1.5)] {
            let age = parse_age(text).expect(text);
            assert_eq!(age.as_secs_f64(), days * DAY.as_secs_f64());
        }
        for (text, says) in [("0d", "more than 0"), ("36501d", "36500 day")] {
            let error = parse_age(text).expect_err(text).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_span_is_some_time_and_at_most_a_day() {
        for (text, micros) in [("1us", 1), ("5", 5_000_000), ("1440m", 86_400_000_000)] {
            assert_eq!(parse_span(text).expect(text).as_micros(), micros);
        }
        for text in ["0", "0s", "0.0ms", "0.0000001us"] {
            let error = parse_span(text).expect_err(text).to_string();
            assert!(error.contains("more than 0"), "{error}");
        }
        for text in ["1441m", "86401", "10000000000000000000s"] {
            let error = parse_span(text).expect_err(text).to_string();
            assert!(error.contains("day(s)"), "{error}");
        }
        assert!(parse_span("1e19s").is_err());
    }

    #[test]
    fn rates_of_no_time_are_zero() {
        assert_eq!(mib_per_s(1 << 20, Duration::ZERO), 0.0);
        assert_eq!(mib_per_s(1 << 20, Duration::from_millis(500)), 2.0);
    }
}
