//! What the tests need from the machine, checked before anything long begins.

use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

/// Where regions live.
const SHARED_MEMORY: &str = "/dev/shm";

/// Room for the regions of all tests that run at once, in bytes, with a good part to spare.
const SHARED_MEMORY_BYTES_MIN: u64 = 1 << 30;

/// A program that must be there.
struct Program {
    /// What is started, with an argument that makes it end at once.
    command: [&'static str; 2],
    why: &'static str,
    /// What brings it.
    source: Source,
}

enum Source {
    /// Packages of Debian and its relatives.
    Debian(&'static [&'static str]),
    /// A command of the Rust toolchain.
    Rustup(&'static str),
}

const PROGRAMS: [Program; 6] = [
    Program {
        command: ["cc", "--version"],
        why: "a C compiler, which also links what Rust compiles",
        source: Source::Debian(&["gcc", "libc6-dev"]),
    },
    Program {
        command: ["cargo-fmt", "--version"],
        why: "the formatter of the Rust toolchain",
        source: Source::Rustup("rustup component add rustfmt"),
    },
    Program {
        command: ["cargo-clippy", "--version"],
        why: "the linter of the Rust toolchain",
        source: Source::Rustup("rustup component add clippy"),
    },
    // Where systemd runs, Debian's package starts a server on port 6379: no test uses that port.
    Program {
        command: ["redis-server", "--version"],
        why: "the server that the Redis client is tested with",
        source: Source::Debian(&["redis-server"]),
    },
    Program {
        command: ["setpriv", "--version"],
        why: "it ends Redis servers with the test that started them",
        source: Source::Debian(&["util-linux"]),
    },
    Program {
        command: ["ip", "-V"],
        why: "it makes networks that tests can cut, which root may do",
        source: Source::Debian(&["iproute2"]),
    },
];

/// An error that says what to do, for the first thing that is missing.
pub fn check() -> anyhow::Result<()> {
    if !cfg!(target_os = "linux") {
        bail!(
            "the log runs on Linux only (shared memory, epoll): use a Linux machine or container"
        );
    }
    shared_memory()?;
    for program in &PROGRAMS {
        if !program.is_there() {
            program.bring()?;
        }
    }
    Ok(())
}

impl Program {
    fn is_there(&self) -> bool {
        let [name, argument] = self.command;
        runs(Command::new(name).arg(argument).stdout(Stdio::null()))
    }

    /// Installs it where nobody can be asked, says how to do it everywhere else.
    fn bring(&self) -> anyhow::Result<()> {
        let ([name, _], why) = (self.command, self.why);
        let packages = match self.source {
            Source::Debian(packages) => packages,
            Source::Rustup(command) => bail!("`{name}` is missing ({why}): run `{command}`"),
        };
        let install = format!("apt-get install {}", packages.join(" "));
        if !may_install() {
            bail!("`{name}` is missing ({why}): run `{install}`, or what your system has for it");
        }
        eprintln!("`{name}` is missing ({why}): {install}");
        let apt = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            command.env("DEBIAN_FRONTEND", "noninteractive");
            runs(command.args(arguments).stdin(Stdio::null()))
        };
        let quietly = [&["install", "--yes", "--no-install-recommends"], packages].concat();
        if !(apt(&["update"]) && apt(&quietly) && self.is_there()) {
            bail!("`{install}` did not bring `{name}`: install it by hand");
        }
        Ok(())
    }
}

/// Whether it could be started and succeeded.
fn runs(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// On a machine that exists for this run, and as the user who may.
fn may_install() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    is_root && env::var_os("CI").as_deref() == Some(OsStr::new("true"))
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
    use super::{available_bytes, available_kib};
    use std::path::Path;

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
