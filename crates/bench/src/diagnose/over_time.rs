//! How much was carried, step by step, in a bounded number of steps.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use embar_diagnose::observed::Step;

/// The shortest step; looks come about as often.
const STEP_MIN: Duration = Duration::from_millis(45);
/// A step ends with the first look after this part of what it is to last: looks come a little early or late.
const ENOUGH: f64 = 0.9;
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
    /// The counter is `total` now; it never goes back.
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
            // Looks may come less often than the shortest step.
            let seconds: f64 = self.steps.iter().map(|it| it.seconds).sum();
            self.step = Duration::from_secs_f64(ENOUGH * seconds / self.steps.len() as f64);
        }
    }

    /// All steps that ended.
    pub fn steps(&self) -> Vec<Step> {
        self.steps.clone()
    }
}

/// The sum of what several counters grew by while they were seen. Those that come with a past, go, or come again change nothing
/// of what the others say.
#[derive(Debug, Default)]
pub struct Total<K> {
    last: BTreeMap<K, u64>,
    sum: u64,
    over_time: OverTime,
}

impl<K: Ord + Clone> Total<K> {
    /// The counter of `whose` is `count` now. One that went back began anew, with its process.
    pub fn count(&mut self, whose: &K, count: u64) {
        let Some(last) = self.last.get_mut(whose) else {
            self.last.insert(whose.clone(), count);
            return;
        };
        self.sum += match count >= *last {
            true => count - *last,
            false => count,
        };
        *last = count;
    }

    /// All that can be had was counted now.
    pub fn see(&mut self, now: Instant) {
        self.over_time.see(self.sum, now);
    }

    /// All steps that ended.
    pub fn steps(&self) -> Vec<Step> {
        self.over_time.steps()
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
    fn steps_are_alike_however_often_looks_come() {
        let (began, mut over_time) = (Instant::now(), OverTime::default());
        for look in 0..5_000 {
            let late = Duration::from_millis(look % 7);
            over_time.see(
                look,
                began + Duration::from_millis(100) * look as u32 + late,
            );
        }
        let steps = over_time.steps();
        let seconds = steps.iter().map(|it| it.seconds);
        let most = seconds.clone().fold(0.0, f64::max);
        let least = seconds.fold(f64::INFINITY, f64::min);
        assert!(most < 1.3 * least, "{least} to {most}");
    }

    #[test]
    fn counters_that_go_and_come_change_nothing_of_the_others() {
        let mut total = Total::default();
        total.count(&"old", 1 << 40);
        total.count(&"new", 5);
        assert_eq!(total.sum, 0, "what was before was not seen");
        total.count(&"new", 15);
        // `old` is gone for a while.
        total.count(&"new", 35);
        total.count(&"old", (1 << 40) + 7);
        assert_eq!(total.sum, 37);
        // Its process began anew.
        total.count(&"old", 3);
        assert_eq!(total.sum, 40);
    }
}
