//! Figures with their intervals: ratios around 1, or medians.

use super::scale::Scale;
use super::{Drawing, Group, Marks, Picture, Row, Rows, Tone};
use crate::table::Table;
use crate::words;
use embar_meter::stats::LEVEL;
use embar_meter::{Better, Verdict};

/// An interval with its estimate, as the benches print it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub point: f64,
    pub low: f64,
    pub high: f64,
    /// Confidence, 0 to 1, if it is known.
    pub level: Option<f64>,
}

impl Interval {
    /// `0.84 [0.54, 0.92]`, and the confidence if it is not the one that the page names for all.
    pub fn shown(&self) -> String {
        let Self {
            point, low, high, ..
        } = self;
        let ends = [*low, *high].map(fixed).join(", ");
        format!("{} [{ends}]{}", fixed(*point), self.confidence())
    }

    /// ` (99 %)` of one on which a verdict is built, ` (75 %)` where trials are few; nothing of the usual 95 %.
    pub fn confidence(&self) -> String {
        let other = self.level.filter(|it| *it != LEVEL);
        other.map_or_else(String::new, |it| format!(" ({})", words::percent(it)))
    }

    /// What may be claimed of a ratio of which only this interval is known. One of a confidence below 95 % can exclude nothing.
    pub fn claim(&self) -> Claim {
        let is_sure = self.level.is_none_or(|it| it >= LEVEL);
        match is_sure && !(self.low..=self.high).contains(&1.0) {
            true if self.point > 1.0 => Claim::Above,
            true => Claim::Below,
            false => Claim::Nothing,
        }
    }
}

/// What may be claimed of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Above,
    Below,
    /// It is inside the noise.
    Nothing,
}

impl Claim {
    /// What the command concluded, which knows more than the interval that it printed.
    pub fn of(verdict: Verdict, better: Better) -> Self {
        match (verdict, better) {
            (Verdict::Faster, Better::Higher) | (Verdict::Slower, Better::Lower) => Self::Above,
            (Verdict::Faster, Better::Lower) | (Verdict::Slower, Better::Higher) => Self::Below,
            (Verdict::InsideNoise, _) => Self::Nothing,
        }
    }

    /// For a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Above => "above 1",
            Self::Below => "below 1",
            Self::Nothing => "inside the noise",
        }
    }

    fn tone(self, better: Better) -> Tone {
        match (self, better) {
            (Self::Above, Better::Higher) | (Self::Below, Better::Lower) => Tone::Strong,
            (Self::Above, Better::Lower) | (Self::Below, Better::Higher) => Tone::Weak,
            (Self::Nothing, _) => Tone::Plain,
        }
    }
}

/// Ratios have two digits, unless that hides what they say.
fn fixed(value: f64) -> String {
    if (0.01..100.0).contains(&value) {
        format!("{value:.2}")
    } else {
        words::number(value)
    }
}

/// One line of a picture.
#[derive(Debug)]
pub(crate) struct Line {
    /// Lines with the same text stand together; empty for none.
    pub group: String,
    pub label: String,
    pub interval: Interval,
    /// What may be said of a ratio; of a median there is nothing to say.
    pub claim: Claim,
    pub aim: Option<f64>,
    /// The row of the table.
    pub cells: Vec<String>,
}

/// The axis on which all of these have a place.
pub(crate) fn scale<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Scale {
    let numbers = lines.into_iter().flat_map(|line| {
        let Interval {
            point, low, high, ..
        } = line.interval;
        [point, low, high].into_iter().chain(line.aim)
    });
    Scale::ratios(numbers)
}

/// A picture of ratios around 1. `table` has a heading for each cell of a [`Line`].
pub(crate) fn picture(
    title: impl Into<String>,
    description: String,
    better: Better,
    scale: Scale,
    table: Table,
    lines: Vec<Line>,
) -> Picture {
    let aims = match lines.iter().any(|line| line.aim.is_some()) {
        true => " Short stroke: the aim.",
        false => "",
    };
    let better_is = match better {
        Better::Higher => "More than 1 is better (blue), less is worse (orange).",
        Better::Lower => "Less than 1 is better (blue), more is worse (orange).",
    };
    let legend = format!(
        "Dot: the median of the ratios. Line: its interval. ● a difference was shown, ○ none was, so that nothing may be claimed. \
         {better_is}{aims}"
    );
    let row = |line: &Line| Row {
        label: words::label(&line.label),
        value: line.interval.shown(),
        marks: Marks::Whisker {
            point: line.interval.point,
            low: line.interval.low,
            high: line.interval.high,
            aim: line.aim,
            tone: line.claim.tone(better),
            is_filled: line.claim != Claim::Nothing,
        },
    };
    let picture = Picture {
        title: title.into(),
        description,
        legend,
        drawing: Drawing::Rows(Rows {
            scale,
            equal: Some(1.0),
            groups: grouped(&lines, row),
        }),
        table,
    };
    with_rows(picture, lines)
}

/// A picture of medians with their intervals, from 0.
pub(crate) fn medians(
    title: impl Into<String>,
    description: String,
    table: Table,
    lines: Vec<Line>,
) -> Picture {
    let row = |line: &Line| Row {
        label: words::label(&line.label),
        value: words::number(line.interval.point),
        marks: Marks::Whisker {
            point: line.interval.point,
            low: line.interval.low,
            high: line.interval.high,
            aim: None,
            tone: Tone::Plain,
            is_filled: true,
        },
    };
    let has_ends = lines.iter().any(|it| it.interval.low < it.interval.high);
    let legend = match has_ends {
        true => "Dot: the median of the trials. Line: its interval.",
        false => "Dot: the median of the trials.",
    };
    let picture = Picture {
        title: title.into(),
        description,
        legend: legend.into(),
        drawing: Drawing::Rows(Rows {
            scale: Scale::from_zero(lines.iter().map(|line| line.interval.high)),
            equal: None,
            groups: grouped(&lines, row),
        }),
        table,
    };
    with_rows(picture, lines)
}

fn with_rows(mut picture: Picture, lines: Vec<Line>) -> Picture {
    for line in lines {
        picture.table.row(line.cells);
    }
    picture
}

/// Groups in the order in which lines come.
fn grouped(lines: &[Line], row: impl Fn(&Line) -> Row) -> Vec<Group> {
    lines
        .chunk_by(|a, b| a.group == b.group)
        .map(|lines| Group {
            title: words::label(&lines[0].group),
            rows: lines.iter().map(&row).collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(point: f64, low: f64, high: f64, level: Option<f64>) -> Interval {
        Interval {
            point,
            low,
            high,
            level,
        }
    }

    #[test]
    fn an_interval_claims_no_more_than_it_may() {
        let verdict = |low, point, high, level| interval(point, low, high, level).claim().words();
        assert_eq!(verdict(1.1, 1.2, 1.3, Some(0.95)), "above 1");
        assert_eq!(verdict(0.7, 0.8, 0.9, None), "below 1");
        assert_eq!(verdict(0.7, 0.8, 1.1, None), "inside the noise");
        assert_eq!(verdict(0.7, 0.8, 0.9, Some(0.75)), "inside the noise");
    }

    #[test]
    fn ratios_of_any_size_can_be_read() {
        let shown = interval(509.2, 319.18, 927.3, None).shown();
        assert_eq!(shown, "509 [319, 927]");
        let shown = interval(0.8387, 0.5423, 0.9198, None).shown();
        assert_eq!(shown, "0.84 [0.54, 0.92]");
        let shown = interval(0.8387, 0.5423, 0.9198, Some(0.75)).shown();
        assert_eq!(shown, "0.84 [0.54, 0.92] (75 %)");
        let shown = interval(0.8387, 0.5423, 0.9198, Some(0.99)).shown();
        assert_eq!(shown, "0.84 [0.54, 0.92] (99 %)");
        let shown = interval(0.8387, 0.5423, 0.9198, Some(0.95)).shown();
        assert_eq!(shown, "0.84 [0.54, 0.92]");
    }
}
