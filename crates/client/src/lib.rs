#![doc = include_str!("../README.md")]
//!
//! # Inside
//!
//! All three work with and without an async runtime: they have threads of their own and need no executor.
//!
//! This crate never knows how a broker works inside, never drops a message silently, never lets a late answer answer
//! another request, and does nothing while there is nothing to do.
//!
//! Publisher and Subscriber are each a core without I/O (`publisher::core`, `subscriber::core`), which simulators
//! drive as they are, and a thin driver on sockets. Read in this order: `error`, `connection` (a session that speaks
//! the log's protocol, shared by all), `directory` (who is in the cluster), `transport` (which
//! way to a broker), `peer` (one data broker of it), then
//! `publisher`, `subscriber`, `admin`; and the small ones: `wait` (what a client waits for), `backoff`, `profile`, `profiles` (for tools outside), `wake`, `clock`, `bootstrap`, `settings`.

#![forbid(unsafe_code)]

mod admin;
mod availability;
mod backoff;
mod bootstrap;
#[cfg(feature = "profile")]
mod caller;
mod clock;
mod connection;
mod directory;
mod error;
mod io_error;
mod peer;
#[doc(hidden)]
pub mod profile;
#[cfg(feature = "profile")]
mod profiles;
mod publisher;
mod settings;
mod socket;
mod subscriber;
#[cfg(test)]
mod testing;
mod transport;
mod wait;
mod wake;

pub use admin::{Admin, Request, TopicSpec};
#[cfg(feature = "profile")]
pub use caller::CallingThread;
pub use connection::{ConnectionError, Violation};
pub use error::{
    AddressError, AdminError, ClientError, OpenError, PublishError, ReadError, SettingError,
};
pub use io_error::IoError;
#[cfg(feature = "profile")]
pub use profiles::{ClientProfiles, PublisherProfile, SubscriberProfile, serve_profiles};
pub use publisher::{
    Delivery, NewMessage, OnBrokerLoss, Position, Publisher, PublisherBuilder, PublisherHandle,
    Receipt, Reservation, Ticket,
};
pub use subscriber::{
    Checksums, Message, MessageStream, OnEvicted, OwnedMessage, ParsePositionsError, Positions,
    Start, Subscriber, SubscriberBuilder,
};
pub use transport::{Transport, UnknownTransport};
pub use wait::{Party, Wait, WaitProbe, WaitReason};

// What the types above have in their signatures.
pub use embar_meter::{Snapshot, StageRow};
pub use embar_session::{CloseReason, Closed, Side};
pub use embar_transport::Address;
pub use embar_wire::acks::{Acks, UnknownAcks};
pub use embar_wire::control::{
    BrokerInfo, BrokerRole, BrokerState, BrokerStatus, ClusterMetadata, DiskState, DiskStatus,
    ErrorCode, Partition, Topic, TopicDescription,
};
pub use embar_wire::isolation::{Isolation, UnknownIsolation};
pub use embar_wire::message::PushError;
pub use embar_wire::message::{Header, Headers};
pub use embar_wire::time::WallNs;
pub use embar_wire::topic::{Order, UnknownOrder};
pub use futures_core::Stream;

/// What a deterministic simulator drives: the cores, their settings, events and actions.
///
/// The modules of the two cores document the order of calls. Time comes in as [`embar_frame::Now`], randomness as a
/// seed.
#[doc(hidden)]
pub mod sim_api {
    pub use crate::connection::{ChannelId, ConnectionAction};
    pub use crate::publisher::core::PublisherCore;
    pub use crate::publisher::model::{Event as PublisherEvent, PublisherConfig, SealedBatch};
    pub use crate::publisher::receipt::{Failure, Outcome};
    pub use crate::subscriber::core::SubscriberCore;
    pub use crate::subscriber::model::{Delivered, Event as SubscriberEvent, SubscriberConfig};
    pub use crate::subscriber::payload::Payload;
    pub use crate::transport::Ways;
}
