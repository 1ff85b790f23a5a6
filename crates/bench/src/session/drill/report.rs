//! What is printed of a drill, as a table and as JSON.

use std::collections::BTreeMap;

use embar_console::paint::Paint;
use embar_console::size::Size;
use embar_meter::Series;
use embar_meter::stats::{Interval, median, paired_ratio};
use embar_meter::table::{Table, grouped};
use serde::Serialize;

use super::measure::{Attacked, Part, Round};
use super::plan::DrillPlan;

/// All that was measured.
#[derive(Debug, Serialize)]
pub struct DrillReport<'a> {
    /// Which bench.
    pub bench: &'static str,
    /// What was asked for.
    pub config: &'a DrillPlan,
    /// Each attack.
    pub attacks: Vec<Summary<'a>>,
    /// Whether honest peers lost anything, or were slower than allowed.
    pub is_harmed: bool,
}

/// What one attack did to honest peers.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    /// All that was seen.
    #[serde(flatten)]
    pub attacked: &'a Attacked,
    /// Median round trips, to those of the same round without the attack; none where there was no round trip.
    pub p50_ratio: Option<Interval>,
    /// The same of what one of a hundred exceeds.
    pub p99_ratio: Option<Interval>,
    /// Memory that the server has more for each connection of the attacker, bytes; none where it had few.
    pub memory_per_connection: Option<f64>,
    /// What the server counted in all rounds: refusals, and how sessions ended.
    pub counted: BTreeMap<String, u64>,
    /// In what it did harm, in words.
    pub harms: Vec<String>,
    /// Whether honest peers lost something.
    pub has_lost: bool,
}

/// Fewer connections say nothing about what each of them takes.
const CONNECTIONS_MIN: u64 = 100;

impl<'a> Summary<'a> {
    fn of(plan: &DrillPlan, attacked: &'a Attacked) -> Self {
        let ratio = |part: fn(&Part) -> Option<f64>| {
            let series = |side: fn(&Round) -> &Part| -> Option<Series> {
                let rounds = attacked.rounds.iter();
                let values: Option<Vec<f64>> = rounds.map(|round| part(side(round))).collect();
                Series::new(values?).ok()
            };
            let (before, during) = (series(|it| &it.before)?, series(|it| &it.during)?);
            paired_ratio(&before, &during).ok()
        };
        let (p50_ratio, p99_ratio) = (ratio(|it| it.p50_us), ratio(|it| it.p99_us));
        let (harm, after) = (&attacked.harm, &attacked.server_after);
        let mut harms = Vec::new();
        let mut tell = |count: u64, what: &str| {
            if count > 0 {
                harms.push(format!("{} {what}", grouped(count)));
            }
        };
        tell(harm.lost, "messages lost");
        tell(harm.wrong, "wrong echoes");
        tell(harm.sessions_ended, "sessions ended");
        tell(harm.newcomers_failed, "newcomers failed");
        tell(after.panics, "handlers panicked");
        tell(after.connections(), "connections left in the server");
        let has_lost = !harms.is_empty();
        harms.extend(harm.reasons.iter().cloned());
        match p50_ratio {
            Some(ratio) if ratio.point > plan.max_ratio => harms.push(format!(
                "round trips took {:.2} times as long, more than {}",
                ratio.point, plan.max_ratio
            )),
            Some(_) => {}
            None => harms.push("a part of a round had no round trip".to_owned()),
        }
        let refused = after.refused.iter();
        let closed = after.closed.iter();
        let counted = refused
            .map(|(reason, count)| (format!("refused: {reason}"), *count))
            .chain(closed.map(|(reason, count)| (format!("closed: {reason}"), *count)))
            .chain([("left early".to_owned(), after.left_early)])
            .filter(|(_, count)| *count > 0)
            .collect();
        Self {
            p50_ratio,
            p99_ratio,
            memory_per_connection: memory_per_connection(plan, attacked),
            counted,
            harms,
            has_lost,
            attacked,
        }
    }

    fn median(&self, part: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.attacked.rounds.iter().filter_map(part).collect();
        median(&values)
    }
}

/// From before the first round to the first attack, as later rounds find memory that earlier ones have left.
fn memory_per_connection(plan: &DrillPlan, attacked: &Attacked) -> Option<f64> {
    let first = &attacked.rounds.first()?.server;
    let its = first.connections().saturating_sub(plan.sessions.into());
    let more = first.memory_bytes as f64 - attacked.server_before.memory_bytes as f64;
    (its >= CONNECTIONS_MIN).then(|| more / its as f64)
}

impl<'a> DrillReport<'a> {
    /// The report on these attacks.
    pub fn of(plan: &'a DrillPlan, attacked: &'a [Attacked]) -> Self {
        let attacks: Vec<Summary<'a>> = attacked.iter().map(|it| Summary::of(plan, it)).collect();
        Self {
            bench: "session attack",
            config: plan,
            is_harmed: attacks.iter().any(|it| !it.harms.is_empty()),
            attacks,
        }
    }

    /// Whether honest peers lost messages, sessions or connections.
    pub fn has_lost(&self) -> bool {
        self.attacks.iter().any(|it| it.has_lost)
    }

    /// How it went, in words.
    pub fn verdict(&self) -> String {
        let harmful = self.attacks.iter().filter(|it| !it.harms.is_empty());
        let names: Vec<String> = harmful.map(|it| it.attacked.attack.name()).collect();
        if names.is_empty() {
            format!(
                "honest peers lost nothing, and their round trips took at most {} times as long",
                self.config.max_ratio
            )
        } else {
            format!("honest peers were harmed by {}", names.join(", "))
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new([
            "attack",
            "connections",
            "P50 us",
            "under attack",
            "ratio",
            "P99 us",
            "under attack",
            "ratio",
            "lost",
            "newcomers",
            "P50 ms",
            "under attack",
            "memory each",
        ]);
        for summary in &self.attacks {
            let attacked = summary.attacked;
            let number = |value: Option<f64>, scale: f64| {
                value.map_or_else(|| "-".to_owned(), |value| format!("{:.1}", value / scale))
            };
            let ratio = |ratio: Option<Interval>| {
                ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string())
            };
            let newcomers: u64 = attacked.rounds.iter().map(|it| it.during.newcomers).sum();
            let connections = attacked.rounds.iter().map(|it| it.attacker.connections);
            table.row([
                attacked.attack.name(),
                grouped(connections.min().unwrap_or(0)),
                number(summary.median(|it| it.before.p50_us), 1.0),
                number(summary.median(|it| it.during.p50_us), 1.0),
                ratio(summary.p50_ratio),
                number(summary.median(|it| it.before.p99_us), 1.0),
                number(summary.median(|it| it.during.p99_us), 1.0),
                ratio(summary.p99_ratio),
                grouped(attacked.harm.lost),
                format!(
                    "{}, {} failed",
                    grouped(newcomers),
                    attacked.harm.newcomers_failed
                ),
                number(summary.median(|it| it.before.newcomers_p50_us), 1e3),
                number(summary.median(|it| it.during.newcomers_p50_us), 1e3),
                summary.memory_per_connection.map_or_else(
                    || "-".to_owned(),
                    |bytes| format!("{:.1} KiB", bytes / 1024.0),
                ),
            ]);
        }
        table
    }

    /// Lines of one attack under the table.
    fn remarks(summary: &Summary<'_>) -> Vec<String> {
        let attacked = summary.attacked;
        let name = attacked.attack.name();
        let rounds = || attacked.rounds.iter();
        let connects: u64 = rounds().map(|it| it.attacker.connects).sum();
        let sent: u64 = rounds().map(|it| it.attacker.sent_bytes).sum();
        let counted: Vec<String> = summary
            .counted
            .iter()
            .map(|(what, count)| format!("{what} {}", grouped(*count)))
            .collect();
        let most = rounds().map(|it| it.server.memory_bytes).max().unwrap_or(0);
        let mut lines = vec![format!(
            "{name}: {} connects, {} sent; the server had {} before, at most {}, {} after; it counted {}",
            grouped(connects),
            Size(sent),
            mib(attacked.server_before.memory_bytes),
            mib(most),
            mib(attacked.server_after.memory_bytes),
            counted.join(", "),
        )];
        if !summary.harms.is_empty() {
            lines.push(format!("{name} did harm: {}", summary.harms.join("; ")));
        }
        lines
    }

    /// The report for people.
    pub fn text(&self, paint: Paint) -> String {
        let verdict = match self.is_harmed {
            false => paint.good(&self.verdict()),
            true => paint.bad(&self.verdict()),
        };
        let mut lines = vec![format!("\n{}", self.table())];
        lines.extend(self.attacks.iter().flat_map(Self::remarks));
        lines.push(verdict);
        lines.join("\n")
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {

    use super::super::attacker::Tally;
    use super::super::honest::Harm;
    use super::super::kind::Attack;
    use super::super::server::Figures;
    use super::*;

    fn part(p50_us: Option<f64>) -> Part {
        Part {
            round_trips: 1,
            p50_us,
            p99_us: p50_us,
            max_us: p50_us,
            newcomers: 1,
            newcomers_p50_us: None,
            newcomers_max_us: None,
        }
    }

    fn attacked(during_us: Option<f64>) -> Attacked {
        let round = Round {
            before: part(Some(10.0)),
            building: part(None),
            during: part(during_us),
            attacker: Tally::default(),
            server: Figures {
                memory_bytes: 1000 * 2048,
                sessions: 1,
                arrivals: 1000,
                ..Figures::default()
            },
        };
        Attacked {
            attack: Attack::Silent,
            connections: 1000,
            rounds: vec![round; 8],
            after: part(Some(10.0)),
            harm: Harm::default(),
            server_before: Figures::default(),
            server_after: Figures::default(),
        }
    }

    #[test]
    fn slower_than_allowed_is_harm_and_no_loss() {
        for (during, is_harmed) in [(Some(19.0), false), (Some(21.0), true), (None, true)] {
            let attacked = [attacked(during)];
            let plan = DrillPlan::small();
            let report = DrillReport::of(&plan, &attacked);
            assert_eq!((report.is_harmed, report.has_lost()), (is_harmed, false));
            let text = report.text(Paint::new(false));
            assert_eq!(text.contains("did harm"), is_harmed, "{text}");
        }
    }

    #[test]
    fn a_loss_is_harm_however_fast_the_others_are() {
        let mut attacked = attacked(Some(10.0));
        attacked.harm.newcomers_failed = 1;
        attacked.harm.reasons.push("closed by the peer".to_owned());
        let (plan, attacked) = (DrillPlan::small(), [attacked]);
        let report = DrillReport::of(&plan, &attacked);
        assert!(report.has_lost() && report.is_harmed);
        assert!(report.verdict().contains("silent"), "{}", report.verdict());
    }

    #[test]
    fn memory_counts_for_each_connection_of_the_attacker() {
        let (plan, attacked) = (DrillPlan::small(), [attacked(Some(10.0))]);
        let report = DrillReport::of(&plan, &attacked);
        assert_eq!(report.attacks[0].memory_per_connection, Some(2048.0));
    }
}
