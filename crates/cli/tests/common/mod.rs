//! Real clusters of real processes, each with a region, ports and logs of its own, gone when the test ends.

// Each test program uses a part of this.
#![allow(dead_code)]

pub mod publish;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest that anything in these tests may take before it counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(120);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The program under test, without anything of the caller's environment that it would heed.
pub fn embar(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embar"));
    command
        .args(args)
        .env_remove("EMBAR_BOOTSTRAP")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

/// Runs to the end, within [`PATIENCE`]. What it leaves in the directory for temporary files, such as the logs of a
/// verification that found something, goes with it.
pub fn run(command: &mut Command) -> Output {
    let space = Space::new();
    let child = command
        .env("TMPDIR", &space.dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("embar starts");
    output_of(child)
}

/// What a process says until its end, within [`PATIENCE`].
pub fn output_of(mut child: Child) -> Output {
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let drain = |pipe: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        }
        bytes
    };
    std::thread::scope(|scope| {
        let err = scope.spawn(|| drain(err.as_mut().map(|pipe| pipe as &mut dyn Read)));
        let out = scope.spawn(|| drain(out.as_mut().map(|pipe| pipe as &mut dyn Read)));
        let status = end_of(&mut child);
        Output {
            status,
            stdout: out.join().expect("no panic"),
            stderr: err.join().expect("no panic"),
        }
    })
}

/// Waits for the end of a process, within [`PATIENCE`].
pub fn end_of(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().expect("our own child");
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until something is so, within [`PATIENCE`].
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command printed with `--json`, if it succeeded.
pub fn reported(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

/// A quota throttles the look of this command, where this is root, and leaves no group; others are told.
pub fn quota_throttles(command: &[&str]) {
    let space = Space::new();
    let child = embar(command)
        .args(["--inject", "cpu-quota=20"])
        .env("TMPDIR", &space.dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("embar starts");
    // Other tests have groups, too, so those of this process are looked for.
    let prefix = format!("embar-quota-{}-", child.id());
    let groups = || groups_in(Path::new("/sys/fs/cgroup"), &prefix);
    if !rustix::process::geteuid().is_root() {
        let says = text(&output_of(child).stderr);
        assert!(says.contains("root"), "{says}");
        return;
    }
    let pid = child.id();
    eventually("it has a group", || groups() > 0 || !is_running(pid));
    let had = groups();
    let report = reported(&output_of(child));
    let throttled = number(&report["observed"]["machine"]["throttled"]);
    assert!(throttled > 0.0, "{report}");
    assert_eq!(
        (had, groups()),
        (1, 0),
        "groups while it ran, and afterwards"
    );
}

/// How many folders in this one, at any depth, have names that begin so.
pub fn groups_in(dir: &Path, prefix: &str) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    // Version 1 has links from one name of a hierarchy to another.
    let folders = entries.filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
    let each = folders.map(|it| {
        let is_one = it.file_name().to_string_lossy().starts_with(prefix);
        usize::from(is_one) + groups_in(&it.path(), prefix)
    });
    each.sum()
}

/// The entries of a list; none if there is no such list.
pub fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map_or(&[], Vec::as_slice)
}

pub fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or_else(|| panic!("no number: {of}"))
}

pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .expect("kill starts");
    assert!(status.success(), "kill -{name} {pid}");
}

pub fn is_running(pid: u32) -> bool {
    // A zombie has ended; it only waits to be looked at by its parent.
    state_of(pid).is_some_and(|state| state != 'Z')
}

/// What the kernel says of a process: `R` and `S`, `T` when it is stopped, `Z` when it has ended.
pub fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Child processes of this one whose commands have this word.
pub fn children_of(pid: u32, word: &str) -> Vec<u32> {
    let ps = ["-ww", "-o", "pid=,args=", "--ppid", &pid.to_string()].map(str::to_owned);
    let output = Command::new("ps").args(ps).output().expect("ps starts");
    let lines = text(&output.stdout);
    let found = lines.lines().filter(|line| line.contains(word));
    { found }
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect()
}

/// How the names of all spaces begin; the process that made it follows.
const SPACE_PREFIX: &str = "embar-cli-test-";

/// Removes what test programs left that were killed.
fn sweep() {
    for entry in std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|it| it.strip_prefix(SPACE_PREFIX));
        let maker = maker.and_then(|it| it.split('-').next()?.parse().ok());
        if maker.is_some_and(|pid: u32| !is_running(pid)) {
            // Another program may do the same at this time, or it is of another user.
            let _gone = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A directory for one test, in shared memory, so that regions are what they are in use.
pub struct Space {
    pub dir: PathBuf,
}

impl Space {
    pub fn new() -> Self {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{SPACE_PREFIX}{}-{number}", std::process::id());
        let dir = Path::new("/dev/shm").join(name);
        std::fs::create_dir_all(&dir).expect("/dev/shm is there");
        Self { dir }
    }

    pub fn region(&self) -> PathBuf {
        self.dir.join("region")
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // Whatever a failed test left.
        let _gone = std::fs::remove_dir_all(&self.dir);
    }
}

/// `embar up` that is ready.
pub struct Up {
    pub child: Child,
    /// The object it printed when it was ready.
    pub ready: Value,
    output: BufReader<std::process::ChildStdout>,
}

/// `embar up` on free ports with a small region in `space`.
pub fn up_command(space: &Space, more: &[&str]) -> Command {
    let region = space.region().display().to_string();
    let logs = space.dir.join("logs").display().to_string();
    let mut args = vec![
        "--json",
        "up",
        "--region",
        &region,
        "--log-dir",
        &logs,
        "--region-size",
        "128MiB",
    ];
    if !more.contains(&"--listen") {
        args.extend(["--listen", "127.0.0.1:0"]);
    }
    if !more.contains(&"--brokers") {
        args.extend(["--brokers", "3"]);
    }
    args.extend(more);
    embar(&args)
}

impl Up {
    pub fn start(space: &Space, more: &[&str]) -> Self {
        let mut command = up_command(space, more);
        let errors = std::fs::File::create(space.dir.join("up.err")).expect("a file");
        // A group of its own, so that a test can send it what a terminal would send.
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(errors)
            .process_group(0)
            .spawn()
            .expect("embar starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| {
            panic!(
                "{}",
                std::fs::read_to_string(space.dir.join("up.err")).unwrap_or_default()
            )
        });
        Self {
            child,
            ready,
            output,
        }
    }

    pub fn bootstrap(&self) -> &str {
        self.ready["bootstrap"].as_str().expect("an address")
    }

    pub fn pids(&self) -> Vec<u32> {
        let brokers = self.ready["brokers"].as_array().expect("brokers");
        brokers
            .iter()
            .map(|broker| broker["pid"].as_u64().expect("a pid") as u32)
            .collect()
    }

    /// Another command against this cluster.
    pub fn embar(&self, args: &[&str]) -> Command {
        let mut command = embar(args);
        command.env("EMBAR_BOOTSTRAP", self.bootstrap());
        command
    }

    /// Runs another command, which must go well; its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = run(&mut self.embar(args));
        assert!(
            output.status.success(),
            "{args:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// All numbers of a topic, sorted.
    pub fn consume(&self, topic: &str) -> Vec<u64> {
        let mut numbers: Vec<u64> = self
            .ok(&["consume", topic])
            .lines()
            .map(|line| line.parse().expect("a number"))
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Kills it and all of its brokers, and waits until they are gone.
    pub fn kill_all(mut self) {
        let pids = self.pids();
        // The parent first, so that it restarts nothing.
        signal(self.child.id(), "STOP");
        // One may have been killed before, and replaced.
        let alive = pids.iter().filter(|pid| is_running(**pid));
        alive.for_each(|pid| signal(*pid, "KILL"));
        self.child.kill().expect("our own child");
        end_of(&mut self.child);
        // Their memory and locks are theirs until the kernel has put them away.
        eventually("the brokers are gone", || {
            pids.iter().all(|pid| !is_running(*pid))
        });
    }

    /// Ends it by SIGTERM; the object it printed at the end.
    pub fn stop(mut self) -> Value {
        signal(self.child.id(), "TERM");
        assert!(
            end_of(&mut self.child).success(),
            "a drained cluster is no failure"
        );
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Only a failed test comes here with it running; its brokers end with it.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Names in a directory; none if it is not there.
pub fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
