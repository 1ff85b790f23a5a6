//! The sessions that wait for a missing batch, the one that waits longest first.

const NONE: u32 = u32::MAX;

/// A list through an array with one element for each session: it allocates nothing, and finds, moves and removes a
/// session in constant time. All leases are equally long, so gaps end in the order in which they began.
#[derive(Debug)]
pub(crate) struct Gaps {
    links: Vec<Link>,
    first: u32,
    last: u32,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    earlier: u32,
    later: u32,
    since: u64,
}

impl Gaps {
    /// No gaps; at most `sessions`.
    pub fn new(sessions: u32) -> Self {
        let link = Link {
            earlier: NONE,
            later: NONE,
            since: 0,
        };
        Self {
            links: vec![link; sessions as usize],
            first: NONE,
            last: NONE,
        }
    }

    /// The session begins to wait at `now`, which is never less than at the calls before.
    pub fn begin(&mut self, session: u32, now: u64) {
        let earlier = self.last;
        self.links[session as usize] = Link {
            earlier,
            later: NONE,
            since: now,
        };
        match earlier {
            NONE => self.first = session,
            earlier => self.links[earlier as usize].later = session,
        }
        self.last = session;
    }

    /// The session, which waited, waits no more.
    pub fn end(&mut self, session: u32) {
        let Link { earlier, later, .. } = self.links[session as usize];
        match earlier {
            NONE => self.first = later,
            earlier => self.links[earlier as usize].later = later,
        }
        match later {
            NONE => self.last = earlier,
            later => self.links[later as usize].earlier = earlier,
        }
    }

    /// The session that waits longest, and since when.
    pub fn longest(&self) -> Option<(u32, u64)> {
        let since = self.links.get(self.first as usize)?.since;
        Some((self.first, since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gap_is_first_whatever_ends_or_begins_again() {
        let mut gaps = Gaps::new(4);
        assert_eq!(gaps.longest(), None);
        for (session, now) in [(2, 10), (0, 20), (3, 20), (1, 30)] {
            gaps.begin(session, now);
        }
        gaps.end(3);
        assert_eq!(gaps.longest(), Some((2, 10)));
        gaps.end(2);
        gaps.begin(2, 40);
        assert_eq!(gaps.longest(), Some((0, 20)));
        gaps.end(0);
        assert_eq!(gaps.longest(), Some((1, 30)));
        gaps.end(1);
        assert_eq!(gaps.longest(), Some((2, 40)));
        gaps.end(2);
        assert_eq!(gaps.longest(), None);
    }
}
