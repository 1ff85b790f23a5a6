//! Reactors: the code that moves bytes between sockets and memory.
//!
//! A reactor is *completion-shaped*: its user hands over a buffer with [`Reactor::recv`] or
//! [`Reactor::send`] and gets the same buffer back as a [`Completion`] once it was filled or sent.
//! Readiness, `EAGAIN` and partial sends stay inside. This shape fits io_uring as it is ([`Uring`]),
//! and [`Epoll`] emulates it.
//!
//! A receive buffer may be a [`Reservation`](embar_memory::Reservation) of payload memory, so the
//! kernel copies the payload straight to the place where it stays. A send buffer may be a
//! [`Span`](embar_memory::Span), so no byte is copied in user space on the way out. Runs of
//! [`Pieces`] that lie in several processes' payload files leave by one system call, too.
//!
//! Processes of one machine may connect by shared memory ([`shm`]), which the kernel has no part in while both are busy.
//!
//! This crate never knows a protocol, never parses a byte, and never decides what a failure means: it
//! reports the error with the buffer and leaves the rest to its user. It starts threads only for what may
//! wait inside the kernel: receives of [`Blocking`], closing and unmapping what peers handed over, and
//! rings that the kernel has no memory for.
//!
//! Reading order: [`buffer`], [`reactor`] (the contract), [`token`], [`waker`], [`socket`], [`shm`],
//! then `epoll.rs` and its parts under `epoll/`, `uring.rs` and its own; [`tls`] stands between a reactor and its user.
//! [`waiters`] and [`park`] are for whoever waits for room. [`alloc`] belongs to none of these: it counts allocations.
//!
//! ```
//! use std::net::TcpListener;
//! use embar_transport::{Completion, Epoll, Reactor, RecvBuf, SendBuf};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let mut reactor = Epoll::new()?;
//! reactor.listen(listener)?;
//! let client = reactor.connect(address)?;
//! reactor.send(client, SendBuf::heap(b"hello".to_vec()));
//!
//! let mut done = Vec::new();
//! let mut greeting = None;
//! while greeting.is_none() {
//!     reactor.poll(None, &mut done)?;
//!     for completion in done.drain(..) {
//!         match completion {
//!             Completion::Accepted { stream, .. } => {
//!                 let server = reactor.add(stream)?;
//!                 reactor.recv(server, RecvBuf::heap(vec![0; 5], 0..5));
//!             }
//!             Completion::Connected { result, .. } => result?,
//!             Completion::Sent { result, .. } => result?,
//!             Completion::Received { token, buf, result, .. } => match (result?, buf.remaining()) {
//!                 (0, _) => return Err("the peer ended early".into()),
//!                 (_, 0) => greeting = Some(buf.with_filled(0..5, <[u8]>::to_vec)),
//!                 _ => reactor.recv(token, buf),
//!             },
//!             other => return Err(format!("{other:?}").into()),
//!         }
//!     }
//! }
//! assert_eq!(greeting.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

pub mod alloc;
mod aside;
pub mod biased;
pub mod blocking;
mod budget;
pub mod buffer;
pub mod epoll;
mod handed;
mod listener_driver;
pub mod marks;
pub mod park;
mod peer_user;
pub mod reactor;
pub mod ring;
pub mod shm;
pub mod socket;
pub mod tls;
pub mod token;
pub mod uring;
pub mod waiters;
pub mod waker;
mod wakeup;
mod work_timer;

pub use blocking::Blocking;
pub use budget::{BudgetExceeded, BudgetShare, MemoryBudget};
pub use buffer::{Body, Head, LentBytes, Payload, Pieces, RecvBuf, SendBuf, Store, Witness};
pub use embar_memory::{Mapped, Memory};
pub use epoll::{DirectSend, Epoll, Watch};
pub use marks::Marks;
pub use peer_user::has_trusted_peer;
pub use reactor::{Completion, IoCounters, Reactor};
pub use shm::{Shm, ShmOptions};
pub use socket::{Address, Granted, Listener, Peer, SocketError, SocketOptions, Stream};
pub use token::Token;
pub use uring::{Uring, UringError};
pub use waker::Waker;
