//! Types generated from `proto/bench.proto`.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]

mod generated {
    include!(concat!(env!("OUT_DIR"), "/bench.include.rs"));
}

pub use self::generated::embar::bench::v1::*;
