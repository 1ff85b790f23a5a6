//! The invariants, checked from outside: what is on the raw devices against what is known.
//!
//! | file | invariants |
//! | --- | --- |
//! | `check/device.rs` | I1, I2, I3, I6, I7, I8 of orders 0 and 1: index, windows and payload on the device |
//! | `check/order.rs` | I1, I2, I3, I6, I7 of orders 2 and 5: the global order index |
//! | `check/bytes.rs` | a batch's bytes on the device |
//! | `check/bounds.rs` | I9: what a broker holds |
//! | `check/retained.rs` | I9: what becomes of the bytes of a log |
//! | `actor/subscriber.rs` | I4, I7: what subscribers get |
//! | `oracle.rs` | I3, I5, I6, delivery: the outcomes that publishers receive |
//! | `lease.rs` | I5, I9, leases: when a sequencer fences and a candidate takes over |
//! | `world/looks.rs` | I7, I8, I9, I10: a broker against the devices, its connections, and how long publishers wait |
//! | `world/hosts.rs`, `world/depart.rs` | I6: what a broker recovers, and what goes with one that leaves |

pub mod bounds;
pub mod bytes;
pub mod device;
pub mod order;
pub mod retained;
