//! `embar bench … --compare` and `--precision`: runs any bench again and again, with several values of a setting by turns.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_bench::compare::measure::{Plan, measure};
use embar_bench::compare::report::CompareReport;
use embar_bench::compare::setting::Compare;
use embar_bench::compare::subject::Subject;
use embar_console::size::parse_duration;
use embar_meter::experiment::{Precision, too_few};
use embar_meter::stats::PAIRS_MIN;
use embar_readings::environment::Environment;
use embar_report::secrets;
use embar_supervise::regions;

use crate::context::Context;
use crate::exit;

/// Rounds at most, if only the time is to end it.
const ROUNDS_MAX: usize = 1000;

/// For `embar bench --help`.
pub const HELP: &str = "\
Examples:
  embar bench publish
  embar bench publish --compare batch-size=64KiB,2MiB -s 1GiB
  embar bench publish --compare order=0,5 --precision 2% --budget 10m -s 1GiB
  embar bench e2e --compare transport=tcp,unix,shm --metric p99 --rate 100MiB -s 256MiB
  embar bench publish --compare itself -s 1GiB           how much of a difference is noise
  embar bench publish --precision 1% --budget 5m --markdown log.md --trials-csv trials.csv

Any option of publish, read, e2e, latency, session and redis can be compared. Each trial is a
process of its own that measures once. Values run by turns, so that a change of the machine hits
all of them alike, and each is compared with the first by the ratio within each round. A difference
is claimed if the 99 % interval of the ratios excludes 1, for which it takes 8 rounds. A setting
that changes nothing of what runs is an error. What others did with the machine meanwhile stands
beside it.

JSON of a comparison, one object: bench, compare, command, time, metric, unit, better, rounds,
stopped (Planned, Precise, or Spent with rounds_needed), configurations[] with name, config, median,
interval, trials[]; comparisons[] with baseline, changed, pairs, ratio and ratio_99 (point, low,
high, level), verdict (Faster, Slower, InsideNoise), loss; environment; surroundings (others,
others_most, steal, steal_most: parts of all processors)";

/// Options of every bench that runs again and again.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Measure several values of an option by turns, and compare each with the first; `itself` compares it with itself
    #[arg(
        long,
        global = true,
        value_name = "OPTION=V1,V2,..",
        help_heading = "Comparing"
    )]
    compare: Option<Compare>,
    /// Go on until no interval's end is further from the estimate than this, or the budget is spent
    #[arg(long, global = true, value_name = "PERCENT", value_parser = parse_percent, help_heading = "Comparing")]
    precision: Option<f64>,
    /// Begin no round after so long, but for the first ones [default: 10m]
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_duration, requires = "precision", help_heading = "Comparing")]
    budget: Option<Duration>,
    /// Rounds to measure; with --precision at least [default: 8, the fewest that support a verdict]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Comparing")]
    rounds: Option<u32>,
    /// Compare this figure of the report; an unknown name lists those that there are
    #[arg(long, global = true, value_name = "NAME", help_heading = "Comparing")]
    metric: Option<String>,
    /// Append the result to this log, in Markdown
    #[arg(long, global = true, value_name = "FILE", help_heading = "Comparing")]
    markdown: Option<PathBuf>,
    /// Append each trial to this file, as comma-separated values
    #[arg(long, global = true, value_name = "FILE", help_heading = "Comparing")]
    trials_csv: Option<PathBuf>,
}

/// Their names, to take them out of a command line.
const OPTIONS: [&str; 7] = [
    "compare",
    "precision",
    "budget",
    "rounds",
    "metric",
    "markdown",
    "trials-csv",
];

impl CompareArgs {
    /// Whether the bench is to run again and again.
    pub fn is_asked_for(&self) -> bool {
        self.compare.is_some() || self.precision.is_some()
    }

    /// Options that mean nothing to a bench that runs once.
    pub fn check(&self) -> Result<()> {
        let alone = [
            ("--rounds", self.rounds.is_some()),
            ("--metric", self.metric.is_some()),
            ("--markdown", self.markdown.is_some()),
            ("--trials-csv", self.trials_csv.is_some()),
        ];
        match alone.into_iter().find(|(_, given)| *given) {
            Some((name, _)) if !self.is_asked_for() => Err(exit::usage(format!(
                "{name} is for --compare and --precision: give one of them"
            ))),
            _ => Ok(()),
        }
    }
}

/// Says what is wrong with a command line of this program, if anything is.
pub type Check = dyn Fn(&[OsString]) -> Result<(), String>;

/// Runs a bench by its name, as the command line has it.
pub fn run(bench: &str, args: &CompareArgs, check: &Check, context: &Context) -> Result<()> {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let command = format!("embar {}", shown(&arguments));
    let subject = Subject::find(bench).map_err(|error| exit::usage(error.to_string()))?;
    let metric = subject
        .metric(args.metric.as_deref())
        .map_err(|error| exit::usage(error.to_string()))?;
    let compare = args.compare.clone().unwrap_or(Compare::Nothing);
    if let Compare::Values { option, .. } = &compare
        && (OPTIONS.contains(&option.as_str()) || ["json", "color"].contains(&option.as_str()))
    {
        let why = "it says how to compare or to print, and changes nothing of what runs";
        return Err(exit::usage(format!("--compare {option}=…: {why}")));
    }
    let kept = without_options(arguments);
    let commands = compare.arguments().into_iter().map(|argument| {
        let command = command_line(kept.clone(), argument, subject);
        // What is wrong with it is said before anything runs.
        check(&command).map_err(exit::usage)?;
        Ok(command)
    });
    let plan = Plan {
        subject,
        metric,
        commands: commands.collect::<Result<_>>()?,
        rounds: args.rounds.map_or(PAIRS_MIN, |it| it as usize),
        precision: args.precision.map(|half_width| Precision {
            half_width,
            rounds_max: ROUNDS_MAX,
            time_max: args.budget.unwrap_or(Duration::from_secs(600)),
        }),
        compare,
    };
    if let Some(too_few) = too_few(plan.rounds).filter(|_| plan.precision.is_none()) {
        context.note(too_few);
    }
    let environment = Environment::read(&regions::root());
    let measured = measure(&plan, &context.work)?;
    let report = CompareReport::of(&plan, command, &measured, &environment)?;
    if let Some(path) = &args.markdown {
        report.append_markdown(path)?;
    }
    if let Some(path) = &args.trials_csv {
        report.append_trials(path)?;
    }
    context.output.report(&report, &report)
}

/// What is left of a command line without the options of this file, and without what says how to print.
fn without_options(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        // Behind it there are no options, and benches take nothing else.
        if argument == "--" {
            break;
        }
        let text = argument.to_string_lossy().into_owned();
        let name = text.strip_prefix("--").unwrap_or_default();
        let (name, has_value) = match name.split_once('=') {
            Some((name, _)) => (name, true),
            None => (name, false),
        };
        match name {
            "json" => {}
            name if name == "color" || OPTIONS.contains(&name) => {
                if !has_value {
                    arguments.next();
                }
            }
            _ => kept.push(argument),
        }
    }
    kept
}

/// The command line of one trial.
fn command_line(
    mut kept: Vec<OsString>,
    argument: Option<String>,
    subject: &Subject,
) -> Vec<OsString> {
    for (name, value) in subject.once {
        let is_it = |it: &OsString| {
            let it = it.to_string_lossy();
            let rest = it.strip_prefix("--").and_then(|it| it.strip_prefix(name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        if !kept.iter().any(is_it) {
            kept.push(format!("--{name}={value}").into());
        }
    }
    kept.extend(argument.map(OsString::from));
    kept.push("--json".into());
    kept
}

/// A command line as a shell takes it, but for its secrets: reports and logs are handed on.
fn shown(arguments: &[OsString]) -> String {
    let one = |it: &OsString| {
        let text = it.to_string_lossy();
        let text = secrets::word(&text);
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_=,.:/%@+".contains(it);
        match !text.is_empty() && text.chars().all(is_plain) {
            true => text.into_owned(),
            false => format!("'{}'", text.replace('\'', "'\\''")),
        }
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("a percentage above 0 and up to 100, as in 2%".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_trial_is_the_command_without_what_repeats_it() {
        let line = "--color never bench publish --compare order=0,5 -s 1MiB --precision=2% --json --budget 1m";
        let kept = without_options(words(line));
        assert_eq!(kept, words("bench publish -s 1MiB"));
        let subject = Subject::find("publish").expect("publish");
        let command = command_line(kept, Some("--order=5".into()), subject);
        let expected = "bench publish -s 1MiB --trials=1 --warmup=0 --order=5 --json";
        assert_eq!(command, words(expected));
        let asked = command_line(words("bench publish --trials 3"), None, subject);
        assert_eq!(asked, words("bench publish --trials 3 --warmup=0 --json"));
    }

    #[test]
    fn percentages_and_commands_are_as_people_write_them() {
        assert_eq!(parse_percent("2%"), Ok(0.02));
        assert_eq!(parse_percent("0.5"), Ok(0.005));
        for bad in ["", "0", "-1%", "101%", "two", "NaN"] {
            assert!(parse_percent(bad).is_err(), "{bad}");
        }
        assert_eq!(shown(&words("bench read -s 1GiB")), "bench read -s 1GiB");
        assert_eq!(shown(&["it's".into()]), r"'it'\''s'");
    }

    #[test]
    fn a_command_is_shown_without_its_secrets() {
        let line = "bench redis --url redis://user:hunter2@h:1/2 --standalone=me:hunter2@h -s 1";
        let expected = "bench redis --url redis://h:1/2 --standalone=h -s 1";
        assert_eq!(shown(&words(line)), expected);
        let spaced = shown(&["--url".into(), "redis://user:hun ter2@h".into()]);
        assert_eq!(spaced, "--url redis://h");
    }
}
