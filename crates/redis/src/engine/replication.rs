//! Where one primary has all keys: which server that is, and which are its replicas.
//!
//! Reading order: `info` (what a server says of itself), `roles` (who is the primary by what all say), `inquiry` (whom
//! to ask, and when it is enough), and `reading` (asks them).

pub(super) mod info;
pub(super) mod inquiry;
pub(super) mod reading;
pub(super) mod roles;
