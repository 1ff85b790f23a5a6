//! Runs the commands of the plan and writes what they report.

use super::plan::{MEASUREMENTS, Measurement, REDIS_CLUSTER};
use super::results::{self, Measured, Recorded};
use crate::command::Call;
use crate::workspace::Workspace;
use anyhow::{Context, bail};
use std::path::Path;
use std::thread::available_parallelism;
use std::{env, fs};

/// Measures what is named, or everything, and writes each result when it is there.
pub fn run(
    workspace: &Workspace,
    names: &[String],
    machine: Option<String>,
    report: Option<&Path>,
) -> anyhow::Result<()> {
    let chosen = chosen(names)?;
    if report.is_some() && chosen.len() != 1 {
        bail!("a report is of one measurement: name it");
    }
    let measured = Measured {
        machine: machine.map_or_else(this_machine, Ok)?,
        commit: commit(workspace)?,
        date: Some(line(workspace, "date", "--utc +%F")?),
        note: None,
    };
    for measurement in chosen {
        eprintln!("\n==> {}: {}", measurement.name, measurement.command);
        let json = match report {
            Some(path) => fs::read_to_string(path).with_context(|| path.display().to_string()),
            None => call(measurement).output(workspace),
        };
        let json = json.with_context(|| {
            let needs = if measurement.name.starts_with("redis") {
                format!("\nIt needs a cluster: {REDIS_CLUSTER}")
            } else {
                String::new()
            };
            format!("{} could not be measured{needs}", measurement.name)
        })?;
        let recorded = Recorded {
            measured: measured.clone(),
            command: measurement.command.to_owned(),
            report: (measurement.reduce)(&json)
                .with_context(|| format!("what {} reports", measurement.command))?,
        };
        let path = results::path(workspace.root(), measurement.name);
        let text = serde_json::to_string_pretty(&recorded)? + "\n";
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Measurement>> {
    let unknown = |name: &&String| MEASUREMENTS.iter().all(|one| one.name != name.as_str());
    if let Some(name) = names.iter().find(unknown) {
        bail!("no measurement has the name {name}: cargo xtask benchmarks list");
    }
    let is_chosen =
        |one: &&Measurement| names.is_empty() || names.iter().any(|name| name == one.name);
    Ok(MEASUREMENTS.iter().filter(is_chosen).collect())
}

/// The command with `--json`, and with `embar` as this workspace builds it.
fn call(measurement: &Measurement) -> Call {
    let command = match measurement.command.strip_prefix("embar ") {
        Some(arguments) => format!("run --locked --release --package embar-cli -- {arguments}"),
        None => measurement.command.trim_start_matches("cargo ").to_owned(),
    };
    Call::cargo(&command).arg("--json")
}

/// `2 cores of an AMD EPYC-Genoa Processor, Linux 6.18.5`
fn this_machine() -> anyhow::Result<String> {
    let cores = available_parallelism()?;
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let name = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or(env::consts::ARCH, |(_, name)| name);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let kernel = kernel.trim();
    Ok(format!("{cores} cores of {name}, Linux {kernel}"))
}

fn commit(workspace: &Workspace) -> anyhow::Result<String> {
    let commit = line(workspace, "git", "rev-parse --short=7 HEAD")?;
    let changed = line(workspace, "git", "status --porcelain --untracked-files=no")?;
    let mark = if changed.is_empty() { "" } else { "+" };
    Ok(commit + mark)
}

fn line(workspace: &Workspace, program: &str, arguments: &str) -> anyhow::Result<String> {
    let call = Call::program(program).args(arguments.split(' '));
    Ok(call.output(workspace)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{call, chosen};

    #[test]
    fn what_is_not_measured_cannot_be_chosen() {
        assert!(chosen(&["read".into(), "write".into()]).is_err());
        let names = |names: &[String]| -> Vec<_> {
            let chosen = chosen(names).unwrap();
            chosen.iter().map(|one| one.name).collect()
        };
        assert_eq!(names(&["read".into()]), ["read"]);
        assert!(names(&[]).len() > 10);
    }

    #[test]
    fn the_program_is_the_one_of_this_workspace() {
        let read = chosen(&["read".into()]).unwrap()[0];
        assert_eq!(
            call(read).to_string(),
            "cargo run --locked --release --package embar-cli -- bench read --wall --trials 6 --json"
        );
    }
}
