//! Bodies in lanes. Of those that come, each chunk is received where its body lies; what comes
//! before the handler has a place for a body waits, up to the window. Those to send wait in the core.

use std::mem;
use std::ops::Range;

use embar_frame::{Now, Protocol};
use embar_transport::{RecvBuf, Store};

use super::SessionDriver;
use super::bodies::{Arriving, IncomingBody, Place, Places, recv_into};
use crate::LaneEvent;
use crate::core::LANE_READ_AHEAD;
use crate::runtime::body_budget::BodyShare;
use crate::runtime::handler::BodyStore;

/// A body that comes in a lane.
pub(super) struct LaneBody {
    id: u16,
    len: usize,
    got: usize,
    at: Destination,
    /// It is to ask for a place when the chunk that comes is there: its memory is away until then.
    asks_again: bool,
}

enum Destination {
    /// Where the handler wants it. Its memory is away while a chunk is received.
    Given {
        store: Option<Store>,
        range: Range<usize>,
        share: BodyShare,
    },
    /// The handler has no place for it yet.
    Waiting {
        head: Vec<u8>,
        bytes: Option<Vec<u8>>,
        /// Of what may come meanwhile.
        share: Option<BodyShare>,
    },
}

/// What happened in a lane, without what lies in the ring.
pub(super) enum Heard {
    Begun(usize, LaneBody),
    /// The body is not wanted, or its handler panicked.
    Unwanted(usize, Option<String>),
    Chunk(usize, RecvBuf),
    Cancelled(usize),
    Refused(u64, String),
    /// A chunk of a body that nobody has.
    Unknown,
}

/// The bodies that come in lanes, by their lanes.
#[derive(Default)]
pub(super) struct InLanes(Vec<Option<LaneBody>>);

impl InLanes {
    fn slot(&mut self, lane: usize) -> &mut Option<LaneBody> {
        if self.0.len() <= lane {
            self.0.resize_with(lane + 1, || None);
        }
        &mut self.0[lane]
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes what happened out of the ring, and asks for a place where one is needed.
    pub(super) fn hear(&mut self, event: LaneEvent<'_>, places: Places<'_>) -> Heard {
        match event {
            LaneEvent::Begun {
                lane,
                id,
                head,
                len,
            } => begin(lane.into(), id, head, len, places),
            LaneEvent::Chunk { lane, len, early } => {
                let lane = usize::from(lane);
                let buf = self.slot(lane).as_mut().and_then(|it| it.receive(len));
                buf.map_or(Heard::Unknown, |mut buf| {
                    buf.fill(early);
                    Heard::Chunk(lane, buf)
                })
            }
            LaneEvent::Cancelled { lane } => Heard::Cancelled(lane.into()),
            LaneEvent::Refused { number, text } => Heard::Refused(number, text.to_owned()),
        }
    }
}

fn begin(lane: usize, id: u16, head: &[u8], len: usize, mut places: Places<'_>) -> Heard {
    let body = |at| LaneBody {
        id,
        len,
        got: 0,
        at,
        asks_again: false,
    };
    match places.ask(id, head, len) {
        Ok(Some(place)) => Heard::Begun(lane, body(Destination::given(place))),
        // No more of it comes than the window.
        Ok(None) => match places.reserve_window(head.len(), len) {
            Ok(share) => Heard::Begun(
                lane,
                body(Destination::Waiting {
                    head: head.to_vec(),
                    bytes: Some(Vec::new()),
                    share: Some(share),
                }),
            ),
            Err(text) => Heard::Unwanted(lane, Some(text)),
        },
        Err(unwanted) => Heard::Unwanted(lane, unwanted.text()),
    }
}

impl Destination {
    fn given(place: Place) -> Self {
        Self::Given {
            store: Some(place.store),
            range: place.range,
            share: place.share,
        }
    }
}

impl LaneBody {
    fn is_given(&self) -> bool {
        matches!(self.at, Destination::Given { .. })
    }

    fn is_complete(&self) -> bool {
        self.got == self.len && self.is_given()
    }

    /// The memory for the next `len` bytes; it comes back by [`LaneBody::put_back`].
    fn receive(&mut self, len: usize) -> Option<RecvBuf> {
        let (from, to) = (self.got, self.got + len);
        match &mut self.at {
            Destination::Given { store, range, .. } => {
                let range = range.start + from..range.start + to;
                Some(recv_into(store.take()?, range))
            }
            Destination::Waiting { bytes, .. } => {
                let mut bytes = bytes.take()?;
                bytes.resize(to, 0);
                Some(RecvBuf::heap(bytes, from..to))
            }
        }
    }

    /// Whether it waits for a place, and what came of it is here. If it is not, it asks later.
    fn may_ask(&mut self) -> bool {
        match &self.at {
            Destination::Given { .. } => false,
            Destination::Waiting { bytes, .. } => {
                self.asks_again = bytes.is_none();
                !self.asks_again
            }
        }
    }

    fn put_back(&mut self, memory: Store, len: usize) {
        self.got += len;
        match (&mut self.at, memory) {
            (Destination::Given { store, .. }, memory) => *store = Some(memory),
            (Destination::Waiting { bytes, .. }, Store::Heap(memory)) => *bytes = Some(memory),
            (Destination::Waiting { .. }, _) => {}
        }
    }

    /// The handler's memory, and where in it the body is.
    fn into_store(self) -> Option<(BodyStore, Range<usize>)> {
        match self.at {
            Destination::Given {
                store,
                range,
                share,
            } => Some((BodyStore::counted(store?, share), range)),
            Destination::Waiting { .. } => None,
        }
    }
}

impl<P: Protocol> SessionDriver<P> {
    /// Does what follows of what happened in a lane. False: nothing more can be delivered now.
    pub(super) fn lane_goes_on(&mut self, heard: Heard, now: Now) -> bool {
        match heard {
            Heard::Begun(lane, body) => {
                let is_given = body.is_given();
                *self.lanes.slot(lane) = Some(body);
                if is_given {
                    self.core.take_body(lane as u8, now);
                    self.complete(lane, now);
                }
            }
            Heard::Unwanted(lane, Some(text)) => self.core.refuse_body(lane as u8, &text),
            Heard::Unwanted(_, None) => self.handler_panicked(now),
            Heard::Chunk(lane, buf) => return self.chunk_begins(lane, buf, now),
            Heard::Cancelled(lane) => {
                let body = self.lanes.slot(lane).take();
                if let Some((id, (store, _))) =
                    body.and_then(|body| Some((body.id, body.into_store()?)))
                {
                    self.call_handler(now, |handler, session| {
                        handler.body_cancelled(session, id, store);
                    });
                }
            }
            Heard::Refused(number, text) => self.call_handler(now, |handler, session| {
                handler.body_refused(session, number, &text);
            }),
            Heard::Unknown => self.core.discard_body(now),
        }
        true
    }

    fn chunk_begins(&mut self, lane: usize, buf: RecvBuf, now: Now) -> bool {
        let len = buf.filled().len() + buf.remaining();
        self.incoming_body = Some(IncomingBody {
            what: Arriving::Chunk { lane, len },
            buf: None,
        });
        self.first_of_body(buf, LANE_READ_AHEAD, now)
    }

    /// All of a chunk is there.
    pub(super) fn chunk_done(&mut self, lane: usize, len: usize, store: Store, now: Now) {
        let mut asks_again = false;
        if let Some(body) = self.lanes.slot(lane) {
            body.put_back(store, len);
            asks_again = mem::take(&mut body.asks_again);
        }
        self.complete(lane, now);
        if asks_again {
            self.resume_lanes(now);
        }
    }

    /// Hands the body in a lane over, if it is there.
    fn complete(&mut self, lane: usize, now: Now) {
        let body = self.lanes.slot(lane).take_if(|body| body.is_complete());
        if let Some((id, (store, range))) =
            body.and_then(|body| Some((body.id, body.into_store()?)))
        {
            self.call_handler(now, |handler, session| {
                handler.body_done(session, id, store, range);
            });
        }
    }

    /// Asks again for places for those bodies that wait for one.
    pub(super) fn resume_lanes(&mut self, now: Now) {
        for lane in 0..self.lanes.0.len() {
            if self.broken {
                return;
            }
            let Some(mut body) = self.lanes.0[lane].take_if(|body| body.may_ask()) else {
                continue;
            };
            let Destination::Waiting { head, bytes, share } = &mut body.at else {
                continue;
            };
            // Or the body would not have the room that it has itself.
            *share = None;
            let mut places = Places {
                handler: &mut self.handler,
                session: &self.session,
                network: self.network,
            };
            match places.ask(body.id, head, body.len) {
                Ok(Some(place)) => {
                    let range = place.range.start..place.range.start + body.got;
                    let mut buf = recv_into(place.store, range);
                    buf.fill(bytes.as_deref().unwrap_or_default());
                    body.at = Destination::Given {
                        store: Some(buf.into_store()),
                        range: place.range,
                        share: place.share,
                    };
                    self.lane_goes_on(Heard::Begun(lane, body), now);
                }
                Ok(None) => match places.reserve_window(head.len(), body.len) {
                    Ok(again) => {
                        *share = Some(again);
                        self.lanes.0[lane] = Some(body);
                    }
                    Err(text) => {
                        self.lane_goes_on(Heard::Unwanted(lane, Some(text)), now);
                    }
                },
                Err(unwanted) => {
                    self.lane_goes_on(Heard::Unwanted(lane, unwanted.text()), now);
                }
            }
        }
    }
}
