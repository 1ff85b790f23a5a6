//! The lanes of the receiving side: what may come in each of them, and until when.
//!
//! Invariants
//! - In a lane there is one body at a time, and a body has an answer before the next may begin.
//! - No more of a body comes than it announced, nor than the window before it is taken.

use embar_frame::Now;

use crate::config::{MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, SessionConfig};
use crate::core::checks::Fault;
use crate::reason::CloseReason;

/// Bytes that the lanes' shares allow to pass between two chunks of one, at most.
const fn bytes_between(lanes: usize) -> u64 {
    ((1 << lanes) * MAX_CHUNK_BYTES) as u64
}

/// A body that comes.
#[derive(Debug)]
struct Body {
    number: u64,
    left: usize,
    /// Of what may come before the owner has a place for it.
    window: usize,
    taken: bool,
    /// The owner does not want it: what is on its way is thrown away.
    refused: bool,
    /// When it was taken, and the bytes of all chunks by then.
    began: (Now, u64),
    /// When bytes of it came last, and the bytes of all chunks by then.
    heard: (Now, u64),
}

impl Body {
    /// Bytes of it may come now.
    fn is_expected(&self) -> bool {
        self.left > 0 && !self.refused && (self.taken || self.window > 0)
    }
}

/// What a peer is owed.
#[derive(Debug)]
pub(super) enum Answer {
    Taken(u64),
    Refused(u64, String),
}

#[derive(Debug, Default)]
struct Lane {
    body: Option<Body>,
    answer: Option<Answer>,
}

/// The lanes of the receiving side.
#[derive(Debug)]
pub(super) struct Incoming {
    window: usize,
    lanes: Vec<Lane>,
    /// Of all chunks so far.
    bytes: u64,
    /// The lane of the chunk at hand.
    at: usize,
}

impl Incoming {
    pub(super) fn new(lanes: u8, window: u32) -> Self {
        Self {
            window: window as usize,
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            bytes: 0,
            at: 0,
        }
    }

    fn lane(&mut self, lane: u32) -> Result<&mut Lane, Fault> {
        let count = self.lanes.len();
        let index = (lane as usize).wrapping_sub(1);
        let fault = || bad(format!("lane {lane} of {count}"));
        self.lanes.get_mut(index).ok_or_else(fault)
    }

    pub(super) fn begin(
        &mut self,
        lane: u32,
        number: u64,
        length: usize,
        now: Now,
    ) -> Result<(), Fault> {
        let (window, bytes) = (self.window, self.bytes);
        let its = self.lane(lane)?;
        if its.body.is_some() || its.answer.is_some() {
            return Err(bad(format!("a second body in lane {lane}")));
        }
        if number == 0 {
            return Err(bad("a body without a number".into()));
        }
        its.body = Some(Body {
            number,
            left: length,
            window,
            taken: false,
            refused: false,
            began: (now, bytes),
            heard: (now, bytes),
        });
        Ok(())
    }

    /// The next chunk comes; false if it is to be thrown away.
    pub(super) fn chunk(&mut self, lane: u32, bytes: usize) -> Result<bool, Fault> {
        let its = self.lane(lane)?;
        let Some(body) = &mut its.body else {
            return Err(bad(format!(
                "a chunk in lane {lane}, where there is no body"
            )));
        };
        if bytes > body.left {
            let left = body.left;
            let text = format!("a chunk of {bytes} bytes in lane {lane}, where {left} are left");
            return Err(bad(text));
        }
        if bytes == 0 || (bytes < MIN_CHUNK_BYTES && bytes < body.left) {
            let text = format!("a chunk of {bytes} bytes, the least is {MIN_CHUNK_BYTES}");
            return Err(bad(text));
        }
        if !body.taken {
            if bytes > body.window {
                return Err(bad(format!("a chunk beyond the window of lane {lane}")));
            }
            body.window -= bytes;
        }
        body.left -= bytes;
        let is_wanted = !body.refused;
        if body.left == 0 && (body.taken || body.refused) {
            its.body = None;
        }
        self.at = lane as usize - 1;
        Ok(is_wanted)
    }

    /// Bytes of the chunk at hand came.
    pub(super) fn heard(&mut self, bytes: usize, now: Now) {
        self.bytes += bytes as u64;
        if let Some(body) = self.lanes.get_mut(self.at).and_then(|it| it.body.as_mut()) {
            body.heard = (now, self.bytes);
        }
    }

    /// The rest of a body does not come; false if the owner does not know it any more.
    pub(super) fn cancelled(&mut self, lane: u32) -> Result<bool, Fault> {
        let its = self.lane(lane)?;
        // Its sender waits for none: the next one may come at once.
        its.answer = None;
        match its.body.take().filter(|body| body.left > 0) {
            Some(body) => Ok(!body.refused),
            None => Err(bad(format!("nothing to cancel in lane {lane}"))),
        }
    }

    /// The owner has a place for the body in a lane.
    pub(super) fn take(&mut self, lane: u8, now: Now) {
        let bytes = self.bytes;
        let Some(its) = self.lanes.get_mut(usize::from(lane) - 1) else {
            return;
        };
        let Some(body) = &mut its.body else {
            return;
        };
        body.taken = true;
        (body.began, body.heard) = ((now, bytes), (now, bytes));
        its.answer = Some(Answer::Taken(body.number));
        if body.left == 0 {
            its.body = None;
        }
    }

    /// The owner does not want the body in a lane.
    pub(super) fn refuse(&mut self, lane: u8, text: String) {
        let Some(its) = self.lanes.get_mut(usize::from(lane) - 1) else {
            return;
        };
        let Some(body) = &mut its.body else {
            return;
        };
        its.answer = Some(Answer::Refused(body.number, text));
        body.refused = true;
        if body.left == 0 {
            its.body = None;
        }
    }

    /// Pays what is owed, as far as `pay` can; true if nothing is left.
    pub(super) fn answer(&mut self, mut pay: impl FnMut(&Answer) -> bool) -> bool {
        for lane in &mut self.lanes {
            if lane.answer.as_ref().is_some_and(&mut pay) {
                lane.answer = None;
            }
        }
        self.lanes.iter().all(|lane| lane.answer.is_none())
    }

    /// Whether chunks may come.
    pub(super) fn is_active(&self) -> bool {
        self.bodies().any(Body::is_expected)
    }

    fn bodies(&self) -> impl Iterator<Item = &Body> {
        self.lanes.iter().filter_map(|lane| lane.body.as_ref())
    }

    /// The time from `since` to `now` does not count against the peer.
    pub(super) fn pass_over(&mut self, since: Now, now: Now) {
        let bodies = self.lanes.iter_mut().filter_map(|lane| lane.body.as_mut());
        for body in bodies {
            for at in [&mut body.began.0, &mut body.heard.0] {
                *at = at.after(now.since(since.max(*at)));
            }
        }
    }

    /// Until when something must have come of the bodies that have a place. What came of others
    /// meanwhile counts for each of them, but for its silence no more than their shares allow.
    pub(super) fn deadline(&self, config: &SessionConfig) -> Option<Now> {
        let rate = u64::from(config.min_body_rate);
        let earned = |bytes: u64| {
            let nanos = bytes.saturating_mul(1_000_000_000).checked_div(rate);
            std::time::Duration::from_nanos(nanos.unwrap_or(0))
        };
        let taken = self
            .bodies()
            .filter(|body| body.taken && body.is_expected());
        let deadlines = taken.map(|body| {
            let whole = body.began.0.after(config.frame_timeout);
            if rate == 0 {
                return whole;
            }
            let at_least_rate = whole.after(earned(self.bytes - body.began.1));
            let others = (self.bytes - body.heard.1).min(bytes_between(self.lanes.len()));
            let silent = body.heard.0.after(config.frame_timeout);
            at_least_rate.min(silent.after(earned(others)))
        });
        deadlines.min()
    }
}

#[cold]
fn bad(text: String) -> Fault {
    (CloseReason::BadFrame, text)
}
