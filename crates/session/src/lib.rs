#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod config;
mod core;
mod incoming;
mod plain;
mod proto;
mod reason;
mod redirect;
mod runtime;
mod sender;

pub mod buffer;

pub use buffa;
pub use embar_frame::{FrameError, FrameHeader, Now, Protocol, Shape};
pub use embar_transport::ring::{Commit, Kept};
pub use embar_transport::socket::AddressError;
pub use embar_transport::{
    Address, BudgetExceeded, BudgetShare, Listener, MemoryBudget, Peer, ShmOptions, SocketError,
    SocketOptions, Stream,
};

pub use self::config::{
    MAX_BODY_LANES, MAX_CHUNK_BYTES, MAX_GREETING_BYTES, MAX_REASON_BYTES, MIN_CHUNK_BYTES,
    MIN_IDLE_TIMEOUT, MIN_RING_BYTES, NO_REPLY_ROOM, RingPools, SendLimits, SessionConfig,
};
pub use self::core::{Arrival, CoreStats, LaneBody, Rtt, SESSION_VERSION, SessionCore, Step};
pub use self::incoming::{
    Head, Incoming, KeepLimit, LaneEvent, MAX_ELEMENT_BYTES, MAX_NESTING, MAX_UNKNOWN_FIELDS,
    Message,
};
pub use self::plain::Plain;
pub use self::reason::{CloseReason, Closed, Side};
pub use self::redirect::{Goodbye, MAX_REDIRECT_BYTES, Redirect, RedirectError};
#[cfg(feature = "admin")]
pub use self::runtime::admin::{self, Admin, AdminBuilder, AdminError};
pub use self::runtime::hand_over;
#[cfg(feature = "tls")]
pub use self::runtime::tls::{self, ServerNameError, TlsTarget};
pub use self::runtime::{
    Accepting, Admission, AdoptError, Adopter, AsyncSession, Beyond, BodyStore, BodyTarget,
    BodyTicket, Broadcast, Cast, Client, Connecting, DATAGRAM_HEADER_BYTES, Datagram,
    DatagramError, DatagramLink, DatagramOrder, DatagramSettings, DatagramStats, Delivery,
    Farewell, FarewellWait, Flow, Handler, IncomingSessions, Lag, Monitor, Network, OnFull, Packet,
    PeerStatus, Priority, Proxies, ProxiesError, Rate, RateLimit, Rates, Received, Refusal,
    Reserve, Room, Server, ServerBuilder, Session, SessionId, SessionStats, Settings, StartError,
    StatusAnswer, StatusPolicy, Totals, activated_listeners, is_worker,
};
pub use self::sender::{Draft, SendError, Sender};
#[cfg(feature = "tls")]
pub use rustls;

/// The programs of the guide are compiled and run with those of this crate's page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sessions.md")]
struct Guide;
