//! Values in the order measured, and numbers that describe them.

use super::StatsError;

/// At least one value, all finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    values: Vec<f64>,
    sorted: Vec<f64>,
}

impl Series {
    /// Takes the values in the order measured, since pairing needs it.
    ///
    /// # Errors
    /// [`StatsError::Empty`], [`StatsError::NotFinite`].
    pub fn new(values: impl Into<Vec<f64>>) -> Result<Self, StatsError> {
        let values = values.into();
        if values.is_empty() {
            return Err(StatsError::Empty);
        }
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            let value = values[index];
            return Err(StatsError::NotFinite { index, value });
        }
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        Ok(Self { values, sorted })
    }

    /// The values in the order measured.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The values in ascending order.
    pub fn sorted(&self) -> &[f64] {
        &self.sorted
    }

    /// The smallest value.
    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    /// The largest value.
    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// The arithmetic mean: for comparison with reports that give one; decide by [`Series::median`].
    pub fn mean(&self) -> f64 {
        // Divided first: the sum of huge values would overflow.
        let n = self.values.len() as f64;
        self.values.iter().map(|value| value / n).sum()
    }

    /// The value in the middle, or the mean of the two there.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The quantile `q` in `0..=1`, by linear interpolation between the two values around place `(n - 1) q` of the
    /// sorted series.
    ///
    /// Source: Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996),
    /// type 7, the default of R and NumPy.
    pub fn quantile(&self, q: f64) -> f64 {
        quantile_of_sorted(&self.sorted, q)
    }

    /// `(max - min) / |median|`: how far apart the trials lie. Zero when all are equal; infinite when they differ
    /// around a median of zero.
    pub fn spread(&self) -> f64 {
        let range = self.max() - self.min();
        if range == 0.0 {
            0.0
        } else {
            range / self.median().abs()
        }
    }

    /// The median of the distances from the median, not scaled to a standard deviation.
    ///
    /// Source: Hampel, "The Influence Curve and its Role in Robust Estimation", JASA 69 (1974).
    pub fn median_absolute_deviation(&self) -> f64 {
        let median = self.median();
        let mut distances: Vec<f64> = self
            .values
            .iter()
            .map(|value| (value - median).abs())
            .collect();
        distances.sort_by(f64::total_cmp);
        quantile_of_sorted(&distances, 0.5)
    }
}

impl TryFrom<&[f64]> for Series {
    type Error = StatsError;

    fn try_from(values: &[f64]) -> Result<Self, StatsError> {
        Self::new(values)
    }
}

/// The median of `values`; `None` when there are none, or one is not finite.
pub fn median(values: &[f64]) -> Option<f64> {
    Some(Series::new(values).ok()?.median())
}

/// See [`Series::quantile`]; `sorted` is ascending and not empty.
pub(super) fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    assert!((0.0..=1.0).contains(&q), "a quantile lies between 0 and 1");
    let place = (sorted.len() - 1) as f64 * q;
    let (below, part) = (place.floor() as usize, place.fract());
    let low = sorted[below];
    match sorted.get(below + 1) {
        // The form a + (b - a) t would leave [a, b] by rounding; min and max keep it inside.
        Some(&high) => (low * (1.0 - part) + high * part).clamp(low, high),
        None => low,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        Series::new(values).expect("finite values")
    }

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_both_middles() {
        assert_eq!(series(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(series(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn quantiles_are_those_of_r() {
        // R: quantile(c(15, 20, 35, 40, 50), c(0, .05, .3, .4, .5, 1))
        let five = series(&[35.0, 15.0, 50.0, 20.0, 40.0]);
        for (q, value) in [
            (0.0, 15.0),
            (0.05, 16.0),
            (0.3, 23.0),
            (0.4, 29.0),
            (0.5, 35.0),
            (1.0, 50.0),
        ] {
            assert!((five.quantile(q) - value).abs() < 1e-9, "quantile {q}");
        }
    }

    #[test]
    fn describes_the_three_trials_of_a_report() {
        let trials = series(&[2780.27, 2750.30, 2723.65]);
        assert!((trials.mean() - 2751.4066).abs() < 1e-3);
        assert_eq!(trials.median(), 2750.30);
        assert!((trials.spread() - 56.62 / 2750.30).abs() < 1e-9);
        assert!((trials.median_absolute_deviation() - 26.65).abs() < 1e-9);
    }

    #[test]
    fn one_outlier_moves_the_deviation_hardly() {
        let mad = series(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]).median_absolute_deviation();
        assert_eq!(mad, 1.0);
        assert_eq!(
            series(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9e9]).median_absolute_deviation(),
            1.0
        );
    }

    #[test]
    fn refuses_what_cannot_be_compared() {
        assert_eq!(Series::new([]), Err(StatsError::Empty));
        let Err(StatsError::NotFinite { index, .. }) = Series::new([1.0, f64::NAN]) else {
            panic!("NaN was accepted");
        };
        assert_eq!(index, 1);
    }
}
