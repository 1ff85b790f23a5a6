//! Decides when the process of each row is started again: without processes and without a clock.
//!
//! Invariants:
//! - No row is given up: a process of ours runs there, or its next start is due, or a foreign process (one that another
//!   command started) holds it and is looked at again and again, or its broker left because it was asked to.
//! - The waits before the starts of one row grow up to [`WAIT_MAX`], whatever happens to other rows. They begin anew once
//!   a process of it has served for [`STEADY`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Wait before the first start after a death; each further one waits twice as long as the one before.
const WAIT_FIRST: Duration = Duration::from_millis(100);
/// Longest wait: a broker whose trouble has passed is back after this time.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A process that served for so long did not die of what killed its predecessors.
const STEADY: Duration = Duration::from_secs(60);
/// Between two looks at a row that a foreign process holds. A look is a few system calls.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What is to be done about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start a process.
    Start(u16),
    /// Look whether the foreign process still holds it.
    Look(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A process of ours was started; since when it serves, if it does.
    Runs(Option<Instant>),
    /// To be started at this time.
    Due(Instant),
    /// A foreign process holds it; look again at this time.
    Foreign(Instant),
    /// Its broker left for good.
    Left,
}

#[derive(Debug)]
struct Row {
    state: State,
    /// Deaths one after the other, without steady service between them.
    deaths: u32,
}

/// The rows of one cluster. A row that no call has named runs.
#[derive(Debug, Default)]
pub struct RestartPolicy {
    rows: BTreeMap<u16, Row>,
}

impl RestartPolicy {
    /// A process of ours serves.
    pub fn serves(&mut self, id: u16, now: Instant) {
        self.row(id).state = State::Runs(Some(now));
    }

    /// A process of ours ended, or could not be started. Returns how long its row waits for the next start.
    pub fn ended(&mut self, id: u16, now: Instant) -> Duration {
        let row = self.row(id);
        if matches!(row.state, State::Runs(Some(since)) if now.duration_since(since) >= STEADY) {
            row.deaths = 0;
        }
        let wait = WAIT_FIRST
            .saturating_mul(1 << row.deaths.min(16))
            .min(WAIT_MAX);
        row.deaths = row.deaths.saturating_add(1);
        row.state = State::Due(now + wait);
        wait
    }

    /// A foreign process holds the row.
    pub fn foreign(&mut self, id: u16, now: Instant) {
        self.row(id).state = State::Foreign(now + LOOK_EVERY);
    }

    /// The foreign process is gone: a process of ours follows it at once.
    pub fn freed(&mut self, id: u16, now: Instant) {
        self.row(id).state = State::Due(now);
    }

    /// Its broker left for good, because it was asked to.
    pub fn left(&mut self, id: u16) {
        self.row(id).state = State::Left;
    }

    /// When [`RestartPolicy::take_due`] has something next.
    pub fn next_due(&self) -> Option<Instant> {
        self.rows.values().filter_map(Row::due).min()
    }

    /// The steps that are due. A row that is started counts as running until [`RestartPolicy::ended`].
    pub fn take_due(&mut self, now: Instant) -> Vec<Step> {
        let due = self.rows.iter_mut();
        let due = due.filter(|(_, row)| row.due().is_some_and(|at| at <= now));
        due.map(|(&id, row)| match row.state {
            State::Foreign(_) => {
                row.state = State::Foreign(now + LOOK_EVERY);
                Step::Look(id)
            }
            _ => {
                row.state = State::Runs(None);
                Step::Start(id)
            }
        })
        .collect()
    }

    fn row(&mut self, id: u16) -> &mut Row {
        self.rows.entry(id).or_insert(Row {
            state: State::Runs(None),
            deaths: 0,
        })
    }
}

impl Row {
    fn due(&self) -> Option<Instant> {
        match self.state {
            State::Due(at) | State::Foreign(at) => Some(at),
            State::Runs(_) | State::Left => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Dies as soon as it is started, so often; the waits between.
    fn crash(policy: &mut RestartPolicy, id: u16, now: &mut Instant, times: usize) -> Vec<u128> {
        let mut waits = Vec::new();
        for _ in 0..times {
            let wait = policy.ended(id, *now);
            waits.push(wait.as_millis());
            assert_eq!(policy.next_due(), Some(*now + wait));
            assert_eq!(policy.take_due(*now + wait - MS), [], "not before its time");
            *now += wait;
            assert_eq!(policy.take_due(*now), [Step::Start(id)]);
            assert_eq!(policy.next_due(), None);
        }
        waits
    }

    #[test]
    fn starts_wait_longer_each_time_and_never_end() {
        let (mut policy, mut now) = (RestartPolicy::default(), Instant::now());
        assert_eq!(
            crash(&mut policy, 2, &mut now, 9),
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        let waits = crash(&mut policy, 2, &mut now, 1000);
        assert!(waits.iter().all(|wait| *wait == WAIT_MAX.as_millis()));
    }

    #[test]
    fn the_head_is_as_any_other_and_each_row_has_a_wait_of_its_own() {
        let (mut policy, mut now) = (RestartPolicy::default(), Instant::now());
        crash(&mut policy, 0, &mut now, 20);
        assert_eq!(policy.ended(1, now), WAIT_FIRST);
        assert_eq!(policy.ended(0, now), WAIT_MAX);
        assert_eq!(policy.take_due(now + WAIT_FIRST), [Step::Start(1)]);
        assert_eq!(policy.take_due(now + WAIT_MAX), [Step::Start(0)]);
    }

    #[test]
    fn only_steady_service_makes_the_next_wait_a_first_one() {
        let (mut policy, mut now) = (RestartPolicy::default(), Instant::now());
        crash(&mut policy, 1, &mut now, 4);
        policy.serves(1, now);
        assert_eq!(policy.ended(1, now + STEADY - MS), WAIT_FIRST * 16);
        now += STEADY + WAIT_FIRST * 16;
        assert_eq!(policy.take_due(now), [Step::Start(1)]);
        assert_eq!(
            policy.ended(1, now + 2 * STEADY),
            WAIT_FIRST * 32,
            "it ran, and did not serve"
        );
        now += 3 * STEADY;
        policy.take_due(now);
        policy.serves(1, now);
        assert_eq!(policy.ended(1, now + STEADY), WAIT_FIRST);
    }

    #[test]
    fn a_foreign_row_is_looked_at_until_it_is_free_and_taken_at_once() {
        let (mut policy, mut now) = (RestartPolicy::default(), Instant::now());
        policy.foreign(3, now);
        for _ in 0..100 {
            let next = policy.next_due().expect("a look");
            assert_eq!(next, now + LOOK_EVERY);
            now = next;
            assert_eq!(policy.take_due(now), [Step::Look(3)]);
            assert_eq!(policy.take_due(now), [], "once");
        }
        policy.freed(3, now);
        assert_eq!(policy.take_due(now), [Step::Start(3)]);
        // Another command was faster.
        policy.foreign(3, now);
        assert_eq!(policy.take_due(now + LOOK_EVERY), [Step::Look(3)]);
    }

    #[test]
    fn a_row_that_was_left_is_not_started_until_it_is_back() {
        let (mut policy, now) = (RestartPolicy::default(), Instant::now());
        policy.ended(1, now);
        policy.left(1);
        assert_eq!(
            (policy.next_due(), policy.take_due(now + WAIT_MAX)),
            (None, vec![])
        );
        policy.serves(1, now);
        policy.ended(1, now);
        assert!(policy.next_due().is_some());
    }
}
