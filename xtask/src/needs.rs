//! What the tests need from the machine, checked before anything long begins, and brought where that
//! can be done.

use crate::programs::{PROGRAMS, Program};
use anyhow::{Context, bail};
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where regions live.
const SHARED_MEMORY: &str = "/dev/shm";

/// Room for the regions of all tests that run at once, in bytes, with a good part to spare.
const SHARED_MEMORY_BYTES_MIN: u64 = 1 << 30;

/// Checks everything, and installs what is missing: at once where that needs no password, on a terminal when its user
/// agrees. Otherwise an error says what to do about all of it.
pub fn check() -> anyhow::Result<()> {
    if !cfg!(target_os = "linux") {
        bail!(
            "the log runs on Linux only (shared memory, epoll): use a Linux machine or container"
        );
    }
    shared_memory()?;
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let Some(way) = way(&missing)? else {
        bail!("{}", remedy(&missing, &["sudo"]));
    };
    for command in commands(&missing, way) {
        eprintln!("missing, so it is installed: {}", command.join(" "));
        let mut installer = Command::new(&command[0]);
        installer.env("DEBIAN_FRONTEND", "noninteractive");
        if !succeeds(installer.args(&command[1..])) {
            bail!("`{}` failed: {}", command.join(" "), remedy(&missing, way));
        }
    }
    let still = self::missing();
    if !still.is_empty() {
        bail!("after all was installed: {}", remedy(&still, way));
    }
    Ok(())
}

/// Why tests cannot cut networks here, if they cannot: this is not root, and not every user may be root of a
/// namespace.
pub fn no_networks() -> Option<String> {
    let mut why = None;
    for namespaces in [&["--net"][..], &["--user", "--map-root-user", "--net"]] {
        let mut command = Command::new("unshare");
        match command.args(namespaces).arg("true").output() {
            Ok(output) if output.status.success() => return None,
            Ok(output) => why = Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => why = Some(format!("unshare: {error}")),
        }
    }
    why
}

fn missing() -> Vec<&'static Program> {
    PROGRAMS
        .iter()
        .filter(|program| !is_there(program))
        .collect()
}

fn is_there(program: &Program) -> bool {
    let [name, argument] = program.command;
    succeeds(Command::new(name).arg(argument).stdout(Stdio::null()))
}

/// What a command begins with that installs something; `None`: it may not be done.
fn way(missing: &[&Program]) -> anyhow::Result<Option<&'static [&'static str]>> {
    let here =
        |program: &str| succeeds(Command::new(program).arg("--version").stdout(Stdio::null()));
    if missing.iter().any(|program| !program.packages.is_empty()) && !here("apt-get") {
        return Ok(None);
    }
    if fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        return Ok(Some(&[]));
    }
    if succeeds(
        Command::new("sudo")
            .args(["-n", "true"])
            .stderr(Stdio::null()),
    ) {
        return Ok(Some(&["sudo", "-n"]));
    }
    let asked = io::stdin().is_terminal() && io::stderr().is_terminal() && here("sudo");
    Ok((asked && agreed(&remedy(missing, &["sudo"]))?).then_some(&["sudo"]))
}

/// Asks the user at the terminal, once.
fn agreed(what: &str) -> anyhow::Result<bool> {
    eprint!("{what}. Shall it be run now? [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// What installs all of it, with nothing to be asked.
fn commands(missing: &[&Program], way: &[&str]) -> Vec<Vec<String>> {
    let of = |words: [&[&str]; 3]| words.concat().into_iter().map(str::to_owned).collect();
    let (packages, components) = sources(missing);
    let mut commands = Vec::new();
    if !packages.is_empty() {
        let install = ["apt-get", "install", "--yes", "--no-install-recommends"];
        commands.push(of([way, &["apt-get", "update"], &[]]));
        commands.push(of([way, &install, &packages]));
    }
    if !components.is_empty() {
        // The toolchain is the user's own.
        commands.push(of([&[], &["rustup", "component", "add"], &components]));
    }
    commands
}

/// Packages of Debian and components of the toolchain.
fn sources(missing: &[&Program]) -> (Vec<&'static str>, Vec<&'static str>) {
    let packages = missing.iter().flat_map(|program| program.packages).copied();
    let components = missing.iter().filter_map(|program| program.component);
    (packages.collect(), components.collect())
}

/// All that is missing and the one line that brings it.
fn remedy(missing: &[&Program], way: &[&str]) -> String {
    let named: Vec<String> = missing
        .iter()
        .map(|program| format!("`{}` ({})", program.command[0], program.why))
        .collect();
    let (packages, components) = sources(missing);
    let mut lines = Vec::new();
    if !packages.is_empty() {
        let install = [way, &["apt-get", "install"], &packages].concat();
        lines.push(install.join(" "));
    }
    if !components.is_empty() {
        lines.push(format!("rustup component add {}", components.join(" ")));
    }
    format!(
        "missing: {}; this brings it: `{}` (or what your system has for it)",
        named.join(", "),
        lines.join(" && ")
    )
}

/// Whether it could be started and succeeded. It is asked nothing.
fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn shared_memory() -> anyhow::Result<()> {
    let available = available_bytes(Path::new(SHARED_MEMORY))?;
    if available < SHARED_MEMORY_BYTES_MIN {
        bail!(
            "{SHARED_MEMORY} has {} MiB left and the tests need {} MiB: remove what is no longer used \
             there, make it larger (`mount -o remount,size=2G {SHARED_MEMORY}`), or start the container \
             with `--shm-size=2g`",
            available >> 20,
            SHARED_MEMORY_BYTES_MIN >> 20,
        );
    }
    Ok(())
}

/// Free space for us in the file system that holds `path`.
fn available_bytes(path: &Path) -> anyhow::Result<u64> {
    let output = Command::new("df")
        .args(["-P", "-k"])
        .arg(path)
        .output()
        .context("cannot start `df`: run `apt-get install coreutils`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match available_kib(&text) {
        Some(kib) if output.status.success() => Ok(kib << 10),
        _ => bail!(
            "{} is not there (`df`: {}): mount a tmpfs on it",
            path.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}

/// The fourth column of the second line, as POSIX lays `df -P` down.
fn available_kib(df: &str) -> Option<u64> {
    df.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{available_bytes, available_kib, commands, remedy};
    use crate::programs::{PROGRAMS, Program};
    use std::path::Path;

    /// Programs of these names.
    fn programs<const N: usize>(names: [&str; N]) -> [&'static Program; N] {
        names.map(|name| {
            let is_it = |program: &&Program| program.command[0] == name;
            PROGRAMS.iter().find(is_it).expect("it is needed")
        })
    }

    #[test]
    fn all_that_is_missing_is_told_in_one_line_with_the_line_that_brings_it() {
        let missing = programs(["cargo-clippy", "redis-server", "ip"]);
        let told = remedy(&missing, &["sudo"]);
        assert!(!told.contains('\n'), "{told}");
        let line = "`sudo apt-get install redis-server iproute2 && rustup component add clippy`";
        let named = ["`redis-server`", "`ip`", "`cargo-clippy`", line];
        assert!(named.iter().all(|part| told.contains(part)), "{told}");
    }

    #[test]
    fn all_of_it_is_installed_at_once_and_the_toolchain_without_a_right_to_anything() {
        let missing = programs(["cargo-clippy", "redis-server", "ip"]);
        let commands = commands(&missing, &["sudo", "-n"]);
        let lines: Vec<String> = commands.iter().map(|words| words.join(" ")).collect();
        assert_eq!(
            lines,
            [
                "sudo -n apt-get update",
                "sudo -n apt-get install --yes --no-install-recommends redis-server iproute2",
                "rustup component add clippy",
            ]
        );
    }

    #[test]
    fn free_space_is_read() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                  tmpfs 65536 1024 64512 2% /dev/shm\n";
        assert_eq!(available_kib(df), Some(64512));
        assert_eq!(available_kib("Filesystem\n"), None);
        assert!(available_bytes(Path::new("/")).is_ok());
        let error = available_bytes(Path::new("/no/such/folder")).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder is not there"));
    }
}
