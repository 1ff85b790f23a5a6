//! How much was carried, from the beginning of a span to its end.

use embar_diagnose::observed::Step;

use super::scale::Scale;
use super::{Across, Drawing, Panel, Panels, Picture};
use crate::table::Table;
use crate::words;

/// A file may have more steps; commands write 240 at most.
const STEPS_MAX: usize = 1000;

/// What was carried a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// What it was: `bytes that arrived`.
    pub what: &'static str,
    /// Its unit, and how much of what steps count that is.
    pub unit: (&'static str, f64),
}

/// A picture of these steps; `None` if there are too few to see anything.
pub(crate) fn picture(carried: Carried, steps: &[Step]) -> Option<Picture> {
    let usable =
        |it: &&Step| (0.0..f64::MAX).contains(&it.seconds) && (0.0..f64::MAX).contains(&it.per_s);
    let steps: Vec<&Step> = steps.iter().filter(usable).take(STEPS_MAX).collect();
    let seconds: f64 = steps.iter().map(|it| it.seconds).sum();
    if steps.len() < 3 || !(seconds.is_finite() && seconds > 0.0) {
        return None;
    }
    let (unit, of) = carried.unit;
    let values: Vec<f64> = steps.iter().map(|it| it.per_s / of).collect();
    let title = format!("{unit} over time");
    let mut table = Table::new(title.as_str(), ["#until", &format!("#{unit}")]);
    let (mut until, mut middles) = (0.0, Vec::new());
    for (step, value) in steps.iter().zip(&values) {
        middles.push((until + step.seconds / 2.0) / seconds);
        until += step.seconds;
        table.row([words::micros(until * 1e6), words::number(*value)]);
    }
    let median = median(&steps, seconds)? / of;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    let panel = Panel {
        label: carried.what.into(),
        value: format!(
            "median {}, {} to {}",
            words::number(median),
            words::number(least),
            words::number(most)
        ),
        median,
        values,
    };
    Some(Picture {
        title,
        description: format!(
            "{unit} in {} steps, from the beginning to the end: {}.",
            steps.len(),
            panel.value
        ),
        legend: "From the left to the right: time. Dashed: the median. The axis begins at 0."
            .into(),
        drawing: Drawing::Panels(Panels {
            scale: Scale::from_zero(panel.values.iter().copied()),
            across: Across::Time(seconds, middles),
            panels: vec![panel],
        }),
        table,
    })
}

/// What half of the time had no more than.
fn median(steps: &[&Step], seconds: f64) -> Option<f64> {
    let mut sorted = steps.to_vec();
    sorted.sort_by(|one, other| one.per_s.total_cmp(&other.per_s));
    let mut until = 0.0;
    let middle = sorted.iter().find(|it| {
        until += it.seconds;
        until >= seconds / 2.0
    });
    middle.or(sorted.last()).map(|it| it.per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Carried = Carried {
        what: "bytes that arrived",
        unit: ("MiB/s", 1_048_576.0),
    };

    fn steps(rates: &[f64]) -> Vec<Step> {
        let steps = rates.iter().map(|it| Step {
            seconds: 0.05,
            per_s: *it,
        });
        steps.collect()
    }

    #[test]
    fn steps_are_drawn_with_their_figures() {
        let picture = picture(BYTES, &steps(&[1e9, 2e9, 4e9])).expect("there are steps");
        assert_eq!(picture.title, "MiB/s over time");
        assert!(
            picture.description.contains("median 1,907, 954 to 3,815"),
            "{}",
            picture.description
        );
        let Drawing::Panels(panels) = picture.drawing else {
            panic!("panels");
        };
        assert!(matches!(panels.across, Across::Time(it, _) if (it - 0.15).abs() < 1e-9));
    }

    #[test]
    fn steps_stand_where_they_were() {
        let lengths = [6.0, 1.0, 1.0];
        let steps = lengths.iter().zip([10.0, 30.0, 40.0]);
        let steps: Vec<Step> = steps
            .map(|(seconds, per_s)| Step {
                seconds: *seconds,
                per_s,
            })
            .collect();
        let plain = Carried {
            unit: ("a second", 1.0),
            ..BYTES
        };
        let picture = picture(plain, &steps).expect("there are steps");
        let Drawing::Panels(panels) = picture.drawing else {
            panic!("panels");
        };
        assert_eq!(panels.panels[0].median, 10.0, "that of most of the time");
        let Across::Time(seconds, middles) = panels.across else {
            panic!("time");
        };
        assert_eq!((seconds, middles), (8.0, vec![0.375, 0.8125, 0.9375]));
    }

    #[test]
    fn too_few_steps_and_odd_ones_draw_nothing() {
        assert!(picture(BYTES, &steps(&[1.0, 2.0])).is_none());
        assert!(picture(BYTES, &steps(&[f64::NAN, -1.0, f64::INFINITY, 1.0])).is_none());
        let still = [Step::default(); 9];
        assert!(picture(BYTES, &still).is_none(), "no time passed");
    }
}
