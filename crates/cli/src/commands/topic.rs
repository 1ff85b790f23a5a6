//! `embar topic`: create, list, describe, delete.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use embar_client::{Order, TopicSpec};
use embar_console::size::{Size, parse_age};
use embar_meter::table::{Table, grouped};
use embar_wire::control::{Partition, Topic};
use serde::Serialize;

use crate::connect::AskArgs;
use crate::context::Context;
use crate::exit;
use crate::output::Output;
use crate::replication_factor::replication_factor;

/// Create, list, describe and delete topics
#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct TopicArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Create topics
    #[command(after_help = "\
Examples:
  embar topic create orders
  embar topic create clicks --order 1 --retention 512MiB
  embar topic create images --max-message-size 6MiB
  embar topic create --order 5 $(seq -f sensor-%g 10000)
  embar topic create payments --order 5 --replication-factor 2         in memory and on one disk
  embar topic create audit --replication-factor 2 --retention-age 7d   on a disk for seven days

The command ends at the first topic that it cannot create; those before it exist.

JSON, a line for each: the topic, with id, name, order, retention_bytes (per broker, 0 = as much as
fits), retention_ms (on disks, 0 = of any age), max_message_bytes, created_ns,
replication_factor")]
    Create {
        /// Their names: letters, digits, '.', '_' and '-', at most 249
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// 0: no order between connections; 1: arrival order on each broker; 2: one order over all brokers; 5: one order over
        /// all brokers that keeps the order of each publisher
        #[arg(long, value_name = "N", default_value_t)]
        order: Order,
        /// Bytes to keep on each broker; the oldest go first. Without it, as much as fits
        #[arg(long, value_name = "SIZE")]
        retention: Option<Size>,
        /// How long the disks of the topic keep a batch, at least: as `7d`, `12h` or `30m`. Then it goes with the segment that has it.
        /// Without it, no batch goes for its age. It needs a replication factor above 1
        #[arg(long, value_name = "TIME", value_parser = parse_age)]
        retention_age: Option<Duration>,
        /// Largest message, with key and headers; 1MiB without it. It must fit a batch of the brokers (--max-batch-bytes)
        #[arg(long, value_name = "SIZE")]
        max_message_size: Option<Size>,
        /// 1: in memory alone; 2: in memory and on one disk; 3: in memory and on two, and so on, up to 9. The cluster must have
        /// these disks. What is on a disk outlives a loss of power
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = replication_factor())]
        replication_factor: u8,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// List all topics
    #[command(after_help = "\
Examples:
  embar topic list
  embar --json topic list

JSON: a list of topics, as from `topic create`")]
    List {
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Show what each broker keeps of a topic
    #[command(after_help = "\
Examples:
  embar topic describe orders

JSON: the topic as from `topic create`, and partitions[] with broker, first, next, bytes,
batches, and disk_first and durable, which are null for a topic in memory alone; offsets first to
next - 1 can be read from memory, and from disk_first on from disks, by default below durable")]
    Describe {
        /// Its name
        name: String,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Delete topics and their data
    #[command(after_help = "\
Examples:
  embar topic delete orders

JSON, a line for each: deleted, the name")]
    Delete {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        ask: AskArgs,
    },
}

#[derive(Serialize)]
struct TopicReport<'a> {
    id: u32,
    name: &'a str,
    order: u32,
    retention_bytes: u64,
    retention_ms: u64,
    max_message_bytes: u32,
    created_ns: u64,
    replication_factor: u8,
}

impl<'a> From<&'a Topic> for TopicReport<'a> {
    fn from(topic: &'a Topic) -> Self {
        Self {
            id: topic.id,
            name: &topic.name,
            order: topic.order.into(),
            retention_bytes: topic.retention_bytes,
            retention_ms: topic.retention_ms,
            max_message_bytes: topic.max_message_bytes,
            created_ns: topic.created.0,
            replication_factor: topic.replication_factor,
        }
    }
}

#[derive(Serialize)]
struct PartitionReport {
    broker: u32,
    first: u64,
    next: u64,
    bytes: u64,
    batches: u64,
    disk_first: Option<u64>,
    durable: Option<u64>,
}

impl From<&Partition> for PartitionReport {
    fn from(partition: &Partition) -> Self {
        Self {
            broker: partition.broker,
            first: partition.first,
            next: partition.next,
            bytes: partition.payload_bytes,
            batches: partition.batches,
            disk_first: partition.disk_first,
            durable: partition.durable,
        }
    }
}

#[derive(Serialize)]
struct Description<'a> {
    #[serde(flatten)]
    topic: TopicReport<'a>,
    partitions: Vec<PartitionReport>,
}

/// Asks the cluster.
pub fn run(args: &TopicArgs, context: &Context) -> Result<()> {
    let output = &context.output;
    match &args.action {
        Action::Create {
            names,
            order,
            retention,
            retention_age,
            max_message_size,
            replication_factor,
            ask,
        } => {
            let largest = max_message_size.map(|size| exit::to_u32(size, "--max-message-size"));
            let largest = largest.transpose()?.unwrap_or(0);
            let admin = ask.admin(context)?;
            for name in names {
                let topic = admin.create_topic(
                    TopicSpec::new(name)
                        .order(*order)
                        .retention_bytes(retention.map_or(0, |size| size.0))
                        .retention_age(retention_age.unwrap_or_default())
                        .max_message_bytes(largest)
                        .replication_factor(*replication_factor),
                );
                say_created(&topic.wait()?, output)?;
            }
            Ok(())
        }
        Action::List { ask } => {
            let topics = ask.admin(context)?.list_topics().wait()?;
            output.json(&topics.iter().map(TopicReport::from).collect::<Vec<_>>())?;
            output.say(list(&topics))
        }
        Action::Describe { name, ask } => {
            let description = ask.admin(context)?.describe_topic(name).wait()?;
            output.json(&Description {
                topic: (&description.topic).into(),
                partitions: description.partitions.iter().map(Into::into).collect(),
            })?;
            output.say(describe(&description.topic, &description.partitions))
        }
        Action::Delete { names, ask } => {
            let admin = ask.admin(context)?;
            for name in names {
                admin.delete_topic(name).wait()?;
                output.json(&serde_json::json!({ "deleted": name }))?;
                output.say(format_args!("deleted {name}"))?;
            }
            Ok(())
        }
    }
}

fn say_created(topic: &Topic, output: &Output) -> Result<()> {
    output.json(&TopicReport::from(topic))?;
    output.say(format_args!(
        "created {}, order {}, {}, {}, messages up to {}",
        topic.name,
        topic.order,
        places_text(topic),
        retention_text(topic),
        Size(topic.max_message_bytes.into())
    ))
}

fn places_text(topic: &Topic) -> String {
    match topic.replication_factor {
        0 | 1 => "in memory alone".into(),
        2 => "in memory and on a disk".into(),
        factor => format!("in memory and on {} disks", factor - 1),
    }
}

fn retention_text(topic: &Topic) -> String {
    let bytes = match topic.retention_bytes {
        0 => "keeps as much as fits".into(),
        bytes => format!("keeps {} on each broker", Size(bytes)),
    };
    match topic.retention_ms {
        0 => bytes,
        age => format!("{bytes}, for {} on disks", age_text(age)),
    }
}

/// An age in the largest unit of which it is a whole number.
fn age_text(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1000, "s"),
    ];
    let unit = UNITS.iter().find(|(unit, _)| ms.is_multiple_of(*unit));
    let (unit, name) = unit.copied().unwrap_or((1, "ms"));
    format!("{}{name}", ms / unit)
}

fn list(topics: &[Topic]) -> String {
    if topics.is_empty() {
        return "there are no topics; the first publish makes one, or `embar topic create NAME`"
            .into();
    }
    let mut table = Table::new([
        "topic",
        "order",
        "replication factor",
        "retention per broker",
        "retention on disks",
    ]);
    for topic in topics {
        let retention = match topic.retention_bytes {
            0 => "as much as fits".into(),
            bytes => Size(bytes).to_string(),
        };
        table.row([
            topic.name.clone(),
            topic.order.to_string(),
            topic.replication_factor.to_string(),
            retention,
            match topic.retention_ms {
                0 => "as long as there is room".into(),
                age => age_text(age),
            },
        ]);
    }
    table.to_string()
}

fn describe(topic: &Topic, partitions: &[Partition]) -> String {
    let (readable, table) = if topic.order.is_total() {
        one_order(partitions)
    } else {
        order_of_each(partitions)
    };
    format!(
        "{} (id {}), order {}, {}, {}, messages up to {}\n{readable}\n\n{table}",
        topic.name,
        topic.id,
        topic.order,
        places_text(topic),
        retention_text(topic),
        Size(topic.max_message_bytes.into()),
    )
}

/// Each broker has offsets of its own.
fn order_of_each(partitions: &[Partition]) -> (String, Table) {
    let is_durable = partitions.iter().any(|part| part.durable.is_some());
    let mut header = vec!["broker", "first", "next", "messages", "bytes", "batches"];
    if is_durable {
        header.extend(["on disks from", "durable to"]);
    }
    let mut table = Table::new(header);
    let mut all = 0;
    for part in partitions {
        let messages = part.next.saturating_sub(first_of(part));
        all += messages;
        let mut row = vec![
            part.broker.to_string(),
            part.first.to_string(),
            part.next.to_string(),
            grouped(messages),
            Size(part.payload_bytes).to_string(),
            grouped(part.batches),
        ];
        if is_durable {
            let shown = [part.disk_first, part.durable];
            row.extend(shown.map(|at| at.map_or("-".into(), |at| at.to_string())));
        }
        table.row(row);
    }
    (format!("{} messages can be read", grouped(all)), table)
}

/// All brokers tell of one order, each of its own share of the bytes.
fn one_order(partitions: &[Partition]) -> (String, Table) {
    let mut table = Table::new(["broker", "bytes", "batches"]);
    for part in partitions {
        table.row([
            part.broker.to_string(),
            Size(part.payload_bytes).to_string(),
            grouped(part.batches),
        ]);
    }
    let most = |of: fn(&Partition) -> u64| partitions.iter().map(of).max().unwrap_or(0);
    let (first, next) = (most(first_of), most(|part| part.next));
    let mut readable = format!(
        "{} messages can be read: positions {first} to below {next}",
        grouped(next.saturating_sub(first))
    );
    if let Some(durable) = partitions.iter().filter_map(|part| part.durable).max() {
        let memory = most(|part| part.first);
        readable += &format!("; from {memory} on in memory, up to {durable} on all disks");
    }
    (readable, table)
}

/// The first offset that can be read, from memory or from disks.
fn first_of(part: &Partition) -> u64 {
    part.disk_first
        .map_or(part.first, |first| first.min(part.first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> Topic {
        Topic {
            id: 3,
            name: "orders".into(),
            order: embar_client::Order::PerBroker,
            retention_bytes: 1 << 20,
            replication_factor: 3,
            ..Topic::default()
        }
    }

    #[test]
    fn an_empty_list_says_what_to_do() {
        assert!(list(&[]).contains("embar topic create"));
        let text = list(&[topic()]);
        assert!(text.contains("orders") && text.contains("replication factor"));
    }

    #[test]
    fn a_description_counts_what_can_be_read() {
        let part = |broker, first, next| Partition {
            broker,
            first,
            next,
            payload_bytes: 4096,
            batches: 1,
            ..Partition::default()
        };
        let text = describe(&topic(), &[part(1, 10, 1010), part(2, 0, 500)]);
        assert!(text.contains("1,500 messages can be read"), "{text}");
        assert!(text.contains("keeps 1MiB on each broker"), "{text}");
        assert!(text.contains("in memory and on 2 disks"), "{text}");
    }

    #[test]
    fn a_description_says_what_disks_have() {
        let part = Partition {
            broker: 1,
            first: 10,
            next: 30,
            disk_first: Some(5),
            durable: Some(20),
            ..Partition::default()
        };
        let text = describe(&topic(), std::slice::from_ref(&part));
        assert!(text.contains("25 messages can be read"), "{text}");
        assert!(text.contains("durable to"), "{text}");
        let one = Topic {
            order: embar_client::Order::Total,
            ..topic()
        };
        let text = describe(&one, &[part]);
        let said = "positions 5 to below 30; from 10 on in memory, up to 20 on all disks";
        assert!(text.contains(said), "{text}");
    }
}
