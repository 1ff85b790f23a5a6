//! Brokers that answer nonsense to a publisher of a topic with a total order.

use super::ordered::{MILLISECOND, answer, granted};
use super::*;

#[test]
fn hostile_answers_never_panic_and_every_batch_is_resolved_once() {
    let mut random = SplitMix64::new(11);
    let codes = ErrorCode::ALL;
    for _ in 0..500 {
        let number = |random: &mut SplitMix64| match random.next_u64() % 4 {
            0 => u64::MAX - random.next_u64() % 3,
            1 => random.next_u64() % 4,
            _ => 100 + random.next_u64() % 6,
        };
        let (mark, window) = (number(&mut random), random.next_u64() % 5);
        let mut script = Script::open_with(config(), &answer(7, mark, window as u32));
        for batch in 0..4 {
            script.submit(batch);
        }
        let mut acked = [0, 0];
        for _ in 0..12 {
            let index = (random.next_u64() % 2) as usize;
            let channel = [A, B][index];
            if script.sending(channel).is_some() {
                script.sent(channel);
            }
            match random.next_u64() % 3 {
                0 => script.ack(channel, acked[index], &[number(&mut random)]),
                1 => {
                    let code = codes[(random.next_u64() % codes.len() as u64) as usize];
                    let code = if random.next_u64().is_multiple_of(2) {
                        ErrorCode::Fenced
                    } else {
                        code
                    };
                    script.refuse(channel, acked[index], code, &[number(&mut random)]);
                }
                _ => {
                    let epoch = 7 + (random.next_u64() % 3) as u32;
                    script.tell(channel, &granted(epoch, number(&mut random)));
                }
            }
            acked[index] += 1;
            script.tick_at(script.now.0 + 10 * MILLISECOND);
        }
        script.core.stop(ClientError::Closed, script.now);
        script.drain();
        script.lose(A);
        script.lose(B);
        let outcomes = script.outcomes();
        let mut resolved: Vec<u64> = outcomes.into_iter().map(|(batch, _)| batch).collect();
        resolved.sort_unstable();
        assert_eq!(resolved, [0, 1, 2, 3], "each exactly once");
    }
}
