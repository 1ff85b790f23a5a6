//! What `bench session` measures. Everything in here is used exactly as given, and printed.

use std::time::Duration;

use embar_console::setting::BadSetting;
use embar_meter::table::grouped;
use serde::{Serialize, Serializer};

use super::payloads::Payload;
use super::placement::Placement;

/// Bytes of one socket that a wall with several sockets to a thread has under way at most: it visits them in turn with
/// blocking calls, which needs room in the socket for all of them.
const CIRCLE_BYTES_MAX: usize = 32 << 10;

/// Messages of all sessions together that are under way while the maximum is looked for.
const PROBE_IN_FLIGHT: u32 = 64;

/// Bytes of each ring of a session.
const RING_BYTES: usize = 256 << 10;

/// With more sessions their rings are smaller.
const MANY_SESSIONS: u32 = 100;

/// Bytes of each ring then.
const RING_BYTES_OF_MANY: usize = 64 << 10;

/// How a message gets into a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum SendMode {
    /// Encoded into a new packet object, then copied into the session
    Copy,
    /// Encoded into a new packet object, sent from there by a vectored write
    Gather,
    /// Encoded straight into the session's ring
    ZeroCopy,
}

/// How a message gets out of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum ReceiveMode {
    /// Copied into a new packet object, and decoded into an owned message
    Copy,
    /// A view of the session's ring
    ZeroCopy,
}

/// One of the ways that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// How messages are sent, on both sides.
    pub send: SendMode,
    /// How messages are received, on both sides.
    pub receive: ReceiveMode,
}

impl Phase {
    /// From what is done everywhere to what this library is for.
    pub const ALL: [Self; 4] = [
        Self::new(SendMode::Copy, ReceiveMode::Copy),
        Self::new(SendMode::Gather, ReceiveMode::Copy),
        Self::new(SendMode::ZeroCopy, ReceiveMode::Copy),
        Self::new(SendMode::ZeroCopy, ReceiveMode::ZeroCopy),
    ];

    const fn new(send: SendMode, receive: ReceiveMode) -> Self {
        Self { send, receive }
    }

    /// The phases that options ask for: all, or the one they describe; what is not given is zero-copy.
    pub fn chosen(send: Option<SendMode>, receive: Option<ReceiveMode>) -> Vec<Self> {
        match (send, receive) {
            (None, None) => Self::ALL.to_vec(),
            (send, receive) => vec![Self {
                send: send.unwrap_or(SendMode::ZeroCopy),
                receive: receive.unwrap_or(ReceiveMode::ZeroCopy),
            }],
        }
    }

    /// The name that is printed.
    pub fn name(self) -> &'static str {
        match (self.send, self.receive) {
            (SendMode::Copy, ReceiveMode::Copy) => "baseline",
            (SendMode::Gather, ReceiveMode::Copy) => "scatter-gather",
            (SendMode::ZeroCopy, ReceiveMode::Copy) => "zero-copy send",
            (SendMode::ZeroCopy, ReceiveMode::ZeroCopy) => "zero-copy receive",
            (SendMode::Copy, ReceiveMode::ZeroCopy) => "copy send, zero-copy receive",
            (SendMode::Gather, ReceiveMode::ZeroCopy) => "scatter-gather, zero-copy receive",
        }
    }
}

impl Serialize for Phase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// What the sessions run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP, over the loopback interface unless the server is elsewhere
    Tcp,
    /// Unix sockets
    Unix,
}

/// What is done with the sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Each message is echoed; the next one leaves when an echo arrives.
    Latency,
    /// Messages go one way, as fast as they can.
    OneWay,
    /// Each message is echoed; messages leave when they are due, whatever came back.
    Rate,
    /// As `Rate`, at half of the rate that `Latency` reaches.
    HalfLoad,
}

impl Test {
    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "LatencyTest",
            Self::OneWay => "OneWayTest",
            Self::Rate => "RateTest",
            Self::HalfLoad => "HalfLoadTest",
        }
    }

    /// Whether messages leave by the clock.
    pub fn is_paced(self) -> bool {
        matches!(self, Self::Rate | Self::HalfLoad)
    }
}

/// Parameters of a run; `config` in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct SessionPlan {
    /// What is done with the sessions.
    pub test: Test,
    /// Messages of each session in each run.
    pub iterations: u64,
    /// Bytes of their payloads.
    pub payload: Payload,
    /// Messages under way on each session.
    pub in_flight: u32,
    /// Sessions at a time.
    pub sessions: u32,
    /// Runs measured, of each phase.
    pub runs: usize,
    /// Runs before them that are thrown away.
    pub warmup: usize,
    /// How long a thread looks for bytes before it sleeps, microseconds.
    pub spin_us: u64,
    /// What the sessions run on.
    pub transport: Transport,
    /// Threads of the server, and as many of the client.
    pub threads: u16,
    /// On which processors these are.
    pub placement: Placement,
    /// Messages per second of all sessions together, in the paced tests, if that was given.
    pub rate: Option<u64>,
    /// Bytes of each ring of a session, if that was given.
    pub ring: Option<u32>,
    /// An echo that takes longer is lost.
    #[serde(serialize_with = "as_millis", rename = "timeout_ms")]
    pub timeout: Duration,
    /// A silence that takes longer is a stall.
    #[serde(serialize_with = "as_millis", rename = "stall_ms")]
    pub stall: Duration,
    /// A server in another process.
    pub connect: Option<String>,
}

fn as_millis<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64() * 1e3)
}

impl SessionPlan {
    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        let wrong = |settings, why: &str| Err(BadSetting::new(settings, why));
        if self.iterations == 0 || self.runs == 0 {
            return wrong(
                &["iterations", "runs"],
                "there must be at least one of each",
            );
        }
        if self.test == Test::OneWay && self.sessions != 1 {
            return wrong(&["sessions"], "messages that go one way take one session");
        }
        if self.rate == Some(0) {
            return wrong(&["rate"], "a rate is at least 1 message per second");
        }
        if self.timeout.is_zero() || self.stall.is_zero() {
            return wrong(&["timeout", "stall"], "both times must be longer than 0 s");
        }
        if self
            .iterations
            .checked_mul(self.sessions.into())
            .is_none_or(|messages| messages > 1 << 32)
        {
            return wrong(
                &["iterations", "sessions"],
                "messages of all sessions together must be at most 2^32",
            );
        }
        Ok(())
    }

    /// Messages of a run, of all sessions.
    pub fn messages(&self) -> u64 {
        self.iterations * u64::from(self.sessions)
    }

    /// Bytes of each ring, unless messages need more.
    pub fn ring_bytes(&self) -> usize {
        match self.ring {
            Some(bytes) => bytes as usize,
            None if self.sessions > MANY_SESSIONS => RING_BYTES_OF_MANY,
            None => RING_BYTES,
        }
    }

    /// The same plan with echoes as fast as they come, to learn the highest rate.
    pub fn probe(&self) -> Self {
        Self {
            test: Test::Latency,
            in_flight: self.in_flight.max(PROBE_IN_FLIGHT.div_ceil(self.sessions)),
            ..self.clone()
        }
    }

    /// The same plan at a rate.
    pub fn at(&self, rate: u64) -> Self {
        Self {
            rate: Some(rate),
            ..self.clone()
        }
    }

    /// Why bare sockets cannot do the same, if they cannot.
    pub fn no_wall(&self, frame_bytes: usize) -> Option<&'static str> {
        if self.connect.is_some() {
            return Some("no wall: the server is another process");
        }
        if self.test.is_paced() {
            return None;
        }
        if !self.payload.is_fixed() {
            return Some("no wall: it needs one size of payload");
        }
        let threads = usize::from(self.threads);
        let circle = self.sessions as usize > threads;
        (circle && frame_bytes * self.in_flight as usize > CIRCLE_BYTES_MAX).then_some(
            "no wall: what is under way on one of several sessions does not fit into a socket",
        )
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let what = match self.test {
            Test::Latency => "echoed".to_owned(),
            Test::OneWay => "one way".to_owned(),
            Test::Rate | Test::HalfLoad => match self.rate {
                Some(rate) => format!("echoed, {} per second in all", grouped(rate)),
                None => "echoed, at half of the highest rate".to_owned(),
            },
        };
        let mode = match self.spin_us {
            0 => "blocking".to_owned(),
            us => format!("spinning for {us} us"),
        };
        let on = match (self.transport, &self.connect) {
            (_, Some(address)) => format!("to {address}"),
            (Transport::Tcp, None) => "over TCP".to_owned(),
            (Transport::Unix, None) => "over Unix sockets".to_owned(),
        };
        let placement = match self.placement {
            Placement::Apart => "apart",
            Placement::Together => "on one processor",
            Placement::Free => "placed by the scheduler",
        };
        format!(
            "{} messages of {} bytes {what}, {} session(s) {on}, {} in flight on each, {} thread(s) on each side, \
             {placement}, {mode}, lost after {} ms, {} runs after {} warm-up(s)",
            grouped(self.messages()),
            self.payload,
            self.sessions,
            self.in_flight,
            self.threads,
            self.timeout.as_millis(),
            self.runs,
            self.warmup
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan that is valid.
    pub fn plan() -> SessionPlan {
        SessionPlan {
            test: Test::Latency,
            iterations: 100,
            payload: Payload { min: 64, max: 64 },
            in_flight: 1,
            sessions: 1,
            runs: 2,
            warmup: 1,
            spin_us: 0,
            transport: Transport::Tcp,
            threads: 1,
            placement: Placement::Free,
            rate: None,
            ring: None,
            timeout: Duration::from_secs(5),
            stall: Duration::from_millis(100),
            connect: None,
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        assert!(plan().validate().is_ok());
        let no_iteration = SessionPlan {
            iterations: 0,
            ..plan()
        };
        let several_one_way = SessionPlan {
            test: Test::OneWay,
            sessions: 2,
            ..plan()
        };
        let no_rate = SessionPlan {
            rate: Some(0),
            ..plan()
        };
        let no_time = SessionPlan {
            timeout: Duration::ZERO,
            ..plan()
        };
        let too_many = SessionPlan {
            iterations: u64::MAX,
            sessions: 2,
            ..plan()
        };
        let wrong = [
            ("iterations", no_iteration),
            ("runs", SessionPlan { runs: 0, ..plan() }),
            ("sessions", several_one_way),
            ("rate", no_rate),
            ("timeout", no_time),
            ("iterations", too_many),
        ];
        for (setting, plan) in wrong {
            let error = plan.validate().expect_err("refused");
            assert!(error.settings.contains(&setting), "{error}: {plan:?}");
        }
    }

    #[test]
    fn phases_are_all_or_the_one_asked_for() {
        assert_eq!(Phase::chosen(None, None), Phase::ALL);
        let one = Phase::chosen(Some(SendMode::Gather), Some(ReceiveMode::Copy));
        assert_eq!(
            one.iter().map(|phase| phase.name()).collect::<Vec<_>>(),
            ["scatter-gather"]
        );
        let half_given = Phase::chosen(None, Some(ReceiveMode::Copy));
        assert_eq!(half_given[0].name(), "zero-copy send");
    }

    #[test]
    fn a_wall_is_only_where_bare_sockets_do_the_same() {
        assert_eq!(plan().no_wall(83), None);
        let refused = [
            SessionPlan {
                connect: Some("host:1".into()),
                ..plan()
            },
            SessionPlan {
                test: Test::Rate,
                connect: Some("host:1".into()),
                ..plan()
            },
            SessionPlan {
                payload: Payload { min: 1, max: 2 },
                ..plan()
            },
            SessionPlan {
                sessions: 2,
                in_flight: 1000,
                ..plan()
            },
        ];
        for plan in refused {
            assert!(plan.no_wall(83).is_some(), "{plan:?}");
        }
        // By the clock, also with what would not fit into a circle.
        let paced = SessionPlan {
            test: Test::Rate,
            payload: Payload { min: 1, max: 2 },
            ..plan()
        };
        assert_eq!(paced.no_wall(83), None);
    }

    #[test]
    fn the_maximum_is_looked_for_with_enough_under_way() {
        let of = |sessions, in_flight| {
            SessionPlan {
                sessions,
                in_flight,
                test: Test::HalfLoad,
                ..plan()
            }
            .probe()
        };
        assert_eq!(
            (
                of(1, 1).in_flight,
                of(1000, 1).in_flight,
                of(1000, 8).in_flight
            ),
            (64, 1, 8)
        );
        assert_eq!(of(1, 1).test, Test::Latency);
    }
}
