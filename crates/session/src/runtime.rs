//! Sessions with sockets, threads and a clock: servers, clients, handlers, async streams.
//!
//! Worker threads each drive one reactor with many sessions. `driver.rs` joins a
//! [`SessionCore`](crate::SessionCore) to it; `shared.rs` says who writes to the socket when.
//!
//! Reading order: [`Handler`], [`Session`], `settings.rs`, `server.rs`, `client.rs`, `group.rs` and
//! `registry.rs` (what workers have in common), `worker_marks.rs` and `mailbox.rs` (how other
//! threads reach a worker), `shared.rs`, `pool.rs`, `body_budget.rs`, `admission.rs`, `priority.rs`, `guest.rs` and `arrivals.rs`
//! (connections before they are sessions), `worker.rs`, `driver.rs`, `timer_queue.rs`, `broadcast.rs`, `stream.rs`.

#[cfg(feature = "admin")]
pub mod admin;
mod admission;
mod adopter;
mod arrivals;
mod body_budget;
mod broadcast;
mod carried;
mod client;
mod clock;
mod connecting;
mod crowd;
mod datagrams;
mod dealer;
mod driver;
mod group;
mod guest;
pub mod hand_over;
mod handler;
mod handshakes;
mod latest;
mod listening;
mod mailbox;
mod mappings;
mod memberships;
mod panics;
mod pool;
mod priority;
mod proxies;
mod proxy_header;
mod rates;
mod refusal;
mod registry;
mod server;
mod session;
mod session_id;
mod settings;
mod shared;
mod stall;
mod stats;
mod status;
mod stop;
mod stream;
mod timer_queue;
#[cfg(feature = "tls")]
pub mod tls;
mod wake_time;
mod worker;
mod worker_marks;

pub use admission::{Admission, Network};
pub use adopter::{AdoptError, Adopter};
pub use broadcast::{Broadcast, Cast, Delivery, Lag};
pub use client::Client;
pub use connecting::Connecting;
pub use datagrams::{
    DATAGRAM_HEADER_BYTES, Datagram, DatagramError, DatagramLink, DatagramOrder, DatagramSettings,
};
pub use handler::{BodyStore, BodyTarget, Flow, Handler};
pub use listening::{StartError, activated_listeners};
pub use priority::{Priority, Reserve};
pub use proxies::{Proxies, ProxiesError};
pub use rates::{Beyond, Rate, RateLimit, Rates};
pub use refusal::Refusal;
pub use registry::Monitor;
pub use server::{Server, ServerBuilder};
pub use session::{BodyTicket, Packet, Room, Session};
pub use session_id::SessionId;
pub use settings::{Accepting, OnFull, Settings, StatusPolicy};
pub use stats::{DatagramStats, SessionStats, Totals};
pub use status::{PeerStatus, StatusAnswer};
pub use stream::{AsyncSession, Farewell, FarewellWait, IncomingSessions, Received};
pub use worker_marks::is_worker;
