//! All interleavings of keeping and releasing parts of a receive ring.

use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::Notify;

use super::pins::{HolderCounts, Pins};
use super::raw::tracked::Tracked;

/// A waker on which a model waits.
struct NotifyWaker(Notify);

impl Wake for NotifyWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Two holders of one pin and one of a later one. The owner writes the bytes again once they are
/// free: before the last reader is done that would be a race, and a release that it does not
/// learn of would leave it waiting.
#[test]
fn kept_bytes_are_written_only_after_the_last_release() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let counts = Arc::new(HolderCounts::new(2));
        let memory = Arc::new(Tracked::new(2));
        let pins = Pins::new(2);
        memory.write(0, 5);
        memory.write(1, 6);
        let first = pins.pin(&counts, 0);
        counts.hold(first);
        let second = pins.pin(&counts, 1);
        let readers = [vec![first], vec![second, first]].map(|held| {
            let (counts, memory) = (counts.clone(), memory.clone());
            loom::thread::spawn(move || {
                for pin in held {
                    let at = u32::from(pin != first);
                    assert_eq!(memory.read(at), 5 + at as u8);
                    counts.release(pin);
                }
            })
        });
        let waker = Arc::new(NotifyWaker(Notify::new()));
        for start in [0, 1] {
            loop {
                if pins.oldest(&counts).is_none_or(|oldest| oldest > start) {
                    break;
                }
                counts.on_release(Waker::from(waker.clone()));
                if pins.oldest(&counts).is_none_or(|oldest| oldest > start) {
                    break;
                }
                waker.0.wait();
            }
            memory.write(start as u32, 9);
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
