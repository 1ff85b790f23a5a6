//! Programs as a test starts them: real ones, with pipes.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// A running program; killed with the test.
pub struct Program {
    child: Child,
    pub input: Option<ChildStdin>,
    lines: Receiver<String>,
    pub errors: Receiver<String>,
}

fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (told, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if told.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Program {
    /// The chat with these arguments.
    pub fn start(args: &[&str]) -> Self {
        Self::of(Command::new(env!("CARGO_BIN_EXE_chat")).args(args))
    }

    pub fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take(),
            lines: lines(child.stdout.take().unwrap()),
            errors: lines(child.stderr.take().unwrap()),
            child,
        }
    }

    pub fn next(&self) -> String {
        self.lines.recv_timeout(LONG).expect("a line in time")
    }

    pub fn says(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.has_ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server, and where it listens.
pub fn server() -> (Program, String) {
    server_with(&[])
}

pub fn server_with(arguments: &[&str]) -> (Program, String) {
    let server = Program::start(&[&["server", "--listen", "127.0.0.1:0"], arguments].concat());
    let line = server.next();
    let address = line.strip_prefix("listening on ").unwrap();
    let (address, _) = address.split_once(';').unwrap();
    let address = address.to_owned();
    (server, address)
}

pub fn client(address: &str, name: &str) -> Program {
    Program::start(&["client", "--connect", address, "--name", name])
}
