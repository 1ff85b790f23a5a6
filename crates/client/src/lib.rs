//! Clients of the shared log: [`Publisher`], [`Subscriber`] and [`Admin`].
//!
//! ```no_run
//! use embar_client::{Acks, Publisher, Start, Subscriber};
//!
//! let publisher = Publisher::builder("127.0.0.1:9400").topic("orders").acks(Acks::Readable).open()?;
//! let ticket = publisher.publish(b"hello")?;
//! println!("stored at {:?}", publisher.acked(ticket).wait()?);
//! publisher.close()?;
//!
//! let mut subscriber = Subscriber::builder("127.0.0.1:9400").topic("orders").from(Start::Earliest).open()?;
//! while let Some(message) = subscriber.next()? {
//!     println!("{} {:?}", message.offset, message.value);
//! }
//! # Ok::<(), embar_client::Error>(())
//! ```
//!
//! All three work with and without an async runtime: they have threads of their own and need no executor.
//!
//! This crate never knows how a broker works inside, never drops a message silently, never lets a late answer answer
//! another request, and does nothing while there is nothing to do.
//!
//! Publisher and Subscriber are each a core without I/O ([`publisher::core`], [`subscriber::core`]), which simulators
//! drive as they are, and a thin driver on sockets. Read in this order: [`error`], [`connection`] (a session that speaks
//! the log's protocol, shared by all), `directory` (who is in the cluster), `peer` (one data broker of it), then
//! [`publisher`], [`subscriber`], [`admin`]; and the small ones: [`waiting`] (what a client waits for), [`backoff`], [`profile`], `wake`, `clock`, `bootstrap`, `settings`.

#![forbid(unsafe_code)]

pub mod admin;
pub mod backoff;
mod bootstrap;
mod clock;
pub mod connection;
mod directory;
pub mod error;
mod peer;
pub mod profile;
pub mod publisher;
mod settings;
pub mod subscriber;
#[cfg(test)]
mod testing;
pub mod waiting;
mod wake;

pub use admin::{Admin, TopicSpec};
pub use embar_wire::topic::{Order, UnknownOrder};
pub use error::Error;
pub use publisher::{Acks, NewMessage, OnBrokerLoss, Position, Publisher, PublisherHandle, Ticket};
pub use subscriber::{Message, OnEvicted, OwnedMessage, Positions, Start, Subscriber};
pub use waiting::{Lookout, Waits};

/// What a deterministic simulator drives: the cores, their settings, events and actions.
///
/// Call orders are documented on the modules [`publisher::core`] and
/// [`subscriber::core`]. Time comes in as [`embar_frame::Now`], randomness as a seed.
pub mod sim_api {
    pub use crate::connection::{Lane, LinkAction};
    pub use crate::publisher::core::{
        Event as PublisherEvent, PublisherConfig, PublisherCore, SealedBatch,
    };
    pub use crate::publisher::receipt::{Failure, Outcome};
    pub use crate::subscriber::core::{
        Delivered, Event as SubscriberEvent, SubscriberConfig, SubscriberCore,
    };
}
