use embar_memory::{Device, Memory, Simulated};

use super::*;

const NONCE: u32 = 0xC0FF_EE01;
const AT: u64 = 128;

fn blank() -> Simulated {
    Device::blank(4096).host(1)
}

fn flip(memory: &Simulated, at: u64, bit: u64) {
    let at = at + bit / 64 * 8;
    memory.store(at, memory.load(at) ^ 1 << (bit % 64));
}

#[test]
fn garbage_and_older_laps_are_not_records() {
    let memory = Device::new(4096, 7).host(1);
    assert_eq!(observe(&memory, 64, NONCE, 1), Seen::Nothing);
    publish(&memory, 64, &[3; 56], NONCE, 1);
    assert_eq!(observe(&memory, 64, NONCE, 1), Seen::Found([3; 56]));
    assert_eq!(observe(&memory, 64, NONCE, 2), Seen::Nothing);
    assert_eq!(observe(&memory, 64, NONCE + 1, 1), Seen::Damaged);
    withdraw(&memory, 64);
    assert_eq!(peek(&memory, 64, NONCE), Seen::Nothing);
}

#[test]
fn a_record_that_belongs_elsewhere_is_not_one_of_this_place() {
    let memory = blank();
    publish(&memory, 64, &[3; 56], NONCE, 1);
    let mut line = [0; 64];
    memory.read(64, &mut line);
    memory.write(640, &line);
    assert_eq!(peek(&memory, 640, NONCE), Seen::Damaged);
    assert_eq!(memory.damage(), [(640, Damage::Lost)]);
}

#[test]
fn one_wrong_bit_is_put_right_wherever_it_is() {
    let memory = blank();
    let body = std::array::from_fn(|i| i as u8);
    publish(&memory, AT, &body, NONCE, 5);
    for bit in 0..512 {
        flip(&memory, AT, bit);
        assert_eq!(
            peek(&memory, AT, NONCE),
            Seen::Found((5, body)),
            "bit {bit}"
        );
        assert_eq!(
            observe_closely(&memory, AT, NONCE, 5),
            Seen::Found(body),
            "bit {bit}"
        );
        assert_eq!(observe(&memory, AT, NONCE, 4), Seen::Nothing, "bit {bit}");
        assert_eq!(observe_closely(&memory, AT, NONCE, 6), Seen::Nothing);
        flip(&memory, AT, bit);
    }
    assert_eq!(memory.damage(), [(AT, Damage::Repaired)]);
}

#[test]
fn two_wrong_bits_are_told() {
    let memory = blank();
    publish(&memory, AT, &[0x5A; 56], NONCE, 5);
    for bit in 0..512 {
        for other in (bit + 1..512).step_by(151) {
            flip(&memory, AT, bit);
            flip(&memory, AT, other);
            assert_eq!(peek(&memory, AT, NONCE), Seen::Damaged, "{bit}, {other}");
            flip(&memory, AT, bit);
            flip(&memory, AT, other);
        }
    }
    assert_eq!(memory.damage(), [(AT, Damage::Lost)]);
}

#[test]
fn one_wrong_bit_makes_no_record_where_none_is() {
    let memory = blank();
    for bit in 0..512 {
        flip(&memory, AT, bit);
        assert_eq!(peek(&memory, AT, NONCE), Seen::Nothing);
        assert_eq!(observe(&memory, AT, NONCE, 1), Seen::Nothing);
        flip(&memory, AT, bit);
    }
    withdraw(&memory, AT);
    for bit in 448..512 {
        flip(&memory, AT, bit);
        assert_eq!(peek(&memory, AT, NONCE), Seen::Nothing);
        flip(&memory, AT, bit);
    }
}

#[test]
fn a_row_survives_a_writer_that_dies_half_way() {
    let memory = blank();
    assert_eq!(read_row(&memory, AT, NONCE), Seen::Nothing);
    rewrite(&memory, AT, NONCE, 1, &[1; 56]);
    rewrite(&memory, AT, NONCE, 2, &[2; 56]);
    // The third rewrite stops after its first store.
    memory.store(AT + SLOT_BYTES + COMMIT_AT, IN_PROGRESS);
    assert_eq!(read_row(&memory, AT, NONCE), Seen::Found((2, [2; 56])));
}

#[test]
fn a_row_of_which_nothing_can_be_read_is_damaged() {
    let memory = blank();
    rewrite(&memory, AT, NONCE, 1, &[1; 56]);
    rewrite(&memory, AT, NONCE, 2, &[2; 56]);
    memory.write(AT, &[7; 48]);
    assert_eq!(read_row(&memory, AT, NONCE), Seen::Found((1, [1; 56])));
    memory.write(AT + SLOT_BYTES, &[7; 48]);
    assert_eq!(read_row(&memory, AT, NONCE), Seen::Damaged);
    memory.store(AT + COMMIT_AT, IN_PROGRESS);
    assert_eq!(read_row(&memory, AT, NONCE), Seen::Damaged);
}

#[test]
fn versions_may_wrap() {
    let memory = blank();
    for version in [u32::MAX - 1, u32::MAX, 0, 1] {
        rewrite(&memory, 0, NONCE, version, &[version as u8; 56]);
        assert_eq!(
            read_row(&memory, 0, NONCE),
            Seen::Found((version, [version as u8; 56]))
        );
    }
}

#[test]
fn who_reads_while_versions_wrap_does_not_go_back() {
    // A store wrote version u32::MAX to its first slot, and somebody read it. Between the two looks of
    // the next read the store ends, with version 0 in the other slot, and another begins, with version 1.
    let looks = |slot| match slot {
        0 => Look::Found(u32::MAX - 1, "before what was read"),
        _ => Look::Found(1, "after it"),
    };
    assert_eq!(newest(looks), Seen::Found((1, "after it")));
}
