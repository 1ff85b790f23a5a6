//! What a client says first.

use embar_frame::Now;
use embar_session::buffer::Mapped;
use embar_session::{Plain, RingPools, SessionConfig, SessionCore, Step};

/// The HELLO of a client of [`Plain`], without a greeting.
pub fn hello() -> Vec<u8> {
    let rings = RingPools::new(4096, 4096, 0).unwrap();
    let config = SessionConfig::default();
    let core = SessionCore::<_, Mapped>::connecting(Plain, &config, &rings, b"", Now(0));
    let mut core = core.unwrap();
    loop {
        if let Step::Send(buf) = core.poll().expect("it says something") {
            return buf.with_unsent(|head, _| head.to_vec());
        }
    }
}
