use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_memory::PayloadFile;

use crate::common::small;
use crate::setup::Setup;

const UNIT: u32 = 64 << 10;

pub fn what_is_committed_is_read_elsewhere<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let payload_file = here.payload_file(&S::claim(&here, 1));
    let mut extent = payload_file.allocate(UNIT).expect("free");
    let bytes: Vec<u8> = (0..1000).map(|i| i as u8).collect();
    let mut reservation = extent.reserve(1000).expect("fresh");
    reservation.write(0, &bytes[..333]);
    reservation.write(333, &bytes[333..]);
    reservation.with_bytes(300..400, |part| assert_eq!(part, &bytes[300..400]));
    let span = reservation.commit();
    span.with_bytes(|read| assert_eq!(read, bytes));
    let (at, block) = (span.at(), extent.at());
    drop((span, extent, payload_file));

    let there = setup.host();
    let payload_file = there.payload_file(&S::claim(&there, 1));
    let mut extent = payload_file.allocate_at(block, 0).expect("free again");
    extent.set_cursor(1000);
    extent
        .span(at, 1000)
        .expect("recovered")
        .with_bytes(|read| assert_eq!(read, bytes));
}

pub fn a_block_stays_until_nobody_holds_it<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let payload_file = here.payload_file(&S::claim(&here, 1));
    let total = payload_file.total_bytes();
    assert_eq!(
        (total, payload_file.free_bytes()),
        (4 * u64::from(UNIT), total)
    );
    let mut extent = payload_file.allocate(UNIT + 1).expect("free");
    assert_eq!((extent.len(), extent.order()), (2 * UNIT, 1));
    assert_eq!(payload_file.free_bytes(), total - 2 * u64::from(UNIT));
    let open = extent.reserve(64).expect("fresh");
    let span = extent.reserve(64).expect("fresh").commit();
    let copy = span.clone();
    assert_eq!(extent.pins(), 3);
    drop(span);
    assert_eq!(extent.pins(), 2);
    drop(extent);
    drop(open);
    assert_eq!(
        payload_file.free_bytes(),
        total - 2 * u64::from(UNIT),
        "a span still holds it"
    );
    let rest: Vec<_> = std::iter::from_fn(|| payload_file.allocate(1)).collect();
    assert_eq!(rest.len(), 2, "nothing of the held block");
    drop(copy);
    assert_eq!(payload_file.free_bytes(), 2 * u64::from(UNIT));
    drop(rest);
    assert_eq!(payload_file.free_bytes(), total);
}

pub fn reservations_are_aligned_and_bounded<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let payload_file = here.payload_file(&S::claim(&here, 1));
    assert!(payload_file.allocate(u32::MAX).is_none());
    let mut extent = payload_file.allocate(UNIT).expect("free");
    assert!(extent.reserve(0).is_none());
    assert!(extent.reserve(UNIT + 1).is_none());
    assert!(extent.reserve(u32::MAX).is_none());
    let odd = extent.reserve(65).expect("fresh");
    assert_eq!(odd.len(), 65);
    let after = extent.reserve(1).expect("room");
    assert_eq!(after.at(), odd.at() + 128);
    assert!(after.at().is_multiple_of(64));
    assert_eq!(extent.remaining(), UNIT - 192);
    assert!(extent.reserve(UNIT - 192).is_some(), "to the last byte");
    assert!(extent.reserve(1).is_none());
}

pub fn the_last_reservation_can_be_given_back<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let payload_file = here.payload_file(&S::claim(&here, 1));
    let mut extent = payload_file.allocate(UNIT).expect("free");
    let mut other = payload_file.allocate(UNIT).expect("free");
    let kept = extent.reserve(64).expect("fresh");
    let (first, second) = (
        extent.reserve(100).expect("room"),
        extent.reserve(1).expect("room"),
    );
    let (at, end) = (first.at(), second.at());
    assert!(!extent.give_back(first), "something lies behind it");
    assert!(
        !other.give_back(extent.reserve(64).expect("room")),
        "not its own"
    );
    assert_eq!(extent.remaining(), UNIT - 320);
    let last = extent.reserve(65).expect("room");
    assert!(extent.give_back(last));
    assert_eq!(extent.remaining(), UNIT - 320);
    assert_eq!(
        extent.reserve(UNIT - 320).expect("all the rest").at(),
        end + 128
    );
    assert_eq!((kept.at() + 64, extent.pins()), (at, 2));
}

pub fn spans_slice_and_join<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let payload_file = here.payload_file(&S::claim(&here, 1));
    let mut extent = payload_file.allocate(UNIT).expect("free");
    let mut filled = |byte: u8| {
        let mut reservation = extent.reserve(64).expect("room");
        reservation.write(0, &[byte; 64]);
        reservation.commit()
    };
    let (a, b, c) = (filled(1), filled(2), filled(3));
    let joined = a.join(&b).and_then(|ab| ab.join(&c)).expect("adjacent");
    assert_eq!(joined.len(), 192);
    joined.slice(63..130).with_bytes(|bytes| {
        assert_eq!(
            (bytes[0], bytes[1], bytes[64], bytes[65], bytes.len()),
            (1, 2, 2, 3, 67)
        );
    });
    assert!(a.join(&c).is_none() && b.join(&a).is_none());
    let mut other = payload_file.allocate(UNIT).expect("free");
    let stranger = other.reserve(64).expect("fresh").commit();
    assert!(c.join(&stranger).is_none());
    assert!(catch_unwind(AssertUnwindSafe(|| a.slice(0..65))).is_err());
}

pub fn recovery_finds_the_bytes<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let payload_file = here.payload_file(&S::claim(&here, 1));
    let inside = 3 * u64::from(UNIT) + 5;
    let (start, end) = PayloadFile::<S::M>::locate(inside, 10, 1).expect("in one block");
    assert_eq!((start, end), (2 * u64::from(UNIT), UNIT + 15));
    let mut extent = payload_file.allocate_at(start, 1).expect("free");
    extent.set_cursor(100);
    extent.set_cursor(130);
    assert_eq!(extent.remaining(), 2 * UNIT - 192);
    assert!(extent.span(start, 192).is_some());
    let fresh = extent.reserve(64).expect("room");
    assert_eq!(
        fresh.at(),
        start + 192,
        "never inside of what was recovered"
    );
    assert!(
        catch_unwind(AssertUnwindSafe(|| extent.set_cursor(256))).is_err(),
        "too late"
    );
}

pub fn wild_numbers_are_refused<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let payload_file = here.payload_file(&S::claim(&here, 1));
    for (at, order) in [(1, 0), (u64::MAX, 0), (1 << 40, 3), (0, 3), (0, 255)] {
        assert!(
            payload_file.allocate_at(at, order).is_none(),
            "{at} {order}"
        );
    }
    let mut extent = payload_file.allocate_at(u64::from(UNIT), 0).expect("free");
    extent.set_cursor(64);
    for (at, len) in [
        (0, 64),
        (u64::from(UNIT), 65),
        (u64::from(UNIT), 0),
        (u64::MAX, 1),
        (u64::from(UNIT) + 64, 64),
    ] {
        assert!(extent.span(at, len).is_none(), "{at}+{len}");
    }
    for (at, len, order) in [
        (0, 1, 9),
        (0, UNIT + 1, 0),
        (u64::MAX, 2, 3),
        (0, u32::MAX, 8),
    ] {
        assert_eq!(
            PayloadFile::<S::M>::locate(at, len, order),
            None,
            "{at}+{len}"
        );
    }
}

pub fn a_second_payload_file_panics<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let claim = S::claim(&here, 1);
    let payload_file = here.payload_file(&claim);
    let span = payload_file
        .allocate(1)
        .and_then(|mut e| e.reserve(1))
        .expect("free")
        .commit();
    drop(payload_file);
    assert!(
        catch_unwind(AssertUnwindSafe(|| here.payload_file(&claim))).is_err(),
        "a span still lives"
    );
    drop(span);
    drop(here.payload_file(&claim));
    assert!(
        catch_unwind(AssertUnwindSafe(|| here.payload_file(&S::claim(&here, 0)))).is_err(),
        "takes no data"
    );
}
