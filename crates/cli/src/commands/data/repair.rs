//! `embar data repair`: puts what is damaged back.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use embar_console::size::Size;
use embar_disk::repair::{Action, Copy, Fix, OtherDisks, Repair, repair_disk};
use embar_disk::verify::{Lost, Wrong};
use embar_disk::{Directory, DirectoryLock, DirectoryUser, DiskView};
use serde::Serialize;

use super::topics::{Topics, broker_of};
use super::uuid;
use super::verify::{Checked, check_all, positions};
use crate::context::Context;
use crate::exit;

/// Most rounds: what one directory got back another may need.
const ROUNDS_MAX: usize = 8;

/// Put what is damaged in the directories of a log back from what the others have
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar data repair /data/a /data/b        say what can be put back, and change nothing
  embar data repair /data/a /data/b --yes  do it
  embar data repair /data/a --yes --give-up-lost
                                           also make usable what no directory has all of

Stop the cluster first, and give all directories of the log: they have the same messages. It
reads them to their end, as `embar data verify` does, and puts back, bit by bit where that can
be proved by checksums: batches from another directory, tables and headers in which one bit
flipped, indexes from their segments, and an identity from its other half. A commit whose table
is gone is made anew, of the same length, with all messages that any directory has.

What no directory has stays damaged, unless --give-up-lost is given. Then exactly these messages
are gone: readers are told so, as of evicted ones, and which is the next. No position shifts.

It ends with exit code 0 if all is whole, and 4 if something is damaged, also if it would be put
back with --yes.

JSON: changed (whether anything was written), rounds, directories[] with dir, disk, repairs[],
damaged (how many places are damaged now). A repair has round, file, what[], commit (null where
none is meant), action (exact: as it was; anew: other bytes with the same messages; index;
identity; none), done, bytes, text, lost_facts, lost[] with topic_id, topic, broker (at orders 0
and 1), first, next: what it gives up, or what is lost where nothing can be done")]
pub struct RepairArgs {
    /// Directories of a log: all of them
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Write what was found to be possible
    #[arg(long)]
    yes: bool,
    /// Give up messages and facts that no directory has, so that the rest can be used again
    #[arg(long)]
    give_up_lost: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    changed: bool,
    rounds: usize,
    directories: Vec<DirectoryReport<'a>>,
}

#[derive(Serialize)]
struct DirectoryReport<'a> {
    dir: &'a Path,
    disk: String,
    repairs: Vec<RepairReport>,
    damaged: usize,
}

#[derive(Serialize)]
struct RepairReport {
    round: usize,
    file: String,
    what: Vec<&'static str>,
    commit: Option<u32>,
    action: &'static str,
    done: bool,
    bytes: u64,
    text: String,
    lost_facts: bool,
    lost: Vec<LostReport>,
}

#[derive(Serialize)]
struct LostReport {
    topic_id: u32,
    topic: Option<String>,
    broker: Option<u16>,
    first: u64,
    next: u64,
    #[serde(skip)]
    called: String,
}

/// Says what can be done, and does it if that is wanted.
pub fn run(args: &RepairArgs, context: &Context) -> Result<()> {
    let locks = keep_away(args)?;
    let mut report = Report {
        changed: false,
        rounds: 0,
        directories: Vec::new(),
    };
    let damaged = loop {
        let checked = check_all(&args.dirs, context)?;
        let mut has_changed = false;
        for (place, of) in checked.iter().enumerate() {
            if report.rounds == 0 {
                report.directories.push(DirectoryReport {
                    dir: of.dir,
                    disk: uuid(of.view.disk()),
                    repairs: Vec::new(),
                    damaged: 0,
                });
            }
            let last_round = report.rounds + 1 == ROUNDS_MAX;
            let mut round = Round {
                args,
                number: report.rounds,
                topics: Topics::of(&of.verified.facts),
                may_write: args.yes && !last_round,
                repairs: Vec::new(),
            };
            context.work.interrupt.check()?;
            has_changed |= round.repair(place, &checked, locks.get(place))?;
            let directory = &mut report.directories[place];
            directory.damaged = of.verified.damage.len();
            // What cannot be done is said once.
            directory.repairs.retain(|it| it.done);
            directory.repairs.extend(round.repairs);
        }
        report.rounds += 1;
        report.changed |= has_changed;
        if !has_changed {
            break checked
                .iter()
                .filter(|it| !it.verified.damage.is_empty())
                .count();
        }
    };
    context.output.json(&report)?;
    context.output.say(text(&report))?;
    let could = report.directories.iter().flat_map(|it| &it.repairs);
    let could = could.filter(|it| !it.done && it.action != "none");
    let gives_up = could.clone().any(|it| it.lost_facts || !it.lost.is_empty());
    match (damaged, could.count()) {
        (0, _) => Ok(()),
        (_, 0) => Err(exit::data(
            "something is damaged that cannot be put back: give all directories of the log, put back copies of the \
             files that are named, or replace the disk (docs/disks.md)",
        )),
        (_, _) if !args.yes => Err(exit::data(match gives_up && !args.give_up_lost {
            true => {
                "nothing was changed: --yes writes what can be put back, and with --give-up-lost also what loses something"
            }
            false => "nothing was changed: --yes writes it",
        })),
        _ => Err(exit::data(
            "some messages or facts are in no directory that was given: give the others, too, or give these up with --give-up-lost",
        )),
    }
}

/// Sees to it that no cluster uses the directories; while they are changed, none can begin to.
fn keep_away(args: &RepairArgs) -> Result<Vec<DirectoryLock>> {
    let mut locks = Vec::new();
    for dir in &args.dirs {
        let view = DiskView::open(dir)?;
        let failed = || format!("cannot read {}", dir.display());
        let user = match view.user().with_context(failed)? {
            DirectoryUser::Nobody => None,
            DirectoryUser::Region(region) => Some(format!(" of region {}", region.path.display())),
            DirectoryUser::Unnamed => Some(String::new()),
        };
        if let Some(user) = user {
            anyhow::bail!(
                "{} is in use by the cluster{user}: stop it first, or let its scrub repair what it can",
                dir.display()
            );
        }
        if args.yes {
            locks.push(view.lock()?);
        }
    }
    Ok(locks)
}

/// One directory, once.
struct Round<'a> {
    args: &'a RepairArgs,
    number: usize,
    topics: Topics,
    may_write: bool,
    repairs: Vec<RepairReport>,
}

impl Round<'_> {
    /// Returns whether anything was written.
    fn repair(
        &mut self,
        place: usize,
        all: &[Checked<'_>],
        lock: Option<&DirectoryLock>,
    ) -> Result<bool> {
        let of = &all[place];
        if of.verified.damage.is_empty() {
            return Ok(false);
        }
        let others = { all.iter().enumerate() }
            .filter(|(other, it)| *other != place && it.is_of_log_of(of))
            .map(|(_, it)| it);
        let mut copies: Vec<Copy<'_, Directory>> = Vec::new();
        for it in others.chain([of]) {
            copies.extend(Copy::of(it.view.directory(), *it.view.disk(), &it.verified));
        }
        let directory = lock.map_or(of.view.directory(), DirectoryLock::directory);
        let (mut has_changed, mut identity) = (false, false);
        let mut copies = OtherDisks::new(copies);
        repair_disk(
            directory,
            of.view.disk(),
            &of.verified,
            &mut copies,
            &mut |repair| {
                let report = self.describe(repair);
                let is_done = report.done;
                identity |= is_done && report.action == "identity";
                self.repairs.push(report);
                has_changed |= is_done;
                is_done
            },
        )
        .with_context(|| format!("cannot repair {}", of.dir.display()))?;
        if identity && let Some(lock) = lock {
            let restored = of.view.restore_identity(lock);
            restored
                .with_context(|| format!("cannot write the identity of {}", of.dir.display()))?;
        }
        Ok(has_changed)
    }

    fn describe(&self, repair: &Repair<'_>) -> RepairReport {
        let is_identity = repair.damage.iter().any(|it| it.what == Wrong::Identity);
        let (action, fix): (_, Option<&Fix>) = match repair.action {
            Action::Write(fix) if fix.is_exact => ("exact", Some(fix)),
            Action::Write(fix) => ("anew", Some(fix)),
            Action::Index => ("index", None),
            Action::Nothing if is_identity => ("identity", None),
            Action::Nothing => ("none", None),
        };
        let lost_facts = fix.is_some_and(|fix| fix.lost_facts);
        let lost: Vec<Lost> = match fix {
            Some(fix) => fix.lost.clone(),
            None => { repair.damage.iter() }
                .flat_map(|it| it.lost.clone())
                .collect(),
        };
        let loses = fix.is_some() && (lost_facts || !lost.is_empty());
        let what: Vec<String> = { repair.damage.iter() }
            .map(|it| it.what.to_string())
            .collect();
        RepairReport {
            round: self.number,
            file: repair.file.to_owned(),
            what: { repair.damage.iter() }.map(|it| it.what.name()).collect(),
            commit: fix
                .and_then(|fix| fix.commits)
                .map(|(first, _)| first)
                .or_else(|| repair.damage.iter().find_map(|it| it.what.commit())),
            action,
            done: self.may_write && action != "none" && (!loses || self.args.give_up_lost),
            bytes: fix.map_or(0, Fix::len),
            text: what.join("; "),
            lost_facts,
            lost: lost.iter().map(|it| self.lost(it)).collect(),
        }
    }

    fn lost(&self, lost: &Lost) -> LostReport {
        LostReport {
            topic_id: lost.chain.topic,
            topic: self.topics.name(lost.chain.topic).map(str::to_owned),
            broker: broker_of(lost.chain),
            first: lost.first,
            next: lost.next,
            called: self.topics.called(lost.chain),
        }
    }
}

fn text(report: &Report<'_>) -> String {
    let mut lines = Vec::new();
    for directory in &report.directories {
        let dir = directory.dir.display();
        lines.push(match (directory.repairs.is_empty(), directory.damaged) {
            (true, _) => format!("{dir}: whole"),
            (false, 0) => format!("{dir}: whole now"),
            (false, 1) => format!("{dir}: damaged in one place"),
            (false, places) => format!("{dir}: damaged in {places} places"),
        });
        for repair in &directory.repairs {
            lines.push(format!("  {}: {}", repair.file, repair.text));
            lines.push(format!("    {}", repair.outcome()));
            for lost in &repair.lost {
                let positions = positions(lost.first, lost.next);
                lines.push(format!("    lost: {positions} of {}", lost.called));
            }
            if repair.lost_facts {
                lines.push("    lost: what it said of topics and publishers' sessions, if nothing else says it".into());
            }
        }
    }
    lines.join("\n")
}

impl RepairReport {
    fn outcome(&self) -> String {
        let size = Size(self.bytes);
        let loses = self.lost_facts || !self.lost.is_empty();
        match (self.action, self.done) {
            ("exact", true) => format!("put back as it was, {size}"),
            ("exact", false) => format!("can be put back as it was, {size}"),
            ("anew", true) => format!("made anew, {size}"),
            ("anew", false) if loses => {
                format!("can be made anew, {size}, if what is lost is given up")
            }
            ("anew", false) => format!("can be made anew, {size}; nothing is lost"),
            ("index", true) => "made from its segment again".into(),
            ("index", false) => "can be made from its segment again".into(),
            ("identity", true) => "both copies written again".into(),
            ("identity", false) => "can be written again from the other copy".into(),
            _ => "cannot be put back from what was given".into(),
        }
    }
}
