//! What a drill measures. Everything in here is used exactly as given, and printed.

use std::time::Duration;

use embar_console::setting::BadSetting;
use embar_meter::table::grouped;
use serde::Serialize;

use super::kind::Attack;
use crate::session::payloads::Payload;

/// Parameters of a drill; `config` in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct DrillPlan {
    /// The attacks, one after the other.
    pub attacks: Vec<Attack>,
    /// Most connections of an attacker at a time; see [`Attack::connections`].
    pub connections: u32,
    /// Addresses that an attacker comes from.
    pub addresses: u16,
    /// Honest sessions.
    pub sessions: u32,
    /// Bytes of the payloads of honest messages.
    pub payload: Payload,
    /// Rounds of each attack.
    pub runs: usize,
    /// How long each half of a round lasts, seconds.
    #[serde(serialize_with = "as_seconds", rename = "duration_s")]
    pub duration: Duration,
    /// Threads of the server.
    pub threads: u16,
    /// An echo that takes longer is lost, seconds.
    #[serde(serialize_with = "as_seconds", rename = "timeout_s")]
    pub timeout: Duration,
    /// Honest round trips may take this many times as long at the median.
    pub max_ratio: f64,
}

fn as_seconds<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

impl DrillPlan {
    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        let wrong = |setting, why: &str| Err(BadSetting::new(setting, why));
        if self.runs == 0 {
            return wrong(&["runs"], "there must be at least one round");
        }
        if self.duration.is_zero() {
            return wrong(&["duration"], "a round takes longer than 0 s");
        }
        if self.timeout.is_zero() {
            return wrong(&["timeout"], "an answer takes longer than 0 s");
        }
        if !self.max_ratio.is_finite() || self.max_ratio < 1.0 {
            return wrong(&["max_ratio"], "the ratio is at least 1");
        }
        Ok(())
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        format!(
            "{} attack(s) with up to {} connections from {} address(es), beside {} honest session(s) with payloads of {} \
             bytes; {} round(s) of {} ms without and {} ms with each",
            self.attacks.len(),
            grouped(self.connections.into()),
            self.addresses,
            self.sessions,
            self.payload,
            self.runs,
            self.duration.as_millis(),
            self.duration.as_millis(),
        )
    }
}

#[cfg(test)]
impl DrillPlan {
    /// A small one, for tests.
    pub(super) fn small() -> Self {
        Self {
            attacks: vec![Attack::Silent],
            connections: 1000,
            addresses: 1,
            sessions: 1,
            payload: Payload { min: 64, max: 64 },
            runs: 8,
            duration: Duration::from_secs(1),
            threads: 1,
            timeout: Duration::from_secs(1),
            max_ratio: 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_refused() {
        let plan = DrillPlan::small();
        assert!(plan.validate().is_ok());
        type Change = fn(&mut DrillPlan);
        let wrong: [(&str, Change); 5] = [
            ("runs", |it| it.runs = 0),
            ("duration", |it| it.duration = Duration::ZERO),
            ("timeout", |it| it.timeout = Duration::ZERO),
            ("max_ratio", |it| it.max_ratio = 0.9),
            ("max_ratio", |it| it.max_ratio = f64::NAN),
        ];
        for (setting, change) in wrong {
            let mut plan = plan.clone();
            change(&mut plan);
            let error = plan.validate().expect_err("refused");
            assert_eq!(error.settings, [setting]);
        }
    }
}
