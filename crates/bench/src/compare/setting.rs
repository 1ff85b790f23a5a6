//! What is compared: values of one option, or nothing at all.

use std::fmt;
use std::str::FromStr;

use embar_report::secrets::word;

/// Values of an option. The others are compared with the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Values of this option, two or more that differ.
    Values {
        /// The option's name, without its dashes.
        option: String,
        /// As they stand on the command line.
        values: Vec<String>,
    },
    /// The bench with itself: whatever differs is noise, so that one sees how much of it there is.
    Itself,
    /// Nothing: the bench alone, again and again.
    Nothing,
}

/// Why a text is no comparison.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is nothing to compare: write an option and two or more values that differ, as in order=0,1,2,5 or batch-size=64KiB,2MiB, or `itself` to see the noise"
)]
pub struct ParseCompareError {
    text: String,
}

impl FromStr for Compare {
    type Err = ParseCompareError;

    fn from_str(text: &str) -> Result<Self, ParseCompareError> {
        if text == "itself" {
            return Ok(Self::Itself);
        }
        let parsed = text.split_once('=').and_then(|(option, list)| {
            let values: Vec<String> = list.split(',').map(str::to_owned).collect();
            let differ = (1..values.len()).all(|i| !values[..i].contains(&values[i]));
            let is_name = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
            let named = option.len() > 1 && option.chars().all(is_name) && !option.starts_with('-');
            let given = values.iter().all(|it| !it.is_empty());
            (named && values.len() > 1 && differ && given).then(|| Self::Values {
                option: option.to_owned(),
                values,
            })
        });
        parsed.ok_or_else(|| ParseCompareError {
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for Compare {
    /// As it stands on the command line, but for secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values { option, values } => {
                let values: Vec<_> = values.iter().map(|it| word(it)).collect();
                write!(f, "{option}={}", values.join(","))
            }
            Self::Itself => f.write_str("itself"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

impl Compare {
    /// What the configurations are called, without secrets.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Values { option, values } => {
                let name = |it: &String| format!("{option} {}", word(it));
                values.iter().map(name).collect()
            }
            Self::Itself => vec!["as it is".into(), "the same again".into()],
            Self::Nothing => vec!["as it is".into()],
        }
    }

    /// What the command line of each configuration has beside the others'.
    pub fn arguments(&self) -> Vec<Option<String>> {
        match self {
            Self::Values { option, values } => {
                let argument = |it: &String| Some(format!("--{option}={it}"));
                values.iter().map(argument).collect()
            }
            Self::Itself => vec![None; 2],
            Self::Nothing => vec![None],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_as_people_write_them() {
        for text in ["order=0,1,2,5", "batch-size=64KiB,2MiB", "itself"] {
            assert_eq!(text.parse::<Compare>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "order",
            "order=",
            "order=0",
            "order=0,0",
            "order=0,,1",
            "0,1",
            "--order=0,1",
            "Order=0,1",
            "=0,1",
            "o=0,1",
        ] {
            let error = text.parse::<Compare>().expect_err(text).to_string();
            assert!(error.contains("order=0,1,2,5"), "{error}");
        }
    }

    #[test]
    fn each_configuration_has_a_name_and_an_argument() {
        let compare: Compare = "spin=0s,1ms".parse().expect("two values");
        assert_eq!(compare.names(), ["spin 0s", "spin 1ms"]);
        let arguments = ["--spin=0s", "--spin=1ms"].map(|it| Some(it.to_owned()));
        assert_eq!(compare.arguments(), arguments);
        assert_eq!(Compare::Itself.arguments(), [None, None]);
    }

    #[test]
    fn reports_have_no_secrets_of_what_is_compared() {
        let text = "url=redis://me:hunter2@a:1,redis://me:hunter2@b:2";
        let compare: Compare = text.parse().expect("two values");
        assert_eq!(compare.to_string(), "url=redis://a:1,redis://b:2");
        assert_eq!(compare.names(), ["url redis://a:1", "url redis://b:2"]);
        let arguments = compare.arguments();
        assert!(
            arguments[0]
                .as_ref()
                .is_some_and(|it| it.contains("hunter2"))
        );
    }
}
