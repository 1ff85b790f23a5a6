//! What a batch costs a core that runs: no allocation.

use embar_fabric::{PbrKind, PbrRecord};
use embar_order::{Action, Arrival, Core, Limits, Source};
use embar_transport::alloc::{Counting, of_thread, set_counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SESSIONS: u32 = 16;
const HELD: u32 = 256;

fn arrival(session: u32, record: PbrRecord) -> Arrival {
    let source = Source {
        row: 1,
        lane: 0,
        incarnation: 1,
        number: 0,
    };
    let record = PbrRecord {
        producer: session.into(),
        session,
        session_epoch: 1,
        count: 1,
        orders: PbrRecord::pack_orders(0, 5),
        ..record
    };
    Arrival { source, record }
}

/// Batches of all sessions, four of each in the wrong order, and one of them twice.
fn round(core: &mut Core, number: u64, arrivals: &mut Vec<Arrival>, out: &mut Vec<Action>) {
    arrivals.clear();
    for ahead in [3, 1, 2, 1, 0] {
        arrivals.extend((0..SESSIONS).map(|session| {
            let sequence = number * 4 + ahead;
            arrival(
                session,
                PbrRecord {
                    sequence,
                    ..PbrRecord::default()
                },
            )
        }));
    }
    out.clear();
    core.arrive(arrivals, number, out);
    core.elapse(number, out);
}

#[test]
fn batches_allocate_nothing_once_warm() {
    let mut core = Core::new(Limits {
        sessions: SESSIONS,
        held: HELD,
        ..Limits::default()
    })
    .unwrap();
    let (mut arrivals, mut out) = (Vec::new(), Vec::new());
    let kind = PbrKind::Open as u8;
    arrivals.extend((0..SESSIONS).map(|it| {
        arrival(
            it,
            PbrRecord {
                kind,
                ..PbrRecord::default()
            },
        )
    }));
    set_counting(true);
    core.arrive(&arrivals, 0, &mut out);
    round(&mut core, 0, &mut arrivals, &mut out);
    let before = of_thread();
    assert!(before.times > 0, "the first ones are counted");
    for number in 1..1000 {
        round(&mut core, number, &mut arrivals, &mut out);
        assert_eq!(out.len() as u32, 5 * SESSIONS);
    }
    assert_eq!(of_thread().since(before).times, 0);
    assert_eq!(core.figures().placed, u64::from(SESSIONS) * 4000);
    assert_eq!(core.figures().duplicates, u64::from(SESSIONS) * 1000);
}
