//! Types generated from `proto/session.proto`; only [`crate::core`] and the status of the runtime
//! use them.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]

mod generated {
    include!(concat!(env!("OUT_DIR"), "/session.include.rs"));
}

pub use self::generated::embar::session::v1::*;
