//! The program in `outside/`, which uses the libraries as a user's program does: it knows their public API alone.

use crate::command::Call;
use crate::workspace::Workspace;
use anyhow::Context;
use std::fs;

/// Builds and runs it, where the workspace builds, and with the same versions of everything.
pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let lock = workspace.root().join("outside/Cargo.lock");
    // Cargo takes out what this program does not need.
    fs::copy(workspace.root().join("Cargo.lock"), &lock)
        .with_context(|| lock.display().to_string())?;
    let target = workspace.target_dir();
    Call::cargo("run --quiet --manifest-path outside/Cargo.toml --target-dir")
        .arg(target.to_string_lossy())
        .run(workspace)
}
