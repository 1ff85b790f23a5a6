//! Tokens that are stolen, old, foreign or garbled, and peers that break the rules, by raw connections.

use embar_resume::{End, KeeperSettings, RESERVED_ID};
use embar_session::{Address, CloseReason};

use crate::support::{
    Proxy, Site, connect, connector, ended, is_open, number, opened, quick, resumed, send,
    suspended, tcp,
};
use crate::wire::{self, Wire};

fn wire_to(address: &Address) -> Wire {
    Wire::connect(tcp(address))
}

#[test]
fn a_stolen_token_takes_the_session_over_and_its_old_connection_learns_it() {
    let site = Site::start(KeeperSettings::default(), true);
    let mut victim = wire_to(&site.address());
    let first = victim.hello(&[], 0);
    assert_eq!((first.outcome, first.fresh), (wire::FRESH, 0));
    victim.message(&0u64.to_le_bytes());
    assert_eq!(number(&site.seen), 0);
    // Without a word of the old connection's end: the server may not have noticed it.
    let mut thief = wire_to(&site.address());
    let second = thief.hello(&first.token, 0);
    assert_eq!((second.outcome, second.received), (wire::RESUMED, 1));
    assert_eq!(suspended(&site.seen).reason, CloseReason::Refused);
    resumed(&site.seen);
    let (reason, text) = victim.closed();
    assert_eq!(reason, CloseReason::Refused.number());
    assert!(text.contains("resumed"), "{text}");
    // What the old connection sends does not count any more.
    thief.message(&1u64.to_le_bytes());
    assert_eq!(number(&site.seen), 1);
    // The answer to the first message was not acknowledged.
    assert_eq!(thief.next_message(), 0u64.to_le_bytes());
    assert_eq!(thief.next_message(), 1u64.to_le_bytes());
}

#[test]
fn the_client_of_a_session_that_was_taken_over_does_not_take_it_back() {
    let site = Site::start(KeeperSettings::default(), false);
    let proxy = Proxy::start(&site.address(), []);
    let connector = connector(quick());
    let (session, seen) = connect(&connector, &proxy.address);
    is_open(&session);
    let token = wire::token_in(&proxy.came_down());
    let mut thief = wire_to(&site.address());
    assert_eq!(thief.hello(&token, 0).outcome, wire::RESUMED);
    assert_eq!(ended(&seen).why, End::TakenOver);
    assert_eq!(site.keeper.sessions().len(), 1);
}

#[test]
fn old_foreign_and_garbled_tokens_get_a_fresh_session_and_disturb_no_other() {
    let site = Site::start(KeeperSettings::default(), true);
    let elsewhere = Site::start(KeeperSettings::default(), true);
    let mut one = wire_to(&site.address());
    let old = one.hello(&[], 0).token;
    drop(one);
    suspended(&site.seen);
    let mut one = wire_to(&site.address());
    let welcome = one.hello(&old, 0);
    assert_eq!(welcome.outcome, wire::RESUMED);
    // It shows that it has the new one.
    one.control(0, false);
    one.message(&7u64.to_le_bytes());
    assert_eq!(number(&site.seen), 7);
    let foreign = wire_to(&elsewhere.address()).hello(&[], 0).token;
    let mut guessed = welcome.token.clone();
    guessed[31] ^= 1;
    for (token, why) in [
        (old, wire::OLD_TOKEN),
        (guessed, wire::OLD_TOKEN),
        (foreign, wire::UNKNOWN),
        (vec![0; 32], wire::UNKNOWN),
        (vec![1; 31], wire::UNKNOWN),
        (vec![2; 500], wire::UNKNOWN),
    ] {
        let mut other = wire_to(&site.address());
        let answer = other.hello(&token, 0);
        assert_eq!((answer.outcome, answer.fresh), (wire::FRESH, why));
        assert_eq!(answer.received, 0);
    }
    one.message(&8u64.to_le_bytes());
    assert_eq!(number(&site.seen), 8);
    one.control(0, true);
    let said = one.until_frame(|frame| wire::control_of(frame).filter(|it| it.0 == 2));
    assert_eq!(said, (2, false));
}

#[test]
fn a_token_is_good_until_the_client_has_seen_the_next() {
    let site = Site::start(KeeperSettings::default(), false);
    let token = wire_to(&site.address()).hello(&[], 0).token;
    // Three answers that the client does not see.
    for _ in 0..3 {
        let mut lost = wire_to(&site.address());
        assert_eq!(lost.hello(&token, 0).outcome, wire::RESUMED);
    }
    let mut back = wire_to(&site.address());
    let welcome = back.hello(&token, 0);
    back.control(0, true);
    back.until_frame(|frame| wire::control_of(frame).filter(|it| it.0 == 0));
    let mut late = wire_to(&site.address());
    let answer = late.hello(&token, 0);
    assert_eq!(
        (answer.outcome, answer.fresh),
        (wire::FRESH, wire::OLD_TOKEN)
    );
    let mut next = wire_to(&site.address());
    assert_eq!(next.hello(&welcome.token, 0).outcome, wire::RESUMED);
}

#[test]
fn acknowledgements_of_what_was_not_sent_or_backwards_end_the_session_with_a_reason() {
    let site = Site::start(KeeperSettings::default(), false);
    for hostile in [[1, u64::MAX], [1, 3], [2, 1], [1, 0]] {
        let mut peer = wire_to(&site.address());
        let token = peer.hello(&[], 0).token;
        let session = opened(&site.seen);
        send(&session, 0).unwrap();
        send(&session, 1).unwrap();
        peer.next_message();
        peer.next_message();
        for number in hostile {
            peer.control(number, false);
        }
        let end = ended(&site.seen);
        assert!(matches!(end.why, End::BadPeer { .. }), "{hostile:?}: {end}");
        let (reason, text) = peer.closed();
        assert_eq!(reason, CloseReason::Refused.number());
        assert!(text.contains("acknowledged"), "{text}");
        let mut again = wire_to(&site.address());
        let answer = again.hello(&token, 0);
        assert_eq!((answer.outcome, answer.fresh), (wire::FRESH, wire::ENDED));
        opened(&site.seen);
    }
    let mut peer = wire_to(&site.address());
    peer.hello(&[], 0);
    opened(&site.seen);
    peer.frame(RESERVED_ID, &[0xFF; 9]);
    assert!(matches!(ended(&site.seen).why, End::BadPeer { .. }));
}

#[test]
fn who_resumes_with_a_number_that_cannot_be_is_refused_and_the_session_goes_on() {
    let site = Site::start(KeeperSettings::default(), true);
    let mut peer = wire_to(&site.address());
    let token = peer.hello(&[], 0).token;
    peer.message(&0u64.to_le_bytes());
    peer.next_message();
    for received in [2, u64::MAX] {
        let mut liar = wire_to(&site.address());
        liar.say_hello(&token, received);
        let (reason, text) = liar.closed();
        assert_eq!(reason, CloseReason::Refused.number());
        assert!(text.contains("acknowledged"), "{text}");
    }
    peer.message(&1u64.to_le_bytes());
    assert_eq!(peer.next_message(), 1u64.to_le_bytes());
}

#[test]
fn peers_that_do_not_resume_are_refused_with_a_text() {
    let site = Site::start(KeeperSettings::default(), false);
    for greeting in [&b""[..], b"something else"] {
        let mut plain = wire_to(&site.address());
        plain.say(greeting);
        let (reason, text) = plain.closed();
        assert_eq!(reason, CloseReason::Refused.number());
        assert!(text.contains("embar-resume"), "{text}");
    }
    // And the other way round.
    let plain = embar_session::Server::builder()
        .listen(crate::support::loopback())
        .start(|_| Silent)
        .unwrap();
    let connector = connector(quick());
    let (_, seen) = connect(&connector, &plain.address());
    let why = ended(&seen).why;
    assert!(
        matches!(&why, End::BadPeer { text } if text.contains("embar-resume")),
        "{why}"
    );
}

struct Silent;

impl embar_session::Handler for Silent {
    fn message(
        &mut self,
        _: &embar_session::Session,
        _: embar_session::Message<'_>,
    ) -> embar_session::Flow {
        embar_session::Flow::Continue
    }
}

#[test]
fn a_server_that_breaks_the_rules_ends_the_session_with_a_reason() {
    let token = [5; 32];
    for (received, outcome) in [(1, wire::FRESH), (0, wire::RESUMED), (0, 99)] {
        let server = wire::fake_server(move |connection| {
            connection.welcome(outcome, &token, 0);
            connection.control(received, false);
            while connection.try_frame().is_some() {}
        });
        let connector = connector(quick());
        let (_, seen) = connect(&connector, &server);
        let why = ended(&seen).why;
        assert!(matches!(why, End::BadPeer { .. }), "{outcome}: {why}");
    }
}

#[test]
fn an_earlier_attempt_that_comes_late_takes_nothing_over() {
    let site = Site::start(KeeperSettings::default(), false);
    let token = wire_to(&site.address()).hello(&[], 0).token;
    let mut latest = wire_to(&site.address());
    latest.say_attempt(&token, 0, 3);
    resumed(&site.seen);
    for attempt in [1, 2, 3] {
        let mut late = wire_to(&site.address());
        late.say_attempt(&token, 0, attempt);
        let (reason, text) = late.closed();
        assert_eq!(reason, CloseReason::Refused.number());
        assert!(text.contains("later connection"), "{text}");
    }
    latest.message(&5u64.to_le_bytes());
    assert_eq!(number(&site.seen), 5);
}
