//! The end that is called.
//!
//! `routes.rs` has the methods that there are; `requests.rs` is the handler of one session, which finds
//! the method of each request and calls it. `calls.rs` has the calls that a session has in flight, and
//! `outbox.rs` what found no room in its ring. `ticket.rs` is the duty to end a call, which `reply.rs` and
//! `sink.rs` give to methods. `tasks.rs` runs methods that are futures.

mod call;
mod calls;
mod counts;
mod outbox;
mod reply;
mod request;
mod requests;
mod router;
mod routes;
mod settings;
mod sink;
mod slot;
mod stats;
mod tasks;
mod ticket;

pub use call::Call;
pub use reply::Reply;
pub use request::{Request, Service};
pub use router::{Router, RouterError, Server};
pub use settings::RouterSettings;
pub use sink::{Sink, SinkError};
pub use stats::{MethodStats, Stats};
pub use tasks::{BoxFuture, Spawn};
