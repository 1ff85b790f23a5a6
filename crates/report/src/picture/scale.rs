//! An axis: from numbers to places, and the numbers that it names.

use crate::words;

/// Numbers that a linear axis names, at most.
const TICKS: f64 = 5.0;
/// Beyond so many decades only powers of ten are named.
const DECADES_IN_FULL: f64 = 1.7;
/// From this ratio of its ends on, an axis of ratios is logarithmic.
const LOGARITHMIC_FROM: f64 = 2.5;

/// The least end of an axis from 0.
const SMALL: f64 = 1e-100;

/// An axis, with its ends at numbers that it names.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    is_log: bool,
    low: f64,
    high: f64,
    pub ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Of shares, 0 to 1.
    pub fn shares() -> Self {
        let ticks = [0.0, 0.25, 0.5, 0.75, 1.0];
        Self {
            is_log: false,
            low: 0.0,
            high: 1.0,
            ticks: ticks.map(|it| (it, words::percent(it))).into(),
        }
    }

    /// From 0 to at least all of these.
    pub fn from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        let usable = values.into_iter().filter(|it| it.is_finite());
        let high = usable.fold(0.0, f64::max);
        // Of what is less, a fifth is no number any more.
        let high = if high > SMALL { high } else { 1.0 };
        Self::linear(0.0, high, &words::number)
    }

    /// Around 1: linear where all are close to it, else logarithmic.
    pub fn ratios(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = ends(values.into_iter().chain([1.0])).unwrap_or((1.0, 1.0));
        if high / low >= LOGARITHMIC_FROM {
            return Self::log(low, high, &words::number);
        }
        let pad = ((high - low) * 0.1).max(0.01);
        Self::linear((low - pad).max(0.0), high + pad, &|value| {
            format!("{value:.2}")
        })
    }

    /// Of times in microseconds, logarithmic.
    pub fn micros(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = ends(values).unwrap_or((1.0, 1000.0));
        Self::log(low, high, &words::micros)
    }

    /// Round numbers from 0 to the last one that is no more than `high`, which is more than 0.
    pub fn until(high: f64) -> Vec<f64> {
        let step = round_up(high / TICKS);
        let count = (high / step).floor().clamp(0.0, 2.0 * TICKS) as u32;
        (0..=count).map(|it| f64::from(it) * step).collect()
    }

    fn linear(low: f64, high: f64, show: &dyn Fn(f64) -> String) -> Self {
        let step = round_up((high - low) / TICKS);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let count = (last - first).clamp(1.0, 2.0 * TICKS) as u32;
        // Divided where it can be, so that a tick is 0.9 and not 0.9000000000000001.
        let place = |index: u32| {
            let steps = first + f64::from(index);
            if step < 1.0 {
                steps / (1.0 / step).round()
            } else {
                steps * step
            }
        };
        let ticks = (0..=count).map(place).map(|it| (it, show(it)));
        Self::of_ticks(false, ticks.collect())
    }

    fn log(low: f64, high: f64, show: &dyn Fn(f64) -> String) -> Self {
        let decades = (high / low).log10();
        let steps: &[f64] = if decades <= DECADES_IN_FULL {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        // A file may span all that numbers can.
        let every = (decades / 5.0).ceil().max(1.0) as usize;
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32 + every as i32;
        let powers = (first..=last).step_by(every).map(|it| 10f64.powi(it));
        let all: Vec<f64> = powers
            .flat_map(|power| steps.iter().map(move |step| step * power))
            .filter(|it| it.is_finite() && *it > 0.0)
            .collect();
        let from = all.iter().rposition(|it| *it <= low).unwrap_or(0);
        let to = all.iter().position(|it| *it >= high);
        let to = to.unwrap_or(all.len().saturating_sub(1)).max(from + 1);
        let ticks = all.iter().take(to + 1).skip(from);
        Self::of_ticks(true, ticks.map(|it| (*it, show(*it))).collect())
    }

    fn of_ticks(is_log: bool, ticks: Vec<(f64, String)>) -> Self {
        let end = |tick: Option<&(f64, String)>| tick.map_or(1.0, |it| it.0);
        Self {
            is_log,
            low: end(ticks.first()),
            high: end(ticks.last()),
            ticks,
        }
    }

    /// Where a number is, in percent of the axis. What lies beyond an end is at the end; `None` for what has no place.
    pub fn place(&self, value: f64) -> Option<f64> {
        let part = if self.is_log {
            if value <= 0.0 {
                return None;
            }
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        part.is_finite().then(|| part.clamp(0.0, 1.0) * 100.0)
    }
}

/// The least and the greatest that have a logarithm which an axis can show.
fn ends(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let usable = values.into_iter().filter(|it| (1e-100..1e100).contains(it));
    usable.fold(None, |ends, it| {
        let (low, high) = ends.unwrap_or((it, it));
        Some((it.min(low), it.max(high)))
    })
}

/// 1, 2 or 5 times a power of ten.
fn round_up(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let enough = steps.into_iter().find(|it| it * power >= step);
    enough.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: &Scale) -> String {
        let ticks: Vec<&str> = scale.ticks.iter().map(|it| it.1.as_str()).collect();
        ticks.join(" ")
    }

    #[test]
    fn axes_name_round_numbers() {
        assert_eq!(
            ticks(&Scale::from_zero([3747.0])),
            "0 1,000 2,000 3,000 4,000"
        );
        assert_eq!(
            ticks(&Scale::ratios([0.92, 1.06])),
            "0.90 0.95 1.00 1.05 1.10"
        );
        assert_eq!(ticks(&Scale::ratios([0.2, 1.9])), "0.20 0.50 1 2");
        let times = ticks(&Scale::micros([58.0, 113_901.0]));
        assert_eq!(times, "10 µs 100 µs 1 ms 10 ms 100 ms 1 s");
    }

    #[test]
    fn numbers_up_to_an_end_are_round_and_not_beyond_it() {
        assert_eq!(Scale::until(4.2), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(Scale::until(0.7), [0.0, 0.2, 0.4, 0.6000000000000001]);
        assert!(Scale::until(f64::MIN_POSITIVE).len() < 12);
        assert!(Scale::until(f64::MAX).len() < 12);
    }

    #[test]
    fn places_are_in_percent_and_stay_on_the_axis() {
        let scale = Scale::ratios([0.1, 10.0]);
        assert_eq!(scale.place(1.0).map(f64::round), Some(50.0));
        assert_eq!(scale.place(1e9), Some(100.0));
        assert_eq!((scale.place(0.0), scale.place(-1.0)), (None, None));
        assert_eq!(Scale::shares().place(f64::NAN), None);
    }

    #[test]
    fn any_numbers_have_an_axis_with_few_ticks() {
        let odd = [
            0.0,
            -1.0,
            f64::MAX,
            f64::MIN_POSITIVE,
            1e-99,
            1e99,
            1e15,
            5e-324,
        ];
        for one in odd {
            for other in odd {
                for of in [Scale::from_zero, Scale::ratios, Scale::micros] {
                    let scale = of([one, other]);
                    let count = scale.ticks.len();
                    assert!((2..=12).contains(&count), "{one:e} {other:e}: {scale:?}");
                    let _ = scale.place(one);
                }
            }
        }
    }
}
