//! The fixed layouts of everything that lives in a region's control file.
//!
//! Sizes and offsets are asserted at compile time and listed in `FIELDS`, from which
//! `embar layout` prints them. All numbers are little-endian.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::slot::{BODY_BYTES, Body};

const _: () = assert!(
    cfg!(target_endian = "little"),
    "records are mapped as little-endian"
);

/// Where one field of a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The field's name.
    pub name: &'static str,
    /// Bytes from the start of the record.
    pub offset: usize,
    /// Bytes it takes.
    pub size: usize,
}

/// A record of fixed layout that fills the body of a slot.
pub trait Record: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// The record's name.
    const NAME: &'static str;
    /// Its fields in order, without gaps.
    const FIELDS: &'static [Field];

    /// The record as a slot's body.
    #[inline]
    fn to_body(&self) -> Body {
        self.as_bytes()
            .try_into()
            .expect("a record is as long as a body: asserted where defined")
    }

    /// The record that a slot's body holds; any bytes are one, so the reader checks the values.
    #[inline]
    fn from_body(body: &Body) -> Self {
        Self::read_from_bytes(body).expect("a record is as long as a body: asserted where defined")
    }
}

/// Defines records with asserted offsets: `offset field: type, …`.
macro_rules! records {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $(#[$field_doc:meta])* $offset:literal $field:ident: $type:ty, )* }
    )*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $( $(#[$field_doc])* pub $field: $type, )* }

        const _: () = {
            assert!(size_of::<$name>() == BODY_BYTES);
            $( assert!(std::mem::offset_of!($name, $field) == $offset); )*
        };

        impl Record for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [Field] = &[ $( Field {
                name: stringify!($field), offset: $offset, size: size_of::<$type>(),
            }, )* ];
        }
    )* };
}

mod order;

pub use order::{
    Attached, DiskRow, DiskState, Frontier, GoiPage, GoiRecord, GoiRoot, LaneGrant, LaneStart,
    Notice, NoticeKind, PbrKind, Secret, SequencerRow, SequencerState, SessionOwner, SessionRow,
};

records! {
    /// A complete batch that waits in a lane for its place in the order, or what else a publisher's
    /// session has to say there.
    PbrRecord {
        /// Offset of the batch in the payload file of the lane's broker. What a session asks for uses
        /// this field and others in ways of its own: `embar_order::request`.
        0 payload_at: u64,
        /// Identity of the publisher.
        8 producer: u64,
        /// The batch's number in its session.
        16 sequence: u64,
        /// The chain of extents it belongs to.
        24 chain: u32,
        /// Bytes, batch header included.
        28 len: u32,
        /// Messages in it.
        32 count: u32,
        /// CRC-32C of its payload.
        36 payload_crc: u32,
        /// Epoch of the session.
        40 session_epoch: u32,
        /// The session's place in the session table.
        44 session: u32,
        /// Incarnation of the broker that published the record.
        48 incarnation: u32,
        /// The batch's flags.
        52 flags: u16,
        /// A [`PbrKind`].
        54 kind: u8,
        /// Order of the extent it lies in, 64 KiB << order, in the low 4 bits; the order level of
        /// the chain in the high 4.
        55 orders: u8,
    }

    /// An appended batch: offsets `base..base + count` live at `payload_at..payload_at + len`.
    IndexRecord {
        /// Offset of the first message.
        0 base: u64,
        /// Offset of the batch in the owner's payload file.
        8 payload_at: u64,
        /// Identity of the publisher.
        16 producer: u64,
        /// The publisher's number of the batch.
        24 sequence: u64,
        /// When it was appended, in nanoseconds since the Unix epoch.
        32 append_time: u64,
        /// Bytes, batch header included.
        40 len: u32,
        /// Messages in it.
        44 count: u32,
        /// The batch's flags.
        48 flags: u16,
        /// Order of the extent it lies in: 64 KiB << order.
        50 extent_order: u8,
        /// Zero.
        51 reserved: [u8; 5],
    }

    /// The first line of an index page: whose page it is.
    PageHeader {
        /// The chain the page belongs to.
        0 chain: u32,
        /// 1 while the page is in use, 0 once it was released.
        4 in_use: u32,
        /// The page's number in its chain, from 0.
        8 page: u64,
        /// Zero.
        16 reserved: [u64; 5],
    }

    /// What a broker retains of one chain: offsets `first..next`.
    Window {
        /// The chain.
        0 chain: u32,
        /// Incarnation of the broker that wrote the row.
        4 incarnation: u32,
        /// First offset that may be read; raised before the memory below it is used again.
        8 first: u64,
        /// One above the last offset that may be read.
        16 next: u64,
        /// Offsets below are gone because they were damaged, and not because they were evicted.
        24 lost: u64,
        /// Zero.
        32 reserved: [u8; 24],
    }

    /// What a broker says of itself.
    BrokerRow {
        /// A [`BrokerState`].
        0 state: u32,
        /// Incarnation of the process that wrote the row.
        4 incarnation: u32,
        /// Its address: IPv6, or IPv4 in the first four bytes.
        8 ip: [u8; 16],
        /// Process id.
        24 pid: u32,
        /// Its port.
        28 port: u16,
        /// Lanes in use.
        30 lanes: u16,
        /// When it started, in nanoseconds since the Unix epoch.
        32 started: u64,
        /// Free for the broker's use.
        40 flags: u16,
        /// 4 or 6; 0 while it has no address.
        42 family: u8,
        /// Zero.
        43 reserved: [u8; 5],
        /// The machine on which it listens on the socket file of its row, too; 0 while it does not.
        48 socket_machine: u64,
    }

    /// Chains of which something has changed.
    NewsLine {
        /// They, from the first on.
        0 chains: [u32; 13],
        /// How many.
        52 names: u32,
    }

    /// How many lines of news there are.
    NewsCount {
        /// One above the number of the newest.
        0 lines: u64,
        /// Zero.
        8 reserved: [u64; 6],
    }

    /// What a process keeps telling the others.
    ControlRow {
        /// Process id.
        0 pid: u32,
        /// Incarnation of the process that wrote the row.
        4 incarnation: u32,
        /// The highest epoch it has seen.
        8 epoch_seen: u64,
        /// When it last was alive, in nanoseconds since the Unix epoch.
        16 heartbeat: u64,
        /// One above the last position it may read.
        24 limit: u64,
        /// When its lease ends, in nanoseconds since the Unix epoch; 0 without one.
        32 lease: u64,
        /// Zero.
        40 reserved: [u8; 16],
    }
}

/// A broker's state, as its row says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum BrokerState {
    /// No process uses the row.
    Free = 0,
    /// It starts or recovers.
    Starting = 1,
    /// It serves.
    Ready = 2,
    /// It finishes what it has and takes nothing new.
    Draining = 3,
    /// It ended in good order, and may come back.
    Gone = 4,
    /// It was removed from the cluster: its peers do not wait for it.
    Left = 5,
}

impl NewsLine {
    /// Chains that a line names at most.
    pub const NAMES: usize = 13;
}

impl BrokerRow {
    /// The state, or `None` when the row holds an unknown one.
    pub fn broker_state(&self) -> Option<BrokerState> {
        use BrokerState::{Draining, Free, Gone, Left, Ready, Starting};
        [Free, Starting, Ready, Draining, Gone, Left]
            .into_iter()
            .find(|state| *state as u32 == self.state)
    }

    /// Sets the state.
    pub fn set_broker_state(&mut self, state: BrokerState) {
        self.state = state as u32;
    }

    /// The address, or `None` while it has none.
    pub fn address(&self) -> Option<SocketAddr> {
        let ip = match self.family {
            4 => IpAddr::V4(Ipv4Addr::new(
                self.ip[0], self.ip[1], self.ip[2], self.ip[3],
            )),
            6 => IpAddr::V6(Ipv6Addr::from(self.ip)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.port))
    }

    /// Sets the address; flow and scope of an IPv6 address are not kept.
    pub fn set_address(&mut self, address: SocketAddr) {
        self.ip = [0; 16];
        self.port = address.port();
        match address.ip() {
            IpAddr::V4(ip) => {
                self.family = 4;
                self.ip[..4].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self.family = 6;
                self.ip = ip.octets();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn fields_tile<T: Record>() {
        let mut end = 0;
        for field in T::FIELDS {
            assert_eq!(field.offset, end, "{}.{}", T::NAME, field.name);
            end += field.size;
        }
        assert_eq!(end, BODY_BYTES, "{}", T::NAME);
    }

    #[test]
    fn fields_leave_no_gap() {
        fields_tile::<PbrRecord>();
        fields_tile::<IndexRecord>();
        fields_tile::<PageHeader>();
        fields_tile::<Window>();
        fields_tile::<BrokerRow>();
        fields_tile::<ControlRow>();
        fields_tile::<NewsLine>();
        fields_tile::<NewsCount>();
        fields_tile::<SequencerRow>();
        fields_tile::<GoiRoot>();
        fields_tile::<GoiPage>();
        fields_tile::<GoiRecord>();
        fields_tile::<LaneStart>();
        fields_tile::<LaneGrant>();
        fields_tile::<Notice>();
        fields_tile::<SessionRow>();
        fields_tile::<SessionOwner>();
        fields_tile::<Attached>();
    }

    #[test]
    fn bytes_are_little_endian_at_their_offsets() {
        let record = PbrRecord {
            payload_at: 0x0102,
            len: 0x0304,
            orders: 9,
            ..Default::default()
        };
        let body = record.to_body();
        assert_eq!(body[..2], [2, 1]);
        assert_eq!(body[28..30], [4, 3]);
        assert_eq!(body[55], 9);
        assert_eq!(PbrRecord::from_body(&body), record);
    }

    #[test]
    fn addresses_of_both_families_come_back() {
        for text in ["127.0.0.1:9000", "[2001:db8::1]:9000"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut row = BrokerRow::default();
            assert_eq!(row.address(), None);
            row.set_address(address);
            assert_eq!(row.address(), Some(address));
        }
    }
}
