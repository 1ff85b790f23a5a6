//! A session's share of its worker: so many messages, and so much time, before the others have their turn.

use crate::runtime::clock;

/// Most messages that a session's handler gets in one turn.
const MESSAGES: u32 = 1024;

/// After as much time in its handler a session's turn is over, nanoseconds.
const TIME_NS: u64 = 100_000;

/// Most messages between two looks at the clock. The first few come sooner, as a handler may be slow.
const LOOK_EVERY: u32 = 16;

/// What is left of a session's share in this turn.
#[derive(Debug, Default)]
pub(super) struct Share {
    messages: u32,
    look_at: u32,
    /// Messages that the session's rate takes off the share.
    less: u32,
    /// When it is over; known from the first look on.
    until: Option<u64>,
    is_over: bool,
}

impl Share {
    /// Whether there is something left of it, for one message more.
    #[inline]
    pub(super) fn take_one(&mut self) -> bool {
        if self.messages == self.look_at {
            self.look();
        }
        self.messages += 1;
        !self.is_over
    }

    #[cold]
    fn look(&mut self) {
        // Most turns have one message, and need no clock.
        if self.messages > 0 {
            let now = clock::now().0;
            let until = *self.until.get_or_insert(now + TIME_NS);
            self.is_over |= now >= until || self.messages + self.less >= MESSAGES;
        }
        let step = self.messages.clamp(1, LOOK_EVERY);
        self.look_at =
            (self.messages + step).min(MESSAGES.saturating_sub(self.less).max(self.messages + 1));
    }

    /// In this turn, which has just begun, it has no more than so many.
    pub(super) fn limit(&mut self, messages: u64) {
        self.less = MESSAGES
            - u32::try_from(messages)
                .unwrap_or(MESSAGES)
                .clamp(1, MESSAGES);
    }

    /// The next turn begins.
    pub(super) fn renew(&mut self) {
        *self = Self::default();
    }

    /// Whether it ended before the messages did.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_by_count() {
        let mut share = Share::default();
        let mut taken = 0;
        while share.take_one() {
            taken += 1;
            // As if no time had passed.
            share.until = share.until.map(|_| u64::MAX);
        }
        assert_eq!(taken, MESSAGES);
        assert!(share.is_over() && !share.take_one());
        share.renew();
        assert!(!share.is_over() && share.take_one());
    }

    #[test]
    fn it_ends_at_a_limit() {
        for limit in [1, 2, 3, 15, 16, 17, 100, 1023] {
            let mut share = Share::default();
            share.limit(limit);
            let mut taken = 0;
            while share.take_one() {
                taken += 1;
                share.until = share.until.map(|_| u64::MAX);
            }
            assert_eq!(taken, limit);
        }
    }

    #[test]
    fn it_ends_by_time() {
        let mut share = Share::default();
        assert!(share.take_one() && share.take_one());
        share.until = Some(0);
        let more = (0..MESSAGES).take_while(|_| share.take_one()).count();
        assert!(more < LOOK_EVERY as usize, "{more} more");
    }
}
