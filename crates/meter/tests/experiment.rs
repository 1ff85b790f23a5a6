//! The order of trials, what is thrown away, and what the outcome claims.

use std::time::Duration;

use embar_meter::experiment::{Precision, Stopped};
use embar_meter::random::SplitMix64;
use embar_meter::stats::StatsError;
use embar_meter::{Better, Experiment, ExperimentError, Sample, Trial, Verdict};

fn infallible(value: f64) -> Result<Sample, String> {
    Ok(value.into())
}

#[test]
fn rounds_alternate_their_direction_and_warm_up_first() {
    let mut order = String::new();
    let outcome = Experiment::new(["a", "b", "c"])
        .warmup(1)
        .trials(2)
        .run(|config, trial| {
            order.push_str(&format!(
                "{config}{}{} ",
                if trial.warmup { 'w' } else { 't' },
                trial.index
            ));
            infallible(1.0 + config as f64)
        })
        .expect("no trial fails");
    assert_eq!(order, "0w0 1w0 2w0 2t0 1t0 0t0 0t1 1t1 2t1 ");
    assert_eq!(outcome.series(1).values(), [2.0, 2.0]);
}

#[test]
fn rotating_rounds_give_every_configuration_every_place() {
    let order = |names: &[&str], rounds| {
        let mut order = Vec::new();
        Experiment::new(names.iter().copied())
            .warmup(0)
            .trials(rounds)
            .rotating()
            .run(|config, _| {
                order.push(config);
                infallible(1.0)
            })
            .expect("no trial fails");
        order
    };
    for (names, rounds) in [
        (&["a", "b"][..], 8),
        (&["a", "b", "c"], 6),
        (&["a", "b", "c", "d"], 8),
    ] {
        let count = names.len();
        let order = order(names, rounds);
        let rounds: Vec<&[usize]> = order.chunks(count).collect();
        for one in 0..count {
            for place in 0..count {
                let times = rounds.iter().filter(|it| it[place] == one).count();
                assert_eq!(times, rounds.len() / count, "{one} of {count} at {place}");
            }
            // None runs before another one more often than behind it.
            for other in (0..count).filter(|it| *it != one) {
                let place = |round: &[usize], of| round.iter().position(|it| *it == of);
                let before = |it: &&&[usize]| place(it, one) < place(it, other);
                let times = rounds.iter().filter(before).count();
                assert_eq!(times, rounds.len() / 2, "{one} before {other} of {count}");
            }
        }
    }
}

#[test]
fn cold_trials_do_not_count() {
    let outcome = Experiment::new(["off", "on"])
        .warmup(2)
        .trials(8)
        .run(|config, trial| {
            infallible(if trial.warmup {
                1.0
            } else {
                100.0 + config as f64 + trial.index as f64
            })
        })
        .expect("no trial fails");
    assert_eq!(outcome.series(0).min(), 100.0);
    let comparison = outcome.compare(0, 1).expect("positive values");
    assert_eq!((comparison.verdict, comparison.pairs), (Verdict::Faster, 8));
    assert!(comparison.loss.is_at_most(0.0));
    assert_eq!(
        outcome.compare(1, 0).expect("positive values").verdict,
        Verdict::Slower
    );
}

#[test]
fn drift_is_not_taken_for_a_difference() {
    // The machine gets slower with every trial; both configurations are the same.
    let mut speed = 1_000.0;
    let outcome = Experiment::new(["a", "b"])
        .trials(8)
        .run(|_, _| {
            speed *= 0.95;
            infallible(speed)
        })
        .expect("no trial fails");
    assert_eq!(
        outcome.compare(0, 1).expect("positive values").verdict,
        Verdict::InsideNoise
    );
}

#[test]
fn for_latencies_lower_is_better() {
    let outcome = Experiment::new(["copy", "zero-copy"])
        .better(Better::Lower)
        .unit("us")
        .trials(8)
        .run(|config, trial| infallible([34.0, 31.0][config] + trial.index as f64 / 10.0))
        .expect("no trial fails");
    assert_eq!(
        outcome.compare(0, 1).expect("positive values").verdict,
        Verdict::Faster
    );
    let text = outcome.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        lines[0],
        "configuration (us)  trials  median   min   max  spread"
    );
    assert_eq!(
        lines[1],
        "copy                     8    34.3  34.0  34.7    2.0%"
    );
    assert!(
        lines[3].starts_with("zero-copy against copy: ratio 0.913 ["),
        "{text}"
    );
    assert!(lines[3].ends_with("at 99%, 8 pairs: faster"), "{text}");
}

#[test]
fn the_text_says_when_it_is_noise_and_when_trials_are_too_few() {
    let run = |trials| {
        Experiment::new(["off", "on"])
            .trials(trials)
            .run(|config, trial| infallible(100.0 + ((trial.index + config) % 2) as f64))
            .expect("no trial fails")
            .to_string()
    };
    assert!(run(8).ends_with("inside the noise"));
    assert!(run(3).ends_with(
        "at 75%, 3 pairs: inside the noise (too few pairs for any verdict; run at least 8)"
    ));
}

/// Noise that is the same in both trials of a round, and noise that is not, as parts of the value.
fn noisy(
    random: &mut SplitMix64,
    shared: f64,
    own: f64,
) -> impl FnMut(usize, Trial) -> Result<Sample, String> {
    let mut round = (usize::MAX, 1.0);
    move |_, trial| {
        let mut part = |size: f64| 1.0 + size * (random.below(1000) as f64 / 500.0 - 1.0);
        if round.0 != trial.index {
            round = (trial.index, part(shared));
        }
        infallible(1000.0 * round.1 * part(own))
    }
}

const PRECISE: Precision = Precision {
    half_width: 0.02,
    rounds_max: 60,
    time_max: Duration::from_secs(600),
};

#[test]
fn an_experiment_goes_on_until_it_is_precise_or_the_budget_is_spent() {
    let mut random = SplitMix64::new(7);
    let run = |random: &mut SplitMix64, own, most| {
        let precision = Precision {
            rounds_max: most,
            ..PRECISE
        };
        let outcome = Experiment::new(["a", "b"])
            .until(Some(precision))
            .run(noisy(random, 0.3, own))
            .expect("no trial fails");
        (outcome.stopped(), outcome.series(0).values().len())
    };
    assert_eq!(run(&mut random, 0.005, 60), (Stopped::Precise, 8));
    let (stopped, rounds) = run(&mut random, 0.04, 400);
    assert!(
        stopped == Stopped::Precise && rounds > 8,
        "{stopped} {rounds}"
    );
    let (stopped, rounds) = run(&mut random, 0.2, 12);
    let Stopped::Spent {
        rounds_needed: Some(needed),
    } = stopped
    else {
        panic!("{stopped}");
    };
    assert!(rounds == 12 && needed > 50, "{needed}");
    let none_left = Precision {
        time_max: Duration::ZERO,
        ..PRECISE
    };
    let outcome = Experiment::new(["a", "b"])
        .until(Some(none_left))
        .run(noisy(&mut random, 0.3, 0.2))
        .expect("no trial fails");
    assert_eq!(
        outcome.series(0).values().len(),
        8,
        "these are run in any case"
    );
}

/// 98 % of comparisons of a configuration with itself are to claim nothing, also where the experiment says when to stop.
#[test]
fn the_same_twice_is_inside_the_noise() {
    let mut random = SplitMix64::new(11);
    let runs = 60;
    let claims = |_| {
        let outcome = Experiment::new(["a", "a again"])
            .warmup(0)
            .until(Some(PRECISE))
            .run(noisy(&mut random, 0.3, 0.04))
            .expect("no trial fails");
        let comparison = outcome.compare(0, 1).expect("positive values");
        comparison.verdict != Verdict::InsideNoise
    };
    let claimed = (0..runs).map(claims).filter(|it| *it).count();
    // Of 3000, 36 claimed one. Three standard deviations above that part of 60 are 3.6.
    assert!(claimed <= 2, "{claimed} of {runs}");
}

#[test]
fn a_failed_trial_is_named() {
    let error = Experiment::new(["off", "on"])
        .warmup(1)
        .trials(3)
        .run(|config, trial| match (config, trial) {
            (
                1,
                Trial {
                    index: 1,
                    warmup: false,
                },
            ) => Err("broker did not start"),
            _ => Ok(Sample { value: 1.0 }),
        })
        .expect_err("one trial fails");
    assert_eq!(
        error.to_string(),
        "trial 2 of \"on\" failed: broker did not start"
    );
}

#[test]
fn values_that_mean_nothing_are_refused() {
    let error = Experiment::new(["off"])
        .run(|_, _| infallible(f64::NAN))
        .expect_err("NaN");
    assert!(matches!(
        error,
        ExperimentError::Values {
            source: StatsError::NotFinite { index: 0, .. },
            ..
        }
    ));
    let error = Experiment::new(["off"])
        .trials(0)
        .run(|_, _| infallible(1.0))
        .expect_err("no trial");
    assert!(matches!(
        error,
        ExperimentError::Values {
            source: StatsError::Empty,
            ..
        }
    ));
    let outcome = Experiment::new(["off", "on"])
        .run(|config, _| infallible(config as f64))
        .expect("zero is a number");
    assert_eq!(
        outcome.compare(0, 1),
        Err(StatsError::NotPositive { value: 0.0 })
    );
}
