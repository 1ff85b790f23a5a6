//! What the end of a connection says of the batches that it carried.

use super::*;

fn in_doubt() -> PublisherConfig {
    PublisherConfig {
        on_broker_loss: OnBrokerLoss::InDoubt,
        ..config()
    }
}

/// Two batches on channel A, of which the first is acknowledged; channel B is gone.
fn one_stored_and_one_out(config: PublisherConfig) -> Script {
    let mut script = Script::open(config);
    script.lose(B);
    for number in 0..2 {
        script.submit(number);
        script.sent(A);
    }
    script.ack(A, 0, &[5]);
    assert_eq!(script.outcomes(), [(0, stored(1, 5))]);
    script
}

/// The batch that a channel sends next.
fn next(script: &mut Script, channel: ChannelId) -> Option<(u64, bool)> {
    while script.sockets.channel(channel).connecting.is_none() {
        let now = script.now.0;
        script.tick_at(now + SECOND / 10);
    }
    script.open_lane(channel);
    script.sending(channel)
}

/// Acknowledgements come before it, and the broker stores nothing behind it.
#[test]
fn what_an_error_frame_leaves_unacknowledged_is_not_stored() {
    for config in [config(), in_doubt()] {
        for code in [
            ErrorCode::Backpressure,
            ErrorCode::Draining,
            ErrorCode::Timeout,
            ErrorCode::ChecksumMismatch,
        ] {
            let mut script = one_stored_and_one_out(config.clone());
            script.tell(A, &refusal(code, true, None));
            script.lose(A);
            assert_eq!(script.outcomes(), [], "{code}");
            assert_eq!(next(&mut script, A), Some((1, false)), "{code}");
        }
        let mut script = one_stored_and_one_out(config);
        script.tell(A, &refusal(ErrorCode::TooLarge, false, None));
        script.lose(A);
        let refused = Outcome::Failed(Failure::Refused(ErrorCode::TooLarge));
        assert_eq!(script.outcomes(), [(1, refused)]);
    }
}

/// It is not about a batch, and acknowledgements may have been lost with the session.
#[test]
fn the_end_of_a_session_leaves_open_what_is_stored() {
    for code in [ErrorCode::TooLarge, ErrorCode::Backpressure] {
        let mut script = one_stored_and_one_out(config());
        script.feed(A, &refused(code));
        assert!(script.sockets.channel(A).closing);
        script.lose(A);
        assert_eq!(script.outcomes(), [], "{code}");
        assert_eq!(next(&mut script, A), Some((1, true)), "{code}");

        let mut script = one_stored_and_one_out(in_doubt());
        script.feed(A, &refused(code));
        script.lose(A);
        let in_doubt = Outcome::Failed(Failure::InDoubt);
        assert_eq!(script.outcomes(), [(1, in_doubt)], "{code}");
    }
}

/// What another broker may have stored is not settled by this one.
#[test]
fn a_refusal_says_nothing_of_the_connection_before() {
    let mut script = one_stored_and_one_out(config());
    script.lose(A);
    assert_eq!(next(&mut script, A), Some((1, true)));
    script.sent(A);
    script.tell(A, &refusal(ErrorCode::Backpressure, true, None));
    script.lose(A);
    assert_eq!(next(&mut script, A), Some((1, true)));
    script.sent(A);
    script.tell(A, &refusal(ErrorCode::TooLarge, false, None));
    script.lose(A);
    let in_doubt = Outcome::Failed(Failure::InDoubt);
    assert_eq!(script.outcomes(), [(1, in_doubt)]);
    // The same if it refuses the batch, and goes on with the connection.
    let mut script = one_stored_and_one_out(config());
    script.lose(A);
    assert_eq!(next(&mut script, A), Some((1, true)));
    script.sent(A);
    script.refuse(A, 0, ErrorCode::TooLarge, &[0]);
    assert_eq!(script.outcomes(), [(1, in_doubt)]);
}

#[test]
fn what_is_refused_until_its_time_is_up_is_surely_not_stored() {
    let mut script = one_stored_and_one_out(in_doubt());
    script.tell(A, &refusal(ErrorCode::Backpressure, true, None));
    script.now = Now(30 * SECOND);
    script.lose(A);
    assert_eq!(script.outcomes(), [(1, Outcome::Failed(Failure::TimedOut))]);
}

/// Without acknowledgements it may have been stored just before; with acks 2 it may wait for the disks.
#[test]
fn what_is_stored_before_it_is_acknowledged_is_not_settled_by_an_error_frame() {
    let endings = [(ErrorCode::TooLarge, true), (ErrorCode::Timeout, false)];
    for (acks, (code, ending)) in [Acks::None, Acks::Durable]
        .into_iter()
        .flat_map(|acks| endings.map(|it| (acks, it)))
    {
        let mut script = Script::open(PublisherConfig { acks, ..config() });
        script.lose(B);
        script.submit(0);
        assert_eq!(script.sending(A), Some((0, false)));
        script.tell(A, &refusal(code, false, None));
        script.lose(A);
        match ending {
            true => assert_eq!(
                script.outcomes(),
                [(0, Outcome::Failed(Failure::InDoubt))],
                "{code}"
            ),
            false => assert_eq!(next(&mut script, A), Some((0, true)), "{code}"),
        }
    }
}
