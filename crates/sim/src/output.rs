//! Prints the results of runs: failures with the end of their traces, and the sums over many runs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use embar_sim::search::Sums;
use embar_sim::violation::Violation;
use embar_sim::{Options, run};

/// Lines of the trace that a failure prints.
const LAST_LINES: usize = 60;
/// Characters of a violation in a table.
const SHORT_CHARS: usize = 120;

/// What led to a failure.
pub fn end_of_trace(out: &mut impl Write, options: &Options) -> io::Result<()> {
    let again = run(Options {
        verbose: true,
        ..*options
    });
    let skipped = again.lines.len().saturating_sub(LAST_LINES);
    writeln!(out)?;
    for line in &again.lines[skipped..] {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// A failure, and how to see it again.
pub fn failure(out: &mut impl Write, options: &Options, violation: &Violation) -> io::Result<()> {
    let Options {
        seed,
        part,
        steps,
        canary,
        ..
    } = options;
    let part = part.name();
    writeln!(out, "seed {seed}, {part}: FAILED\n{violation}")?;
    let canary = canary.map_or_else(String::new, |canary| format!(" --canary {}", canary.name()));
    writeln!(
        out,
        "run it again: cargo xtask sim --only {part} --seed {seed} --steps {steps}{canary}"
    )
}

/// How a violation begins.
pub fn first_line(violation: &Violation) -> String {
    let text = violation.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(SHORT_CHARS).collect()
}

/// What runs went through: each thing with its count.
pub fn sums(out: &mut impl Write, sums: &Sums) -> io::Result<()> {
    let figures = sums.figures.all().into_iter();
    let counted = figures.filter(|(_, count)| *count > 0).collect::<Vec<_>>();
    let list = |counts: &BTreeMap<&'static str, u64>| {
        let all = counts.iter().map(|(what, count)| (*what, *count));
        all.collect::<Vec<_>>()
    };
    let damaged = ("damaged lines of memory", list(&sums.damaged));
    for (part, counts) in [
        ("cluster", counted),
        damaged,
        ("protocol, streams", list(&sums.seen)),
    ] {
        if !counts.is_empty() {
            writeln!(out, "{part}")?;
        }
        for (what, count) in counts {
            writeln!(out, "{count:>12}  {}", what.replace('_', " "))?;
        }
    }
    Ok(())
}
