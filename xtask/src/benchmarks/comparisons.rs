//! Picks from the results everything that was measured beside something else in the same run, and says how many times
//! as fast ours is.

use super::chart::Tone;
use super::numbers::{bytes, grouped, mebibytes};
use super::results::{
    BesideWall, Interval, LogPeer, LogPeers, PeerCell, Results, SessionPeer, SessionPeersTest,
    Sessions,
};

/// Ours, by what it was measured beside.
pub struct Comparison {
    pub face: Face,
    pub what: String,
    /// The figure of ours, if it was kept.
    pub ours: String,
    pub beside: String,
    pub speed: Interval,
    /// Whether it is in the picture of all faces.
    pub in_overview: bool,
}

/// One of the three ways to use the project.
#[derive(Clone, Copy, PartialEq)]
pub enum Face {
    Log,
    Sessions,
    Redis,
}

impl Face {
    pub const ALL: [Self; 3] = [Self::Log, Self::Sessions, Self::Redis];

    pub fn title(self) -> &'static str {
        match self {
            Self::Log => "The log",
            Self::Sessions => "Sessions",
            Self::Redis => "The Redis client",
        }
    }
}

impl Comparison {
    /// Better or worse only if the whole interval is.
    pub fn tone(&self) -> Tone {
        match (self.speed.low, self.speed.high) {
            (Some(low), _) if low > 1.0 => Tone::Better,
            (_, Some(high)) if high < 1.0 => Tone::Worse,
            _ => Tone::Even,
        }
    }

    /// `0.47 [0.33, 0.57]`
    pub fn figures(&self) -> String {
        figures(self.speed)
    }
}

/// `0.47 [0.33, 0.57]`, as far as it is known.
pub fn figures(of: Interval) -> String {
    match (of.point, of.low, of.high) {
        (Some(point), Some(low), Some(high)) => format!("{point:.2} [{low:.2}, {high:.2}]"),
        (Some(point), ..) => format!("{point:.2}"),
        (None, Some(low), Some(high)) => format!("{low:.2} to {high:.2}"),
        _ => String::new(),
    }
}

/// `12 million/s`, or what is known of it.
pub fn one_way_rate(report: &Sessions) -> String {
    let Some(phase) = report.median.get("zero-copy receive") else {
        return String::new();
    };
    let interval = phase
        .interval
        .as_ref()
        .map(|interval| interval.messages_per_s);
    let million = |number: f64| format!("{:.0}", number / 1e6);
    match (phase.messages_per_s, interval) {
        (Some(rate), _) => format!("{} million/s", million(rate)),
        (
            None,
            Some(Interval {
                low: Some(low),
                high: Some(high),
                ..
            }),
        ) => {
            format!("{} to {} million/s", million(low), million(high))
        }
        _ => String::new(),
    }
}

/// All of them.
pub fn all(results: &Results) -> Vec<Comparison> {
    let mut all = log(results);
    all.extend(sessions(results));
    for cell in &results.redis.report.cells {
        all.extend(redis(cell, &results.redis.report.columns));
    }
    for cell in &results.redis_pipelines.report.cells {
        all.extend(pipelines(cell));
    }
    for peer in &results.log_peers.report.rows {
        all.extend(log_peer(&results.log_peers.report, peer));
    }
    for tested in &results.session_peers.report.tests {
        let peers = tested.rows.iter();
        all.extend(peers.filter_map(|peer| session_peer(tested, peer)));
    }
    all
}

/// The peers that are measured beside these know ours by this name.
const OURS: &str = "embar";

/// Ours with its first settings of the same way, beside this way of using a log.
fn log_peer(peers: &LogPeers, peer: &LogPeer) -> Vec<Comparison> {
    let mut ours = peers.rows.iter().filter(|row| row.log == OURS);
    let Some(ours) = ours.find(|row| row.way == peer.way) else {
        return Vec::new();
    };
    let done = [
        ("publish", &ours.publish, &peer.publish),
        ("read back", &ours.read, &peer.read),
        ("publish and read at once", &ours.at_once, &peer.at_once),
    ];
    let mut all = Vec::new();
    for (what, ours, theirs) in done {
        let speed = theirs.as_ref().and_then(|theirs| theirs.ours_to_it);
        let (Some(ours), Some(speed)) = (ours, speed.filter(|_| peer.log != OURS)) else {
            continue;
        };
        all.push(Comparison {
            face: Face::Log,
            what: what.to_owned(),
            ours: mebibytes(ours.mib_per_s),
            beside: format!("{} ({})", peer.log, peer.settings),
            speed: speed.into(),
            in_overview: false,
        });
    }
    all
}

fn session_peer(tested: &SessionPeersTest, peer: &SessionPeer) -> Option<Comparison> {
    let ours = tested.rows.iter().find(|row| row.peer == OURS);
    let other = (peer.peer != OURS).then_some(peer)?;
    Some(Comparison {
        face: Face::Sessions,
        what: match tested.test.as_str() {
            "round-trip" => "echo, 64 bytes".to_owned(),
            "unary" => "call, 64 bytes".to_owned(),
            _ => "one way, 64 bytes".to_owned(),
        },
        ours: format!("{}/s", grouped(ours?.messages_per_s?)),
        beside: other.peer.clone(),
        speed: other.ours_to_it?.into(),
        in_overview: false,
    })
}

fn log(results: &Results) -> Vec<Comparison> {
    let log = |what: &str, rate: Option<f64>, beside: &str, speed: Interval| Comparison {
        face: Face::Log,
        what: what.to_owned(),
        ours: rate.map(mebibytes).unwrap_or_default(),
        beside: beside.to_owned(),
        speed,
        in_overview: true,
    };
    let mut all: Vec<_> = results
        .walls
        .report
        .rows
        .iter()
        .filter_map(beside_wall)
        .collect();
    for (name, compared) in [
        ("16 KiB", &results.order_small.report),
        ("2 MiB", &results.order_large.report),
    ] {
        for (order, rate) in compared.rates() {
            let Some(ratio) = compared.to_order_0(order) else {
                continue;
            };
            let what = format!("order {order}, batches of {name}");
            all.push(Comparison {
                in_overview: order == 5,
                ..log(&what, Some(rate), "order 0", ratio)
            });
        }
    }
    all
}

/// A path at order 0 beside sockets or shared memory alone. The tables of the walls have the rest.
fn beside_wall(row: &BesideWall) -> Option<Comparison> {
    let (what, carrier) = row.path.split_once('_')?;
    let what = match what {
        "read" => "read back",
        "e2e" => "both at once",
        other => other,
    };
    let batches = || format!("{} batches", bytes(row.batch_bytes));
    let (carrier, of) = match carrier {
        "unix" => ("Unix", batches()),
        "shm" => (
            "shared memory",
            format!(
                "{} messages, {}",
                bytes(row.message_bytes),
                if row.brokers == 1 {
                    "one broker"
                } else {
                    "several brokers"
                }
            ),
        ),
        _ => ("TCP", batches()),
    };
    let beside = match (row.wall.as_str(), carrier) {
        ("bare" | "bare, followed", "shared memory") => "bare shared memory",
        ("plain pass", _) => "a plain pass",
        ("bare", _) => "bare sockets",
        ("bare relay", _) => "a bare relay",
        _ => return None,
    };
    (row.order == 0).then_some(Comparison {
        face: Face::Log,
        what: format!("{what}, {carrier}, {of}"),
        ours: format!("{:.2} GB/s", row.ours_gb_per_s?),
        beside: beside.to_owned(),
        speed: row.interval?,
        in_overview: true,
    })
}

fn sessions(results: &Results) -> Vec<Comparison> {
    const PHASE: &str = "zero-copy receive";
    let session = |what: &str, ours: String, speed| Comparison {
        face: Face::Sessions,
        what: what.to_owned(),
        ours,
        beside: "bare sockets".to_owned(),
        speed,
        in_overview: true,
    };
    let mut all = Vec::new();
    for (name, measured) in [
        ("echo, blocking", &results.session_blocking.report),
        ("echo, spinning", &results.session_spinning.report),
    ] {
        if let Some(time) = measured.to_wall("p50_ns", PHASE) {
            let p50 = measured.median.get(PHASE).and_then(|phase| phase.p50_ns);
            let ours = p50.map(|ns| format!("{:.1} us", ns / 1e3));
            all.push(session(name, ours.unwrap_or_default(), time.inverse()));
        }
    }
    let one_way = &results.session_one_way.report;
    if let Some(ratio) = one_way.to_wall("messages_per_s", PHASE) {
        let ours = one_way_rate(one_way);
        all.push(session("one way", ours, ratio));
    }
    all
}

fn redis(cell: &PeerCell, columns: &[String]) -> Option<Comparison> {
    let (threads, callers) = (cell.threads, cell.callers);
    let plural = if threads == 1 { "" } else { "s" };
    let operation = cell.operation.to_uppercase();
    Some(Comparison {
        face: Face::Redis,
        what: format!("{operation}, {callers} callers, {threads} thread{plural}"),
        ours: format!("{}/s", grouped(cell.ours()?.ops_per_s.median)),
        beside: cell.best_peer(columns)?.0.to_owned(),
        speed: cell.of_best_peer?.into(),
        in_overview: cell.operation == "get",
    })
}

fn pipelines(cell: &PeerCell) -> Option<Comparison> {
    let operation = cell.operation.to_uppercase();
    let ours = cell.ours();
    Some(Comparison {
        face: Face::Redis,
        what: format!("{operation}, 64 to a pipeline"),
        ours: ours.map_or_else(String::new, |ours| {
            format!("{}/s", grouped(ours.ops_per_s.median))
        }),
        beside: "redis-benchmark".to_owned(),
        speed: cell.of_redis_benchmark?.into(),
        in_overview: cell.operation == "get",
    })
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Face, figures};
    use crate::benchmarks::chart::Tone;
    use crate::benchmarks::results::Interval;

    fn interval(point: Option<f64>, bounds: Option<(f64, f64)>) -> Interval {
        Interval {
            point,
            low: bounds.map(|(low, _)| low),
            high: bounds.map(|(_, high)| high),
        }
    }

    #[test]
    fn a_difference_counts_if_the_whole_interval_shows_it() {
        for (speed, tone) in [
            (interval(Some(1.2), Some((1.1, 1.3))), Tone::Better),
            (interval(Some(1.2), Some((0.9, 1.3))), Tone::Even),
            (interval(Some(0.9), Some((0.8, 1.1))), Tone::Even),
            (interval(Some(0.9), Some((0.8, 0.95))), Tone::Worse),
            (interval(Some(0.5), None), Tone::Even),
        ] {
            let comparison = Comparison {
                face: Face::Log,
                what: String::new(),
                ours: String::new(),
                beside: String::new(),
                speed,
                in_overview: true,
            };
            assert_eq!(comparison.tone(), tone, "{}", comparison.figures());
        }
    }

    #[test]
    fn figures_say_what_is_known() {
        let bounds = Some((0.3, 0.75));
        assert_eq!(figures(interval(Some(0.5), bounds)), "0.50 [0.30, 0.75]");
        assert_eq!(figures(interval(Some(0.5), None)), "0.50");
        assert_eq!(figures(interval(None, bounds)), "0.30 to 0.75");
    }
}
