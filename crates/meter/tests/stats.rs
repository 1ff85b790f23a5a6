//! Properties of the intervals, and how often they are wrong when the truth is known.

use embar_meter::random::SplitMix64;
use embar_meter::stats::{
    Better, Interval, LEVEL, Series, VERDICT_LEVEL, Verdict, loss_bound, median_interval,
    paired_ratio_at, verdict,
};
use proptest::prelude::*;

fn series(values: impl Into<Vec<f64>>) -> Series {
    Series::new(values).expect("finite values")
}

fn claim(before: &Series, after: &Series) -> Verdict {
    verdict(&ratio(before, after), Better::Higher)
}

fn ratio(before: &Series, after: &Series) -> Interval {
    paired_ratio_at(before, after, VERDICT_LEVEL).expect("pairs")
}

/// Uniform in 0..1, never 0.
fn unit(random: &mut SplitMix64) -> f64 {
    (random.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64
}

/// Skewed as run times are: most near the median of 1, some far above.
fn skewed(random: &mut SplitMix64, n: usize) -> Vec<f64> {
    (0..n)
        .map(|_| 1.0 - unit(random).log2())
        .map(|value| value / 2.0)
        .collect()
}

#[test]
fn intervals_miss_the_median_no_more_often_than_they_say() {
    let mut random = SplitMix64::new(1);
    for n in [6, 7, 13] {
        let runs = 40;
        let missed = (0..runs)
            .filter(|_| median_interval(&series(skewed(&mut random, n))).excludes(1.0, LEVEL))
            .count();
        // 5 % of 40 are 2; three standard deviations above are 6.
        assert!(
            missed <= 6,
            "{missed} of {runs} intervals of {n} values missed"
        );
    }
}

#[test]
fn a_configuration_against_itself_is_inside_the_noise() {
    let mut random = SplitMix64::new(2);
    let runs = 60;
    let claimed = (0..runs)
        .filter(|_| {
            let (a, b) = (
                series(skewed(&mut random, 8)),
                series(skewed(&mut random, 8)),
            );
            claim(&a, &b) != Verdict::InsideNoise
        })
        .count();
    assert!(
        // 1 % of 60 is 0.6; three standard deviations above are 2.9.
        claimed <= 2,
        "{claimed} of {runs} comparisons claimed a difference that is not there"
    );
}

#[test]
fn a_difference_beyond_the_noise_is_found() {
    let mut random = SplitMix64::new(3);
    let found = (0..30)
        .filter(|_| {
            let noisy = |random: &mut SplitMix64, scale: f64| -> Series {
                series(
                    (0..10)
                        .map(|_| scale * (1.0 + 0.02 * unit(random)))
                        .collect::<Vec<f64>>(),
                )
            };
            let (before, after) = (noisy(&mut random, 1000.0), noisy(&mut random, 1030.0));
            claim(&before, &after) == Verdict::Faster
        })
        .count();
    assert!(found >= 27, "found {found} of 30");
}

#[test]
fn an_interval_computed_twice_is_the_same() {
    let values = series([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]);
    assert_eq!(median_interval(&values), median_interval(&values));
}

fn positive(n: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(1e-3..1e6_f64, n)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn an_interval_lies_in_the_series_and_holds_the_median(values in positive(1..12)) {
        let values = series(values);
        let interval = median_interval(&values);
        prop_assert!(values.min() <= interval.low && interval.high <= values.max());
        prop_assert!(interval.low <= interval.point && interval.point <= interval.high);
        prop_assert_eq!(interval.point, values.median());
        prop_assert!(interval.level <= LEVEL);
    }

    #[test]
    fn other_units_and_another_order_change_nothing(values in positive(1..12)) {
        let interval = median_interval(&series(values.clone()));
        // A power of two scales without rounding.
        let scaled: Vec<f64> = values.iter().rev().map(|value| value * 1024.0).collect();
        let scaled = median_interval(&series(scaled));
        prop_assert_eq!(scaled.point, interval.point * 1024.0);
        prop_assert_eq!((scaled.low, scaled.high), (interval.low * 1024.0, interval.high * 1024.0));
    }

    #[test]
    fn a_change_and_its_undoing_are_never_both_faster(pairs in prop::collection::vec((1.0..2.0_f64, 1.0..2.0_f64), 1..10)) {
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        let (a, b) = (series(a), series(b));
        let (there, back) = (claim(&a, &b), claim(&b, &a));
        prop_assert!(there == Verdict::InsideNoise || there != back);
    }

    #[test]
    fn few_pairs_support_no_verdict(pairs in prop::collection::vec((1.0..9.0_f64, 1.0..9.0_f64), 1..8)) {
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        prop_assert_eq!(claim(&series(a), &series(b)), Verdict::InsideNoise);
    }

    #[test]
    fn a_bound_lies_between_the_estimate_and_the_largest_loss(pairs in prop::collection::vec((1.0..2.0_f64, 1.0..2.0_f64), 1..10)) {
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        let worst = a.iter().zip(&b).map(|(a, b)| 1.0 - b / a).fold(f64::MIN, f64::max);
        let bound = loss_bound(&series(a), &series(b), Better::Higher).expect("pairs");
        prop_assert!(bound.point <= bound.upper && bound.upper <= worst);
    }
}
