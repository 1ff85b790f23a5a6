//! A member's stay in the room, without I/O: what outlives a session that is lost.
//!
//! Invariants
//! - Each line that is typed has a number, and stays here until the room has said it.
//! - Each line of the room is shown once: what comes again has a number that was seen.

use std::collections::VecDeque;

use crate::packets::{Join, MemberId, SaidView, SayView, Welcome};

/// Most lines that wait to be said; nothing more is read from the terminal then. Twice as many would not leave
/// room in the send ring for what a session needs to be read.
pub const UNSAID_MAX: usize = 64;

pub struct Stay {
    name: String,
    member: MemberId,
    /// Where it is; none before it is in for the first time.
    place: Option<Place>,
    /// Of the line that was typed last.
    number: u64,
    unsaid: VecDeque<(u64, String)>,
}

struct Place {
    room: u64,
    speaker: u64,
    seen: u64,
}

/// What somebody who is back is told.
#[derive(Debug, PartialEq)]
pub enum Gap {
    None,
    /// So many lines of the room are not kept.
    Lines(u64),
    /// The room is a new one.
    All,
}

/// What a line of the room is for who hears it.
#[derive(Debug, PartialEq)]
pub struct Heard {
    /// So many lines before it are not kept.
    pub missed: u64,
    /// It is to be shown: it is new, and of somebody else.
    pub is_shown: bool,
}

impl Stay {
    pub fn new(name: &str, member: MemberId) -> Self {
        Self {
            name: name.to_owned(),
            member,
            place: None,
            number: 0,
            unsaid: VecDeque::new(),
        }
    }

    /// The greeting of the next session.
    pub fn join(&self) -> Join {
        let place = self.place.as_ref();
        Join {
            name: self.name.clone(),
            member: self.member.to_vec(),
            room: place.map_or(0, |it| it.room),
            seen: place.map_or(0, |it| it.seen),
        }
    }

    pub fn was_in(&self) -> bool {
        self.place.is_some()
    }

    /// It is in; now its [unsaid](Self::unsaid) lines are due.
    pub fn welcome(&mut self, welcome: &Welcome) -> Gap {
        let gap = match &self.place {
            Some(place) if place.room != welcome.room => Gap::All,
            Some(place) if place.seen < welcome.after => Gap::Lines(welcome.after - place.seen),
            _ => Gap::None,
        };
        self.place = Some(Place {
            room: welcome.room,
            speaker: welcome.speaker,
            seen: welcome.after,
        });
        self.was_said(welcome.heard);
        gap
    }

    /// A line of the room. Some before it are missing where the room forgets them faster than this end reads what it missed.
    pub fn said(&mut self, said: &SaidView<'_>) -> Heard {
        let Some(place) = &mut self.place else {
            return Heard {
                missed: 0,
                is_shown: false,
            };
        };
        let is_new = said.line > place.seen;
        let missed = said.line.saturating_sub(place.seen.saturating_add(1));
        place.seen = place.seen.max(said.line);
        let is_own = said.speaker == place.speaker;
        if is_own {
            self.was_said(said.number);
        }
        Heard {
            missed,
            is_shown: is_new && !is_own,
        }
    }

    fn was_said(&mut self, number: u64) {
        while self.unsaid.front().is_some_and(|it| it.0 <= number) {
            self.unsaid.pop_front();
        }
    }

    /// A line that was typed. There [has to be room](Self::is_full) for it.
    pub fn type_line(&mut self, text: &str) {
        debug_assert!(!self.is_full());
        self.number += 1;
        self.unsaid.push_back((self.number, text.to_owned()));
    }

    pub fn is_full(&self) -> bool {
        self.unsaid.len() >= UNSAID_MAX
    }

    /// The lines that the room has not said, in their order.
    pub fn unsaid(&self) -> impl DoubleEndedIterator<Item = SayView<'_>> + ExactSizeIterator {
        self.unsaid.iter().map(|(number, text)| SayView {
            number: *number,
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn welcome(room: u64, heard: u64, after: u64) -> Welcome {
        Welcome {
            room,
            speaker: 5,
            heard,
            after,
        }
    }

    fn said(line: u64, speaker: u64, number: u64) -> SaidView<'static> {
        SaidView {
            line,
            speaker,
            number,
            name: "anna",
            text: "hello",
        }
    }

    /// Of one that follows the last one.
    fn is_shown(stay: &mut Stay, line: SaidView<'_>) -> bool {
        let heard = stay.said(&line);
        assert_eq!(heard.missed, 0);
        heard.is_shown
    }

    fn unsaid(stay: &Stay) -> Vec<u64> {
        stay.unsaid().map(|say| say.number).collect()
    }

    /// In room 7, with the lines 1 to 3 unsaid.
    fn stay() -> Stay {
        let mut stay = Stay::new("anna", [1; 16]);
        assert!(!stay.was_in());
        assert_eq!(stay.join().room, 0);
        assert_eq!(stay.welcome(&welcome(7, 0, 20)), Gap::None);
        for text in ["a", "b", "c"] {
            stay.type_line(text);
        }
        assert_eq!(unsaid(&stay), [1, 2, 3]);
        stay
    }

    #[test]
    fn what_is_typed_stays_until_the_room_says_it() {
        let mut stay = stay();
        assert!(
            !is_shown(&mut stay, said(21, 5, 1)),
            "own lines are on the screen"
        );
        assert_eq!(unsaid(&stay), [2, 3]);
        // Or until the server tells that it has it.
        assert_eq!(stay.welcome(&welcome(7, 2, 21)), Gap::None);
        assert_eq!(unsaid(&stay), [3]);
        while !stay.is_full() {
            stay.type_line("d");
        }
        assert_eq!(stay.unsaid().len(), UNSAID_MAX);
        assert_eq!(stay.unsaid().next_back().unwrap().number, 66);
    }

    #[test]
    fn what_others_say_is_shown_once() {
        let mut stay = stay();
        assert!(is_shown(&mut stay, said(21, 6, 1)));
        assert!(!is_shown(&mut stay, said(21, 6, 1)));
        assert!(is_shown(&mut stay, said(22, 6, 2)));
        let join = stay.join();
        assert_eq!((join.room, join.seen), (7, 22));
        assert_eq!(unsaid(&stay), [1, 2, 3], "those were not its own");
    }

    #[test]
    fn a_gap_is_told() {
        let mut stay = stay();
        assert_eq!(stay.welcome(&welcome(7, 0, 25)), Gap::Lines(5));
        assert!(!is_shown(&mut stay, said(25, 6, 1)));
        assert_eq!(stay.welcome(&welcome(8, 0, 3)), Gap::All);
        assert_eq!(unsaid(&stay), [1, 2, 3], "the new room has none of them");
        assert!(is_shown(&mut stay, said(4, 6, 1)));
    }

    #[test]
    fn lines_that_are_forgotten_while_it_catches_up_are_told() {
        let mut stay = stay();
        let heard = |missed, is_shown| Heard { missed, is_shown };
        assert_eq!(stay.said(&said(24, 6, 1)), heard(3, true));
        assert_eq!(stay.said(&said(25, 6, 2)), heard(0, true));
        assert_eq!(stay.said(&said(27, 5, 1)), heard(1, false));
        assert_eq!(stay.said(&said(u64::MAX, 6, 3)).missed, u64::MAX - 28);
        assert_eq!(stay.said(&said(26, 6, 3)), heard(0, false));
    }
}
