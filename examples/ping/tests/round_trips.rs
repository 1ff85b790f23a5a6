//! Two real programs, and a cluster between them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use embar_broker::Cluster;

/// A program that answers; killed with the test.
struct Answering(Child);

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ping(command: &str, bootstrap: &str, transport: &str) -> Command {
    let mut ping = Command::new(env!("CARGO_BIN_EXE_ping"));
    ping.args([command, "--bootstrap", bootstrap, "--transport", transport]);
    ping.stdout(Stdio::piped()).stderr(Stdio::piped());
    ping
}

#[test]
fn they_talk_by_each_transport_and_choose_shared_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let builder = Cluster::builder().brokers(2).region_bytes(64 << 20);
    let cluster = builder.region_dir(dir.path().join("region")).start();
    let cluster = cluster.expect("a small cluster starts");
    let bootstrap = cluster.bootstrap().to_string();
    let ways = [
        ("auto", "shared memory"),
        ("shm", "shared memory"),
        ("unix", "Unix sockets"),
        ("tcp", "TCP"),
    ];
    for (transport, name) in ways {
        let mut answering = Answering(
            ping("answer", &bootstrap, transport)
                .spawn()
                .expect("it starts"),
        );
        let said = answering.0.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line).expect("a line");
        assert_eq!(line, format!("answering by {name}\n"));
        for spin in ["0", "20"] {
            let mut ask = ping("ask", &bootstrap, transport);
            let asked = ask.args(["--count", "50", "--spin-us", spin]).output();
            let asked = asked.expect("it runs");
            let (said, failed) = (
                String::from_utf8_lossy(&asked.stdout),
                String::from_utf8_lossy(&asked.stderr),
            );
            assert!(asked.status.success(), "{failed}");
            let expected = format!("50 round trips by {name}: P50 ");
            assert!(said.starts_with(&expected), "{said}");
            assert!(said.contains(" us, P99 "), "{said}");
        }
    }
}
