//! What the silence of a peer that owes replies means, decided from times alone.
//!
//! The peer answers in order, so a silent one is busy with the oldest command, or it is gone. From here both look
//! alike: a peer with one thread answers nobody while it is busy, on no connection, and the kernel of a stopped one
//! still accepts connections. So another connection would tell nothing. What can be known, others tell: the kernel
//! finds out when the peer's host is gone, and the other members of a cluster when the peer is. The owner of the
//! connection asks those at the first sign, and goes on asking ([`Silence::Suspicious`]).
//!
//! To give the connection up helps nobody as long as the oldest command may still take its time: the peer would
//! execute it to its end all the same, and what waits behind it would have an unknown outcome instead of a reply.
//! Once that command has no time left, its own caller has given up; then [`dead_after`] counts.
//!
//! [`dead_after`]: crate::ConnectionLimits::dead_after

/// Of [`dead_after`](crate::ConnectionLimits::dead_after), the part after which silence is a first sign.
const SIGNS: u64 = 4;

/// The oldest command in flight. All times are in nanoseconds of `clock::now`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Oldest {
    /// When its caller submitted it.
    pub since: u64,
    /// When its caller gives up.
    pub deadline: u64,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// Nothing: replies may take so long.
    Usual,
    /// Ask others about the peer, again after each [`sign_interval`].
    Suspicious,
    /// Give up the connection.
    Dead,
}

/// How long silence lasts until it is a sign, and until it is the next one, nanoseconds.
pub(crate) fn sign_interval(dead_after: u64) -> u64 {
    dead_after / SIGNS
}

/// Judges the silence of a peer that sent something at `last_received` the last time.
pub(crate) fn judge(now: u64, oldest: Oldest, last_received: u64, dead_after: u64) -> Silence {
    let lasts = now.saturating_sub(oldest.since.max(last_received));
    if lasts > dead_after && now >= oldest.deadline {
        Silence::Dead
    } else if lasts > sign_interval(dead_after) {
        Silence::Suspicious
    } else {
        Silence::Usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD_AFTER: u64 = 1000;

    fn judged(now: u64, since: u64, deadline: u64, last_received: u64) -> Silence {
        judge(now, Oldest { since, deadline }, last_received, DEAD_AFTER)
    }

    #[test]
    fn a_command_without_time_left_is_waited_for_as_long_as_dead_after() {
        assert_eq!(judged(250, 0, 100, 0), Silence::Usual);
        assert_eq!(judged(251, 0, 100, 0), Silence::Suspicious);
        assert_eq!(judged(1000, 0, 100, 0), Silence::Suspicious);
        assert_eq!(judged(1001, 0, 100, 0), Silence::Dead);
    }

    #[test]
    fn the_time_of_the_oldest_command_extends_the_silence() {
        assert_eq!(judged(5999, 0, 6000, 0), Silence::Suspicious);
        assert_eq!(judged(6000, 0, 6000, 0), Silence::Dead);
        assert_eq!(judged(u64::MAX - 1, 0, u64::MAX, 0), Silence::Suspicious);
    }

    #[test]
    fn silence_begins_with_what_came_last_or_with_the_command() {
        // A command that was behind another one gets the time from the other's reply on.
        assert_eq!(judged(6100, 0, 5000, 6000), Silence::Usual);
        assert_eq!(judged(7000, 0, 5000, 6000), Silence::Suspicious);
        assert_eq!(judged(7001, 0, 5000, 6000), Silence::Dead);
        // Nothing was owed before.
        assert_eq!(judged(9100, 9000, 9050, 10), Silence::Usual);
    }

    #[test]
    fn without_a_limit_no_silence_means_anything() {
        let oldest = Oldest {
            since: 0,
            deadline: 1,
        };
        assert_eq!(judge(1 << 60, oldest, 0, u64::MAX), Silence::Usual);
    }
}
