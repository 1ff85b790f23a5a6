//! The invariants, checked from outside: what is on the raw devices against what is known.
//!
//! | file | invariants |
//! | --- | --- |
//! | `check/device.rs` | I1, I2, I3, I6, I7, I8: lanes, index, windows and payload on the device |
//! | `check/bounds.rs` | I9: what the broker holds |
//! | `actor/subscriber.rs` | I4, I7: what subscribers get |
//! | `books.rs` | I6, delivery: what publishers are told |

pub mod bounds;
pub mod device;
