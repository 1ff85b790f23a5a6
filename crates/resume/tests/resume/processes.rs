//! Servers in processes of their own, which are stopped for a while, or killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use embar_resume::{Connector, InDoubt, KeeperSettings, State, WhyFresh};
use embar_session::{Address, Client, Plain};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    LONG, Site, connect, expect, is_open, loopback, number, quick, restarted, resumed, send,
    small_rings, suspended, until,
};

const SERVE: &str = "EMBAR_RESUME_SERVE";

/// Not a test: the server of the others, if one of them asks for it.
#[test]
fn serves_where_it_is_asked_to() {
    let Ok(address) = std::env::var(SERVE) else {
        return;
    };
    let settings = KeeperSettings::default();
    let address = address.parse().unwrap();
    let site = Site::start_with(settings, small_rings(), address, true);
    writeln!(std::io::stdout(), "\nlistening on {}", site.address()).unwrap();
    // Until the other end is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process that echoes.
struct Process {
    child: Child,
    address: Address,
}

impl Process {
    fn start(address: &Address) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "processes::serves_where_it_is_asked_to",
                "--exact",
                "--nocapture",
            ])
            .env(SERVE, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = lines.map_while(Result::ok);
        let address = said.find_map(|line| Some(line.strip_prefix("listening on ")?.parse()));
        Self {
            child,
            address: address.expect("it listens").unwrap(),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, with all of its threads.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        until("all threads stand still", || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
                // Behind the name of the thread, which is in parentheses.
                stat.is_ok_and(|stat| stat.rsplit(") ").next().unwrap().starts_with('T'))
            })
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn impatient(in_doubt: InDoubt) -> Connector {
    let settings = small_rings().with(|settings| {
        settings.session.idle_timeout = Duration::from_secs(1);
        settings.session.hello_timeout = Duration::from_millis(500);
    });
    let client = Client::with(Plain, settings).unwrap();
    Connector::new(client, quick().with(|it| it.in_doubt = in_doubt)).unwrap()
}

#[test]
fn a_server_that_was_stopped_for_a_while_goes_on_with_its_sessions() {
    let server = Process::start(&loopback());
    let connector = impatient(InDoubt::Drop);
    let (session, seen) = connect(&connector, &server.address);
    send(&session, 0).unwrap();
    expect(&seen, 0..1);
    server.stop();
    for number in 1..100 {
        send(&session, number).unwrap();
    }
    suspended(&seen);
    session.wait_until(LONG, |state| {
        matches!(state, State::Resuming { attempt: 2.., .. })
    });
    for number in 100..200 {
        send(&session, number).unwrap();
    }
    server.signal(Signal::CONT);
    resumed(&seen);
    expect(&seen, 1..200);
}

#[test]
fn a_server_that_was_killed_begins_anew() {
    let server = Process::start(&loopback());
    let connector = impatient(InDoubt::SendAgain);
    let (session, seen) = connect(&connector, &server.address);
    is_open(&session);
    send(&session, 0).unwrap();
    expect(&seen, 0..1);
    server.stop();
    for number in 1..50 {
        send(&session, number).unwrap();
    }
    server.signal(Signal::KILL);
    suspended(&seen);
    let address = server.address.clone();
    drop(server);
    let _server = Process::start(&address);
    let restart = restarted(&seen);
    assert_eq!(restart.why, WhyFresh::Unknown);
    // The first one may have been handled, and not acknowledged.
    let first = number(&seen);
    assert!(first <= 1, "{first}");
    expect(&seen, first + 1..50);
}
