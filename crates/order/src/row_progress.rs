//! Takes a session's row through the batches of its chain, one by one, as the sequencer's core takes the session. Whoever
//! copies a chain elsewhere knows by that how far each session is in the copy.

use std::collections::BTreeSet;

use embar_fabric::SessionRow;

use crate::protocol::{self, Protocol};
use crate::session;

/// The session's next epoch begins, whose first batch comes next in the chain.
pub fn begin_epoch(row: &mut SessionRow, epoch: u32) {
    change(row, |protocol, progress| protocol.begin_epoch(progress));
    row.epoch = epoch;
}

/// The batch of this number, of the current epoch, is in the chain. One that the row counts already changes nothing.
pub fn place(row: &mut SessionRow, number: u64) {
    change(row, |protocol, progress| {
        if !protocol.is_placed(progress, number) {
            protocol.place(progress, number);
        }
    });
}

/// The row as it was before the batches of these numbers, of the current epoch, were in the chain. There are no others behind them.
pub fn unplace(row: &mut SessionRow, numbers: &BTreeSet<u64>) {
    change(row, |protocol, progress| {
        protocol.unplace(progress, numbers)
    });
}

/// The row as it was in an earlier epoch, before the first batch of it that is known, which has this number. What that epoch had
/// placed above its lowest missing number nobody knows any more.
pub fn back_to_epoch(row: &mut SessionRow, epoch: u32, first: u64) {
    row.epoch = epoch;
    row.expected = first.min(row.expected);
    row.ordered = [0; 16];
}

fn change(row: &mut SessionRow, change: impl FnOnce(&dyn Protocol, &mut protocol::Progress)) {
    let protocol = u8::try_from(row.order).ok().and_then(protocol::of_order);
    let Some(protocol) = protocol else { return };
    let mut progress = session::progress(row);
    change(protocol, &mut progress);
    session::set_progress(row, &progress);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_goes_through_batches_and_epochs() {
        let mut row = SessionRow {
            order: 5,
            epoch: 1,
            in_use: 1,
            ..SessionRow::default()
        };
        for number in [0, 1, 1, 0, 2] {
            place(&mut row, number);
        }
        assert_eq!(row.expected, 3, "what is counted is counted once");
        begin_epoch(&mut row, 4);
        assert_eq!((row.epoch, row.expected, row.ordered[0]), (4, 3, 3));
        let mut row = SessionRow { order: 2, ..row };
        begin_epoch(&mut row, 5);
        for number in [5, 3] {
            place(&mut row, number);
        }
        assert_eq!(
            (row.expected, row.ordered[0]),
            (4, 0b1),
            "5 is placed, 4 is not"
        );
    }
}
