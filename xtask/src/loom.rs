//! `cargo xtask loom`: runs the models of the lock-free parts under loom, which tries the interleavings of their
//! threads.

use crate::command::Call;
use crate::workspace::{Member, Workspace};
use anyhow::bail;

/// `cargo xtask loom`
#[derive(clap::Args)]
pub struct Arguments {
    /// Passed on to the test programs, for example a part of a test's name
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs all models, or those that were named.
pub fn run(workspace: &Workspace, arguments: Arguments) -> anyhow::Result<()> {
    command(workspace)?.args(arguments.arguments).run(workspace)
}

/// Only crates with a dependency on loom are built: under `--cfg loom` others have nothing to run.
/// Their build is kept apart, as it compiles every dependency with this flag.
pub fn command(workspace: &Workspace) -> anyhow::Result<Call> {
    let mut members = workspace.members()?;
    members.retain(Member::is_modelled);
    if members.is_empty() {
        bail!("no crate depends on loom");
    }
    let mut call = Call::cargo("test --locked --profile models --lib")
        .add_flag("RUSTFLAGS", "--cfg loom")
        .arg("--target-dir")
        .arg(workspace.target_dir().join("loom").to_string_lossy());
    if members.iter().any(|member| member.has_test("loom")) {
        call = call.args(["--test", "loom"]);
    }
    for member in &members {
        call = call.args(["-p", member.package()]);
    }
    Ok(call.arg("--"))
}
