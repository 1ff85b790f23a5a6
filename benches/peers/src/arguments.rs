//! What can be asked for.

use crate::hits::Hits;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// Measures Redis cluster clients
#[derive(Parser)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub single: Single,
}

#[derive(Subcommand)]
pub enum Command {
    /// Measures all clients in turn, several times, and prints tables to compare them
    Table(Table),
    /// Measures reads that a cache in the client's process answers
    Hits(Hits),
}

/// One client, once.
#[derive(Args)]
pub struct Single {
    /// Which client
    #[arg(long, value_enum, required = true)]
    pub client: Option<Name>,
    /// What the callers do
    #[arg(long, value_enum, default_value = "get")]
    pub operation: Operation,
    /// Measured time in seconds
    #[arg(long, default_value_t = 15.0)]
    pub duration: f64,
    /// Tasks that do one operation after the other
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub callers: u64,
    /// Worker threads of Tokio; as many as there are processors for it by default
    #[arg(long)]
    pub threads: Option<u64>,
    #[command(flatten)]
    pub workload: Workload,
    /// Print JSON, on one line
    #[arg(long)]
    pub json: bool,
}

/// All clients in all cells, several times.
#[derive(Args)]
pub struct Table {
    /// Which clients
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Name::value_variants().iter().copied())]
    pub clients: Vec<Name>,
    /// What the callers do, each by itself
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Operation::value_variants().iter().copied())]
    pub operations: Vec<Operation>,
    /// Tasks that do one operation after the other: each number by itself
    #[arg(long, value_delimiter = ',', default_values_t = [4, 64, 256], value_parser = clap::value_parser!(u64).range(1..))]
    pub callers: Vec<u64>,
    /// Worker threads of Tokio: each number by itself
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u64).range(1..))]
    pub threads: Vec<u64>,
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Measured time of each client in each cell and round, in seconds
    #[arg(long, default_value_t = 5.0)]
    pub duration: f64,
    #[command(flatten)]
    pub workload: Workload,
    /// Measure redis-benchmark, too, where it has the operation (SET and GET)
    #[arg(long)]
    pub redis_benchmark: bool,
    /// Print JSON instead of tables, on one line
    #[arg(long)]
    pub json: bool,
}

/// What is the same for all clients.
#[derive(Args)]
pub struct Workload {
    /// Time before the measured one in which nothing is counted, in seconds
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
    /// Operations that each caller has in flight: it starts that many and waits for all
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub pipeline: u64,
    /// The operations of a caller go into one pipeline of the client; only embar's take keys of all nodes
    #[arg(long)]
    pub explicit: bool,
    /// Clients that the callers are spread over, each with connections of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub connections: u64,
    /// Bytes of a key
    #[arg(long, default_value_t = 16)]
    pub key_size: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    pub value_size: usize,
    /// How many different keys; all are written before the measurement
    #[arg(long, default_value_t = 100_000)]
    pub keyspace: u64,
    /// Reads to writes of the mixed operation
    #[arg(long, default_value = "80:20", value_parser = mix)]
    pub mix: (u64, u64),
    /// Some nodes of the cluster
    #[arg(long, default_value = "127.0.0.1:7000", value_delimiter = ',')]
    pub cluster: Vec<String>,
    /// Processors it may run on, like 0-1,3
    #[arg(long)]
    pub placement: Option<String>,
}

impl Workload {
    /// The arguments that say the same to another process of this program; the placement is inherited.
    pub fn arguments(&self) -> Vec<String> {
        let Self {
            warm_up,
            pipeline,
            explicit: _,
            connections,
            key_size,
            value_size,
            keyspace,
            mix: (reads, writes),
            cluster,
            placement: _,
        } = self;
        vec![
            format!("--warm-up={warm_up}"),
            format!("--pipeline={pipeline}"),
            format!("--connections={connections}"),
            format!("--key-size={key_size}"),
            format!("--value-size={value_size}"),
            format!("--keyspace={keyspace}"),
            format!("--mix={reads}:{writes}"),
            format!("--cluster={}", cluster.join(",")),
        ]
    }
}

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    Embar,
    RedisRs,
    Fred,
    Rustis,
}

/// What callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Set,
    Get,
    Mixed,
}

/// As it is written on the command line.
impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        show(self, f)
    }
}

/// As it is written on the command line.
impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        show(self, f)
    }
}

fn show(value: &impl ValueEnum, f: &mut Formatter<'_>) -> fmt::Result {
    let value = value.to_possible_value().expect("none is hidden");
    f.write_str(value.get_name())
}

fn mix(text: &str) -> Result<(u64, u64), String> {
    let part = |text: &str| text.parse::<u32>().map(u64::from).ok();
    let parts = text
        .split_once(':')
        .and_then(|(reads, writes)| part(reads).zip(part(writes)));
    parts.ok_or_else(|| "write it as reads:writes, like 80:20".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Arguments, Command, Name, Operation};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_arguments_make_sense() {
        Arguments::command().debug_assert();
        assert!(Arguments::try_parse_from(["peers"]).is_err());
    }

    #[test]
    fn one_client_or_a_table() {
        let one = Arguments::try_parse_from(["peers", "--client", "redis-rs"]).unwrap();
        assert!(one.command.is_none());
        assert_eq!(one.single.client, Some(Name::RedisRs));
        let table = Arguments::try_parse_from(["peers", "table", "--callers", "8,9"]).unwrap();
        let Some(Command::Table(table)) = table.command else {
            panic!("that is a table");
        };
        assert_eq!(table.callers, [8, 9]);
        assert_eq!(table.threads, [1, 2]);
        assert_eq!(table.clients[0], Name::Embar);
        assert_eq!(table.operations.last(), Some(&Operation::Mixed));
    }

    #[test]
    fn what_is_handed_on_is_understood() {
        let first = [
            "peers",
            "--client",
            "fred",
            "--mix",
            "1:2",
            "--cluster",
            "a:1,b:2",
        ];
        let first = Arguments::try_parse_from(first).unwrap();
        let handed_on = first.single.workload.arguments();
        let begin = ["peers", "--client", "fred"].map(String::from);
        let second = Arguments::try_parse_from(begin.into_iter().chain(handed_on.clone())).unwrap();
        assert_eq!(second.single.workload.arguments(), handed_on);
        assert_eq!(second.single.workload.cluster, ["a:1", "b:2"]);
    }
}
