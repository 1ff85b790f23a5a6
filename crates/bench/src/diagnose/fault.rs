//! How faults are written on the command line, and read from there: `name=value`, or a name alone.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use embar_console::setting::BadSetting;
use embar_console::size::{Size, parse_duration, show_duration};
use embar_meter::random::SplitMix64;

/// The name of a fault, a value as an example (none for one that has none), and what it does.
pub type Known = (&'static str, &'static str, &'static str);

/// Why a text is no fault.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseFaultError {
    /// There is no such fault.
    #[error("{name:?} cannot be injected; what can be:\n{known}")]
    Unknown {
        /// As given.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// It has no value, or one that makes no sense.
    #[error("{name}: {why}; write for instance {example}")]
    Value {
        /// The fault.
        name: &'static str,
        /// What is wrong.
        why: String,
        /// One that works.
        example: String,
    },
}

/// A fault's name and value, as they were given.
pub struct Given<'a> {
    /// One of those that are known.
    pub name: &'static str,
    example: &'static str,
    value: &'a str,
}

impl<'a> Given<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// None of those that are known has the name.
    pub fn read(text: &'a str, known: &[Known]) -> Result<Self, ParseFaultError> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        match known.iter().find(|(known, ..)| *known == name) {
            Some(&(name, example, _)) => Ok(Self {
                name,
                example,
                value,
            }),
            None => Err(ParseFaultError::Unknown {
                name: name.to_owned(),
                known: help(known),
            }),
        }
    }

    fn wrong(&self, why: impl fmt::Display) -> ParseFaultError {
        ParseFaultError::Value {
            name: self.name,
            why: why.to_string(),
            example: written(self.name, self.example),
        }
    }

    /// Refuses a value.
    pub fn nothing(&self) -> Result<(), ParseFaultError> {
        match self.value {
            "" => Ok(()),
            _ => Err(self.wrong("it has no value")),
        }
    }

    /// A number.
    pub fn number(&self, range: RangeInclusive<u32>) -> Result<u32, ParseFaultError> {
        let number = self.value.parse().ok().filter(|it| range.contains(it));
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.wrong(format_args!(
                "{:?} is no number from {least} to {most}",
                self.value
            ))
        })
    }

    /// Bytes.
    pub fn size(&self, range: RangeInclusive<u64>) -> Result<Size, ParseFaultError> {
        let size: Size = self.value.parse().map_err(|it| self.wrong(it))?;
        let (least, most) = (Size(*range.start()), Size(*range.end()));
        if range.contains(&size.0) {
            Ok(size)
        } else if size < least {
            Err(self.wrong(format_args!("{:?} is less than {least}", self.value)))
        } else {
            Err(self.wrong(format_args!("{:?} is more than {most}", self.value)))
        }
    }

    /// Bytes a second, 1024 or more, or percents of a rate, `80%`.
    pub fn rate(&self) -> Result<Rate, ParseFaultError> {
        let Some(percent) = self.value.strip_suffix('%') else {
            return Ok(Rate::Bytes(self.size(1024..=u64::MAX)?));
        };
        let percent = percent.parse().ok().filter(|it| (1..100).contains(it));
        percent
            .map(Rate::Percent)
            .ok_or_else(|| self.wrong(format_args!("{:?} is no part from 1% to 99%", self.value)))
    }

    /// A time.
    pub fn time(&self, range: RangeInclusive<Duration>) -> Result<Duration, ParseFaultError> {
        let time = parse_duration(self.value).map_err(|it| self.wrong(it))?;
        let (least, most) = (show_duration(*range.start()), show_duration(*range.end()));
        if range.contains(&time) {
            Ok(time)
        } else if time < *range.start() {
            Err(self.wrong(format_args!("{:?} is less than {least}", self.value)))
        } else {
            Err(self.wrong(format_args!("{:?} is more than {most}", self.value)))
        }
    }

    /// A percentage from 0.001 to 50.
    pub fn share(&self) -> Result<Share, ParseFaultError> {
        let share = self.value.parse().ok();
        let share = share.filter(|it: &Share| (1..=Share::WHOLE / 2).contains(&it.0));
        share.ok_or_else(|| {
            self.wrong(format_args!(
                "{:?} is no percentage from 0.001 to 50",
                self.value
            ))
        })
    }
}

/// Refuses a fault that is given twice: which of the two would count, nobody could tell from the command line.
pub fn each_once(names: impl IntoIterator<Item = &'static str>) -> Result<(), BadSetting> {
    let mut seen = BTreeSet::new();
    let twice = names.into_iter().find(|name| !seen.insert(*name));
    twice.map_or(Ok(()), |name| {
        let why = format!("{name} is injected twice: give it once, with the strength that counts");
        Err(BadSetting::new(&["inject"], why))
    })
}

/// A list of faults, for help and errors.
pub fn help(known: &[Known]) -> String {
    let line = |(name, example, does): &Known| format!("  {:<22} {does}", written(name, example));
    known.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A fault as it is written on the command line.
pub fn written(name: &str, value: &str) -> String {
    match value {
        "" => name.to_owned(),
        value => format!("{name}={value}"),
    }
}

/// A size that is read as the same number of bytes.
pub fn exactly(size: Size) -> String {
    let text = size.to_string();
    if text.parse() == Ok(size) {
        text
    } else {
        size.0.to_string()
    }
}

/// In a shorter warm-up nobody can tell what the rate would be.
const WARM_UP_MIN: Duration = Duration::from_millis(200);

/// How much a load may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// So many bytes a second.
    Bytes(Size),
    /// So many percent of what it moves by itself, which it finds out while it warms up: how fast a machine is changes with its
    /// neighbours, so a number of bytes is little today and nothing tomorrow.
    Percent(u32),
}

impl Rate {
    /// Refuses a part of a rate that cannot be found out.
    ///
    /// # Errors
    /// The warm-up is too short.
    pub fn must_be_found(self, warm_up: Duration) -> Result<(), BadSetting> {
        if matches!(self, Self::Bytes(_)) || warm_up >= WARM_UP_MIN {
            return Ok(());
        }
        let why = format!(
            "{self} is a part of the rate while the load warms up, for which it takes {} (cold-memory has no warm-up)",
            show_duration(WARM_UP_MIN)
        );
        Err(BadSetting::new(&["warm-up", "inject"], why))
    }
}

impl fmt::Display for Rate {
    /// As it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(size) => f.write_str(&exactly(*size)),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A part of a whole, in hundred-thousandths: a percentage with three digits after the point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    const WHOLE: u32 = 100_000;

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether chance takes one that belongs to this part.
    pub fn takes(self, random: &mut SplitMix64) -> bool {
        random.below(Self::WHOLE.into()) < self.0.into()
    }
}

impl FromStr for Share {
    type Err = std::num::ParseFloatError;

    /// From a percentage; what is no part of a whole is all of it, or nothing.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent: f64 = text.parse()?;
        let parts = (percent / 100.0 * f64::from(Self::WHOLE)).round();
        // A cast takes what is out of range to its end, and what is no number to zero.
        Ok(Self((parts as u32).min(Self::WHOLE)))
    }
}

impl fmt::Display for Share {
    /// As a percentage.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) * 100.0 / f64::from(Self::WHOLE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_given_once() {
        each_once(["cpu-hog", "cpu-quota"]).expect("they differ");
        let error = each_once(["cpu-hog", "tls", "cpu-hog"]).expect_err("twice");
        assert_eq!(error.settings, ["inject"]);
        assert!(error.why.contains("cpu-hog"), "{error}");
    }

    #[test]
    fn a_part_takes_a_warm_up() {
        let part = Rate::Percent(80);
        part.must_be_found(WARM_UP_MIN).expect("it is long enough");
        let error = part
            .must_be_found(WARM_UP_MIN / 2)
            .expect_err("it is too short");
        assert!(error.why.contains("80%"), "{error}");
        let bytes = Rate::Bytes(Size(1));
        bytes.must_be_found(Duration::ZERO).expect("it is known");
    }
}
