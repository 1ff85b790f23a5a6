//! Who computes the checksums of batches.

use std::sync::Arc;

use embar_wire::batch::{Batch, BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::limits::MAX_BATCH_BYTES;
use embar_wire::time::WallNs;

use super::super::model::SealedBatch;
use super::*;

fn submit_unsummed(script: &mut Script, number: u64) {
    let mut builder = BatchBuilder::new(Vec::new(), 1 << 20);
    builder.try_push(None, &[], b"message").expect("fits");
    let bytes = builder.seal(SealFields {
        append_time: WallNs(number),
        flags: BatchFlags::UNSUMMED,
        ..SealFields::default()
    });
    let sealed = SealedBatch {
        number,
        messages: 1,
        bytes: Arc::new(bytes),
    };
    script.core.submit(sealed, script.now);
    script.drain();
}

/// Both brokers, of which the first is reached by shared memory.
fn with_memory_to_the_first() -> Script {
    let mut script = Script::new(config());
    script.share_memory.push(A);
    script.tell_cluster(2);
    script.open_lane(A);
    assert!(!script.core.needs_sums());
    script.open_lane(B);
    assert!(script.core.needs_sums(), "one goes by a socket");
    script.events.clear();
    script
}

#[test]
fn a_broker_that_shares_memory_sums_and_others_get_what_is_summed() {
    let mut script = with_memory_to_the_first();
    submit_unsummed(&mut script, 0);
    submit_unsummed(&mut script, 1);
    let summed = |channel| script.header(channel).map(|header| header.is_summed());
    assert_eq!((summed(A), summed(B)), (Some(false), Some(true)));
    script.batches[&B].with_unsent(|_, bytes| {
        Batch::split_first(bytes, MAX_BATCH_BYTES).expect("a batch with its checksum");
    });
}

#[test]
fn what_was_lost_without_a_checksum_has_one_when_it_goes_by_a_socket() {
    let mut script = with_memory_to_the_first();
    script.lose(B);
    assert!(!script.core.needs_sums());
    submit_unsummed(&mut script, 0);
    assert!(!script.header(A).expect("it is sent").is_summed());
    script.lose(A);
    script.tick_at(10 * SECOND);
    script.open_lane(B);
    assert!(script.header(B).expect("it is sent again").is_summed());
    script.batches[&B].with_unsent(|_, bytes| {
        let (batch, _) = Batch::split_first(bytes, MAX_BATCH_BYTES).expect("whole and sound");
        let flags = batch.header().flags();
        assert!(flags.contains(BatchFlags::POSSIBLE_DUPLICATE));
    });
}
