//! All interleavings of keeping and releasing parts of a receive ring.

use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::Notify;

use super::pins::{Pins, Table};
use super::raw::tracked::Tracked;

struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Two holders of one pin and one of a later one. The owner writes the bytes again once they are
/// free: before the last reader is done that would be a race, and a release nobody told it of
/// would leave it waiting.
#[test]
fn kept_bytes_are_written_only_after_the_last_release_and_that_is_told() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let table = Arc::new(Table::new(2));
        let memory = Arc::new(Tracked::new(2));
        let pins = Pins::new(2);
        memory.write(0, 5);
        memory.write(1, 6);
        let first = pins.pin(&table, 0);
        table.hold(first);
        let second = pins.pin(&table, 1);
        let readers = [vec![first], vec![second, first]].map(|held| {
            let (table, memory) = (table.clone(), memory.clone());
            loom::thread::spawn(move || {
                for pin in held {
                    let at = u32::from(pin != first);
                    assert_eq!(memory.read(at), 5 + at as u8);
                    table.release(pin);
                }
            })
        });
        let bell = Arc::new(Bell(Notify::new()));
        for start in [0, 1] {
            loop {
                if pins.oldest(&table).is_none_or(|oldest| oldest > start) {
                    break;
                }
                table.on_release(Waker::from(bell.clone()));
                if pins.oldest(&table).is_none_or(|oldest| oldest > start) {
                    break;
                }
                bell.0.wait();
            }
            memory.write(start as u32, 9);
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
