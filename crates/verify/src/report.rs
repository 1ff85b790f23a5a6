//! The report on a run of `verify order`, for people and as JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use embar_console::paint::Paint;
use embar_meter::table::{Table, grouped};
use serde::Serialize;

use super::faults::Fault;
use super::findings::{Findings, NotKept};
use super::gaps::GapReport;
use super::hostile_processes::Attacks;
use super::observed_retention::ObservedRetention;
use super::plan::VerifyPlan;
use super::power::PowerReport;
use super::violation::Violations;

/// Everything about a run.
#[derive(Clone, Debug, Serialize)]
pub struct OrderReport {
    /// What was verified.
    pub verify: &'static str,
    /// What was run.
    pub config: VerifyPlan,
    /// From the first publish until the first subscriber had seen everything.
    pub seconds: f64,
    /// Messages that publishers published; killed ones, as far as they reported.
    pub published: u64,
    /// Messages that were acknowledged; with acks 0 those that were sent.
    pub acknowledged: u64,
    /// Of them, those acknowledged without a position.
    pub unplaced: u64,
    /// Messages that may be stored or not, as publishers learned.
    pub given_up: u64,
    /// Messages that are certainly not stored, as publishers learned.
    pub not_stored: u64,
    /// Acknowledgements that were read again as soon as they came.
    pub reread: u64,
    /// By how much the verifier's own timer was late at most. Where that is a tenth of a wait, the wait proves nothing, and
    /// the violation says so.
    pub timer_late_max_ms: f64,
    /// By number; the first sees everything.
    pub subscribers: Vec<SubscriberReport>,
    /// Messages that were retained at the end, and read again; `None` if it did not come to that.
    pub read_at_the_end: Option<u64>,
    /// Whether these were all from the first one on; otherwise older ones had to make room.
    pub read_from_the_first: Option<bool>,
    /// What was on the disks after the last power cut; `None` if none was cut.
    pub disk: Option<PowerReport>,
    /// What could be read while the log was full; `None` if it never was.
    pub retained: Option<ObservedRetention>,
    /// How often each kind of fault happened.
    pub faults: BTreeMap<Fault, u64>,
    /// How often hostile clients tried each attack, as far as they came to say so.
    pub attacks: Attacks,
    /// Kinds of faults that were planned and never happened.
    pub untried: Vec<Fault>,
    /// Faults that were due while there was nothing to hit.
    pub missed_faults: u64,
    /// Starts of brokers that failed because others were away.
    pub failed_starts: u64,
    /// Brokers that were stopped for so long that others went on without them, and ended for that.
    pub overtaken: u64,
    /// Terms of sequencers until the start, the one at that time included.
    pub first_term: u32,
    /// Terms until the end.
    pub last_term: u32,
    /// Terms between them.
    pub takeovers: u32,
    /// How long acknowledgements stayed away.
    pub gaps: Vec<GapReport>,
    /// Where the logs of brokers and publishers are kept, if something was broken.
    pub logs: Option<PathBuf>,
    /// What was broken.
    pub violations: Violations,
    /// Whether anything happened that could have broken something: a fault, an attack, or a takeover.
    pub tried: bool,
    /// Whether something was tried, and nothing was broken.
    pub kept: bool,
}

/// One subscriber.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SubscriberReport {
    /// Messages it was given in all.
    pub messages: u64,
    /// Of them, those that came more than once where that is allowed.
    pub repeated: u64,
}

impl Findings for OrderReport {
    fn text(&self, paint: Paint) -> String {
        let mut lines = vec![format!("\n{}", self.counts())];
        if !self.gaps.is_empty() {
            lines.push(format!("\n{}", self.gaps_table()));
        }
        if !self.untried.is_empty() {
            let untried: Vec<String> = self.untried.iter().map(Fault::to_string).collect();
            lines.push(format!("\nnever came about: {}", untried.join(", ")));
        }
        if self.kept {
            lines.push(format!(
                "\n{}: every promise of order {} was kept",
                paint.good("kept"),
                self.config.order
            ));
        } else if self.violations.total == 0 {
            lines.push(format!("\n{}", paint.bad("nothing was tried")));
        } else {
            lines.extend(self.violation_lines(paint));
        }
        lines.join("\n")
    }

    fn verdict(&self) -> Result<(), NotKept> {
        if self.kept {
            return Ok(());
        }
        match self.violations.total {
            0 => Err(NotKept::NothingTried(
                "no fault, attack or takeover happened, so no promise was at stake".into(),
            )),
            total => Err(NotKept::Broken(format!(
                "verification failed: {total} violations of what order {} promises",
                self.config.order
            ))),
        }
    }
}

impl OrderReport {
    fn violation_lines(&self, paint: Paint) -> Vec<String> {
        let violations = &self.violations;
        let total = grouped(violations.total);
        let mut lines = vec![format!("\n{}: {total} violations", paint.bad("broken"))];
        let by_kind = violations.by_kind.iter();
        lines.extend(by_kind.map(|(kind, count)| format!("  {kind:?}: {}", grouped(*count))));
        lines.push("the first of them:".into());
        lines.extend(violations.first.iter().map(|it| format!("  {it}")));
        let logs = self.logs.as_ref();
        lines.extend(logs.map(|logs| format!("logs       {}", logs.display())));
        lines
    }

    fn counts(&self) -> Table {
        let mut table = Table::new(["messages", ""]);
        let mut row = |name: String, count: u64| {
            table.row([name, grouped(count)]);
        };
        row("published".into(), self.published);
        let acknowledged = match self.config.acks {
            0 => "sent",
            _ => "acknowledged",
        };
        row(acknowledged.into(), self.acknowledged);
        if self.unplaced > 0 {
            row("  position unknown".into(), self.unplaced);
        }
        if self.given_up > 0 {
            row("in doubt".into(), self.given_up);
        }
        if self.not_stored > 0 {
            row("reported as not stored".into(), self.not_stored);
        }
        if self.config.has_subscribers() {
            row("acknowledgements read at once".into(), self.reread);
        }
        for (number, subscriber) in self.subscribers.iter().enumerate() {
            row(format!("seen by subscriber {number}"), subscriber.messages);
            if subscriber.repeated > 0 {
                row("  repeated".into(), subscriber.repeated);
            }
        }
        if let Some(messages) = self.read_at_the_end {
            let from = match self.read_from_the_first {
                Some(true) => "from the first on",
                _ => "older ones had to make room",
            };
            row(format!("read again at the end, {from}"), messages);
        }
        if let Some(disk) = &self.disk {
            row("on the disk at the end".into(), disk.messages);
            row("  written more than once".into(), disk.repeated);
            row("KiB that cuts tore".into(), disk.torn_bytes >> 10);
        }
        if let Some(retained) = &self.retained {
            let mib = |bytes: u64| bytes >> 20;
            row(
                format!(
                    "MiB kept in the full log, at least ({:.0} % of a broker's room)",
                    retained.least_share * 100.0
                ),
                mib(retained.least_bytes),
            );
            row("  at most".into(), mib(retained.most_bytes));
        }
        row(
            format!("takeovers (term {} to {})", self.first_term, self.last_term),
            self.takeovers.into(),
        );
        for (fault, count) in &self.faults {
            row(format!("{fault}, times"), *count);
        }
        for (attack, count) in &self.attacks {
            row(format!("attack by {attack}, times"), *count);
        }
        row(
            "ms by which the verifier's own timer was late, at most".into(),
            self.timer_late_max_ms as u64,
        );
        if self.missed_faults > 0 {
            row("faults without anything to hit".into(), self.missed_faults);
        }
        if self.failed_starts > 0 {
            row("failed starts of brokers".into(), self.failed_starts);
        }
        if self.overtaken > 0 {
            row(
                "brokers that ended as they were overtaken".into(),
                self.overtaken,
            );
        }
        table
    }

    fn gaps_table(&self) -> Table {
        let mut table = Table::new([
            "longest wait for an ack (ms)",
            "times",
            "any publisher: median",
            "max",
            "slowest publisher: median",
            "max",
        ]);
        for gap in &self.gaps {
            let ms = |ms: f64| format!("{ms:.0}");
            table.row([
                gap.fault.to_string(),
                gap.faults.to_string(),
                ms(gap.nobody_ms.median),
                ms(gap.nobody_ms.max),
                ms(gap.slowest_publisher_ms.median),
                ms(gap.slowest_publisher_ms.max),
            ]);
        }
        table
    }
}
