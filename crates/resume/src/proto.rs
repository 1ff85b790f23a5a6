//! Types generated from `proto/resume.proto`; only `wire.rs` uses them.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]

mod generated {
    include!(concat!(env!("OUT_DIR"), "/resume.include.rs"));
}

pub use self::generated::embar::resume::v1::*;
