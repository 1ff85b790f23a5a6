//! `embar bench metering`.

use embar_meter::Better;

use super::node::Node;
use super::{origin, shared};
use crate::Error;
use crate::picture::trials::{self, Trials};
use crate::section::{Block, Section};
use crate::table::Table;
use crate::words;

/// The section of what timers cost, or of what it costs to be looked at.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let Some(cost) = root.object("metering_cost")? else {
        return Err(root.nothing("it has no metering_cost"));
    };
    let series = shared::series(root)?;
    let loss = cost.object("loss")?;
    let (point, upper) = match &loss {
        Some(loss) => (loss.number("point")?, loss.number("upper")?),
        None => (None, None),
    };
    let (Some(point), Some(upper)) = (point, upper) else {
        return Err(root.nothing("its metering_cost has no loss with a point and an upper bound"));
    };
    let is_looked_at = series.iter().any(|it| it.trials.name == "looked at");
    let mut blocks = Vec::new();
    // Recorded results keep only the loss.
    let line = shared::comparison(&cost, ["on", "off"], Better::Higher)?;
    let title = "Rate with, divided by rate without";
    blocks.extend(line.map(|line| {
        let table = Table::new(title, shared::COMPARISON);
        shared::ratios(title, Better::Higher, table, vec![line])
    }));
    blocks.extend(shared::medians("Median rates, MiB/s", "MiB/s", &series));
    let trials: Vec<Trials> = series.into_iter().map(|it| it.trials).collect();
    let picture = trials::picture("Rate of each slice", &trials, "MiB/s");
    blocks.extend(picture.map(|it| Block::Picture(Box::new(it))));
    blocks.extend(origin::settings(root)?);
    Ok(Section {
        title: match is_looked_at {
            true => "What it costs to be looked at".into(),
            false => "What the stage timers cost".into(),
        },
        says: format!(
            "{} of the rate, at most {}",
            words::percent_fine(point),
            words::percent_fine(upper)
        ),
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}
