#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod block;
mod client;
mod limits;
mod metadata;
mod method;
mod outgoing;
mod protocol;
mod room_watch;
mod server;
mod status;

pub use buffa;
pub use embar_session as session;

pub use self::client::{
    Channel, ChannelSettings, ChannelStats, Items, Opening, PendingCall, Response, client,
};
pub use self::limits::{
    MAX_DETAILS_BYTES, MAX_IN_FLIGHT, MAX_METADATA_BYTES, MAX_STATUS_TEXT_BYTES,
};
pub use self::metadata::{Metadata, MetadataError};
pub use self::method::{Method, method_number};
pub use self::outgoing::{Outgoing, Owned, Viewed};
pub use self::protocol::{Role, Rpc, frame};
pub use self::server::{
    BoxFuture, Call, MethodStats, Reply, Request, Router, RouterError, RouterSettings, Server,
    Service, Sink, SinkError, Spawn, Stats,
};
pub use self::status::{Code, Status};
