//! Publishes lines to a cluster, and loses all of it but its disks.

use std::io::{BufWriter, Write};
use std::ops::Range;
use std::process::{Child, Stdio};

use super::{Space, Up, output_of, text};

/// What is at acks 2: all disks of the topic have it.
const ON_ALL_DISKS: [&str; 2] = ["--acks", "all"];

impl Up {
    /// Publishes lines, in a process that may be killed.
    pub fn producing(
        &self,
        topic: &str,
        options: &[&str],
        lines: impl Iterator<Item = String> + Send + 'static,
    ) -> Child {
        let mut child = self
            .embar(&["produce", topic])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("embar starts");
        let mut input = BufWriter::new(child.stdin.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in lines {
                if writeln!(input, "{line}").is_err() {
                    return;
                }
            }
        });
        child
    }

    /// Publishes the lines `range` and waits until they are acknowledged.
    pub fn produce(&self, topic: &str, range: Range<u64>) {
        ends_well(self.producing(topic, &[], numbers(range)));
    }

    /// As [`Up::producing`], at acks 2.
    pub fn producing_durably(
        &self,
        topic: &str,
        options: &[&str],
        lines: impl Iterator<Item = String> + Send + 'static,
    ) -> Child {
        let options = [&ON_ALL_DISKS[..], options].concat();
        self.producing(topic, &options, lines)
    }

    /// Publishes lines, and returns once all disks of the topic have them.
    pub fn produce_durably(
        &self,
        topic: &str,
        options: &[&str],
        lines: impl Iterator<Item = String> + Send + 'static,
    ) {
        ends_well(self.producing_durably(topic, options, lines));
    }

    /// All processes and all memory are gone, as after a reboot.
    pub fn lose_memory(self, space: &Space) {
        self.kill_all();
        std::fs::remove_dir_all(space.region()).expect("the region was there");
    }
}

/// Numbers, as lines.
pub fn numbers(range: Range<u64>) -> impl Iterator<Item = String> + Send {
    range.map(|number| number.to_string())
}

/// Returns once a process has ended as it should.
pub fn ends_well(child: Child) {
    let output = output_of(child);
    assert!(output.status.success(), "{}", text(&output.stderr));
}
