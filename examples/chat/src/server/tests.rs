use std::sync::mpsc::{Receiver, Sender};

use buffa::Message as _;
use embar_session::{Client, Flow, Handler, Message, Session};

use super::hall::Hall;
use super::*;
use crate::packets::{Join, RoomState, Say, id};
use crate::room::Room;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Tells the ids of what it hears.
struct Ear(Sender<u16>);

impl Handler for Ear {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let _ = self.0.send(message.id());
        Flow::Continue
    }
}

fn come(client: &Client, server: &Server, name: &str) -> (Session, Receiver<u16>) {
    let join = Join {
        name: name.to_owned(),
        member: vec![name.len() as u8; 16],
        ..Join::default()
    };
    let (told, heard) = channel();
    let connecting = client.open(server.address(), &join.encode_to_vec(), Ear(told));
    (connecting.wait().unwrap(), heard)
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < patience, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn frozen(hall: &Hall) -> RoomState {
    RoomState::decode_from_slice(&hall.freeze()).unwrap()
}

#[test]
fn what_happens_while_the_room_is_frozen_counts_when_it_is_not() {
    let hall = Arc::new(Hall::new(Room::new(7)));
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let server = succession::serve(Server::builder().listen(any), &hall).unwrap();
    let client = Client::new().unwrap();
    let (anna, heard) = come(&client, &server, "anna");
    let say = |number| {
        let text = "hello".to_owned();
        anna.send(id::SAY, &Say { number, text })
    };
    say(1).unwrap();
    // The session is open, and the room as it was.
    assert_eq!(frozen(&hall), Room::new(7).state());
    let next = || heard.recv_timeout(LONG).unwrap();
    hall.thaw();
    assert_eq!(
        [next(), next(), next()],
        [id::WELCOME, id::PRESENT, id::SAID]
    );

    let (ben, _) = come(&client, &server, "ben");
    assert_eq!(next(), id::JOINED);
    let before = frozen(&hall);
    say(2).unwrap();
    ben.close();
    until("ben's session ends", || server.stats().sessions == 1);
    assert_eq!(frozen(&hall), before);
    hall.thaw();
    let mut news = [next(), next()];
    news.sort_unstable();
    assert_eq!(news, [id::LEFT, id::SAID]);
    assert_eq!(frozen(&hall).newest, 2);
}

#[test]
fn who_comes_back_ends_the_session_that_it_lost() {
    let hall = Arc::new(Hall::new(Room::new(7)));
    hall.thaw();
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let server = succession::serve(Server::builder().listen(any), &hall).unwrap();
    let client = Client::new().unwrap();
    let (lost, heard) = come(&client, &server, "anna");
    assert_eq!(heard.recv_timeout(LONG), Ok(id::WELCOME));
    let (anna, heard) = come(&client, &server, "anna");
    until("the first one ends", || lost.closed().is_some());
    until("so it does here", || server.stats().sessions == 1);
    let text = "I am back".to_owned();
    anna.send(id::SAY, &Say { number: 1, text }).unwrap();
    let next = || heard.recv_timeout(LONG).unwrap();
    assert_eq!(
        [next(), next(), next()],
        [id::WELCOME, id::PRESENT, id::SAID]
    );
}
