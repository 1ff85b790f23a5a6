//! Sessions from their greeting to their end.

use embar_resume::{End, KeeperSettings, State, Target};
use embar_session::Side;

use crate::support::{
    Event, LONG, Proxy, Site, connect, connector, ended, expect, is_open, next, opened, quick,
    recorder, resumed, send, suspended,
};

#[test]
fn a_session_goes_on_when_its_connection_is_cut() {
    let site = Site::start(KeeperSettings::default(), true);
    let proxy = Proxy::start(&site.address(), []);
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let target = Target::new(&proxy.address).greeting("you");
    let session = connector.open(target, handler);
    let greeting = next(&seen, |event| match event {
        Event::Opened(_, greeting) => Some(greeting.clone()),
        _ => None,
    });
    assert_eq!(greeting, b"hello you");
    let at_server = opened(&site.seen);
    assert_eq!(session.state(), State::Open);
    for round in 0..5 {
        let numbers = round * 10..round * 10 + 10;
        for number in numbers.clone() {
            send(&session, number).unwrap();
        }
        expect(&site.seen, numbers.clone());
        expect(&seen, numbers);
        proxy.cut_all();
        suspended(&seen);
        suspended(&site.seen);
        resumed(&seen);
        resumed(&site.seen);
        assert_eq!(session.state(), State::Resumed);
        assert_eq!(at_server.state(), State::Resumed);
        assert_eq!(site.keeper.suspended(), 0);
    }
    session.close();
    let finished = |by| End::Finished { by };
    let at_client = ended(&seen);
    assert_eq!(at_client.why, finished(Side::Local));
    assert_eq!(at_client.unacknowledged, 0);
    assert_eq!(ended(&site.seen).why, finished(Side::Peer));
    assert_eq!(site.keeper.sessions().len(), 0);
    assert_eq!(session.state().ended(), Some(&at_client));
    assert!(send(&session, 0).is_err());
}

#[test]
fn what_is_sent_without_a_connection_waits_for_one() {
    let site = Site::start(KeeperSettings::default(), false);
    let proxy = Proxy::start(&site.address(), []);
    let connector = connector(quick());
    let (session, seen) = connect(&connector, &proxy.address);
    for number in 0..10 {
        send(&session, number).unwrap();
    }
    is_open(&session);
    let at_server = opened(&site.seen);
    expect(&site.seen, 0..10);
    proxy.lead_to(&"127.0.0.1:1".parse().unwrap());
    proxy.cut_all();
    suspended(&seen);
    suspended(&site.seen);
    for number in 10..20 {
        send(&session, number).unwrap();
        send(&at_server, number).unwrap();
    }
    assert!(matches!(at_server.state(), State::Resuming { attempt: 0, .. }));
    session.wait_until(LONG, |state| matches!(state, State::Resuming { attempt: 3.., .. }));
    proxy.lead_to(&site.address());
    expect(&site.seen, 10..20);
    expect(&seen, 10..20);
}
