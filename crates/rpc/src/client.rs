//! The calling end.
//!
//! A call has a slot from before its request leaves until the server has ended it. A call that its caller
//! gave up keeps its slot until the server says that it is over: so the client never has more calls
//! in flight than the server counts, and whoever cancels in a loop starts no more work than anybody
//! else.
//!
//! `table.rs` has the slots, and who waits for one; `arrivals.rs` is the session's handler, which puts
//! what comes into them. `start.rs` takes a request from its caller to the wire; `pending_call.rs` and
//! `items.rs` wait for what comes back.

mod arrivals;
mod channel;
mod items;
mod link;
mod pending_call;
mod response;
mod settings;
mod slot;
mod start;
mod table;
mod turns;

pub use channel::{Channel, Opening, client};
pub use items::Items;
pub use pending_call::PendingCall;
pub use response::Response;
pub(crate) use response::decode_options;
pub use settings::{ChannelSettings, ChannelStats};
