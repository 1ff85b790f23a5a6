//! The two cores under random cuts, losses and delays: each message once, and in order.

use std::collections::VecDeque;

use embar_resume::core::{Inbox, Outbox};
use proptest::prelude::*;

/// One end: what it has sent and handled.
struct Side {
    outbox: Outbox,
    inbox: Inbox,
    sent: u64,
    got: Vec<u64>,
}

impl Side {
    fn new(first: u64) -> Self {
        Self {
            outbox: Outbox::new(first, 8, 400, None),
            inbox: Inbox::new(first),
            sent: 0,
            got: Vec::new(),
        }
    }

    fn send(&mut self, len: usize) {
        let number = self.sent.to_le_bytes();
        let taken = self.outbox.append(1, 8 + len, |to| {
            to.extend_from_slice(&number);
            to.resize(to.len() + len, 7);
        });
        // Full: refused, and never sent.
        self.sent += u64::from(taken.is_ok());
    }
}

enum Frame {
    Message(u64),
    Ack(u64),
}

/// What is on its way from each end to the other one.
type Wires = [VecDeque<Frame>; 2];

#[derive(Clone, Debug)]
enum Step {
    Send {
        by: usize,
        len: usize,
    },
    /// The end gives its connection what waits, up to so much.
    Write {
        by: usize,
        count: usize,
    },
    /// So many frames arrive, of those that this end sent.
    Arrive {
        from: usize,
        count: usize,
    },
    Ack {
        by: usize,
    },
    /// All that is on its way is lost. Each end learns what the other has handled; or only the server does, and the
    /// connection is lost again.
    Cut {
        answer_arrives: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let by = 0..2usize;
    prop_oneof![
        6 => (by.clone(), 0..60usize).prop_map(|(by, len)| Step::Send { by, len }),
        4 => (by.clone(), 0..5usize).prop_map(|(by, count)| Step::Write { by, count }),
        5 => (by.clone(), 0..5usize).prop_map(|(from, count)| Step::Arrive { from, count }),
        3 => by.prop_map(|by| Step::Ack { by }),
        1 => any::<bool>().prop_map(|answer_arrives| Step::Cut { answer_arrives }),
    ]
}

fn resume(sides: &mut [Side; 2], wires: &mut Wires, end: usize) {
    wires[end].clear();
    let received = sides[1 - end].inbox.number();
    sides[end]
        .outbox
        .resume(received)
        .expect("the peer is honest");
}

fn run(sides: &mut [Side; 2], wires: &mut Wires, step: &Step) {
    match *step {
        Step::Send { by, len } => sides[by].send(len),
        Step::Write { by, count } => {
            for _ in 0..count {
                let outbox = &mut sides[by].outbox;
                let Some((_, content)) = outbox.next_unwritten() else {
                    return;
                };
                let number = u64::from_le_bytes(content[..8].try_into().unwrap());
                outbox.wrote();
                wires[by].push_back(Frame::Message(number));
            }
        }
        Step::Arrive { from, count } => {
            for _ in 0..count {
                let to = &mut sides[1 - from];
                match wires[from].pop_front() {
                    Some(Frame::Message(number)) => {
                        to.got.push(number);
                        to.inbox.handled(8);
                    }
                    Some(Frame::Ack(number)) => {
                        to.outbox.ack(number).expect("the peer is honest");
                    }
                    None => return,
                }
            }
        }
        Step::Ack { by } => {
            let number = sides[by].inbox.number();
            sides[by].inbox.told();
            wires[by].push_back(Frame::Ack(number));
        }
        Step::Cut { answer_arrives } => {
            // End 0 connects and says what it has; end 1 answers.
            let told = sides[0].inbox.number();
            wires[0].clear();
            sides[1].outbox.resume(told).expect("the peer is honest");
            wires[1].clear();
            if answer_arrives {
                resume(sides, wires, 0);
            } else {
                // Nothing is read of that connection, whatever the server writes, until the next.
                let told = sides[0].inbox.number();
                let server = &mut sides[1];
                while server.outbox.next_unwritten().is_some() {
                    server.outbox.wrote();
                }
                server.outbox.resume(told).expect("the peer is honest");
                resume(sides, wires, 0);
            }
        }
    }
}

fn check(sides: &[Side; 2]) {
    for end in 0..2 {
        let got = &sides[1 - end].got;
        assert!(got.iter().copied().eq(0..got.len() as u64), "{got:?}");
        assert!(got.len() as u64 <= sides[end].sent);
    }
}

proptest! {
    #[test]
    fn each_message_is_handled_once_and_in_order(
        steps in prop::collection::vec(step(), 0..300),
        first in prop_oneof![Just(0u64), Just(u64::MAX - 20)],
    ) {
        let mut sides = [Side::new(first), Side::new(first)];
        let mut wires = Wires::default();
        for step in &steps {
            run(&mut sides, &mut wires, step);
            check(&sides);
        }
        // Given time, all that was taken arrives and is acknowledged.
        run(&mut sides, &mut wires, &Step::Cut { answer_arrives: true });
        for by in [0, 1] {
            run(&mut sides, &mut wires, &Step::Write { by, count: 100 });
            run(&mut sides, &mut wires, &Step::Arrive { from: by, count: 100 });
            run(&mut sides, &mut wires, &Step::Ack { by: 1 - by });
            run(&mut sides, &mut wires, &Step::Arrive { from: 1 - by, count: 1000 });
        }
        check(&sides);
        for end in 0..2 {
            prop_assert_eq!(sides[1 - end].got.len() as u64, sides[end].sent);
            prop_assert!(sides[end].outbox.is_empty());
            prop_assert_eq!(sides[end].outbox.bytes(), 0);
        }
    }

    /// Whatever a peer acknowledges: what is right is taken, all else changes nothing.
    #[test]
    fn no_acknowledgement_does_harm(
        told in prop::collection::vec(prop_oneof![0..20u64, any::<u64>()], 0..50),
    ) {
        let mut side = Side::new(0);
        (0..8).for_each(|_| side.send(3));
        (0..6).for_each(|_| side.outbox.wrote());
        let mut acked = 0;
        for number in told {
            let fine = (acked..=6).contains(&number);
            prop_assert_eq!(side.outbox.ack(number).is_ok(), fine);
            if fine {
                acked = number;
            }
            prop_assert_eq!(side.outbox.len(), 8 - acked);
        }
    }
}
