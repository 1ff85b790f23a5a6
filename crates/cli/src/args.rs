//! The command line as a whole; each command's options stand in its own file.

use std::ffi::OsString;

use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use embar_bench::diagnose::hog;
use embar_bench::session::drill::{attacker, server};
use embar_bench::wall::receiver;
use embar_verify::{hostile, publisher, victims};

use crate::commands::bench::BenchArgs;
use crate::commands::broker::BrokerArgs;
use crate::commands::consume::ConsumeArgs;
use crate::commands::data::DataArgs;
use crate::commands::diagnose::DiagnoseArgs;
use crate::commands::drain::DrainArgs;
use crate::commands::layout::LayoutArgs;
use crate::commands::produce::ProduceArgs;
use crate::commands::profile::ProfileArgs;
use crate::commands::quickstart::QuickstartArgs;
use crate::commands::report::ReportArgs;
use crate::commands::status::StatusArgs;
use crate::commands::top::TopArgs;
use crate::commands::topic::TopicArgs;
use crate::commands::up::UpArgs;
use crate::commands::verify::VerifyArgs;
use crate::exit;
use crate::output::Color;

/// A publish/subscribe shared log in memory: run it, drive it, measure it.
///
/// The log lives in shared memory: it survives the death of every process, and, of topics on disks, a reboot.
#[derive(Parser, Debug)]
#[command(
    name = "embar",
    version,
    arg_required_else_help = true,
    after_help = exit::HELP,
    after_long_help = format!("{EXAMPLES}\n\n{}\n\n{ENVIRONMENT}", exit::HELP),
)]
pub struct Cli {
    /// Print results as JSON; each command's --help documents the fields
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        value_enum
    )]
    pub color: Color,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of this process, and whether its command [leaves nothing behind](leaves_nothing). Where it cannot be
    /// used, it says why and ends the process.
    pub fn read() -> (Self, bool) {
        let matches = Self::command().get_matches();
        let leaves_nothing = leaves_nothing(&matches);
        match Self::from_arg_matches(&matches) {
            Ok(cli) => (cli, leaves_nothing),
            Err(error) => error.format(&mut Self::command()).exit(),
        }
    }
}

/// Whether a command only reads or asks, and prints: it starts nothing that would have to be ended or removed, so a signal may
/// end it wherever it is, for instance while it waits for a pipe to be opened.
fn leaves_nothing(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some(("data", of)) => of.subcommand_name() != Some("repair"),
        Some(("report" | "layout" | "status" | "topic" | "drain", _)) => true,
        Some(("diagnose", of)) => {
            let of = of.subcommand().map_or(of, |(_, it)| it);
            of.contains_id("from")
        }
        _ => false,
    }
}

const EXAMPLES: &str = "\
Examples:
  embar quickstart                                   see it work: publish, read, verify, measure
  embar up                                           start a cluster on 127.0.0.1:9400
  seq 1 1000000 | embar produce numbers              publish lines
  embar consume numbers --from start --count 10      read them back
  embar bench publish -m 1024 -s 10GiB --trials 3    measure
  embar verify order --kill sequencer                kill what orders, and check the order";

const ENVIRONMENT: &str = "\
Environment:
  EMBAR_BOOTSTRAP  address of any broker, instead of --bootstrap
  RUST_LOG         what is logged to standard error, for instance debug or embar_broker=trace
  NO_COLOR         no colours";

/// One command.
#[derive(Subcommand, Debug)]
pub enum Command {
    Quickstart(QuickstartArgs),
    Up(UpArgs),
    Broker(Box<BrokerArgs>),
    Drain(DrainArgs),
    Topic(TopicArgs),
    Produce(ProduceArgs),
    Consume(ConsumeArgs),
    Status(StatusArgs),
    Profile(ProfileArgs),
    Top(TopArgs),
    Layout(LayoutArgs),
    Data(DataArgs),
    Bench(BenchArgs),
    Verify(VerifyArgs),
    Diagnose(Box<DiagnoseArgs>),
    Report(ReportArgs),
    /// What else may run on a machine, for `diagnose --inject cpu-hog`.
    #[command(name = hog::COMMAND, hide = true)]
    CpuHog(WorkerArgs),
    /// The attacker of `bench session --attack`.
    #[command(name = attacker::COMMAND, hide = true)]
    DrillAttacker(WorkerArgs),
    /// The server of `bench session --attack`.
    #[command(name = server::COMMAND, hide = true)]
    DrillServer(WorkerArgs),
    /// A receiving process of `bench walls`.
    #[command(name = receiver::COMMAND, hide = true)]
    WallReceiver(WorkerArgs),
    /// A publishing process of `verify`.
    #[command(name = publisher::COMMAND, hide = true)]
    VerifyPublisher(WorkerArgs),
    /// A hostile client of `verify order`.
    #[command(name = hostile::COMMAND, hide = true)]
    VerifyHostile(WorkerArgs),
    /// Publishers of `verify sessions`, to be killed.
    #[command(name = victims::COMMAND, hide = true)]
    VerifyVictims(WorkerArgs),
}

/// Work for a process that another one starts.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// What to do, as JSON of the library that started it
    pub spec: String,
}

/// What is wrong with a command line, as its first line says, if anything is.
///
/// # Errors
/// That line.
pub fn check(command: &[OsString]) -> Result<(), String> {
    let program = OsString::from("embar");
    let parsed = Cli::try_parse_from(std::iter::once(&program).chain(command));
    parsed.map(drop).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clap breaks lines at, whatever the terminal has.
    const COLUMNS: usize = 100;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        let mut command = Cli::command();
        // Hands the global options down to the commands.
        command.build();
        let mut pending: Vec<_> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .collect();
        // The commands that clap adds have no examples.
        pending.retain(|command| command.get_name() != "help");
        while let Some(command) = pending.pop() {
            if command.has_subcommands() {
                pending.extend(
                    command
                        .get_subcommands()
                        .filter(|command| command.get_name() != "help"),
                );
            } else {
                let help = command.clone().render_long_help().to_string();
                let name = command.get_name();
                assert!(
                    help.contains("Examples:\n  ") && help.contains(&format!(" {name}")),
                    "{name}"
                );
                let long = help.lines().find(|line| line.chars().count() > COLUMNS);
                assert_eq!(
                    long, None,
                    "{name}: lines are not to be wrapped by the terminal"
                );
            }
        }
    }

    #[test]
    fn help_that_is_wrapped_by_hand_is_not_wrapped_again() {
        let mut pending = vec![Cli::command()];
        while let Some(command) = pending.pop() {
            let texts = [command.get_after_help(), command.get_after_long_help()];
            let texts: Vec<String> = texts
                .into_iter()
                .flatten()
                .map(|it| it.to_string())
                .collect();
            let lines = texts.iter().flat_map(|it| it.lines());
            let long: Vec<&str> = lines.filter(|it| it.chars().count() > COLUMNS).collect();
            assert!(long.is_empty(), "{}: {long:#?}", command.get_name());
            pending.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn what_diagnoses_a_file_ignores_no_option() {
        let mut all = Cli::command();
        all.build();
        let diagnose = all.find_subcommand("diagnose").expect("diagnose");
        for command in diagnose.get_subcommands().chain([diagnose]) {
            let mut options = command.get_arguments();
            let Some(from) = options.find(|it| it.get_id() == "from") else {
                continue;
            };
            let refused = command.get_arg_conflicts_with(from);
            for option in command.get_arguments() {
                let id = option.get_id().as_str();
                let is_general = ["from", "help", "json", "color"].contains(&id);
                let is_refused = refused.iter().any(|it| it.get_id() == option.get_id());
                // Options that refuse others are known to those.
                let refuses = command.get_arg_conflicts_with(option);
                let refuses = refuses.iter().any(|it| it.get_id() == "from");
                assert!(
                    is_general || is_refused || refuses,
                    "{}: {id}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn what_only_reads_leaves_nothing_behind() {
        let leaves_nothing = |line: &str| {
            let words = line.split_whitespace();
            let matches = Cli::command().try_get_matches_from(words).expect(line);
            leaves_nothing(&matches)
        };
        for line in [
            "embar report x.json",
            "embar layout",
            "embar data show /data/a",
            "embar status",
            "embar --json diagnose --from x.json",
            "embar diagnose redis --from x.json",
            "embar diagnose session --from x.json",
        ] {
            assert!(leaves_nothing(line), "{line}");
        }
        for line in [
            "embar up",
            "embar diagnose",
            "embar diagnose redis",
            "embar diagnose session --save x.json",
            "embar data repair /data/a --yes",
            "embar consume numbers --from start",
        ] {
            assert!(!leaves_nothing(line), "{line}");
        }
    }

    #[test]
    fn a_command_line_is_checked_without_being_run() {
        let check = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            check(&words)
        };
        assert_eq!(check("bench publish -s 1MiB --order=5 --json"), Ok(()));
        for (line, part) in [
            ("bench publish --orders=0 --json", "--orders"),
            ("bench publish --order=3 --json", "3"),
            ("bench publish --order 0 --order=1", "multiple times"),
            ("top --interval 0s", "more than 0"),
            ("top --interval 1441m", "longer than 1 day"),
            ("diagnose --for 0", "more than 0"),
            ("diagnose --for 10000000000000000000s", "longer than"),
            ("diagnose redis --for 0ms", "more than 0"),
            ("diagnose session --for 2880m", "longer than 1 day"),
        ] {
            let error = check(line).expect_err(line);
            assert!(error.contains(part), "{error}");
        }
    }
}
