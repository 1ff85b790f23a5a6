//! A broker that ends the session itself, and says why with a code of the log.

use super::*;
use crate::testing::refused;

/// A subscription that is refused by the end of its session, in place of an answer.
fn ended_with(code: ErrorCode) -> Script {
    let mut script = Script::open(config(), 1);
    script.ask(A, StartAt::Earliest);
    script.feed(A, &refused(code));
    assert!(script.sockets.channel(A).closing, "{code}");
    script.lose(A);
    script
}

#[test]
fn a_session_ended_for_good_is_told_with_its_code() {
    for code in [
        ErrorCode::UnsupportedVersion,
        ErrorCode::InvalidName,
        ErrorCode::InvalidArgument,
        ErrorCode::OffsetOutOfRange,
    ] {
        let script = ended_with(code);
        let Some(ReadError::Client(ClientError::Refused {
            code: told,
            message,
        })) = script.failure()
        else {
            panic!("{:?} instead of {code}", script.failure());
        };
        assert_eq!(*told, code);
        assert!(message.contains("refused"), "the broker's words: {message}");
    }
}

#[test]
fn a_session_ended_for_now_is_tried_again() {
    for code in [
        ErrorCode::Backpressure,
        ErrorCode::Draining,
        ErrorCode::Timeout,
    ] {
        let mut script = ended_with(code);
        assert_eq!(script.failure(), None, "{code}");
        assert_eq!(script.away(), [1]);
        script.tick_at(2 * SECOND);
        script.subscribe(A, StartAt::Earliest, 0, 1);
        script.feed(A, &batch(0, TOPIC, &[b"m"]));
        assert_eq!(script.taken(), [(0, 1, 0)], "{code}");
    }
}
