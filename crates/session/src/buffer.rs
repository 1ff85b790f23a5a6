//! The memory that a [`SessionCore`](crate::SessionCore) lends to its owner and takes back, for
//! programs that drive sessions with I/O of their own; and [`Buffer`], of which bodies are made.

pub use embar_memory::{
    Buffer, Coherence, Damage, FileId, Foreign, Mapped, Memory, Reservation, ShowsCopies, Span,
};
pub use embar_transport::buffer::Head;
pub use embar_transport::ring::{
    Closed as RingClosed, RecvSpace, Reservation as RingReservation, ReserveError, RingPool,
    SendRing, SendSpan, WaitError,
};
pub use embar_transport::{Body, Payload, Pieces, RecvBuf, SendBuf, Store, Waker};
