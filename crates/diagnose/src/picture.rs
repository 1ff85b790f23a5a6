//! The pipeline in a terminal: a line for each part, with the share of the time in which it works or is full, and a mark at
//! the one that limits.

use std::fmt;

use crate::Diagnosis;
use crate::limits::{Resource, Use};

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
