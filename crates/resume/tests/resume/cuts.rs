//! Connections that are cut after each number of bytes, in both directions.

use embar_resume::{KeeperSettings, Target};

use crate::support::{
    Cut, Event, Proxy, Site, connect, connector, ended, expect, number_of, quick, recorder, send,
    until,
};

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

/// The numbers that a site has got.
fn got(site: &Site) -> Vec<u64> {
    let messages = site.seen.try_iter().filter_map(|event| match event {
        Event::Message(payload) => Some(number_of(&payload)),
        _ => None,
    });
    messages.collect()
}

/// Drains a server whose client's first connections are cut like this, and expects each message once, at one server or
/// the other, and its answer once.
fn drained(cuts: &[Cut]) {
    const MESSAGES: u64 = 40;
    let sites = [(); 2].map(|()| Site::start(KeeperSettings::default(), true));
    let proxy = Proxy::start(&sites[0].address(), cuts.iter().copied());
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let target = Target::new(&proxy.address).or(sites[1].address());
    let session = connector.open(target, handler);
    for number in 0..MESSAGES / 2 {
        send(&session, number).unwrap();
    }
    let keeper = sites[0].keeper.clone();
    let drain = std::thread::spawn(move || {
        let _ = keeper.drain(std::time::Duration::ZERO);
    });
    for number in MESSAGES / 2..MESSAGES {
        send(&session, number).unwrap();
    }
    drain.join().unwrap();
    until("all is acknowledged", || session.unacknowledged() == 0);
    expect(&seen, 0..MESSAGES);
    session.close();
    assert_eq!(ended(&seen).unacknowledged, 0, "{cuts:?}");
    let all = [got(&sites[0]), got(&sites[1])].concat();
    assert!(all.iter().copied().eq(0..MESSAGES), "{cuts:?}: {all:?}");
}

#[test]
fn each_message_comes_once_wherever_a_drain_is_cut() {
    for bytes in (0..1200).step_by(37) {
        for cut in [Cut::Up(bytes), Cut::Down(bytes)] {
            drained(&[cut]);
            drained(&[cut, cut]);
        }
    }
}
