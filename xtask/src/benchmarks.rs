//! `cargo xtask benchmarks`: runs the benches, keeps their results, and draws the tables and the
//! pictures of the documents from what was kept.
//!
//! Results are JSON files in `benches/results`, one for each [`plan::Measurement`]. A drawn part of
//! a document stands between two marks; [`stale`] compares each with the results, so that no
//! document shows a number that was not measured.
//!
//! Read in this order: [`plan`] (what is run), [`results`] (what is kept of it), [`tables`] and
//! [`pictures`] (what is drawn), [`comparisons`] (what both show), [`numbers`] (as people read them), [`chart`] (how a
//! picture becomes SVG), [`page`] (the marks).

mod chart;
mod comparisons;
mod numbers;
mod page;
mod pictures;
mod plan;
mod record;
mod results;
mod tables;

use crate::workspace::Workspace;
use anyhow::Context;
use clap::Subcommand;
use results::Results;
use std::fs;
use std::path::{Path, PathBuf};

/// `cargo xtask benchmarks`
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run benches and keep their results; all of them take hours, on a machine that does nothing else
    Record {
        /// Only these; without a name, all of them
        names: Vec<String>,
        /// What the machine is, if its own word for its processor is not enough
        #[arg(long)]
        machine: Option<String>,
        /// Keep this file, which the command printed with `--json`, instead of running it
        #[arg(long, requires = "names")]
        report: Option<PathBuf>,
    },
    /// Draw tables and pictures from the results that were kept
    Draw,
    /// List the measurements, with the command of each
    List,
}

/// Runs what was asked for.
pub fn run(workspace: &Workspace, arguments: Arguments) -> anyhow::Result<()> {
    match arguments.action {
        Action::Record {
            names,
            machine,
            report,
        } => {
            record::run(workspace, &names, machine, report.as_deref())?;
            draw(workspace.root())
        }
        Action::Draw => draw(workspace.root()),
        Action::List => {
            for measurement in plan::MEASUREMENTS {
                println!("{:<20} {}", measurement.name, measurement.command);
            }
            Ok(())
        }
    }
}

/// Runs these benches, keeps their results, and draws.
pub fn record(workspace: &Workspace, names: &[&str]) -> anyhow::Result<()> {
    let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
    record::run(workspace, &names, None, None)?;
    draw(workspace.root())
}

/// The drawn files that differ from what the results say.
pub fn stale(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut differing = Vec::new();
    for (path, drawn) in drawn(root)? {
        // A picture that does not exist yet differs, too.
        if fs::read_to_string(&path).ok().as_ref() != Some(&drawn) {
            differing.push(path);
        }
    }
    Ok(differing)
}

fn draw(root: &Path) -> anyhow::Result<()> {
    for (path, text) in drawn(root)? {
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Each drawn file with its whole text.
fn drawn(root: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let results = Results::read(root)?;
    let mut files = Vec::new();
    for (name, picture) in pictures::all(&results) {
        let path = root.join(format!("benches/pictures/{name}.svg"));
        files.push((path, picture.to_svg()));
    }
    let tables = tables::all(&results);
    for document in page::DOCUMENTS {
        let path = root.join(document);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let text = page::fill(&text, &tables).with_context(|| path.display().to_string())?;
        files.push((path, text));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::stale;
    use crate::workspace::Workspace;

    #[test]
    fn documents_show_what_was_recorded() {
        let stale = stale(Workspace::find().root()).unwrap();
        assert!(stale.is_empty(), "cargo xtask benchmarks draw: {stale:?}");
    }
}
