//! The pipeline in a terminal: a line for each part, with the share of the time in which it works or is full, and a mark at
//! the one that limits.

use std::fmt;

use crate::Diagnosis;
use crate::limits::{Resource, Use};
use crate::observed::Step;

/// Columns of a bar.
const BAR: usize = 20;
/// The mark of the part that limits.
const MARK: &str = "◀ limits";

/// Draws a diagnosis. Needs a terminal that knows UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a>(pub &'a Diagnosis);

impl fmt::Display for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.limits.uses.is_empty() {
            return f.write_str("no part of the pipeline could be looked at\n");
        }
        let limiting = self.0.limiting().map(|it| it.part);
        for used in &self.0.limits.uses {
            let mark = if limiting == Some(used.part) {
                MARK
            } else {
                ""
            };
            let line = format!(
                "{:<16} {}  {:<28} {mark}",
                used.part.name(),
                bar(used),
                words(used)
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        // What has no share of time: the network, the log.
        let is_shown = |part| self.0.limits.uses.iter().any(|it| it.part == part);
        match limiting.filter(|part| !is_shown(*part)) {
            Some(part) => writeln!(f, "{:<16} {:BAR$}  {:<28} {MARK}", part.name(), "", ""),
            None => Ok(()),
        }
    }
}

/// Full blocks for work, light ones for work that waited for a processor.
fn bar(used: &Use) -> String {
    let columns = |share: f64| (share * BAR as f64).round() as usize;
    let all = columns(used.share).min(BAR);
    let waited = columns(used.without_processor.min(used.share)).min(all);
    let mut bar = "█".repeat(all - waited);
    bar.push_str(&"▒".repeat(waited));
    bar.push_str(&"·".repeat(BAR - all));
    bar
}

fn words(used: &Use) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let share = percent(used.share);
    match used.part {
        Resource::InFlight
        | Resource::SendRings
        | Resource::SendBuffers
        | Resource::ReceiveBuffers => {
            format!("{share} full")
        }
        Resource::Processors => format!("{share} busy"),
        _ if used.without_processor >= 0.05 => {
            format!("{share}, {} for a core", percent(used.without_processor))
        }
        _ => format!("{share} at work"),
    }
}

/// Heights of a column.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns for what happened over time.
const COLUMNS: usize = 40;

/// What was carried over time, in one line of columns from 0 up, as wide as 40 of them at most. Needs a terminal that knows UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct OverTime<'a>(pub &'a [Step]);

impl OverTime<'_> {
    /// The means of as many parts of equal length as there are columns.
    fn columns(&self) -> Vec<f64> {
        let seconds: f64 = self.0.iter().map(|it| it.seconds).sum();
        let count = self.0.len().min(COLUMNS);
        if !(seconds.is_finite() && seconds > 0.0) {
            return Vec::new();
        }
        let mut columns = vec![(0.0, 0.0); count];
        let mut until = 0.0;
        for step in self.0 {
            let middle = until + step.seconds / 2.0;
            until += step.seconds;
            let column = (middle / seconds * count as f64) as usize;
            let (carried, took) = &mut columns[column.min(count - 1)];
            *carried += step.per_s * step.seconds;
            *took += step.seconds;
        }
        // Steps that took long leave columns in which none has its middle.
        let taken = columns.into_iter().filter(|it| it.1 > 0.0);
        taken.map(|(carried, took)| carried / took).collect()
    }
}

impl fmt::Display for OverTime<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns();
        let most = columns.iter().copied().fold(0.0, f64::max);
        let top = (HEIGHTS.len() - 1) as f64;
        for column in columns {
            let height = if most > 0.0 { column / most * top } else { 0.0 };
            write!(f, "{}", HEIGHTS[(height.round() as usize).min(7)])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(rates: &[f64]) -> String {
        let steps = rates.iter().map(|it| Step {
            seconds: 0.05,
            per_s: *it,
        });
        OverTime(&steps.collect::<Vec<_>>()).to_string()
    }

    #[test]
    fn what_happened_over_time_is_one_line() {
        assert_eq!(shown(&[0.0, 1.0, 3.5, 7.0]), "▁▂▅█");
        assert_eq!(shown(&[0.0, 0.0]), "▁▁");
        assert_eq!(shown(&[]), "");
        // As many fit as there are columns; each is the mean of its part.
        let many: Vec<f64> = (0..400).map(|it| f64::from(it / 200)).collect();
        assert_eq!(
            shown(&many),
            format!("{}{}", "▁".repeat(20), "█".repeat(20))
        );
        assert_eq!(shown(&[f64::NAN, 1.0]).chars().count(), 2);
    }
}
