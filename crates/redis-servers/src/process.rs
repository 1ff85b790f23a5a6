//! Server processes that end with the process that started them.

use crate::error::StartError;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, io, thread};

/// How long a server may take to end before it is killed.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// How often to check whether a process has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

type Request = (Command, Sender<io::Result<Child>>);

/// The thread that starts all servers and never ends. The kernel sends the signal of `setpriv --pdeathsig` when the
/// *thread* that started a process ends (prctl(2), PR_SET_PDEATHSIG), and the thread of a test may end before its
/// server should.
static STARTER: LazyLock<Mutex<Sender<Request>>> = LazyLock::new(|| {
    let (sender, requests) = mpsc::channel::<Request>();
    thread::Builder::new()
        .name("redis-servers".into())
        .spawn(move || {
            for (mut command, answer) in requests {
                // The thread that asked waits for the answer.
                let _received = answer.send(command.spawn());
            }
        })
        .expect("a process can start one more thread");
    Mutex::new(sender)
});

/// A running `redis-server`.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a server with these arguments in this folder; its output goes to the file `log`. A `prefix` is a
    /// command that starts the command behind it.
    pub fn start(
        prefix: &[String],
        arguments: &[String],
        dir: &Path,
        log: &Path,
    ) -> Result<Self, StartError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let server = find("redis-server", &path).ok_or(StartError::NoServer)?;
        let setpriv = find("setpriv", &path).ok_or(StartError::NoSetpriv)?;
        let io = |what| move |source| StartError::Io { what, source };
        let out = File::create(log).map_err(io("create a log file"))?;
        let err = out.try_clone().map_err(io("share a log file"))?;
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL"]);
        command.args(prefix).arg(server);
        command.args(arguments).current_dir(dir);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = spawn(command).map_err(io("start setpriv"))?;
        Ok(Self { child })
    }

    /// The server's process id: `setpriv` becomes the server.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Stops it, and waits until it stands still.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        // If it ended instead, there is nothing to wait for.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _status = waitid(WaitId::Pid(Pid::from_child(&self.child)), stopped);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end, and resumes it, as a paused process handles no signal.
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Kills it without warning, and waits until it is gone.
    pub fn kill(mut self) {
        self.kill_and_wait();
    }

    fn kill_and_wait(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it is our child");
    }

    fn signal(&self, signal: Signal) {
        // This process has not waited for it, so the id is still its own, even if it has ended.
        let _ended_meanwhile = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        self.ask_to_end();
        let deadline = Instant::now() + END_TIMEOUT;
        while self.ended().is_none() {
            if Instant::now() > deadline {
                return self.kill_and_wait();
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// Starts the thread that starts servers, if it is not running.
pub fn start_starter() {
    LazyLock::force(&STARTER);
}

fn spawn(command: Command) -> io::Result<Child> {
    let (answer, answered) = mpsc::channel();
    let starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
    starter
        .send((command, answer))
        .expect("the starter never ends");
    answered.recv().expect("the starter answers everyone")
}

/// Finds a program in the folders of `PATH`, and in those for system programs, which Debian leaves out of a user's `PATH`.
fn find(name: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::find;
    use crate::error::StartError;
    use std::ffi::OsStr;
    use std::fs;

    #[test]
    fn programs_are_found_in_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("redis-of-this-test");
        let path = [OsStr::new("/no/such/folder:"), dir.path().as_os_str()].join(OsStr::new(""));
        assert_eq!(find("redis-of-this-test", &path), None);
        fs::write(&program, "").unwrap();
        assert_eq!(find("redis-of-this-test", &path), Some(program));
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        assert_eq!(
            StartError::NoServer.to_string(),
            "redis-server is not installed: apt-get install redis-server"
        );
        let no_setpriv = StartError::NoSetpriv.to_string();
        assert!(
            no_setpriv.ends_with("apt-get install util-linux"),
            "{no_setpriv}"
        );
    }
}
