//! The commits of one segment, one after the other as they are read.

use anyhow::{Context as _, Result, anyhow, bail};
use embar_broker::journal::facts::{ABOUT_ARRIVING, ABOUT_SESSION, ABOUT_TOPIC, ABOUT_TOPIC_IDS};
use embar_disk::format::{ABOUT_SEGMENTS, BatchRun, Run, RunKind, segment_name};
use embar_disk::scan::{Depth, Found, Scan};
use embar_disk::{Chain, DiskView, Storage};
use embar_meter::table::grouped;
use embar_wire::batch::BatchHeader;
use serde::Serialize;

use super::contents::{Contents, header_of};
use super::time;
use super::topics::{Topics, broker_of};
use crate::context::Context;

#[derive(Serialize)]
struct CommitReport {
    commit: u32,
    at: u64,
    bytes: u32,
    runs: u32,
    /// How many were known to be synced when it was made.
    synced: u32,
    completes_facts: bool,
    made_ns: u64,
    counts: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    contents: Option<Vec<Item>>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Item {
    Batch {
        run: u32,
        #[serde(flatten)]
        chain: ChainReport,
        first: u64,
        next: u64,
        messages: u32,
        bytes: u32,
        producer: u64,
        epoch: u32,
        sequence: u64,
        appended_ns: u64,
    },
    Fact {
        run: u32,
        about: String,
        key: u64,
        /// 0: it does not hold any more.
        bytes: u32,
    },
    Next {
        run: u32,
        #[serde(flatten)]
        chain: ChainReport,
        next: u64,
    },
}

#[derive(Serialize)]
struct ChainReport {
    topic_id: u32,
    topic: Option<String>,
    broker: Option<u16>,
    #[serde(skip)]
    called: String,
}

impl ChainReport {
    fn of(run: &Run, topics: &Topics) -> Self {
        let chain = Chain {
            topic: run.chain,
            row: run.row,
        };
        Self {
            topic_id: chain.topic,
            topic: topics.name(chain.topic).map(str::to_owned),
            broker: broker_of(chain),
            called: topics.called(chain),
        }
    }
}

/// Prints them.
pub fn print(
    view: &DiskView,
    contents: &Contents,
    number: u64,
    with_batches: bool,
    context: &Context,
) -> Result<()> {
    let directory = view.directory();
    let name = segment_name(number);
    let Some(segment) = contents.segments.iter().find(|it| it.number == number) else {
        bail!(
            "{} has no segment {number}: `embar data show {0}` lists them",
            directory.path().display()
        );
    };
    let failed = || format!("cannot read {}", directory.path().join(&name).display());
    let header = header_of(directory, number).with_context(failed)?;
    let header = header.ok_or_else(|| {
        anyhow!(
            "{name} was never begun, or its header is damaged: `embar data verify {}` says what is left",
            directory.path().display()
        )
    })?;
    let file = directory.open(&name).with_context(failed)?;
    let mut scan = Scan::new(&file, header, Depth::Tables);
    let output = &context.output;
    output.say(format_args!(
        "{:>8}  {:>12}  {:>12}  {:>6}  {:>8}  {:<23}  counts",
        "commit", "at", "bytes", "runs", "synced", "made"
    ))?;
    loop {
        let mut items = None;
        let found = scan.next(&mut |found, bytes| {
            items = with_batches.then(|| items_of(found, bytes, &contents.names));
        });
        if let Some(found) = found.with_context(failed)? {
            let report = CommitReport {
                commit: found.header.number,
                at: found.at,
                bytes: found.header.bytes,
                runs: found.header.runs,
                synced: found.header.synced,
                completes_facts: found.header.completes_facts,
                made_ns: found.header.time,
                counts: found.header.number < contents.commits_of(number),
                contents: items,
            };
            output.json(&report)?;
            output.say(text(&report))?;
            continue;
        }
        let (at, commit) = (scan.at(), scan.number());
        let Some(behind) = scan.find_behind(at).with_context(failed)? else {
            break;
        };
        context.note(format_args!(
            "{name} has no commit {commit} at byte {at} that is whole; commit {} is at byte {}",
            behind.header.number, behind.at
        ));
        scan.resume_at(&behind);
    }
    let (has, counts) = (u64::from(scan.number()), u64::from(segment.commits));
    output.say(format_args!(
        "{} commits, of which {} count",
        grouped(has),
        grouped(counts)
    ))
}

fn items_of(found: &Found, commit: &[u8], topics: &Topics) -> Vec<Item> {
    let mut items = Vec::new();
    for (number, run) in (0..).zip(&found.runs) {
        match run.kind {
            RunKind::Batches => {
                let bytes = &commit[run.at as usize..(run.at + run.bytes) as usize];
                let batches = BatchRun::new(run, bytes);
                let batches = batches.map(|(header, _)| batch_of(number, run, &header, topics));
                items.extend(batches);
            }
            RunKind::Fact => items.push(Item::Fact {
                run: number,
                about: match run.row {
                    ABOUT_TOPIC => "topic".into(),
                    ABOUT_SESSION => "session".into(),
                    ABOUT_TOPIC_IDS => "topic ids".into(),
                    ABOUT_ARRIVING => "arriving topic".into(),
                    ABOUT_SEGMENTS => "first kept".into(),
                    other => other.to_string(),
                },
                key: run.first,
                bytes: run.bytes,
            }),
            RunKind::Next => items.push(Item::Next {
                run: number,
                chain: ChainReport::of(run, topics),
                next: run.first,
            }),
        }
    }
    items
}

fn batch_of(number: u32, run: &Run, header: &BatchHeader, topics: &Topics) -> Item {
    let (first, messages) = (header.base_offset(), header.message_count());
    Item::Batch {
        run: number,
        chain: ChainReport::of(run, topics),
        first,
        next: first.saturating_add(messages.into()),
        messages,
        bytes: header.frame_len(),
        producer: header.producer(),
        epoch: header.epoch(),
        sequence: header.sequence(),
        appended_ns: header.append_time().0,
    }
}

fn text(report: &CommitReport) -> String {
    let mut lines = vec![format!(
        "{:>8}  {:>12}  {:>12}  {:>6}  {:>8}  {:<23}  {}{}",
        report.commit,
        report.at,
        report.bytes,
        report.runs,
        report.synced,
        time(report.made_ns),
        if report.counts { "yes" } else { "no" },
        if report.completes_facts {
            ", completes the facts"
        } else {
            ""
        }
    )];
    let items = report.contents.iter().flatten();
    lines.extend(items.map(item_text));
    lines.join("\n")
}

fn item_text(item: &Item) -> String {
    match item {
        Item::Batch {
            run,
            chain,
            first,
            next,
            messages,
            bytes,
            producer,
            epoch,
            sequence,
            appended_ns,
        } => format!(
            "          run {run}: batch of {}, positions {first} to {}, {messages} messages, {bytes} bytes, \
             producer {producer:016x}, epoch {epoch}, number {sequence}, {}",
            chain.called,
            next.saturating_sub(1),
            time(*appended_ns)
        ),
        Item::Fact {
            run,
            about,
            key,
            bytes: 0,
        } => format!("          run {run}: {about} {key} is over"),
        Item::Fact {
            run,
            about,
            key,
            bytes,
        } => format!("          run {run}: fact, {about} {key}, {bytes} bytes"),
        Item::Next { run, chain, next } => {
            format!(
                "          run {run}: {} goes on at position {next}",
                chain.called
            )
        }
    }
}
