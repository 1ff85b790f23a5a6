//! Connections that are cut after each number of bytes, in both directions.

use embar_resume::KeeperSettings;

use crate::support::{Cut, Proxy, Site, connect, connector, ended, expect, quick, send};

/// Sends numbers over connections that are cut like this, and expects each of them back once.
fn exactly_once(cuts: &[Cut]) {
    const MESSAGES: u64 = 60;
    let site = Site::start(KeeperSettings::default(), true);
    let proxy = Proxy::start(&site.address(), cuts.iter().copied());
    let connector = connector(quick());
    let (session, seen) = connect(&connector, &proxy.address);
    for number in 0..MESSAGES {
        send(&session, number).unwrap();
    }
    expect(&site.seen, 0..MESSAGES);
    expect(&seen, 0..MESSAGES);
    session.close();
    assert_eq!(ended(&seen).unacknowledged, 0, "{cuts:?}");
}

#[test]
fn each_message_comes_once_wherever_a_connection_is_cut() {
    for bytes in (0..1200).step_by(23) {
        exactly_once(&[Cut::Up(bytes)]);
        exactly_once(&[Cut::Down(bytes)]);
    }
}

#[test]
fn each_message_comes_once_when_answers_to_resumptions_are_lost() {
    for bytes in (0..220).step_by(11) {
        exactly_once(&[
            Cut::Up(500),
            Cut::Down(bytes),
            Cut::Up(bytes),
            Cut::Down(bytes),
            Cut::Down(bytes),
            Cut::Up(300),
        ]);
    }
}
