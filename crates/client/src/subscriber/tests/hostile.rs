//! Bytes that were damaged on their way to a subscriber.

use super::*;

#[test]
fn hostile_bytes_never_panic_and_never_deliver_out_of_order() {
    let mut random = SplitMix64::new(3);
    for round in 0..500 {
        let mut script = Script::open(config(), 1);
        script.subscribe(A, StartAt::Earliest, 0, 0);
        let mut bytes: Vec<u8> = (0..4)
            .flat_map(|base| batch(base, TOPIC, &[b"message"]))
            .collect();
        for _ in 0..=round % 3 {
            let at = (random.next_u64() % bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        let mut next = 0;
        for piece in bytes.chunks(50) {
            script.feed(A, piece);
            for (base, count, skip) in script.taken() {
                assert_eq!((base, skip), (next, 0));
                next = base + u64::from(count);
            }
        }
    }
}
