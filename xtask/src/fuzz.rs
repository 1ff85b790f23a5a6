//! `cargo xtask fuzz`: runs the fuzz targets for as long as one likes, on the stable toolchain.
//!
//! A target is a test in a crate's `tests/fuzz.rs`, written with the library bolero. Under plain `cargo test` it tries
//! random inputs for a second; this command sets the environment variable by which bolero goes on for longer. Inputs
//! are not guided by coverage. So a target itself makes its input valid enough to get past the first checks of a
//! decoder.

use crate::command::Call;
use crate::workspace::Workspace;
use anyhow::{Context, bail};
use std::num::{NonZeroU64, NonZeroUsize};
use std::thread;

/// `cargo xtask fuzz`
#[derive(clap::Args)]
#[command(after_help = "\
When a target fails it prints the input and `BOLERO_RANDOM_SEED=...`. The same input again:
  BOLERO_RANDOM_SEED=... cargo xtask fuzz TARGET --seconds 1")]
pub struct Arguments {
    /// One target; all of them when none is named
    target: Option<String>,
    /// How long each target runs; as many run at once as there are processors
    #[arg(long, value_name = "N", default_value = "60")]
    seconds: NonZeroU64,
    /// Print the names of the targets and end
    #[arg(long, conflicts_with = "target")]
    list: bool,
}

/// Runs one target or all.
pub fn run(workspace: &Workspace, arguments: &Arguments) -> anyhow::Result<()> {
    let targets = targets(workspace)?;
    if arguments.list {
        for target in targets {
            println!("{target}");
        }
        return Ok(());
    }
    let chosen = chosen(&targets, arguments.target.as_deref())?;
    let at_once = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let seconds = arguments.seconds.get();
    let rounds = chosen.len().div_ceil(at_once) as u64;
    eprintln!(
        "{} target(s), {seconds} s each, {at_once} at once: about {} s",
        chosen.len(),
        rounds.saturating_mul(seconds)
    );
    let call = command(workspace)?
        .env(
            "BOLERO_RANDOM_TEST_TIME_MS",
            seconds.saturating_mul(1000).to_string(),
        )
        .args(["--exact", "--test-threads", &at_once.to_string()])
        .args(chosen);
    call.run(workspace).with_context(|| {
        "a target failed: its input and `BOLERO_RANDOM_SEED=...` are above. The same input again:\n  \
         BOLERO_RANDOM_SEED=... cargo xtask fuzz TARGET --seconds 1\n\
         Once it is understood, keep the input as a test of its own."
    })
}

fn command(workspace: &Workspace) -> anyhow::Result<Call> {
    let mut call = Call::cargo("test --locked --profile checked --test fuzz");
    let mut any = false;
    for member in workspace.members()? {
        if member.has_test("fuzz") {
            call = call.args(["-p", member.package()]);
            any = true;
        }
    }
    if !any {
        bail!("no crate has tests/fuzz.rs");
    }
    Ok(call.arg("--"))
}

/// The names, from the test programs themselves.
fn targets(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut targets = Vec::new();
    command(workspace)?
        .args(["--list", "--format", "terse"])
        .run_lines(workspace, |line| {
            targets.extend(line.strip_suffix(": test").map(str::to_owned));
            Ok(())
        })
        .context("cannot list the fuzz targets")?;
    Ok(targets)
}

fn chosen<'a>(targets: &'a [String], name: Option<&str>) -> anyhow::Result<Vec<&'a str>> {
    let wanted = |target: &&str| name.is_none_or(|name| name == *target);
    let chosen: Vec<_> = targets.iter().map(String::as_str).filter(wanted).collect();
    if chosen.is_empty() {
        let name = name.unwrap_or_default();
        bail!(
            "no fuzz target is called {name:?}; there are: {}",
            targets.join(", ")
        );
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn an_unknown_target_is_answered_with_the_known_ones() {
        let targets = ["ack".to_owned(), "ack_frame".to_owned()];
        assert_eq!(chosen(&targets, None).unwrap(), ["ack", "ack_frame"]);
        assert_eq!(chosen(&targets, Some("ack")).unwrap(), ["ack"]);
        let error = chosen(&targets, Some("frame")).unwrap_err().to_string();
        assert!(error.contains("\"frame\"") && error.contains("ack, ack_frame"));
    }
}
