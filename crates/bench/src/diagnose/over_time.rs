//! How much was carried, step by step, in a bounded number of steps.

use std::time::{Duration, Instant};

use embar_diagnose::observed::Step;

/// The shortest step; looks come about as often.
const STEP_MIN: Duration = Duration::from_millis(45);
/// When there are so many, two by two become one, and those to come are twice as long. Even: none is left over.
const STEPS_MAX: usize = 240;

/// Turns looks at a counter into steps.
#[derive(Debug)]
pub struct OverTime {
    /// When the step that goes on began, and what the counter was then.
    begun: Option<(Instant, u64)>,
    step: Duration,
    steps: Vec<Step>,
}

impl Default for OverTime {
    fn default() -> Self {
        Self {
            begun: None,
            step: STEP_MIN,
            steps: Vec::new(),
        }
    }
}

impl OverTime {
    /// The counter is `total` now. One that went back, because somebody who had a part of it is gone, says nothing of that step.
    pub fn see(&mut self, total: u64, now: Instant) {
        let Some((begun, before)) = self.begun else {
            self.begun = Some((now, total));
            return;
        };
        let length = now.saturating_duration_since(begun);
        if length < self.step {
            return;
        }
        let seconds = length.as_secs_f64();
        let carried = total.saturating_sub(before);
        self.steps.push(Step {
            seconds,
            per_s: carried as f64 / seconds,
        });
        self.begun = Some((now, total));
        if self.steps.len() >= STEPS_MAX {
            self.steps = self.steps.chunks(2).map(together).collect();
            self.step *= 2;
        }
    }

    /// All steps that ended.
    pub fn steps(&self) -> Vec<Step> {
        self.steps.clone()
    }
}

fn together(steps: &[Step]) -> Step {
    let seconds: f64 = steps.iter().map(|it| it.seconds).sum();
    let carried: f64 = steps.iter().map(|it| it.seconds * it.per_s).sum();
    Step {
        seconds,
        per_s: carried / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a look each 50 ms, between which the counter grows by 5 each.
    fn seen(looks: u64) -> OverTime {
        let (began, mut over_time) = (Instant::now(), OverTime::default());
        for look in 0..=looks {
            over_time.see(
                1000 + look * 5,
                began + Duration::from_millis(50) * look as u32,
            );
        }
        over_time
    }

    #[test]
    fn a_counter_becomes_steps() {
        let steps = seen(3).steps();
        assert_eq!(steps.len(), 3);
        assert!(
            steps.iter().all(|it| (it.per_s - 100.0).abs() < 1e-6),
            "{steps:?}"
        );
        assert_eq!(seen(0).steps(), [], "one look says nothing");
    }

    #[test]
    fn looks_that_come_early_end_no_step() {
        let (began, mut over_time) = (Instant::now(), OverTime::default());
        for ms in 0..=100 {
            over_time.see(ms, began + Duration::from_millis(ms));
        }
        assert_eq!(over_time.steps().len(), 2);
    }

    #[test]
    fn steps_are_bounded_and_lose_nothing() {
        let steps = seen(10_000).steps();
        assert!(steps.len() < STEPS_MAX, "{}", steps.len());
        let seconds: f64 = steps.iter().map(|it| it.seconds).sum();
        let carried: f64 = steps.iter().map(|it| it.seconds * it.per_s).sum();
        assert!((carried / seconds - 100.0).abs() < 1e-6);
        // Less than a step has not ended.
        assert!(seconds > 490.0, "{seconds}");
    }

    #[test]
    fn a_counter_that_went_back_says_nothing() {
        let (began, mut over_time) = (Instant::now(), OverTime::default());
        over_time.see(1000, began);
        over_time.see(10, began + Duration::from_secs(1));
        over_time.see(110, began + Duration::from_secs(2));
        let rates: Vec<f64> = over_time.steps().iter().map(|it| it.per_s).collect();
        assert_eq!(rates, [0.0, 100.0]);
    }
}
