//! Layouts of most records by which the sequencer and the brokers order batches: rows of candidates, the GOI with its
//! roots and page headers, starts and grants of lanes, notices, and sessions with the brokers that hold them.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Field, PbrRecord, Record};
use crate::slot::BODY_BYTES;

records! {
    /// What a candidate for sequencing says of itself.
    SequencerRow {
        /// The highest epoch it has raised.
        0 epoch: u32,
        /// The epoch before it that was active; 0 before the first.
        4 predecessor: u32,
        /// A [`SequencerState`].
        8 state: u32,
        /// Incarnation of the process that wrote the row.
        12 incarnation: u32,
        /// Grows while it lives: a candidate that sees it stand still for the length of a lease may take over.
        16 beat: u64,
        /// Process id.
        24 pid: u32,
        /// The candidate's row that was active in the epoch before.
        28 predecessor_row: u16,
        /// Zero.
        30 reserved: [u8; 26],
    }

    /// Where the order of one chain goes on in one epoch.
    GoiRoot {
        /// The chain.
        0 chain: u32,
        /// The epoch.
        4 epoch: u32,
        /// First position of this epoch: records of older epochs end before it.
        8 start: u64,
        /// Positions below may be gone, as the sequencer needed their pages.
        16 first: u64,
        /// One above the first page of this epoch that is still there; 0 = none.
        24 head: u32,
        /// One above the page that holds what comes before `start`; 0 = none.
        28 before: u32,
        /// Generation of that page.
        32 before_generation: u32,
        /// Area of that page.
        36 before_area: u16,
        /// Order level of the chain.
        38 order: u16,
        /// 1 = memory is damaged where this epoch starts: the order ends there for good.
        40 damaged: u16,
        /// Zero.
        42 reserved: [u8; 14],
    }

    /// The first line of a GOI page: whose it is, and its neighbours.
    GoiPage {
        /// The chain.
        0 chain: u32,
        /// Epoch in which it was opened.
        4 epoch: u32,
        /// Position of its first record.
        8 start: u64,
        /// One above the page that comes before; 0 = none.
        16 before: u32,
        /// Generation of that page.
        20 before_generation: u32,
        /// Area of that page.
        24 before_area: u16,
        /// 1 while the page is in use, 0 once it was released.
        26 in_use: u16,
        /// Zero.
        28 reserved: [u8; 28],
    }

    /// An ordered batch: positions `base..base + count` are the messages at `payload_at..payload_at + len`
    /// of the payload file of `row`.
    GoiRecord {
        /// Position of the first message.
        0 base: u64,
        /// Offset of the batch in its broker's payload file.
        8 payload_at: u64,
        /// Identity of the publisher.
        16 producer: u64,
        /// The batch's number in its session.
        24 sequence: u64,
        /// Low half of the number of the record in its lane.
        32 lane_number: u32,
        /// Bytes, batch header included.
        36 len: u32,
        /// Messages in it.
        40 count: u32,
        /// Epoch of the session.
        44 session_epoch: u32,
        /// The session's place in the session table.
        48 session: u32,
        /// Low half of the incarnation of the broker whose lane it came by.
        52 incarnation: u16,
        /// The broker's row.
        54 row: u8,
        /// The lane in the low 4 bits, the order of its extent (64 KiB << order) in the high 4.
        55 lane_and_order: u8,
    }

    /// From which number on a lane is written for which epoch.
    LaneStart {
        /// The first number of the epoch.
        0 start: u64,
        /// The sequencer's epoch; 0 while no record of the lane is for any.
        8 epoch: u32,
        /// Incarnation of the broker.
        12 incarnation: u32,
        /// 1 = this incarnation was admitted: what older ones left in the lane was taken, and their
        /// memory may be in use for something else.
        16 admitted: u32,
        /// Zero.
        20 reserved: [u32; 9],
    }

    /// How far the sequencer of one epoch has taken a lane.
    LaneGrant {
        /// Records below this number were taken: their slots may be used again.
        0 consumed: u64,
        /// Number of the lane's first notice of this epoch.
        8 notices: u64,
        /// The epoch.
        16 epoch: u32,
        /// The newest incarnation of the lane's broker that the sequencer knows: nothing of older
        /// ones will be ordered any more.
        20 incarnation: u32,
        /// Notices below this number were published.
        24 notices_end: u64,
        /// Records of this incarnation that were taken and are not answered yet.
        32 held: u64,
        /// Zero.
        40 reserved: [u8; 16],
    }

    /// What became of a record that was not ordered.
    Notice {
        /// The record's number in its lane.
        0 lane_number: u64,
        /// The expected batch of a session that opened or was fenced.
        8 mark: u64,
        /// A [`NoticeKind`].
        16 kind: u32,
        /// Epoch of a session that opened, or that another instance has.
        20 session_epoch: u32,
        /// Place of a session that opened.
        24 session: u32,
        /// The sequencer's epoch.
        28 epoch: u32,
        /// The epoch with which a session that opened began at its place.
        32 first_epoch: u32,
        /// Zero.
        36 reserved: [u8; 20],
    }

    /// A session, as the sequencer's successor has to know it.
    SessionRow {
        /// Identity of the publisher.
        0 producer: u64,
        /// Order 5: the batch expected next. Order 2: the lowest number that is not ordered.
        8 expected: u64,
        /// The client's instance.
        16 instance: u64,
        /// Order 2: bit `i` = batch `expected + 1 + i` is ordered. Order 5: in the first 8 bytes the
        /// number with which the epoch began.
        24 ordered: [u8; 16],
        /// The chain.
        40 chain: u32,
        /// The session's epoch.
        44 epoch: u32,
        /// The epoch with which the session began at this place: lower ones were of others.
        48 first_epoch: u32,
        /// 1 = in use, 0 = free.
        52 in_use: u8,
        /// 1 = the epoch is fenced.
        53 fenced: u8,
        /// Order level of the chain.
        54 order: u16,
    }

    /// Whose a session is. It is stored before the row with which the session begins, and never
    /// changes as long as the session is there.
    SessionOwner {
        /// Who knows it may open, renew and close the session.
        0 secret: Secret,
        /// [`SessionRow::first_epoch`] of the session that it belongs to.
        16 first_epoch: u32,
        /// Where it was opened from: sessions that no broker holds are given up peer by peer.
        20 peer: u32,
        /// Zero.
        24 reserved: [u8; 32],
    }

    /// How much of a disk's stream counts, as the writer of a term says. It is stored before the frontiers that follow from it.
    DiskRow {
        /// Number of the segment that was written last.
        0 segment: u64,
        /// Its nonce; 0 = no segment was begun.
        8 nonce: u64,
        /// How many of its commits count.
        16 commits: u32,
        /// Checksum of the last of them.
        20 crc: u32,
        /// Number of the next segment, above all that are there.
        24 next_segment: u64,
        /// Segments below this one may be gone.
        32 first_kept: u64,
        /// The term.
        40 epoch: u32,
        /// A [`DiskState`].
        44 state: u32,
        /// The first half of the disk's identity.
        48 disk: u64,
    }

    /// How far a chain is on a disk.
    Frontier {
        /// Position after the last message that is synced.
        0 next: u64,
        /// Position of the first message that the disk has.
        8 first: u64,
        /// The chain.
        16 chain: u32,
        /// The term that says so.
        20 epoch: u32,
        /// Zero.
        24 reserved: [u8; 32],
    }

    /// Which of the sequencer's sessions a broker holds: those with a connection, or with batches
    /// under way.
    Attached {
        /// Incarnation of the broker.
        0 incarnation: u32,
        /// Zero.
        4 reserved: u32,
        /// Bit `i` of all, lowest first: the session at place `384 * n + i`, in row `n` of these.
        8 sessions: [u64; 6],
    }
}

/// The secret of a session. Nothing prints it.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

macro_rules! numbered {
    ($( $(#[$doc:meta])* $name:ident: $type:ty { $( $(#[$value_doc:meta])* $value:ident = $number:literal, )* } )*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name { $( $(#[$value_doc])* $value = $number, )* }

        impl $name {
            /// The value of a number that was found in shared memory.
            pub fn from_number(number: $type) -> Option<Self> {
                match number { $( $number => Some(Self::$value), )* _ => None }
            }
        }
    )* };
}

impl Frontier {
    /// The position of a chain that is not on the disk any more, as its topic was deleted.
    pub const GONE: u64 = u64::MAX;
}

numbered! {
    /// What a lane's record is.
    PbrKind: u8 {
        /// A complete batch.
        Batch = 0,
        /// A session opens: it is answered by a notice.
        Open = 1,
        /// A session ends for good.
        Close = 2,
    }

    /// What a candidate does.
    SequencerState: u32 {
        /// Nothing; another one may be active.
        Standby = 0,
        /// It has raised its epoch and reads what was left.
        Raised = 1,
        /// It sequences.
        Active = 2,
    }

    /// What a disk does.
    DiskState: u32 {
        /// Its writer finds out what counts.
        Opens = 1,
        /// It takes what comes.
        Writes = 2,
        /// It failed, and takes nothing more.
        Failed = 3,
        /// It is full, and takes nothing until there is room.
        Full = 4,
        /// As full, and its writer has not begun a segment in this term: what counts is of the term before.
        FullAtStart = 5,
    }

    /// What became of a record that was not ordered.
    NoticeKind: u32 {
        /// The session is open: place, epoch and mark are given.
        Opened = 1,
        /// The same batch is ordered already.
        Duplicate = 2,
        /// The session's epoch is over: `mark` is the batch that is expected of the next one.
        Fenced = 3,
        /// No such session was ever open, or its chain is gone.
        UnknownSession = 4,
        /// The batch is too far ahead of what is ordered: it may be sent again later.
        BeyondWindow = 5,
        /// A predecessor is missing and there is no room to wait for it: it may be sent again later.
        HeldFull = 6,
        /// All sessions are in use.
        SessionsFull = 7,
        /// The session is closed.
        Closed = 8,
        /// The record makes no sense: a field holds what no broker writes.
        Malformed = 9,
        /// Another instance of the client has opened the session since.
        TakenOver = 10,
        /// Another instance has the session, in the epoch that is given: an instance that wants it names that.
        InUse = 11,
        /// The session was given up, because others needed its place: how far it was is not known.
        GivenUp = 12,
        /// The secret is not the session's.
        WrongSecret = 13,
        /// The record could not be read: it may be sent again.
        Unreadable = 14,
    }
}

impl PbrRecord {
    /// Order of the extent that the batch lies in: 64 KiB << order.
    pub fn extent_order(&self) -> u8 {
        self.orders & 0x0F
    }

    /// Order level of the chain.
    pub fn order_level(&self) -> u8 {
        self.orders >> 4
    }

    /// Packs both into the field [`PbrRecord::orders`].
    pub fn pack_orders(extent_order: u8, order_level: u8) -> u8 {
        debug_assert!(extent_order < 16 && order_level < 16);
        extent_order & 0x0F | order_level << 4
    }
}

impl GoiRecord {
    /// The lane that the batch came by.
    pub fn lane(&self) -> u16 {
        u16::from(self.lane_and_order & 0x0F)
    }

    /// Order of the extent that the batch lies in: 64 KiB << order.
    pub fn extent_order(&self) -> u8 {
        self.lane_and_order >> 4
    }

    /// Packs both into the field [`GoiRecord::lane_and_order`].
    pub fn pack_lane_and_order(lane: u16, extent_order: u8) -> u8 {
        debug_assert!(lane < 16 && extent_order < 16);
        (lane & 0x0F) as u8 | extent_order << 4
    }

    /// One above its last position.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.count.into())
    }
}
