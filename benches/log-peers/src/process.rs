//! Servers that end with us, and programs that must end in time.
//!
//! Everything that is started here dies with this process, however that ends: the kernel kills it. Ctrl-C and SIGTERM
//! end whatever waits here with an error, so that servers and data are removed on the way out.

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(60);

/// How long a program that measures may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// How long a program may take to end when it is asked to.
const END: Duration = Duration::from_secs(5);

/// How often is looked for what a process did.
const LOOK: Duration = Duration::from_millis(10);

static ENDING: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on SIGINT and SIGTERM end what waits here, and not this process.
pub fn end_on_signals() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ENDING))?;
    }
    Ok(())
}

/// Whether a signal came.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// A process that ends when this is dropped, and when this process dies.
struct Running {
    child: Child,
    /// The file with what it prints.
    said: PathBuf,
}

impl Running {
    fn start(command: &Command, said: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(said)?;
        let mut guarded = Command::new("setpriv");
        guarded.args(["--pdeathsig", "KILL", "--"]);
        guarded.arg(command.get_program()).args(command.get_args());
        if let Some(directory) = command.get_current_dir() {
            guarded.current_dir(directory);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(name, value),
                None => guarded.env_remove(name),
            };
        }
        guarded.stdin(Stdio::null());
        guarded.stdout(file.try_clone()?).stderr(file);
        let child = guarded.spawn();
        let child = child.with_context(|| format!("cannot start {guarded:?}"))?;
        let said = said.to_owned();
        Ok(Self { child, said })
    }

    /// Waits until `done` finds something; it learns how the process ended, if it did.
    fn wait<T>(
        &mut self,
        patience: Duration,
        mut done: impl FnMut(&Self, Option<ExitStatus>) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + patience;
        loop {
            let ended = self.child.try_wait()?;
            if let Some(found) = done(self, ended)? {
                return Ok(found);
            }
            ensure!(!is_ending(), "ended by a signal");
            if ended.is_some() || Instant::now() > deadline {
                let said = self.said()?;
                let tail: Vec<_> = said.lines().rev().take(5).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join(" / ");
                match ended {
                    Some(status) => bail!("{status}, it said: {tail}"),
                    None => bail!("nothing after {patience:?}, it said: {tail}"),
                }
            }
            thread::sleep(LOOK);
        }
    }

    /// All that it printed so far.
    fn said(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.said)?).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // First a chance to remove what it made; but its number may be another's when it has ended.
        if matches!(self.child.try_wait(), Ok(None)) {
            let pid = Pid::from_raw(self.child.id().cast_signed());
            let _gone = kill(pid, Signal::SIGTERM);
        }
        let deadline = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(LOOK);
        }
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// A server. It ends when this is dropped, and when this process dies.
pub struct Server(Running);

impl Server {
    /// Starts it, with its output in `said`, and waits until it accepts connections at `address`.
    pub fn start(command: &Command, address: SocketAddr, said: &Path) -> anyhow::Result<Self> {
        let mut running = Running::start(command, said)?;
        running
            .wait(START, |_, _| Ok(TcpStream::connect(address).ok()))
            .with_context(|| format!("{command:?} does not answer at {address}"))?;
        Ok(Self(running))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing that is worth keeping.
        let _gone = self.0.child.kill();
    }
}

/// What a program prints that must succeed, both of its outputs.
pub fn output(command: &Command) -> anyhow::Result<String> {
    output_within(PATIENCE, command)
}

/// The same of a program that may take longer, or must not.
pub fn output_within(patience: Duration, command: &Command) -> anyhow::Result<String> {
    let said = NamedTempFile::new()?;
    let mut running = Running::start(command, said.path())?;
    let said = running.wait(patience, |running, ended| match ended {
        Some(status) if status.success() => Ok(Some(running.said()?)),
        _ => Ok(None),
    });
    said.with_context(|| format!("{command:?}"))
}

/// The first lines for which `is_wanted`, of a program that goes on until it is ended.
pub fn lines(
    command: &Command,
    wanted: usize,
    is_wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<String>> {
    let said = NamedTempFile::new()?;
    let mut running = Running::start(command, said.path())?;
    let lines = running.wait(PATIENCE, |running, _| {
        let said = running.said()?;
        // The last line may not be whole yet.
        let whole = said.rfind('\n').map_or("", |end| &said[..end]);
        let lines: Vec<_> = whole.lines().filter(|line| is_wanted(line)).collect();
        let enough = lines.get(..wanted);
        Ok(enough.map(|lines| lines.iter().map(ToString::to_string).collect()))
    });
    lines.with_context(|| format!("{command:?}"))
}

/// Addresses that were free a moment ago, no two the same.
pub fn free_addresses<const N: usize>() -> anyhow::Result<[SocketAddr; N]> {
    let mut listeners = Vec::new();
    for _ in 0..N {
        listeners.push(TcpListener::bind("127.0.0.1:0")?);
    }
    let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); N];
    for (address, listener) in addresses.iter_mut().zip(&listeners) {
        *address = listener.local_addr()?;
    }
    Ok(addresses)
}

/// A directory for data, in memory. It goes when this is dropped.
pub fn data_directory() -> anyhow::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    let directory = builder.prefix("log-peers-").tempdir_in("/dev/shm");
    directory.context("cannot keep data on /dev/shm")
}

#[cfg(test)]
mod tests {
    use super::{Server, free_addresses, lines, output};
    use std::fs;
    use std::process::Command;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn what_a_program_says_comes_with_its_failure() {
        assert_eq!(
            output(&shell("echo out; echo err >&2")).unwrap(),
            "out\nerr\n"
        );
        let error = output(&shell("echo why; exit 3")).unwrap_err();
        let told = format!("{error:#}");
        assert!(
            told.contains("exit status: 3") && told.contains("why"),
            "{told}"
        );
        let error = output(&Command::new("/no/such/program")).unwrap_err();
        assert!(format!("{error:#}").contains("/no/such/program"));
    }

    #[test]
    fn a_program_that_goes_on_is_ended_after_the_lines_that_count() {
        let directory = tempfile::tempdir().unwrap();
        let ended = directory.path().join("ended");
        let script = format!(
            "trap 'echo > {}; exit' TERM; echo 1; echo x; while echo 2; do sleep 0.01; done",
            ended.display()
        );
        let found = lines(&shell(&script), 3, |line| line != "x").unwrap();
        assert_eq!(found, ["1", "2", "2"]);
        assert!(ended.exists(), "it was asked to end, and waited for");
        assert!(
            lines(&shell("echo 1"), 2, |_| true).is_err(),
            "it ends before"
        );
    }

    #[test]
    fn a_server_that_ends_at_once_says_why() {
        let [address] = free_addresses().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let said = directory.path().join("said");
        let error = Server::start(&shell("echo no memory; exit 1"), address, &said);
        let told = format!("{:#}", error.err().expect("it cannot have started"));
        assert!(told.contains("no memory"), "{told}");
        assert_eq!(fs::read_to_string(said).unwrap(), "no memory\n");
    }

    #[test]
    fn free_addresses_differ() {
        let [a, b] = free_addresses().unwrap();
        assert_ne!(a, b);
    }
}
