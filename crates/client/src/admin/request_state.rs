//! The worker thread notes here which broker it waits for and why. A program that asks what the admin client waits for
//! gets the answer from here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use embar_transport::Address;

use crate::wait::{Party, Wait, WaitReason};

/// Written by the worker at each step of a request, read by others.
#[derive(Debug, Default)]
pub(super) struct RequestState(Mutex<Option<Step>>);

#[derive(Debug)]
struct Step {
    began: Instant,
    deadline: Instant,
    party: Option<Party>,
    /// What others than the one that is asked now said, to be told while it is connected to.
    failed: Vec<Party>,
}

impl RequestState {
    /// A request begins, and has this much time.
    pub(super) fn begin(&self, limit: Duration) {
        let began = Instant::now();
        *self.step() = Some(Step {
            began,
            deadline: began + limit,
            party: None,
            failed: Vec::new(),
        });
    }

    /// It is over.
    pub(super) fn end(&self) {
        *self.step() = None;
    }

    /// Somebody is waited for from now on.
    pub(super) fn of(&self, broker: Option<u32>, address: &Address, reason: WaitReason) {
        if let Some(step) = &mut *self.step() {
            let address = Some(address.clone());
            step.party = Some(Party {
                broker,
                address,
                reason,
            });
        }
    }

    /// It is waited for that a broker leaves the cluster.
    pub(super) fn departs(&self, broker: u32) {
        if let Some(step) = &mut *self.step() {
            step.party = Some(Party {
                broker: Some(broker),
                address: None,
                reason: WaitReason::Departure,
            });
        }
    }

    /// Whoever was waited for did not answer, in these words, and others are asked.
    pub(super) fn failed(&self, cause: &str) {
        if let Some(step) = &mut *self.step()
            && let Some(party) = step.party.take()
        {
            step.failed.retain(|it| it.address != party.address);
            step.failed.push(Party {
                reason: WaitReason::NoAnswer(cause.to_string()),
                ..party
            });
        }
    }

    pub(super) fn waiting_for(&self) -> Option<Wait> {
        let step = self.step();
        let step = step.as_ref()?;
        let asked = step.party.iter();
        let is_asked = |it: &&Party| asked.clone().all(|now| now.address != it.address);
        let others = step.failed.iter().filter(is_asked);
        let parties: Vec<Party> = asked.clone().chain(others).cloned().collect();
        (!parties.is_empty()).then(|| Wait {
            parties,
            elapsed: step.began.elapsed(),
            remaining: Some(step.deadline.saturating_duration_since(Instant::now())),
        })
    }

    fn step(&self) -> MutexGuard<'_, Option<Step>> {
        // Every change leaves it valid, so a panic of another holder spoils nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No machine takes so long from one line to the next.
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn who_is_asked_comes_first_and_who_failed_after_it() {
        let address = |port| Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
        let request_state = RequestState::default();
        assert_eq!(request_state.waiting_for(), None);
        request_state.begin(2 * HOUR);
        assert_eq!(request_state.waiting_for(), None, "nobody was asked yet");
        request_state.of(None, &address(1), WaitReason::Connecting);
        request_state.failed("refused");
        request_state.of(Some(2), &address(2), WaitReason::Answer);
        let waits = request_state.waiting_for().expect("somebody is waited for");
        assert_eq!(
            waits.to_string(),
            "broker 2 at 127.0.0.1:2 (it has not answered), a broker at 127.0.0.1:1 (refused; it is tried again)"
        );
        assert!(waits.remaining.is_some_and(|left| left > HOUR));
        request_state.end();
        assert_eq!(request_state.waiting_for(), None);
    }
}
