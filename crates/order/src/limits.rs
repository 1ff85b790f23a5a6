//! The limits of a core: how many sessions, chains and waiting batches it holds, and how long they may wait.

use embar_fabric::geometry::{SESSIONS_MAX, TOPICS_MAX};

/// Most batches that may be held in all.
pub const HELD_MAX: u32 = 1 << 20;
/// Most batches that a session may be ahead.
pub const WINDOW_MAX: u32 = 1 << 16;

/// What bounds a core. It makes all its tables that large at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at the same time: 1 to 1,048,576.
    pub sessions: u32,
    /// Chains at the same time: 1 to 16,384.
    pub chains: u32,
    /// Batches of all sessions that wait for a predecessor: 1 to 1,048,576. No session may hold more places than it
    /// leaves free: one session alone takes half, and room for others stays.
    pub held: u32,
    /// How many numbers at and above a session's mark a core takes: 1 to 65,536. A protocol may take fewer.
    pub window: u32,
    /// How long a session waits for a missing batch, in nanoseconds: at least 4.
    pub gap_lease_ns: u64,
    /// How long a session that no broker holds must have been silent before another may have its place, in
    /// nanoseconds: at least 1.
    pub session_idle_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 4096,
            chains: TOPICS_MAX.into(),
            held: 1 << 16,
            window: 1024,
            gap_lease_ns: 1_000_000_000,
            session_idle_ns: 1_000_000_000,
        }
    }
}

/// A limit that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}: choose one from {least} to {most}")]
pub struct LimitsError {
    /// The limit.
    pub name: &'static str,
    /// What was asked for.
    pub value: u64,
    /// The least that can be.
    pub least: u64,
    /// The most that can be.
    pub most: u64,
}

impl Limits {
    /// Whether a core can be made with these.
    pub fn check(&self) -> Result<(), LimitsError> {
        let within = |name, value, least, most| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(LimitsError {
                name,
                value,
                least,
                most,
            })
        };
        within("sessions", self.sessions.into(), 1, SESSIONS_MAX.into())?;
        within("chains", self.chains.into(), 1, TOPICS_MAX.into())?;
        within("held", self.held.into(), 1, HELD_MAX.into())?;
        within("window", self.window.into(), 1, WINDOW_MAX.into())?;
        within("gap_lease_ns", self.gap_lease_ns, 4, u64::MAX)?;
        within("session_idle_ns", self.session_idle_ns, 1, u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_limits_are_named() {
        Limits::default().check().unwrap();
        let good = Limits::default;
        for (name, limits) in [
            (
                "sessions",
                Limits {
                    sessions: 0,
                    ..good()
                },
            ),
            (
                "sessions",
                Limits {
                    sessions: SESSIONS_MAX + 1,
                    ..good()
                },
            ),
            (
                "chains",
                Limits {
                    chains: 0,
                    ..good()
                },
            ),
            ("held", Limits { held: 0, ..good() }),
            (
                "window",
                Limits {
                    window: WINDOW_MAX + 1,
                    ..good()
                },
            ),
            (
                "gap_lease_ns",
                Limits {
                    gap_lease_ns: 3,
                    ..good()
                },
            ),
            (
                "session_idle_ns",
                Limits {
                    session_idle_ns: 0,
                    ..good()
                },
            ),
        ] {
            let error = limits.check().unwrap_err();
            assert_eq!(error.name, name);
            assert!(error.to_string().contains(name));
        }
    }
}
