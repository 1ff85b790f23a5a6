//! `embar data verify`: whether directories have what was written to them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use embar_console::paint::Paint;
use embar_console::progress::Bar;
use embar_console::size::{Size, mib_per_s};
use embar_disk::scan::Depth;
use embar_disk::verify::{Lost, Verified, Wrong};
use embar_disk::{DirectoryUser, DiskView};
use embar_meter::table::grouped;
use serde::Serialize;

use super::topics::{Topics, broker_of};
use super::uuid;
use crate::context::Context;
use crate::exit;

/// Read directories of a log to their end, and check every checksum in them
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar data verify /data/a
  embar data verify /data/a /data/b        also which copy has what another one lost
  embar --json data verify /data/a

It checks identities, headers, tables, facts, all batches with their payload, indexes, and that
segments and positions follow each other. It reads past the page cache where it can, so what it
reads is on the disk. It changes nothing, and may read while a cluster uses the directories. What
lies behind the end was torn by a crash before it counted, and is no damage.

It ends with exit code 0 if all is whole, and 4 if something is damaged.

JSON: directories[], bytes_read, elapsed_s, mib_per_s. A directory has dir, disk, log, number (null
if the identity cannot be read), in_use, segments, dead (segments that are no part of the journal,
and were not read), commits, batches, bytes_read, torn_bytes, damaged[] with file, what, text,
commit, run (null where none is meant), lost[] with topic_id, topic, broker (at orders 0 and 1),
first, next, elsewhere[] with dir, first, next: positions first to next - 1; and may_be_more, if
nothing says whether more was there")]
pub struct VerifyArgs {
    /// Directories of a log
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Report<'a> {
    directories: Vec<DirectoryReport<'a>>,
    bytes_read: u64,
    elapsed_s: f64,
    mib_per_s: f64,
}

#[derive(Serialize)]
struct DirectoryReport<'a> {
    dir: &'a Path,
    disk: String,
    log: Option<String>,
    number: Option<u16>,
    in_use: bool,
    segments: usize,
    dead: &'a [u64],
    commits: u64,
    batches: u64,
    bytes_read: u64,
    torn_bytes: u64,
    damaged: Vec<DamageReport<'a>>,
}

#[derive(Serialize)]
struct DamageReport<'a> {
    file: &'a str,
    what: &'static str,
    text: String,
    commit: Option<u32>,
    last_commit: Option<u32>,
    run: Option<u32>,
    lost: Vec<LostReport<'a>>,
    may_be_more: bool,
}

#[derive(Serialize)]
struct LostReport<'a> {
    topic_id: u32,
    topic: Option<String>,
    broker: Option<u16>,
    first: u64,
    next: u64,
    elsewhere: Vec<Elsewhere<'a>>,
    #[serde(skip)]
    called: String,
}

/// Positions that another directory has whole.
#[derive(Serialize)]
struct Elsewhere<'a> {
    dir: &'a Path,
    first: u64,
    next: u64,
}

/// A directory that was read.
pub struct Checked<'a> {
    /// The directory.
    pub dir: &'a Path,
    /// Which disk it is.
    pub view: DiskView,
    in_use: bool,
    /// What was found.
    pub verified: Verified,
    bytes_read: u64,
}

impl Checked<'_> {
    /// Whether another directory is a disk of the same log.
    pub fn is_of_log_of(&self, other: &Self) -> bool {
        let log = |it: &Self| it.view.identity().ok().map(|it| it.log);
        log(self).is_some() && log(self) == log(other)
    }
}

/// Reads them, each by a thread of its own.
pub fn run(args: &VerifyArgs, context: &Context) -> Result<()> {
    let began = Instant::now();
    let checked = check_all(&args.dirs, context)?;
    let report = report(&checked, began.elapsed());
    context.output.json(&report)?;
    context.output.say(text(&report, context.output.paint()))?;
    let damaged = report.directories.iter();
    let damaged = damaged.filter(|it| !it.damaged.is_empty()).count();
    match damaged {
        0 => Ok(()),
        damaged => Err(exit::data(format!(
            "{damaged} of {} directories damaged: stop the cluster, and give all directories of the log to `embar data repair`, \
             which says what can be put back",
            checked.len()
        ))),
    }
}

/// Reads directories to their end, each by a thread of its own.
pub fn check_all<'a>(dirs: &'a [PathBuf], context: &Context) -> Result<Vec<Checked<'a>>> {
    let mut views = Vec::new();
    for dir in dirs {
        views.push((dir.as_path(), DiskView::open(dir)?));
    }
    let total: io::Result<u64> = views.iter().map(|(_, view)| view.bytes()).sum();
    let total = total.context("cannot read a directory")?;
    let bar = context.work.bar("verifying", total);
    let done = AtomicU64::new(0);
    let checked: Vec<Result<Checked<'_>>> = thread::scope(|scope| {
        let check = |(dir, view)| {
            let (done, bar) = (&done, &*bar);
            scope.spawn(move || check(dir, view, done, bar))
        };
        let threads: Vec<_> = views.into_iter().map(check).collect();
        let ends = threads.into_iter().map(|it| it.join());
        ends.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    drop(bar);
    checked.into_iter().collect()
}

fn check<'a>(
    dir: &'a Path,
    view: DiskView,
    done: &AtomicU64,
    bar: &dyn Bar,
) -> Result<Checked<'a>> {
    let failed = || format!("cannot read {}", dir.display());
    let user = view.user().with_context(failed)?;
    let read = AtomicU64::new(0);
    let verified = view.verify(Depth::Payloads, &|bytes| {
        // Only counts: nothing else follows from them.
        read.fetch_add(bytes, Ordering::Relaxed);
        bar.set(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
    });
    Ok(Checked {
        dir,
        in_use: user != DirectoryUser::Nobody,
        verified: verified.with_context(failed)?,
        view,
        bytes_read: read.into_inner(),
    })
}

fn report<'a>(checked: &'a [Checked<'_>], elapsed: Duration) -> Report<'a> {
    let bytes_read = checked.iter().map(|it| it.bytes_read).sum();
    Report {
        directories: checked.iter().map(|it| directory(it, checked)).collect(),
        bytes_read,
        elapsed_s: elapsed.as_secs_f64(),
        mib_per_s: mib_per_s(bytes_read, elapsed),
    }
}

fn directory<'a>(of: &'a Checked<'_>, all: &'a [Checked<'_>]) -> DirectoryReport<'a> {
    let identity = of.view.identity().ok();
    let topics = Topics::of(&of.verified.facts);
    let others = { all.iter() }.filter(|other| other.dir != of.dir && other.is_of_log_of(of));
    let others: Vec<&Checked<'_>> = others.collect();
    let damaged = of.verified.damage.iter().map(|damage| DamageReport {
        file: &damage.file,
        what: damage.what.name(),
        text: damage.what.to_string(),
        commit: damage.what.commit(),
        last_commit: match damage.what {
            Wrong::Commits { last, .. } => Some(last),
            _ => damage.what.commit(),
        },
        run: damage.what.run(),
        may_be_more: damage.may_be_more,
        lost: damage
            .lost
            .iter()
            .map(|it| lost(it, &topics, &others))
            .collect(),
    });
    DirectoryReport {
        dir: of.dir,
        disk: uuid(of.view.disk()),
        log: identity.map(|it| uuid(&it.log)),
        number: identity.map(|it| it.number),
        in_use: of.in_use,
        segments: of.verified.segments.len(),
        dead: &of.verified.dead,
        commits: of.verified.commits,
        batches: of.verified.batches,
        bytes_read: of.bytes_read,
        torn_bytes: of.verified.torn_bytes,
        damaged: damaged.collect(),
    }
}

fn lost<'a>(lost: &Lost, topics: &Topics, others: &[&'a Checked<'_>]) -> LostReport<'a> {
    let elsewhere = others.iter().flat_map(|other| {
        let whole = other.verified.whole.get(&lost.chain);
        let whole = whole.map(|whole| whole.within(&lost.positions()));
        let ranges: Vec<_> = whole.iter().flat_map(|whole| whole.ranges()).collect();
        ranges.into_iter().map(|range| Elsewhere {
            dir: other.dir,
            first: range.start,
            next: range.end,
        })
    });
    LostReport {
        topic_id: lost.chain.topic,
        topic: topics.name(lost.chain.topic).map(str::to_owned),
        broker: broker_of(lost.chain),
        first: lost.first,
        next: lost.next,
        elsewhere: elsewhere.collect(),
        called: topics.called(lost.chain),
    }
}

fn text(report: &Report<'_>, paint: Paint) -> String {
    let mut lines = Vec::new();
    for directory in &report.directories {
        directory_text(directory, paint, &mut lines);
    }
    lines.push(format!(
        "read {} in {:.1} s, {:.0} MiB/s",
        Size(report.bytes_read),
        report.elapsed_s,
        report.mib_per_s
    ));
    lines.join("\n")
}

fn directory_text(of: &DirectoryReport<'_>, paint: Paint, lines: &mut Vec<String>) {
    let verdict = match of.damaged.len() {
        0 => paint.good("whole"),
        1 => paint.bad("damaged in one place"),
        places => paint.bad(&format!("damaged in {places} places")),
    };
    lines.push(format!(
        "{}: {}, {}, {}: {verdict}",
        of.dir.display(),
        counted(of.segments as u64, "segment", "segments"),
        counted(of.commits, "commit", "commits"),
        counted(of.batches, "batch", "batches")
    ));
    for damage in &of.damaged {
        lines.push(format!("  {}: {}", damage.file, damage.text));
        lines.extend(damage.lost.iter().map(lost_text));
        if damage.may_be_more {
            lines.push("    nothing says whether more was there".into());
        }
    }
    if of.torn_bytes > 0 {
        let why = match of.in_use {
            true => "are on their way, or were torn by a crash",
            false => "were torn by a crash, and never counted",
        };
        lines.push(format!(
            "  {} behind the end {why}: that is no damage",
            Size(of.torn_bytes)
        ));
    }
    if !of.dead.is_empty() {
        let dead: Vec<String> = of.dead.iter().map(ToString::to_string).collect();
        lines.push(format!(
            "  not read, as they are no part of the journal: segments {}",
            dead.join(", ")
        ));
    }
}

fn counted(n: u64, one: &str, many: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{} {many}", grouped(n)),
    }
}

fn lost_text(lost: &LostReport<'_>) -> String {
    let elsewhere: Vec<String> = { lost.elsewhere.iter() }
        .map(|it| match (it.first, it.next) == (lost.first, lost.next) {
            true => format!("{} has all of that", it.dir.display()),
            false => format!("{} has {}", it.dir.display(), positions(it.first, it.next)),
        })
        .collect();
    let elsewhere = match elsewhere.is_empty() {
        true => String::new(),
        false => format!("; {}", elsewhere.join(", ")),
    };
    format!(
        "    lost: {} of {}{elsewhere}",
        positions(lost.first, lost.next),
        lost.called
    )
}

/// Positions as people write them: `first` to the one before `next`.
pub fn positions(first: u64, next: u64) -> String {
    match next - first {
        1 => format!("position {first}"),
        _ => format!("positions {first} to {}", next - 1),
    }
}
