//! What a session may take, wait for and hold, with every limit and its unit.

use std::io;
use std::time::Duration;

use embar_frame::{CHECKSUM_BYTES, FRAME_HEADER_BYTES, MAX_PROTOCOL_NAME_BYTES};
use embar_transport::MemoryBudget;
use embar_transport::ring::RingPool;

/// Smallest ring of a session, in bytes: every frame of the session layer fits into it.
pub const MIN_RING_BYTES: usize = 4096;
/// Longest greeting that a protocol may exchange in the handshake.
pub const MAX_GREETING_BYTES: usize = 2048;
/// As [`SessionConfig::reply_room`]: messages come also while the send ring is full. For an owner that keeps what it has to answer
/// until there is room. Of two ends that fill their rings and both wait for room before they read, neither goes on, so one
/// of them has to read always.
pub const NO_REPLY_ROOM: usize = usize::MAX;
/// Least idle timeout, of this end and of its peer. A peer's sets the rate of the PINGs that it is
/// sent, for as long as it likes to be silent: so one that is announced as shorter counts as this.
pub const MIN_IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest text of a reason or a goodbye; what is longer is cut.
pub const MAX_REASON_BYTES: usize = 512;
/// Longest content of a frame of the session layer itself (a STATUS reply is not one of these).
pub(crate) const MAX_OWN_FRAME_BYTES: u32 = 3072;
/// Most lanes of a session for bodies in chunks.
pub const MAX_BODY_LANES: u8 = 4;
/// Longest chunk of a body, in bytes.
pub const MAX_CHUNK_BYTES: usize = 256 << 10;
/// Shortest chunk of a body but its last one, in bytes.
pub const MIN_CHUNK_BYTES: usize = 1 << 10;

/// What a frame has beside its content, at most: header and checksum.
pub(crate) const FRAME_BYTES: usize = FRAME_HEADER_BYTES + CHECKSUM_BYTES;

/// The largest greeting's other fields: tags, numbers, the protocol's name.
const GREETING_FIELDS_BYTES: usize = 64 + MAX_PROTOCOL_NAME_BYTES;

const _: () = {
    assert!(MAX_GREETING_BYTES + GREETING_FIELDS_BYTES <= MAX_OWN_FRAME_BYTES as usize);
    assert!(MAX_REASON_BYTES + GREETING_FIELDS_BYTES <= MAX_OWN_FRAME_BYTES as usize);
    assert!(MAX_OWN_FRAME_BYTES as usize + FRAME_BYTES <= MIN_RING_BYTES);
};

/// Where sessions get their rings.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RingPools {
    /// For what is sent.
    pub send: RingPool,
    /// For what is received.
    pub recv: RingPool,
}

impl RingPools {
    /// Pools of rings of these sizes in bytes (each a power of two of at least
    /// [`MIN_RING_BYTES`]), each keeping up to `keep` idle ones.
    ///
    /// # Errors
    /// As [`RingPool::new`].
    pub fn new(send_bytes: usize, recv_bytes: usize, keep: usize) -> io::Result<Self> {
        Ok(Self {
            send: RingPool::new(send_bytes, keep)?,
            recv: RingPool::new(recv_bytes, keep)?,
        })
    }

    /// As [`RingPools::new`]; all rings count in `budget`: [`RingPool::within`].
    ///
    /// # Errors
    /// As [`RingPool::new`].
    pub fn within(
        budget: &MemoryBudget,
        send_bytes: usize,
        recv_bytes: usize,
        keep: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            send: RingPool::within(budget, send_bytes, keep)?,
            recv: RingPool::within(budget, recv_bytes, keep)?,
        })
    }
}

/// What a session accepts, and how long it waits. A duration of zero means "for ever" unless said
/// otherwise.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionConfig {
    /// Longest frame that must be shown whole, and longest head of a frame with a body, in bytes
    /// after the frame header, without a checksum. The peer learns it. At most the receive ring
    /// without a frame's header and checksum; what is above that is lowered.
    pub max_frame_bytes: u32,
    /// Longest frame with a body, in bytes after the frame header. The peer learns it. 0, the
    /// default: none with a body may come.
    pub max_body_bytes: u32,
    /// A PING is sent when nothing else was for this long, or for a third of the peer's idle
    /// timeout if that is shorter. Zero: no PING is ever sent. At least a millisecond: a peer ends a
    /// session that sends it more than 2,000 PINGs in a second.
    pub keep_alive: Duration,
    /// The session ends when nothing was received for this long, which the peer learns; what is
    /// shorter than [`MIN_IDLE_TIMEOUT`] is raised to that. Time in which this end does not
    /// receive, because it is held or its peer does not read, does not count. A peer that neither
    /// takes answers nor lets this end go on reading has the same time, again and again as long as it takes something of
    /// what is sent. Of a body that is seen when all of it was taken: one that takes longer at 64 KiB per second has as
    /// long as that.
    pub idle_timeout: Duration,
    /// The handshake must be over after this long.
    pub hello_timeout: Duration,
    /// A frame must be there this long after its first byte; time in which this end does not receive, as above, does not
    /// count. Of a body something must come within
    /// this time, again and again, at [`SessionConfig::min_body_rate`].
    pub frame_timeout: Duration,
    /// Least rate of a body, in bytes per second: the session ends when `frame_timeout`, and the
    /// time that what has come would take at this rate, have passed since its head. So who is slow
    /// and honest has the time that a body takes, and who sends a byte now and then has little more
    /// than `frame_timeout`. 0: all of a body must be there within `frame_timeout`. Default 1,024.
    pub min_body_rate: u32,
    /// Lanes in which bodies come and go in chunks, between messages, at most [`MAX_BODY_LANES`];
    /// see [`Session::send_body_on`](crate::Session::send_body_on). The session has as many as the
    /// end that has fewer. In each of them one body may come at a time, so a handler may have as
    /// many begun at once. 0, the default: every body comes in one piece. It is 0 for a protocol whose frames have
    /// [checksums](embar_frame::Protocol::CHECKED), too.
    pub body_lanes: u8,
    /// Bytes of a body in a lane after which messages have their turn. Default 64 KiB; at least
    /// [`MIN_CHUNK_BYTES`], at most [`MAX_CHUNK_BYTES`].
    pub chunk_bytes: usize,
    /// Bytes of a body in a lane that may come before its handler has a place for it: while
    /// [`BodyTarget::Pause`](crate::BodyTarget::Pause) holds it back, so many wait in memory, and its sender
    /// sends no more in this lane. The peer learns it. Default 256 KiB.
    pub lane_window_bytes: u32,
    /// The session ends when a reservation kept others waiting for this long. It is noticed
    /// within twice the time.
    pub reservation_timeout: Duration,
    /// How long a polite end may take before the connection is cut. Zero: it is cut at once. Bodies
    /// that wait for their turn are sent before the end begins; this is then how long the peer may
    /// take nothing of them (longer for a long send, as for `idle_timeout`).
    pub linger: Duration,
    /// What a peer may still send while this end waits for it to close, in bytes.
    pub discard_limit_bytes: usize,
    /// Most bytes of the receive ring that kept messages may block: from the oldest one to what
    /// came last.
    pub max_kept_bytes: usize,
    /// The owner gets a message only while the send ring has room for this many bytes, so that one
    /// reply to each always fits (unless other threads take the room meanwhile) and a peer that
    /// does not read is not read. 0: room for the longest frame the peer accepts. Never more than
    /// half of the send ring. [`NO_REPLY_ROOM`]: none.
    pub reply_room: usize,
    /// Bytes asked for at once, counted from the start of the frame at hand: at least what the
    /// frame needs to be shown, at most this. 64 never takes a byte of a log batch's payload;
    /// `usize::MAX` asks for all free room and makes system calls rare.
    pub read_ahead: usize,
}

impl SessionConfig {
    /// This configuration with what `change` does to it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// What [`SessionConfig::reply_room`] means for a send ring of `ring` bytes and a peer with these limits.
    pub(crate) fn reply_room_in(&self, ring: usize, limits: &SendLimits) -> usize {
        let wanted = match self.reply_room {
            0 => frame_room(limits.max_frame_bytes),
            NO_REPLY_ROOM => 0,
            bytes => bytes,
        };
        wanted.min(ring / 2)
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            max_frame_bytes: 64 << 10,
            max_body_bytes: 0,
            keep_alive: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            hello_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(30),
            min_body_rate: 1024,
            body_lanes: 0,
            chunk_bytes: 64 << 10,
            lane_window_bytes: 256 << 10,
            reservation_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            discard_limit_bytes: 64 << 20,
            max_kept_bytes: 64 << 10,
            reply_room: 0,
            read_ahead: usize::MAX,
        }
    }
}

/// What this end may send: the peer's limits, lowered to what the send ring can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendLimits {
    /// Longest frame that goes through the send ring, in bytes after the frame header.
    pub max_frame_bytes: u32,
    /// Longest frame with a body, in bytes after the frame header.
    pub max_body_bytes: u32,
    /// Lanes for bodies in chunks.
    pub body_lanes: u8,
}

/// The longest frame, without its header and checksum, that a ring of `capacity` bytes can hold.
pub(crate) fn longest_frame(capacity: usize) -> u32 {
    u32::try_from(capacity.saturating_sub(FRAME_BYTES)).unwrap_or(u32::MAX)
}

/// The room that a frame of `bytes` takes in a ring, at most.
pub(crate) fn frame_room(bytes: u32) -> usize {
    (bytes as usize).saturating_add(FRAME_BYTES)
}
