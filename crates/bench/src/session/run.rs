//! The figures of one run of `bench session`: latencies, rates, lost messages and stalls.

use std::time::Duration;

use embar_console::size::{mib_per_s, per_s};
use embar_meter::Series;
use jiff::Timestamp;
use serde::Serialize;

use super::plan::SessionPlan;
use super::record::{Record, Stall};

/// One run of one phase, or of the wall.
#[derive(Clone, Debug, Serialize)]
pub struct SessionRun {
    /// Name of the phase, or `wall`.
    pub phase: &'static str,
    /// Its number, from 1; 0 for a warm-up, which is only kept if something in it was lost.
    pub run: usize,
    /// When it ended, UTC.
    pub time: String,
    /// Messages that were to be sent, of all sessions together.
    pub iterations: u64,
    /// Latencies of all messages sent; `None` where messages are not answered one by one.
    #[serde(flatten)]
    pub latency: Option<Latency>,
    /// Round trips per second; `None` where messages are not answered one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trips_per_s: Option<f64>,
    /// Messages per second, first message to last echo (one way: to the final acknowledgement).
    pub messages_per_s: f64,
    /// MiB of payload per second, one way.
    pub mb_per_s: f64,
    /// From the first message to the last echo.
    pub seconds: f64,
    /// Messages not echoed in time.
    pub lost: u64,
    /// Echoes, or messages that were counted, that were not the ones expected.
    pub wrong: u64,
    /// Silences that were too long.
    pub stalls: Vec<Stall>,
    /// With several sessions, the median latency of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub session_p50_ns: Vec<f64>,
    /// With several sessions, the latency of each that one of a hundred messages exceeds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub session_p99_ns: Vec<f64>,
    /// Why it ended before everything was echoed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
}

/// Mean and quantiles of a latency, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub avg_ns: f64,
    /// Half of all messages are faster.
    pub p50_ns: f64,
    /// 99 of 100 messages are faster.
    pub p99_ns: f64,
    /// 999 of 1000 messages are faster.
    pub p999_ns: f64,
    /// The slowest message.
    pub max_ns: f64,
}

impl Latency {
    fn of<'a>(latencies: impl Iterator<Item = &'a u64>) -> Option<Self> {
        let series = Series::new(latencies.map(|ns| *ns as f64).collect::<Vec<_>>()).ok()?;
        Some(Self {
            avg_ns: series.mean(),
            p50_ns: series.median(),
            p99_ns: series.quantile(0.99),
            p999_ns: series.quantile(0.999),
            max_ns: series.max(),
        })
    }
}

/// A count of messages that went one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// Right messages, as the other side reports; 0 if it reports nothing.
    pub right: u64,
    /// Messages that were not right.
    pub wrong: u64,
    /// From the first message to the acknowledgement.
    pub elapsed: Duration,
    /// When the acknowledgement was late or did not come.
    pub stall: Option<Stall>,
}

impl SessionRun {
    /// The figures of a run with echoes.
    pub fn echoed(
        phase: &'static str,
        run: usize,
        plan: &SessionPlan,
        records: &[Record],
        ended_early: Option<String>,
    ) -> Self {
        let spans = records.iter().filter_map(Record::span);
        let elapsed = spans
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
            .map_or(0, |(first, last)| last.saturating_sub(first));
        let elapsed = Duration::from_nanos(elapsed);
        let echoes: u64 = records.iter().map(Record::echoes).sum();
        let bytes: u64 = records
            .iter()
            .map(|record| payload_bytes(plan, record.session(), record.echoes()))
            .sum();
        let of_sessions = |part: fn(&Latency) -> f64| -> Vec<f64> {
            let several = records.len() > 1;
            let latencies = records.iter().filter(|_| several);
            latencies
                .filter_map(|record| Latency::of(record.latencies().iter()))
                .map(|latency| part(&latency))
                .collect()
        };
        Self {
            phase,
            run,
            time: utc(Timestamp::now()),
            iterations: plan.messages(),
            latency: Latency::of(records.iter().flat_map(Record::latencies)),
            round_trips_per_s: Some(per_s(echoes as f64, elapsed)),
            messages_per_s: per_s(echoes as f64, elapsed),
            mb_per_s: mib_per_s(bytes, elapsed),
            seconds: elapsed.as_secs_f64(),
            lost: records.iter().map(Record::lost).sum(),
            wrong: records.iter().map(Record::wrong).sum(),
            stalls: records.iter().flat_map(Record::stalls).copied().collect(),
            session_p50_ns: of_sessions(|latency| latency.p50_ns),
            session_p99_ns: of_sessions(|latency| latency.p99_ns),
            ended_early,
        }
    }

    /// The figures of a run whose messages were counted.
    pub fn counted(
        phase: &'static str,
        run: usize,
        plan: &SessionPlan,
        counted: Counted,
        ended_early: Option<String>,
    ) -> Self {
        Self {
            phase,
            run,
            time: utc(Timestamp::now()),
            iterations: plan.messages(),
            latency: None,
            round_trips_per_s: None,
            messages_per_s: per_s(counted.right as f64, counted.elapsed),
            mb_per_s: mib_per_s(payload_bytes(plan, 0, counted.right), counted.elapsed),
            seconds: counted.elapsed.as_secs_f64(),
            lost: plan.messages().saturating_sub(counted.right),
            wrong: counted.wrong,
            stalls: counted.stall.into_iter().collect(),
            session_p50_ns: Vec::new(),
            session_p99_ns: Vec::new(),
            ended_early,
        }
    }

    /// Whether it is left out of medians.
    pub fn is_warmup(&self) -> bool {
        self.run == 0
    }

    /// Whether every message did what it should.
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && self.wrong == 0
    }

    /// The longest silence, milliseconds.
    pub fn longest_stall_ms(&self) -> Option<f64> {
        self.stalls
            .iter()
            .map(|stall| stall.ms)
            .max_by(f64::total_cmp)
    }
}

/// `2026-01-28 09:54:15`, UTC.
fn utc(time: Timestamp) -> String {
    time.strftime("%F %T").to_string()
}

/// Bytes of the payloads of the first `messages` messages of a session.
fn payload_bytes(plan: &SessionPlan, session: u32, messages: u64) -> u64 {
    if plan.payload.is_fixed() {
        return messages * u64::from(plan.payload.min);
    }
    (1..=messages)
        .map(|sequence| plan.payload.len(session, sequence) as u64)
        .sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::plan::tests::plan;
    use super::super::record::EchoLimits;
    use super::*;

    const US: u64 = 1_000;

    /// Sessions whose messages take 10, 20, 30, ... microseconds each.
    fn records(plan: &SessionPlan) -> Vec<Record> {
        (0..plan.sessions)
            .map(|session| {
                let mut record = Record::new(session, plan.iterations, 1, EchoLimits::of(plan));
                for index in 0..plan.iterations {
                    let at = 1_000 * US * index;
                    record.sent(at);
                    record.arrived(at + 10 * US * (u64::from(session) + 1), true);
                }
                record
            })
            .collect()
    }

    /// A run with these medians.
    pub fn run(phase: &'static str, number: usize, p50_us: f64, per_s: f64) -> SessionRun {
        let latency = Latency {
            avg_ns: p50_us * 1.1e3,
            p50_ns: p50_us * 1e3,
            p99_ns: p50_us * 2e3,
            p999_ns: p50_us * 4e3,
            max_ns: p50_us * 9e3,
        };
        SessionRun {
            phase,
            run: number,
            time: "2026-01-28 09:54:15".into(),
            iterations: 10_000,
            latency: Some(latency),
            round_trips_per_s: Some(per_s),
            messages_per_s: per_s,
            mb_per_s: per_s * 64.0 / f64::from(1 << 20),
            seconds: 1.0,
            lost: 0,
            wrong: 0,
            stalls: Vec::new(),
            session_p50_ns: Vec::new(),
            session_p99_ns: Vec::new(),
            ended_early: None,
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (-1, "1969-12-31 23:59:59"),
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_200, "2024-03-01 00:00:00"),
            (1_769_594_055, "2026-01-28 09:54:15"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            let time = Timestamp::from_second(seconds).expect("a time");
            assert_eq!(utc(time), date);
        }
    }

    #[test]
    fn figures_are_of_all_sessions_and_of_each() {
        let plan = SessionPlan {
            sessions: 3,
            ..plan()
        };
        let run = SessionRun::echoed("baseline", 1, &plan, &records(&plan), None);
        let latency = run.latency.expect("latencies");
        assert_eq!(
            (latency.avg_ns.round(), latency.p50_ns, latency.max_ns),
            (20_000.0, 20_000.0, 30_000.0)
        );
        assert_eq!(run.session_p50_ns, [10_000.0, 20_000.0, 30_000.0]);
        // 300 echoes from the first message to the last echo: 99 ms and 30 us.
        assert!((run.messages_per_s - 300.0 / 0.09903).abs() < 0.01);
        assert!((run.mb_per_s - run.messages_per_s * 64.0 / f64::from(1 << 20)).abs() < 1e-9);
        assert!(run.is_sound());
    }

    #[test]
    fn one_session_needs_no_list_of_sessions() {
        let run = SessionRun::echoed("baseline", 1, &plan(), &records(&plan()), None);
        assert!(run.session_p50_ns.is_empty());
        let json = serde_json::to_value(&run).expect("JSON");
        assert_eq!(json["p50_ns"], 10_000.0);
        assert!(json.get("session_p50_ns").is_none() && json["stalls"].is_array());
    }

    #[test]
    fn a_count_that_falls_short_is_a_loss() {
        let counted = Counted {
            right: 90,
            wrong: 1,
            elapsed: Duration::from_millis(10),
            stall: None,
        };
        let run = SessionRun::counted("baseline", 1, &plan(), counted, None);
        assert_eq!((run.lost, run.wrong, run.is_sound()), (10, 1, false));
        assert_eq!(run.messages_per_s, 9_000.0);
        assert!(
            serde_json::to_value(&run)
                .expect("JSON")
                .get("p50_ns")
                .is_none()
        );
    }
}
