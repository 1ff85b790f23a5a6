//! Every interleaving, and every reordering that the memory model allows, of what processes do at
//! the same time in shared memory.
//!
//! Run with `cargo xtask loom`.
#![cfg(loom)]

#[path = "common/follow.rs"]
mod follow;
#[path = "loom/lanes.rs"]
mod lanes;
#[path = "loom/memory.rs"]
mod memory;
#[path = "loom/news.rs"]
mod news;
#[path = "loom/order.rs"]
mod order;
#[path = "loom/slots.rs"]
mod slots;
#[path = "loom/tables.rs"]
mod tables;
