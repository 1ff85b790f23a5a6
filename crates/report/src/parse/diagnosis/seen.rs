//! What a diagnosis looked at.

use embar_diagnose::observed::Flow;
use embar_diagnose::{Observed, redis, session};

use crate::picture::Picture;
use crate::picture::over_time::{self, Carried};
use crate::section::Fact;
use crate::words;

/// What a diagnosis is of, as a title.
pub(super) const LOG: &str = "Diagnosis of the log";
pub(super) const REDIS: &str = "Diagnosis of Redis";
pub(super) const SESSIONS: &str = "Diagnosis of sessions";

/// Bytes of messages, as the load or the brokers count them; of sessions as the kernel does.
const BYTES: Carried = Carried {
    what: "bytes",
    unit: ("MiB/s", 1_048_576.0),
};
/// The same of messages there and back.
const BOTH_WAYS: Carried = Carried {
    what: "bytes that arrived, both ways",
    ..BYTES
};
/// Replies, as the client counts them.
const REPLIES: Carried = Carried {
    what: "replies",
    unit: ("replies/s", 1.0),
};

/// What was looked at.
pub(super) struct Seen {
    pub title: &'static str,
    pub facts: Vec<Fact>,
    pub over_time: Option<Picture>,
}

impl Seen {
    /// A result that says no more than its findings.
    pub fn nothing(title: &'static str) -> Self {
        Self {
            title,
            facts: Vec::new(),
            over_time: None,
        }
    }

    pub fn of_log(observed: &Observed) -> Self {
        let machine = &observed.machine;
        let messages = observed.messages as f64 / observed.seconds.max(f64::EPSILON);
        let flow = match observed.flow {
            Flow::Publish => "publish",
            Flow::Read => "read",
            Flow::Both => "publish and read",
        };
        Self {
            title: LOG,
            facts: vec![
                Fact::new("flow", flow),
                Fact::new("messages a second", words::whole(messages)),
                Fact::new("looked for", words::micros(observed.seconds * 1e6)),
                Fact::new("processors", machine.cores.to_string()),
                Fact::new("busy with the pipeline", words::percent(machine.ours)),
                Fact::new("busy with others", words::percent(machine.others)),
                Fact::new("taken by the host", words::percent(machine.steal)),
                Fact::new("connections", observed.connections.len().to_string()),
            ],
            over_time: over_time::picture(BYTES, &observed.over_time),
        }
    }

    pub fn of_redis(observed: &redis::Observed) -> Self {
        let machine = &observed.machine;
        let mut facts = vec![
            Fact::new("servers", observed.nodes.len().to_string()),
            Fact::new("looked for", words::micros(observed.seconds * 1e6)),
        ];
        if let Some(client) = &observed.client {
            facts.push(Fact::new("callers", client.callers.to_string()));
            facts.push(Fact::new(
                "an operation takes",
                words::micros(client.latency_s * 1e6),
            ));
        }
        // Servers on other machines do not say how busy these are.
        if machine.cores > 0 {
            facts.push(Fact::new("processors", machine.cores.to_string()));
            facts.push(Fact::new(
                "busy with callers and servers",
                words::percent(machine.ours),
            ));
            facts.push(Fact::new(
                "busy with others",
                words::percent(machine.others),
            ));
        }
        Self {
            title: REDIS,
            facts,
            over_time: over_time::picture(REPLIES, &observed.over_time),
        }
    }

    pub fn of_sessions(observed: &session::Observed) -> Self {
        let machine = &observed.machine;
        let way = match observed.way {
            session::observed::Way::OneWay => "one way",
            session::observed::Way::Echo => "there and back",
        };
        let bytes_per_s = observed.bytes as f64 / observed.seconds.max(f64::EPSILON);
        let mut facts = vec![
            Fact::new("messages go", way),
            Fact::new("rate", words::bytes_per_s(bytes_per_s)),
            Fact::new("looked for", words::micros(observed.seconds * 1e6)),
            Fact::new("encrypted", if observed.by_tls { "yes" } else { "no" }),
            Fact::new("processors", machine.cores.to_string()),
            Fact::new("busy with the sessions", words::percent(machine.ours)),
            Fact::new("busy with others", words::percent(machine.others)),
        ];
        if let Some(latency) = observed.latency_s() {
            facts.push(Fact::new(
                "a message is there and back after",
                words::micros(latency * 1e6),
            ));
        }
        Self {
            title: SESSIONS,
            facts,
            over_time: over_time::picture(BOTH_WAYS, &observed.over_time),
        }
    }
}

pub(super) fn operations(per_s: f64) -> Fact {
    Fact::new("operations a second", words::whole(per_s))
}

pub(super) fn messages(per_s: f64) -> Fact {
    Fact::new("messages a second", words::whole(per_s))
}
