//! Rates of trials in the order in which they ran.

use embar_meter::Series;
use embar_meter::stats::median_interval;

use super::ratios::Interval;
use super::scale::Scale;
use super::{Across, Drawing, Panel, Panels, Picture};
use crate::table::Table;
use crate::words;

/// Of more trials no interval is computed: that resamples them ten thousand times, and no bench runs as many.
const RESAMPLED_MAX: usize = 200;

/// Trials of one configuration.
#[derive(Debug)]
pub(crate) struct Trials {
    pub name: String,
    pub values: Vec<f64>,
}

impl Trials {
    /// Their median; `None` of none.
    pub fn median(&self) -> Option<f64> {
        embar_meter::stats::median(&self.values)
    }

    /// Where their median is; `None` of fewer than two, or of more than anybody runs.
    pub fn interval(&self) -> Option<Interval> {
        if !(2..=RESAMPLED_MAX).contains(&self.values.len()) {
            return None;
        }
        let series = Series::new(self.values.clone()).ok()?;
        let interval = median_interval(&series);
        Some(Interval {
            point: interval.point,
            low: interval.low,
            high: interval.high,
            level: Some(interval.level),
        })
    }
}

/// A picture of all that have trials, one below the other on one scale; `None` if there is nothing to see.
pub(crate) fn picture(title: impl Into<String>, all: &[Trials], unit: &str) -> Option<Picture> {
    let title = title.into();
    let all: Vec<&Trials> = all.iter().filter(|it| it.values.len() > 1).collect();
    if all.is_empty() {
        return None;
    }
    let scale = Scale::from_zero(all.iter().flat_map(|it| it.values.iter().copied()));
    let columns = ["series".to_owned(), "#trial".to_owned(), format!("#{unit}")];
    let mut table = Table::new(title.clone(), columns.iter().map(String::as_str));
    let mut panels = Vec::new();
    for trials in &all {
        for (index, value) in trials.values.iter().enumerate() {
            table.row([
                trials.name.clone(),
                (index + 1).to_string(),
                words::number(*value),
            ]);
        }
        let median = trials.median()?;
        panels.push(Panel {
            label: words::label(&trials.name),
            value: format!("median {}", words::number(median)),
            values: trials.values.clone(),
            median,
        });
    }
    let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
    Some(Picture {
        description: words::clipped(&format!(
            "{unit} of each trial, in the order in which they ran: {}.",
            names.join(", ")
        )),
        title,
        legend:
            "Dots: trials in their order, from the left. Dashed: the median. The axis begins at 0."
                .into(),
        drawing: Drawing::Panels(Panels {
            scale,
            across: Across::Order,
            panels,
        }),
        table,
    })
}
