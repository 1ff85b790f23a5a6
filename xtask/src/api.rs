//! `cargo xtask api`: compares the public API of the libraries for users with lists that are kept in the repository.
//!
//! `crates/<library>/api.txt` has every public item with its signature, its methods and the traits that it implements:
//! what changes for users shows in the difference. The lists are made from the pages that rustdoc writes, with all
//! features. rustdoc's JSON would be easier to read, but needs a nightly compiler, and its format is another one every
//! few weeks.

mod pages;

use crate::command::Call;
use crate::workspace::Workspace;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of the libraries for users.
pub const LIBRARIES: [&str; 6] = ["client", "session", "quic", "resume", "rpc", "redis"];

/// Lines of a difference that are printed.
const SHOWN_MAX: usize = 40;

/// `cargo xtask api`
#[derive(clap::Args)]
pub struct Arguments {
    /// Write the lists anew, instead of comparing them
    #[arg(long)]
    write: bool,
}

/// Compares the lists with what the sources say.
pub fn check(workspace: &Workspace) -> anyhow::Result<()> {
    run(workspace, &Arguments { write: false })
}

/// Compares the lists with what the sources say, or writes them.
pub fn run(workspace: &Workspace, arguments: &Arguments) -> anyhow::Result<()> {
    let mut build = Call::cargo("doc --locked --quiet --no-deps --all-features --lib");
    for library in LIBRARIES {
        // Pages of items that do not exist any more would stay.
        let pages = pages_of(workspace, library);
        if pages.exists() {
            fs::remove_dir_all(&pages).with_context(|| pages.display().to_string())?;
        }
        build = build.args(["-p", &format!("embar-{library}")]);
    }
    build.run(workspace)?;
    let mut changed = Vec::new();
    for library in LIBRARIES {
        let now = pages::list(&pages_of(workspace, library), &format!("embar_{library}"))?;
        let file = workspace.root().join(format!("crates/{library}/api.txt"));
        if arguments.write {
            fs::write(&file, now).with_context(|| file.display().to_string())?;
        } else if let Some(difference) = difference(&file, &now)? {
            eprintln!("crates/{library}/api.txt\n{difference}");
            changed.push(library);
        }
    }
    if !changed.is_empty() {
        bail!(
            "the public API of {} is not the listed one: if it is to be so, `cargo xtask api --write` lists it, \
             and CHANGELOG.md tells users",
            changed.join(", ")
        );
    }
    Ok(())
}

fn pages_of(workspace: &Workspace, library: &str) -> PathBuf {
    let docs = workspace.target_dir().join("doc");
    docs.join(format!("embar_{library}"))
}

/// The lines that only one of the two has.
fn difference(file: &Path, now: &str) -> anyhow::Result<Option<String>> {
    let listed = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    if listed == now {
        return Ok(None);
    }
    let gone = without(&listed, now).map(|line| format!("- {line}"));
    let new = without(now, &listed).map(|line| format!("+ {line}"));
    let lines: Vec<String> = gone.chain(new).take(SHOWN_MAX).collect();
    Ok(Some(lines.join("\n")))
}

/// The lines of a text that another one does not have.
fn without<'a>(text: &'a str, other: &str) -> impl Iterator<Item = &'a str> {
    let known: std::collections::HashSet<&str> = other.lines().collect();
    let lines: Vec<&str> = text.lines().filter(|line| !known.contains(line)).collect();
    lines.into_iter()
}
