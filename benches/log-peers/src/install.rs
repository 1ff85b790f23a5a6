//! Where the logs come from: Maven, the Go proxy, Debian, and ours from the workspace above.

use crate::logs::Log;
use crate::process::output_within;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long each step may take, on a slow line.
const PATIENCE: Duration = Duration::from_secs(1200);

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A program that comes from Debian.
struct Needed {
    program: &'static str,
    package: &'static str,
    /// Who is measured with it; nobody but ours needs none.
    of: &'static [Log],
}

const NEEDED: [Needed; 7] = [
    needed("setpriv", "util-linux", &Log::ALL),
    needed("java", "default-jre-headless", &[Log::Kafka, Log::AeronIpc]),
    // It runs a program from its source.
    needed("javac", "default-jdk-headless", &[Log::AeronIpc]),
    needed("mvn", "maven", &[Log::Kafka, Log::AeronIpc]),
    needed("go", "golang-go", &[Log::JetStream]),
    needed("redis-server", "redis-server", &[Log::RedisStreams]),
    needed("redis-benchmark", "redis-tools", &[Log::RedisStreams]),
];

const fn needed(program: &'static str, package: &'static str, of: &'static [Log]) -> Needed {
    Needed {
        program,
        package,
        of,
    }
}

/// Places of what is installed.
#[derive(Clone)]
pub struct Installed {
    directory: PathBuf,
    embar: PathBuf,
}

impl Installed {
    /// Installs what these logs lack. What is there already, in the version that `servers` asks for, is left alone. Ours is
    /// built, unless there is another one.
    pub fn of(logs: &[Log], embar: Option<&Path>) -> anyhow::Result<Self> {
        from_debian(logs)?;
        let above = Path::new(HERE).join("../..");
        let installed = Self {
            directory: Path::new(HERE).join("target/servers"),
            embar: embar.map_or_else(|| above.join("target/release/embar"), Path::to_owned),
        };
        for log in logs {
            match log {
                Log::Embar if embar.is_none() => build(&above)?,
                Log::Kafka => installed.once("kafka", "pom.xml", maven)?,
                Log::AeronIpc => installed.once("aeron", "pom.xml", maven)?,
                Log::JetStream => installed.once("nats", "go.mod", go)?,
                Log::Embar | Log::RedisStreams => {}
            }
        }
        Ok(installed)
    }

    /// Our program.
    pub fn embar(&self) -> &Path {
        &self.embar
    }

    /// The class path of a server that is written in Java.
    pub fn class_path(&self, server: &str) -> String {
        self.directory.join(server).join("*").display().to_string()
    }

    /// A file that comes with this program, beside the manifest of a server.
    pub fn source(&self, server: &str, file: &str) -> PathBuf {
        Path::new(HERE).join("servers").join(server).join(file)
    }

    /// A program of NATS.
    pub fn nats(&self, program: &str) -> PathBuf {
        self.directory.join("nats").join(program)
    }

    /// Has `install` fill the folder of a server from the folder with its `manifest`, unless it did so from the same one.
    fn once(
        &self,
        server: &str,
        manifest: &str,
        install: impl FnOnce(&Path, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let source = Path::new(HERE).join("servers").join(server);
        let asked_for = fs::read(source.join(manifest))?;
        let into = self.directory.join(server);
        // Copied last: without it, what is there may not be whole.
        let done = into.join(manifest);
        if fs::read(&done).is_ok_and(|there| there == asked_for) {
            return Ok(());
        }
        if into.exists() {
            fs::remove_dir_all(&into)?;
        }
        fs::create_dir_all(&into)?;
        install(&source, &into).with_context(|| format!("{server} cannot be installed"))?;
        fs::write(&done, asked_for)?;
        Ok(())
    }
}

/// Builds our program.
fn build(workspace: &Path) -> anyhow::Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--quiet",
        "--release",
        "--locked",
        "--package",
        "embar-cli",
    ]);
    cargo
        .arg("--manifest-path")
        .arg(workspace.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(workspace.join("target"));
    // Said by the cargo that runs this program, about this program: what depends on it would be built again.
    for (name, _) in std::env::vars_os() {
        let is_about_us = |mark| name.to_string_lossy().starts_with(mark);
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"]
            .into_iter()
            .any(is_about_us)
        {
            cargo.env_remove(&name);
        }
    }
    run(&cargo)
}

fn maven(source: &Path, into: &Path) -> anyhow::Result<()> {
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    maven.arg(format!("-DoutputDirectory={}", into.display()));
    run(maven.arg("-f").arg(source.join("pom.xml")))
}

fn go(source: &Path, into: &Path) -> anyhow::Result<()> {
    let mut go = Command::new("go");
    // Go that is older than the sources ask for takes a newer one from the same proxy, from 1.21 on.
    go.current_dir(source)
        .env("GOBIN", into)
        .env("GOTOOLCHAIN", "auto");
    go.args(["install", "github.com/nats-io/nats-server/v2"]);
    run(go.arg("github.com/nats-io/natscli/nats")).context("it needs Go 1.21 or newer")
}

/// Installs packages that are missing, as far as that needs no password.
fn from_debian(logs: &[Log]) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| std::env::split_paths(&path).any(|at| at.join(program).exists());
    let packages = missing(logs, is_there);
    if packages.is_empty() {
        return Ok(());
    }
    let line = format!("apt-get install {}", packages.join(" "));
    for way in [&[][..], &["sudo", "-n"]] {
        let apt_get = |arguments: &[&str]| {
            let words = [way, &["apt-get"], arguments].concat();
            let mut command = Command::new(words[0]);
            command
                .args(&words[1..])
                .env("DEBIAN_FRONTEND", "noninteractive");
            command
        };
        if run(&apt_get(&["update"])).is_err() {
            continue;
        }
        let install = ["install", "--yes", "--no-install-recommends"];
        return run(apt_get(&install).args(&packages))
            .with_context(|| format!("missing here: {line}"));
    }
    bail!("missing here: {line}")
}

/// Packages of programs that are not there, each once.
fn missing(logs: &[Log], is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let wanted = |needed: &&Needed| needed.of.iter().any(|log| logs.contains(log));
    let missing = NEEDED.iter().filter(wanted);
    let missing = missing.filter(|needed| !is_there(needed.program));
    missing.map(|needed| needed.package).collect()
}

fn run(command: &Command) -> anyhow::Result<()> {
    eprintln!("installing: {command:?}");
    output_within(PATIENCE, command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{Installed, missing};
    use crate::logs::Log;
    use std::fs;

    #[test]
    fn only_what_is_measured_has_to_be_there() {
        assert_eq!(missing(&Log::ALL, |_| true), [""; 0]);
        assert_eq!(missing(&[Log::Embar], |_| false), ["util-linux"]);
        let of_java = missing(&[Log::AeronIpc, Log::Kafka], |program| program == "setpriv");
        let packages = ["default-jre-headless", "default-jdk-headless", "maven"];
        assert_eq!(of_java, packages);
    }

    #[test]
    fn what_was_not_installed_whole_is_installed_again() {
        let directory = tempfile::tempdir().unwrap();
        let installed = Installed {
            directory: directory.path().to_owned(),
            embar: directory.path().join("embar"),
        };
        let file = directory.path().join("nats/nats");
        let failed = installed.once("nats", "go.mod", |_, into| {
            fs::write(into.join("left"), "")?;
            anyhow::bail!("the line is cut")
        });
        assert!(failed.is_err());
        let install = || {
            installed.once("nats", "go.mod", |_, into| {
                Ok(fs::write(into.join("nats"), "1")?)
            })
        };
        install().unwrap();
        assert!(file.exists() && !directory.path().join("nats/left").exists());
        fs::write(&file, "2").unwrap();
        install().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "2", "it is there");
        fs::write(directory.path().join("nats/go.mod"), "another version").unwrap();
        install().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
    }
}
