//! What can be asked for.

use crate::logs::{Log, Workload};
use clap::Parser;
use std::path::PathBuf;

/// Measures the log and others like it by turns, on this machine, and prints a table to compare them
///
/// Installs the others under `target/servers` first, with apt-get, mvn and go. Data is on /dev/shm.
#[derive(Parser)]
pub struct Arguments {
    /// Which logs
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1.., default_values_t = Log::ALL)]
    pub logs: Vec<Log>,
    /// How often each is measured
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// MiB that each publishes and reads back in a round, after a quarter of it to warm up
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=8192))]
    pub mib: u64,
    /// Bytes of a message
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    pub message_size: u64,
    /// Our program; without it, the one of the workspace above, built with --release
    #[arg(long)]
    pub embar: Option<PathBuf>,
    /// Keep each figure in this file, too, and go on where a run with the same arguments ended
    #[arg(long)]
    pub resume: Option<PathBuf>,
    /// Only install the others, and measure nothing
    #[arg(long)]
    pub install: bool,
    /// Print JSON instead of a table, on one line
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    /// What each of them does.
    pub fn workload(&self) -> Workload {
        Workload {
            messages: self.mib * 1024 * 1024 / self.message_size,
            message_size: self.message_size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use crate::logs::Log;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_arguments_make_sense() {
        Arguments::command().debug_assert();
        let all = Arguments::try_parse_from(["log-peers"]).unwrap();
        assert_eq!(all.logs, Log::ALL);
        assert_eq!(all.workload().messages, 512 * 1024);
        let two = Arguments::try_parse_from(["log-peers", "--logs", "embar,kafka"]).unwrap();
        assert_eq!(two.logs, [Log::Embar, Log::Kafka]);
        assert!(Arguments::try_parse_from(["log-peers", "--mib", "0"]).is_err());
        assert!(Arguments::try_parse_from(["log-peers", "--logs"]).is_err());
    }
}
