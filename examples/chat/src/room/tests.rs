use super::*;

const ANNA: MemberId = [1; 16];
const BEN: MemberId = [2; 16];

fn join(name: &str, room: u64, seen: u64) -> Join {
    Join {
        name: name.to_owned(),
        member: Vec::new(),
        room,
        seen,
    }
}

fn texts(room: &Room, after: u64) -> Vec<&str> {
    room.lines_after(after).map(|it| it.text.as_str()).collect()
}

/// anna is in by session 1, and has said "one" and "two".
fn room() -> Room {
    let mut room = Room::new(7);
    let entered = room.enter(1, ANNA, &join("anna", 0, 0)).unwrap();
    assert!(entered.is_news);
    assert_eq!(entered.welcome.room, 7);
    assert_eq!((entered.welcome.heard, entered.welcome.after), (0, 0));
    assert_eq!(room.say(1, ANNA, 1, "one").unwrap().line, 1);
    assert_eq!(room.say(1, ANNA, 2, "two").unwrap().line, 2);
    room
}

#[test]
fn a_line_that_comes_twice_is_said_once() {
    let mut room = room();
    assert_eq!(room.say(1, ANNA, 1, "one"), None);
    assert_eq!(room.say(1, ANNA, 2, "two"), None);
    // Also in another session, and after a while outside.
    assert_eq!(room.leave(1, ANNA), Some("anna"));
    let entered = room.enter(2, ANNA, &join("anna", 7, 1)).unwrap();
    assert_eq!(entered.welcome.heard, 2);
    assert_eq!(room.say(2, ANNA, 2, "two"), None);
    assert_eq!(room.say(2, ANNA, 3, "three").unwrap().line, 3);
    assert_eq!(texts(&room, 0), ["one", "two", "three"]);
}

#[test]
fn who_comes_back_gets_what_it_missed_and_who_is_new_does_not() {
    let mut room = room();
    for (in_room, seen, after) in [(7, 1, 1), (7, 0, 0), (7, 99, 2), (8, 1, 2), (0, 0, 2)] {
        let entered = room.enter(2, BEN, &join("ben", in_room, seen)).unwrap();
        assert_eq!(entered.welcome.after, after, "{in_room} {seen}");
    }
    assert_eq!(texts(&room, 1), ["two"]);
    assert!(texts(&room, 2).is_empty());
    assert!(texts(&room, 99).is_empty());
}

#[test]
fn the_oldest_lines_are_forgotten_and_that_is_told() {
    let mut room = room();
    let long = "x".repeat(LINES_BYTES_MAX / 4);
    for number in 3..=6 {
        room.say(1, ANNA, number, &long).unwrap();
    }
    assert_eq!(texts(&room, 0).len(), 4);
    assert_eq!(room.lines_after(0).next().unwrap().line, 3);
    let entered = room.enter(1, ANNA, &join("anna", 7, 1)).unwrap();
    assert_eq!(entered.welcome.after, 2);
    for number in 7..7 + LINES_MAX as u64 {
        room.say(1, ANNA, number, "x").unwrap();
    }
    assert_eq!(room.lines_after(0).count(), LINES_MAX);
}

#[test]
fn a_name_is_of_one_member_and_a_new_session_of_it_takes_the_place() {
    let mut room = room();
    let refused = room.enter(2, BEN, &join("anna", 0, 0)).unwrap_err();
    assert!(refused.contains("take another name"), "{refused}");
    room.enter(2, ANNA, &join("berta", 0, 0)).unwrap_err();
    assert!(!room.enter(2, ANNA, &join("anna", 7, 2)).unwrap().is_news);
    // The old session has no say any more, and its end is nobody's leaving.
    assert_eq!(room.say(1, ANNA, 3, "three"), None);
    assert_eq!(room.leave(1, ANNA), None);
    assert_eq!(room.others(BEN), ["anna"]);
    assert!(room.say(2, ANNA, 3, "three").is_some());
    assert_eq!(room.leave(2, ANNA), Some("anna"));
    assert!(room.others(BEN).is_empty());
    assert!(room.enter(3, BEN, &join("anna", 0, 0)).unwrap().is_news);
}

#[test]
fn the_next_server_knows_all_and_expects_who_was_here() {
    let mut old = room();
    old.enter(2, BEN, &join("ben", 0, 0)).unwrap();
    let gone = [3; 16];
    old.enter(3, gone, &join("carol", 0, 0)).unwrap();
    old.say(3, gone, 5, "three").unwrap();
    old.leave(3, gone);

    let mut room = Room::from_state(old.state()).unwrap();
    assert_eq!(room.state(), old.state());
    assert_eq!(texts(&room, 1), ["two", "three"]);
    // Nobody takes the name of somebody who is expected; who comes back is no news.
    room.enter(4, gone, &join("ben", 0, 0)).unwrap_err();
    let entered = room.enter(1, ANNA, &join("anna", 7, 2)).unwrap();
    assert!(!entered.is_news);
    assert_eq!((entered.welcome.heard, entered.welcome.after), (2, 2));
    assert!(room.enter(5, gone, &join("carol", 7, 2)).unwrap().is_news);
    assert_eq!(room.say(5, gone, 5, "three"), None);
    // Who does not come is gone in the end, once.
    assert_eq!(room.give_up(), ["ben"]);
    assert!(room.give_up().is_empty());
    assert_eq!(room.others(ANNA), ["carol"]);
}

#[test]
fn a_state_that_contradicts_itself_is_none() {
    let mut state = room().state();
    state.newest = 3;
    assert!(Room::from_state(state).is_err());
    let mut state = room().state();
    state.members[0].id.pop();
    assert!(Room::from_state(state).is_err());
}

#[test]
fn the_room_has_limits() {
    let mut room = Room::new(7);
    let id = |number: usize| (number as u128).to_le_bytes();
    let enter = |room: &mut Room, number: usize| {
        let name = format!("n{number}");
        room.enter(number as u64, id(number), &join(&name, 0, 0))
    };
    for number in 0..PRESENT_MAX {
        enter(&mut room, number).unwrap();
    }
    enter(&mut room, PRESENT_MAX).unwrap_err();
    // Of those who left, the first is forgotten; those who are here are not.
    for number in PRESENT_MAX..KNOWN_MAX {
        room.leave(number as u64 - 1, id(number - 1)).unwrap();
        enter(&mut room, number).unwrap();
        room.say(number as u64, id(number), 1, "hello").unwrap();
    }
    room.leave(0, id(0)).unwrap();
    enter(&mut room, KNOWN_MAX).unwrap();
    assert_eq!(room.members.len(), KNOWN_MAX);
    assert!(!room.members.contains_key(&id(PRESENT_MAX - 1)));
    assert!(room.members.contains_key(&id(PRESENT_MAX)));
    assert!(room.members.contains_key(&id(0)));
}
