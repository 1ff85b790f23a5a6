//! `embar data show`: what a directory has.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use embar_console::size::Size;
use embar_disk::{DirectoryUser, DiskView, ViewError};
use embar_meter::table::{Table, grouped};
use serde::Serialize;

use super::contents::{Contents, SegmentReport, State, TopicReport};
use super::{listing, time, uuid};
use crate::context::Context;
use crate::exit;

/// Show what a directory has of a log
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar data show /data/a
  embar data show /data/a --segment 3               the commits of segment 3
  embar data show /data/a --segment 3 --batches     and all that is in them

It changes nothing, and may look while a cluster uses the directory: then the end moves. It shows
what it can of a directory that a cluster would refuse to start with, and ends with exit code 4.
`embar data verify` names all that is damaged.

A segment is sealed when another one follows it. A dead one is no part of the journal: it was left
by a writer that others had deposed. No writer has begun a blank one yet. Of a sealed one the disk
gets back what deleted topics had: it takes less of the device than the file has then.

JSON: dir, disk, log, number, created_ns (null if the identity cannot be read), in_use, region (of
the cluster that uses it), term, sessions, torn_bytes, error (why a cluster would not start with
it), segments[] with number, file, state (sealed, last, dead, blank), term, created_ns, commits
(that count), counted_bytes, file_bytes, device_bytes (that it takes); topics[] with id, name
(null: deleted), order, broker (at orders 0 and 1), first, next, bytes; positions first to next - 1
are there.
With --segment a line for each commit: commit, at, bytes, runs, synced, completes_facts, made_ns,
counts; with --batches also contents[] with run, kind (batch, fact, next), topic_id, topic, broker,
first, next, messages, bytes, producer, epoch, sequence, appended_ns, about, key")]
pub struct ShowArgs {
    /// One directory of the log
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Show the commits of the segment with this number
    #[arg(long, value_name = "N")]
    segment: Option<u64>,
    /// Show each batch and each fact, too
    #[arg(long, requires = "segment")]
    batches: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    dir: &'a Path,
    disk: String,
    log: Option<String>,
    number: Option<u16>,
    created_ns: Option<u64>,
    in_use: bool,
    region: Option<PathBuf>,
    term: u32,
    sessions: usize,
    torn_bytes: u64,
    error: Option<String>,
    segments: &'a [SegmentReport],
    topics: &'a [TopicReport],
}

/// Reads it, and prints it.
pub fn run(args: &ShowArgs, context: &Context) -> Result<()> {
    let view = DiskView::open(&args.dir)?;
    let failed = || format!("cannot read {}", args.dir.display());
    let user = view.user().with_context(failed)?;
    let contents = Contents::read(&view).with_context(failed)?;
    match args.segment {
        Some(number) => listing::print(&view, &contents, number, args.batches, context)?,
        None => print(&args.dir, &view, user, &contents, context)?,
    }
    let wrong = view.identity().err().map(ViewError::to_string);
    let refused = contents.refused.as_ref();
    let wrong = wrong.or_else(|| refused.map(|error| format!("{}: {error}", args.dir.display())));
    match wrong {
        Some(wrong) => Err(exit::data(wrong)),
        None => Ok(()),
    }
}

fn print(
    dir: &Path,
    view: &DiskView,
    user: DirectoryUser,
    contents: &Contents,
    context: &Context,
) -> Result<()> {
    let identity = view.identity();
    let (in_use, region) = match user {
        DirectoryUser::Nobody => (false, None),
        DirectoryUser::Region(region) => (true, Some(region.path)),
        DirectoryUser::Unnamed => (true, None),
    };
    let report = Report {
        dir,
        disk: uuid(view.disk()),
        log: identity.ok().map(|it| uuid(&it.log)),
        number: identity.ok().map(|it| it.number),
        created_ns: identity.ok().map(|it| it.created),
        in_use,
        region,
        term: contents.term,
        sessions: contents.sessions,
        torn_bytes: contents.torn_bytes,
        error: contents.refused.as_ref().map(ToString::to_string),
        segments: &contents.segments,
        topics: &contents.topics,
    };
    context.output.json(&report)?;
    context.output.say(text(&report))?;
    let unreadable = { contents.segments.iter() }
        .filter(|segment| segment.state == State::Dead && segment.term.is_none());
    for segment in unreadable {
        context.note(format_args!(
            "the header of {} is damaged, so it is taken for dead: `embar data verify {}` says what it has",
            segment.file,
            dir.display()
        ));
    }
    Ok(())
}

fn text(report: &Report<'_>) -> String {
    let used = match (&report.region, report.in_use) {
        (_, false) => "no cluster uses it now".into(),
        (Some(region), true) => format!(
            "the cluster of region {} uses it now; reading is fine meanwhile",
            region.display()
        ),
        (None, true) => "a cluster uses it now; reading is fine meanwhile".into(),
    };
    let number = match report.number {
        Some(number) => format!("disk {number} of its log"),
        None => "nobody knows which disk of its log".into(),
    };
    let torn = match (report.torn_bytes, report.in_use) {
        (0, _) => "nothing".into(),
        (bytes, true) => format!("{}, on their way or torn by a crash", Size(bytes)),
        (bytes, false) => format!("{}, torn by a crash; they never counted", Size(bytes)),
    };
    let unknown = || "not known".to_owned();
    let lines = [
        format!("{}: {number}; {used}", report.dir.display()),
        format!("disk         {}", report.disk),
        format!(
            "log          {}",
            report.log.clone().unwrap_or_else(unknown)
        ),
        format!(
            "created      {}",
            report.created_ns.map_or_else(unknown, time)
        ),
        format!("term         {}", report.term),
        format!("sessions     {}", report.sessions),
        format!("behind end   {torn}"),
        String::new(),
        segments(report.segments),
        String::new(),
        topics(report.topics),
    ];
    lines.join("\n")
}

fn segments(segments: &[SegmentReport]) -> String {
    if segments.is_empty() {
        return "no segments: nothing was written yet".into();
    }
    let mut table = Table::new([
        "segment",
        "state",
        "term",
        "begun",
        "commits",
        "counts",
        "file",
        "on device",
    ]);
    let unknown = || "-".to_owned();
    for segment in segments {
        table.row([
            segment.number.to_string(),
            match segment.state {
                State::Sealed => "sealed",
                State::Last => "last",
                State::Dead => "dead",
                State::Blank => "blank",
            }
            .into(),
            segment.term.map_or_else(unknown, |term| term.to_string()),
            segment.created_ns.map_or_else(unknown, time),
            grouped(segment.commits.into()),
            Size(segment.counted_bytes).to_string(),
            Size(segment.file_bytes).to_string(),
            Size(segment.device_bytes).to_string(),
        ]);
    }
    table.to_string()
}

fn topics(topics: &[TopicReport]) -> String {
    if topics.is_empty() {
        return "no topics".into();
    }
    let mut table = Table::new(["topic", "id", "order", "broker", "first", "next", "bytes"]);
    let none = || "-".to_owned();
    for topic in topics {
        table.row([
            topic.name.clone().unwrap_or_else(|| "(deleted)".into()),
            topic.id.to_string(),
            topic.order.map_or_else(none, |order| order.to_string()),
            topic.broker.map_or_else(none, |broker| broker.to_string()),
            topic.first.to_string(),
            topic.next.to_string(),
            Size(topic.bytes).to_string(),
        ]);
    }
    table.to_string()
}
