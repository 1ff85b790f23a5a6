//! Types generated from `proto/embar.proto`; only [`crate::control`] uses them.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]

mod generated {
    include!(concat!(env!("OUT_DIR"), "/embar.include.rs"));
}

pub use self::generated::embar::v1::*;
