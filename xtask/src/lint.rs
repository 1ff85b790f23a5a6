//! The rules of this project that no compiler checks.
//!
//! - A source file has at most [`LINES_MAX`] lines, so that a reader can keep all of it in mind.
//! - `unsafe` is in the crates [`MAY_BE_UNSAFE`] only: all others forbid it in each of their roots.
//! - Nothing is left for later in the sources: it is done, or it is an issue.
//! - A crate uses only those before it in [`layers::LAYERS`], which the documents at the top list in this
//!   order; the crates of sessions and of the Redis client need nothing of the log.
//! - Modules of a crate use each other in one direction.
//! - Packages that users take say what they are, and need nothing that is not published. A library without its
//!   features needs no crate that formats or serves figures about itself.
//! - A link in a document leads to a file.
//! - The tables and pictures of measurements show what was recorded.

mod circles;
mod layers;
mod links;
mod packages;
mod sources;

use crate::benchmarks;
use crate::workspace::{Member, Workspace};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The longest source file, in lines.
pub const LINES_MAX: usize = 600;

/// Folders of the crates that touch raw memory.
pub const MAY_BE_UNSAFE: [&str; 3] = ["memory", "fabric", "transport"];

/// Folders with documents, beside those of the members.
const WITH_DOCUMENTS: [&str; 7] = [
    "",
    "docs",
    "docs/architecture",
    "benches",
    "benches/peers",
    "benches/log-peers",
    "benches/session-peers",
];

/// Checks all rules; what breaks one is printed as `file:line: what`.
pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let root = workspace.root();
    let mut found = Vec::new();
    let members = workspace.members()?;
    for member in &members {
        check_member(member, &mut found)?;
    }
    println!("layers: {}", layers::LAYERS.join(", "));
    found.extend(layers::check(workspace, &members)?);
    found.extend(circles::check(&members)?);
    found.extend(packages::check(workspace)?);
    for folder in WITH_DOCUMENTS {
        for path in files(&root.join(folder), false)? {
            check_links(&path, &read(&path)?, &mut found);
        }
    }
    for path in benchmarks::stale(root)? {
        let what = "differs from what was recorded: cargo xtask benchmarks draw";
        found.push(format!("{}:1: {what}", path.display()));
    }
    for line in &found {
        let shown = root.to_string_lossy();
        eprintln!(
            "{}",
            line.strip_prefix(&*shown)
                .unwrap_or(line)
                .trim_start_matches('/')
        );
    }
    if !found.is_empty() {
        bail!("{} rule(s) of this project are broken", found.len());
    }
    Ok(())
}

fn check_member(member: &Member, found: &mut Vec<String>) -> anyhow::Result<()> {
    let sources = member.dir.join("src");
    let may_be_unsafe = MAY_BE_UNSAFE.contains(&member.folder());
    for path in files(&member.dir, true)? {
        let text = read(&path)?;
        if path.starts_with(&sources) {
            found.extend(prefixed(&path, sources::too_long(&text)));
            if !may_be_unsafe && sources::is_root(&sources, &path) {
                found.extend(prefixed(&path, sources::not_forbidding(&text)));
            }
        }
        found.extend(prefixed(&path, sources::left_for_later(&text)));
        check_links(&path, &text, found);
    }
    Ok(())
}

/// Of a document in Markdown.
fn check_links(path: &Path, text: &str, found: &mut Vec<String>) {
    if path.extension().is_some_and(|extension| extension == "md") {
        found.extend(prefixed(path, links::broken(path, text)));
    }
}

/// Text files in a folder, and in those below it if asked, in the order of their names.
fn files(dir: &Path, below: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        entries.push(entry?.path());
    }
    entries.sort();
    let mut files = Vec::new();
    for path in entries {
        if path.is_dir() && below {
            files.append(&mut self::files(&path, below)?);
        } else if path.extension().is_some_and(is_text) && path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

fn is_text(extension: &std::ffi::OsStr) -> bool {
    ["rs", "toml", "proto", "md"]
        .iter()
        .any(|known| extension == *known)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn prefixed(path: &Path, found: Vec<(usize, String)>) -> Vec<String> {
    let shown = path.display();
    let line = |(line, what)| format!("{shown}:{line}: {what}");
    found.into_iter().map(line).collect()
}
