//! A broker dies at each of its steps, on memory without coherence; its successor must find all
//! that was promised and nothing that is not whole.
#![cfg(not(loom))]

#[path = "crash/anywhere.rs"]
mod anywhere;
mod common;
#[path = "common/follow.rs"]
mod follow;
#[path = "crash/goi.rs"]
mod goi;
#[path = "crash/host.rs"]
mod host;
#[path = "crash/lane.rs"]
mod lane;
#[path = "crash/rows.rs"]
mod rows;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Cluster, NONCE, small};
use embar_fabric::slot::{read_row, rewrite};
use embar_fabric::{Geometry, IndexRecord, PbrRecord, Region};
use embar_memory::{Faults, Memory, PayloadFile};
use host::{Died, Host};

const TOPIC: u16 = 2;
const CHAIN: u32 = 17;
const BATCH: usize = 192;

/// What the broker has promised to others, which outlives it.
#[derive(Default)]
struct Promised {
    /// Offsets below were acknowledged.
    acked: u64,
    /// Offsets below were given up.
    released: u64,
}

fn payload(base: u64) -> Vec<u8> {
    (0..BATCH as u64).map(|i| (base * 7 + i) as u8).collect()
}

/// A broker's life: recover, then append, acknowledge and release until it dies.
fn live(host: &Host, promised: &mut Promised) {
    let region =
        Region::from_parts(Arc::clone(&host.control), host.payload_files.clone()).expect("whole");
    let claim = region.claim_unlocked(1);
    let payload_file = region.payload_file(&claim);
    let mut window = region.window_writer(&claim, TOPIC);
    let mut index = region.index_writer(&claim);
    let mut kept = recover(&region, &payload_file);
    let mut next = index.next(CHAIN).unwrap_or(window.window().next);
    assert!(
        next >= promised.acked,
        "acknowledged up to {}, found {next}",
        promised.acked
    );
    if window.window().chain != CHAIN {
        window.reset(CHAIN, 0, 0);
    }
    window.raise_next(next);
    let mut lane = region.lane_writer(&claim, 0);
    let mut reader = region.lane_reader(1, 0);
    reader.seek(lane.next());
    let mut extent = payload_file
        .allocate(64 << 10)
        .expect("recovered batches use two extents at most");
    loop {
        // The network thread.
        let Some(mut reservation) = extent.reserve(BATCH as u32) else {
            return;
        };
        reservation.write(0, &payload(next));
        let span = reservation.commit();
        let record = PbrRecord {
            payload_at: span.at(),
            len: BATCH as u32,
            count: 1,
            chain: CHAIN,
            incarnation: claim.incarnation(),
            ..Default::default()
        };
        // Consumed as soon as it is published.
        lane.publish(reader.position(), &record);
        kept.push((next, span));
        // The consumer.
        let (_, found) = reader.take().found().expect("just published");
        assert_eq!(found, record, "a record of this incarnation");
        let indexed = IndexRecord {
            base: next,
            payload_at: found.payload_at,
            len: found.len,
            count: 1,
            ..Default::default()
        };
        index.append(CHAIN, &indexed).expect("released in time");
        next += 1;
        window.raise_next(next);
        promised.acked = next;
        // Retention.
        if next.is_multiple_of(8) {
            promised.released = next - 4;
            window.raise_first(next - 4);
            index.release_before(CHAIN, next - 4);
            kept.retain(|(base, _)| *base >= next - 4);
        }
    }
}

/// Takes the memory of all retained batches and checks every byte of them.
fn recover<M: Memory>(
    region: &Region<M>,
    payload_file: &PayloadFile<M>,
) -> Vec<(u64, embar_memory::Span<M>)> {
    let records = check(region);
    let mut extents = std::collections::BTreeMap::new();
    for record in &records {
        let located = PayloadFile::<M>::locate(record.payload_at, record.len, record.extent_order);
        let (start, end) = located.expect("inside of a block");
        let cursor: &mut u32 = extents.entry(start).or_default();
        *cursor = end.max(*cursor);
    }
    let extents: Vec<_> = extents
        .into_iter()
        .map(|(start, cursor)| {
            let mut extent = payload_file
                .allocate_at(start, 0)
                .expect("no two extents overlap");
            extent.set_cursor(cursor);
            extent
        })
        .collect();
    records
        .iter()
        .map(|record| {
            let span = extents
                .iter()
                .find_map(|e| e.span(record.payload_at, record.len));
            let span = span.expect("inside of its extent");
            span.with_bytes(|bytes| assert_eq!(bytes, payload(record.base), "I2: whole bytes"));
            (record.base, span)
        })
        .collect()
}

/// The records that the window retains, in order and without holes.
fn check<M: Memory>(region: &Region<M>) -> Vec<IndexRecord> {
    let window = region.window(1, TOPIC).found().unwrap_or_default();
    let scanned = region.index_reader(1).scan();
    assert!(scanned.len() <= 1, "one chain only");
    let mut records = scanned
        .into_iter()
        .next()
        .map_or(Vec::new(), |(_, records)| records);
    records.retain(|record| record.base >= window.first);
    let bases: Vec<u64> = records.iter().map(|record| record.base).collect();
    let end = window.first + bases.len() as u64;
    assert_eq!(bases, (window.first..end).collect::<Vec<_>>(), "I3: dense");
    assert!(
        end >= window.next,
        "the window ends at {}, the index at {end}",
        window.next
    );
    records
}

fn geometry() -> Geometry {
    Geometry {
        brokers: 2,
        standbys: 0,
        spares: 0,
        index_pages: 5,
        ..small()
    }
}

/// Lives and dies several times; returns the failed assertion, if any.
fn lives(seed: u64, steps: u64, faults: Faults) -> Result<(), String> {
    let cluster = Cluster::seeded(&geometry(), seed);
    let mut promised = Promised::default();
    for life in 0..3 {
        let host = Host::new(&cluster, seed * 31 + life, steps + life * 97, faults);
        let end = catch_unwind(AssertUnwindSafe(|| live(&host, &mut promised)));
        if let Err(panic) = end
            && !panic.is::<Died>()
        {
            let text = panic.downcast_ref::<String>().cloned();
            return Err(text.unwrap_or_else(|| "an assertion failed".to_owned()));
        }
        host.crash();
    }
    // A last one that lives long enough to look.
    let host = Host::new(&cluster, seed, u64::MAX, Faults::default());
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let region = Region::from_parts(Arc::clone(&host.control), host.payload_files.clone())
            .expect("whole");
        let kept = recover(&region, &region.payload_file(&region.claim_unlocked(1)));
        let end = kept.last().map_or(promised.released, |(base, _)| base + 1);
        assert!(
            end >= promised.acked,
            "I6: acknowledged {}, found {end}",
            promised.acked
        );
    }));
    looked.map_err(|_| "the last look failed".to_owned())
}

#[test]
fn a_broker_may_die_at_any_even_step() {
    die_after((0..500).step_by(2));
}

#[test]
fn a_broker_may_die_at_any_odd_step() {
    die_after((1..500).step_by(2));
}

fn die_after(steps: impl Iterator<Item = u64>) {
    for steps in steps {
        let seed = steps % 7 + 1;
        lives(seed, steps, Faults::default())
            .unwrap_or_else(|why| panic!("seed {seed}, {steps} steps: {why}"));
    }
}

#[test]
fn the_same_seed_gives_the_same_memory() {
    let run = || {
        let cluster = Cluster::seeded(&geometry(), 5);
        let host = Host::new(&cluster, 3, 700, Faults::default());
        let ended = catch_unwind(AssertUnwindSafe(|| live(&host, &mut Promised::default())));
        assert!(ended.is_err_and(|panic| panic.is::<Died>()));
        host.crash();
        let view = cluster.control.view();
        let mut bytes = vec![0; view.len() as usize];
        view.read(0, &mut bytes);
        bytes
    };
    assert!(run() == run());
}

/// Proves that the checks above can fail.
#[test]
fn dropped_write_backs_are_noticed() {
    let faults = Faults {
        drop_write_backs: true,
    };
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let noticed = (0..20)
        .filter(|i| lives(i + 1, 400, faults).is_err())
        .count();
    std::panic::set_hook(quiet);
    assert!(noticed >= 15, "only {noticed} of 20 runs noticed");
}

#[test]
fn a_row_or_cell_holds_the_old_or_the_new_at_any_step() {
    for steps in 0..200 {
        let cluster = Cluster::seeded(&geometry(), steps + 1);
        let host = Host::new(&cluster, steps, u64::MAX, Faults::default());
        let region = Region::from_parts(Arc::clone(&host.control), host.payload_files.clone())
            .expect("whole");
        let mut records = region.topic_record_writer(&region.claim_unlocked(0));
        records.store(1, &[1; 300]).expect("it fits");
        rewrite(&*host.control, 8192, NONCE, 1, &[1; 56]);
        host.control.steps_left.store(steps, Ordering::Relaxed);
        let stored = std::cell::Cell::new(1);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            for version in 2..4 {
                rewrite(&*host.control, 8192, NONCE, version, &[version as u8; 56]);
                records.store(1, &[version as u8; 300]).expect("it fits");
                stored.set(version);
            }
        }));
        host.crash();
        let row = read_row(&cluster.control.host(99), 8192, NONCE).found();
        let (version, body) = row.expect("old or new");
        assert_eq!(body, [version as u8; 56]);
        let seen = cluster.host(99).topic_records().load(1);
        let (_, payload) = seen.found().expect("old or new");
        let written = u32::from(payload[0]);
        assert_eq!(payload, [written as u8; 300]);
        for found in [version, written] {
            assert!(
                (stored.get()..=stored.get() + 1).contains(&found),
                "{steps} steps: {found}"
            );
        }
        assert!(ended.is_err() || stored.get() == 3);
    }
}
