use super::*;

fn drain(queue: &Queue) -> Vec<Run> {
    let mut runs = Vec::new();
    while let Some(run) = queue.take() {
        runs.push(run);
        queue.finish(run.end);
    }
    runs
}

#[test]
fn tickets_and_positions_wrap_without_a_trace() {
    // Both wrap within the first steps, at every phase of the ring's own wrap.
    for phase in 0..8u32 {
        let begin = u32::MAX - 3 - phase;
        let queue = Queue::starting_at(8, 4, u32::MAX - 2, begin);
        let mut at = begin;
        for round in 0..20 {
            let len = 1 + (round + phase as usize) % 8;
            let ticket = queue.reserve(len).unwrap();
            assert_eq!(ticket.start, at);
            at = at.wrapping_add(len as u32);
            assert_eq!(ticket.end, at);
            assert_eq!(queue.queued(), len);
            assert_eq!(queue.oldest(), Some(ticket.number));
            assert!(queue.commit(ticket));
            assert!(queue.has_committed() && queue.oldest().is_none());
            let expected = Run {
                start: ticket.start,
                end: ticket.end,
            };
            assert_eq!(drain(&queue), [expected]);
            assert!(queue.is_empty());
        }
    }
}

#[test]
fn what_is_committed_counts_once_taken_or_not() {
    let queue = Queue::starting_at(16, 4, u32::MAX - 5, 0);
    let mut counted = 0;
    for round in 0..12 {
        let [first, own, dropped, last] = [1, 2, 3, 4].map(|len| queue.reserve(len).unwrap());
        queue.commit(last);
        assert_eq!(
            queue.committed(),
            counted,
            "the oldest is open in round {round}"
        );
        queue.commit(first);
        queue.commit_uncounted(own);
        assert_eq!(queue.committed(), counted + 1);
        queue.abandon(dropped);
        counted += 2;
        assert_eq!(queue.committed(), counted);
        drain(&queue);
        assert_eq!(queue.committed(), counted, "after they were sent");
    }
}

#[test]
fn slots_run_out_before_bytes_do() {
    let queue = Queue::starting_at(1 << 10, 4, u32::MAX - 1, 0);
    for lap in 0..5 {
        let tickets: Vec<_> = (0..4).map(|_| queue.reserve(1).unwrap()).collect();
        assert_eq!(queue.reserve(1), Err(Refused::Full), "lap {lap}");
        for ticket in tickets.into_iter().rev() {
            queue.commit(ticket);
        }
        assert_eq!(drain(&queue).len(), 1);
    }
}

#[test]
fn who_leaves_room_leaves_a_slot_with_it() {
    let queue = Queue::new(64, 4);
    let leaving = |len| queue.reserve_leaving(len, 32);
    let first = leaving(32).unwrap();
    assert_eq!(leaving(1), Err(Refused::Full), "the bytes are for others");
    let answer = queue.reserve(32).unwrap();
    for ticket in [first, answer] {
        queue.commit(ticket);
    }
    drain(&queue);
    let short: Vec<_> = (0..3).map(|_| leaving(1).unwrap()).collect();
    assert_eq!(leaving(1), Err(Refused::Full), "and so is the last slot");
    let answer = queue.reserve(32).unwrap();
    for ticket in short.into_iter().chain([answer]) {
        queue.commit(ticket);
    }
    drain(&queue);
    // It could never leave so much, so it waits for all there is.
    let long = leaving(60).unwrap();
    assert_eq!(leaving(60), Err(Refused::Full));
    assert_eq!(leaving(65), Err(Refused::TooLong));
    queue.commit(long);
}

#[test]
fn a_skipped_range_ends_the_run_and_is_stepped_over() {
    for offset in 0..16 {
        let queue = Queue::starting_at(8, 8, 0, offset);
        let [first, skipped, last] = [2, 3, 3].map(|len| queue.reserve(len).unwrap());
        queue.commit(last);
        assert_eq!(queue.take(), None, "the oldest is open");
        assert_eq!(queue.oldest(), Some(first.number));
        assert!(queue.abandon(skipped), "nobody sends");
        queue.commit(first);
        let run = queue.take().unwrap();
        assert_eq!((run.start, run.end), (first.start, first.end));
        assert!(queue.finish(run.end));
        let run = queue.take().unwrap();
        assert_eq!((run.start, run.end), (last.start, last.end));
        assert_eq!(queue.queued(), 3, "the skipped range is free already");
        assert!(!queue.finish(run.end));
        assert!(queue.reserve(8).is_ok(), "all is free");
    }
}

#[test]
fn the_newest_reservation_is_undone() {
    let queue = Queue::new(8, 4);
    let first = queue.reserve(8).unwrap();
    assert_eq!(queue.reserve(1), Err(Refused::Full));
    assert!(!queue.abandon(first));
    assert_eq!(queue.reserve(8), Ok(first));
    assert_eq!(queue.touched(), 8);
}

#[test]
fn skips_alone_leave_an_empty_queue() {
    let queue = Queue::new(8, 4);
    let [first, second] = [4, 4].map(|len| queue.reserve(len).unwrap());
    assert!(queue.abandon(first));
    assert!(!queue.abandon(second), "undone");
    assert!(queue.is_empty() && !queue.has_committed());
    assert_eq!(queue.take(), None);
    assert_eq!(queue.queued(), 0);
}

#[test]
fn one_run_at_a_time_and_what_is_unsent_comes_again() {
    let queue = Queue::new(8, 4);
    assert!(queue.commit(queue.reserve(4).unwrap()));
    let run = queue.take().unwrap();
    assert_eq!((queue.take(), queue.cork()), (None, false));
    assert!(!queue.commit(queue.reserve(2).unwrap()), "somebody sends");
    queue.progress(1);
    assert_eq!(queue.queued(), 5);
    assert!(queue.finish(2));
    let rest = queue.take().unwrap();
    assert_eq!((rest.start, rest.end), (2, 6));
    assert!(!queue.finish(rest.end));
    let _ = run;
}

#[test]
fn a_cork_is_taken_once_and_uncorked_once() {
    let queue = Queue::new(8, 4);
    assert_eq!(queue.uncork(), None, "nobody corked");
    assert!(queue.cork());
    assert!(!queue.cork());
    assert_eq!(queue.take(), None);
    assert!(!queue.commit(queue.reserve(3).unwrap()));
    let run = queue.uncork().unwrap();
    assert_eq!((run.start, run.end), (0, 3));
    assert_eq!(queue.uncork(), None, "a run is out");
    assert!(!queue.finish(3));
    assert!(queue.cork());
    assert_eq!(queue.uncork(), None, "nothing came");
    assert!(queue.commit(queue.reserve(1).unwrap()), "the right is free");
}

#[test]
fn the_oldest_reservation_is_told_also_when_slots_are_used_again() {
    let queue = Queue::new(64, 4);
    for _ in 0..3 {
        let done = queue.reserve(1).unwrap();
        let held = queue.reserve(1).unwrap();
        let later = queue.reserve(1).unwrap();
        queue.commit(done);
        queue.commit(later);
        assert_eq!(queue.oldest(), Some(held.number));
        drain(&queue);
        assert_eq!(queue.oldest(), Some(held.number));
        assert!(!queue.is_empty() && !queue.has_committed());
        queue.commit(held);
        assert_eq!(queue.oldest(), None);
        drain(&queue);
    }
}
