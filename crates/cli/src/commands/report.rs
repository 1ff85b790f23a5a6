//! `embar report`: results of other commands as one HTML page.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use embar_report::{BYTES_MAX, Report, Section};
use serde::Serialize;

use self::target::{is_same, replace};
use crate::context::Context;
use crate::exit;

mod target;

/// Standard input or output, as a file.
const STANDARD: &str = "-";

/// Turn results into one HTML page with pictures and tables, which needs nothing else
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar diagnose --json > seen.json; embar report seen.json
  embar bench publish --trials 6 --json | embar report -
  embar diagnose --attach --json | embar report -       a cluster that runs
  embar report publish.json read.json latency.json --title 'Release 0.2' --out release.html
  embar bench walls --json | embar report - --out - > walls.html

It takes what these commands print with --json, tells them apart by their fields, and shows them in
the order in which they are named:
  embar diagnose                        which part limits, what was carried over time, the
                                        findings, what could not be read
  embar diagnose redis, session         the same of callers of Redis, and of message sessions
  embar diagnose --matrix               what was injected, and which causes were named
  embar diagnose --save                 what was looked at is diagnosed again
  embar bench publish, read, e2e        rates of trials, their median, beside walls, stages, costs
  embar bench publish --compare         ratios with their intervals, rates of trials
  embar bench latency                   percentiles, on a logarithmic axis
  embar bench walls                     ratios with their intervals, and the aims
  embar bench metering                  what timers cost, or to be looked at, and the bound of it
  embar bench scale                     rates and costs of each point, and where costs jump
  embar bench session                   latencies and rates of each phase, beside the wall
  embar bench redis                     rates, latencies and costs of each operation
A file may hold several of them, one after the other. It may also be a recorded one, with the
command and the machine around the report, as in benches/results.

The page has no script, loads nothing, follows the light or dark setting of its reader, and can be
printed. Each picture has the table of its figures below it. Users and passwords of URLs are left
out. --out replaces a file that is there, as compilers do, unless it is one of those that are read;
what is there stays as it is until the page is complete.

JSON, one object: out, bytes, sections[] with title, says")]
pub struct ReportArgs {
    /// What commands printed with --json; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The page; - for standard output
    #[arg(long, value_name = "FILE", default_value = "embar-report.html")]
    out: PathBuf,
    /// The title of the page, instead of what it is of
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

/// What was written, for programs.
#[derive(Serialize)]
struct Written<'a> {
    out: String,
    bytes: usize,
    sections: Vec<Said<'a>>,
}

#[derive(Serialize)]
struct Said<'a> {
    title: String,
    says: &'a str,
}

/// Reads the files and writes the page.
pub fn run(args: &ReportArgs, context: &Context) -> Result<()> {
    let is_standard = |path: &PathBuf| path.as_os_str() == STANDARD;
    if args.files.iter().filter(|it| is_standard(it)).count() > 1 {
        return Err(exit::usage("standard input can be read once: name - once"));
    }
    let to_standard = is_standard(&args.out);
    if to_standard && context.output.is_json() {
        return Err(exit::usage(
            "--json and --out - both want standard output: leave one of them out",
        ));
    }
    let mut sections = Vec::new();
    for path in &args.files {
        sections.extend(read(path, &args.out)?);
    }
    let report = Report {
        title: args.title.clone(),
        made: Some(jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()),
        sections,
    };
    let page = report.to_html();
    if to_standard {
        let mut out = io::stdout().lock();
        let written = out.write_all(page.as_bytes()).and_then(|()| out.flush());
        return written.map_err(exit::output);
    }
    replace(&args.out, page.as_bytes())
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    let out = args.out.display().to_string();
    let said = report.titles().into_iter().zip(&report.sections);
    let said = said.map(|(title, it)| Said {
        title,
        says: it.says(),
    });
    let text = format!("{out}: {} result(s)", report.sections.len());
    let written = Written {
        out,
        bytes: page.len(),
        sections: said.collect(),
    };
    context.output.report(&written, text)
}

/// The sections of one file, of which no more is read than may be in it, and nothing if the page would take its place.
fn read(path: &Path, out: &Path) -> Result<Vec<Section>> {
    let (name, source): (String, Box<dyn Read>) = if path.as_os_str() == STANDARD {
        let stdin = io::stdin();
        refuse_if_same(out, &stdin, "standard input")?;
        ("standard input".into(), Box::new(stdin.lock()))
    } else {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        refuse_if_same(out, &file, &name)?;
        (name, Box::new(file))
    };
    let mut bytes = Vec::new();
    // One more tells a file that is too large from one that just fits.
    let mut bounded = source.take(BYTES_MAX + 1);
    bounded
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    Ok(embar_report::read(&name, &bytes)?)
}

/// A result that took an hour must not be lost to a slip of the hand.
fn refuse_if_same(out: &Path, input: impl AsFd, name: &str) -> Result<()> {
    if out.as_os_str() != STANDARD && is_same(out, input) {
        return Err(exit::usage(format!(
            "--out {} is the file that is read as {name}: name another one for the page",
            out.display()
        )));
    }
    Ok(())
}
