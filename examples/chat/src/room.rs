//! The room without I/O: who is in it, what was said last, and what it has heard of whom.
//!
//! Invariants
//! - Lines have the numbers 1, 2, 3 and so on. The last ones are kept.
//! - The lines of a member have numbers of its own, which only grow. One that is not above the last one heard came
//!   twice, and is no line.
//! - A name belongs to one member at a time, also while that member is expected back.

use std::collections::{BTreeMap, VecDeque};

use crate::packets::{Join, MemberId, Said, Welcome};

mod state;

/// Most members in the room, with those that are expected back.
pub const PRESENT_MAX: usize = 500;
/// Most members of whom it is known what was heard, with those that are gone. Beyond it, who left first is forgotten.
const KNOWN_MAX: usize = 2_000;
/// Most lines that are kept for members who come back, and most bytes of text in them.
const LINES_MAX: usize = 10_000;
const LINES_BYTES_MAX: usize = 4 << 20;

// There is somebody to forget whenever somebody has to be.
const _: () = assert!(PRESENT_MAX < KNOWN_MAX);

/// Who is there, and what was said.
pub struct Room {
    /// Told apart from other rooms by this number, which is not 0.
    id: u64,
    /// The number of the last line.
    newest: u64,
    lines: VecDeque<Said>,
    /// Of the text in `lines`.
    bytes: usize,
    members: BTreeMap<MemberId, Member>,
    speakers: u64,
    /// How often somebody came or went.
    moves: u64,
}

struct Member {
    name: String,
    speaker: u64,
    /// Its last line, by its own number.
    heard: u64,
    place: Place,
    /// When it came or went last, in `moves`.
    moved: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// By this session.
    Here {
        visit: u64,
    },
    /// It was here when the server was replaced, and is on its way.
    Expected,
    Gone,
}

impl Member {
    fn is_present(&self) -> bool {
        self.place != Place::Gone
    }
}

/// Somebody was let in.
#[derive(Debug)]
pub struct Entered {
    pub welcome: Welcome,
    /// Nobody was here by this name, so the others do not know yet.
    pub is_news: bool,
}

impl Room {
    pub fn new(id: u64) -> Self {
        Self {
            id,
            newest: 0,
            lines: VecDeque::new(),
            bytes: 0,
            members: BTreeMap::new(),
            speakers: 0,
            moves: 0,
        }
    }

    /// Lets somebody in by the session `visit`. An earlier session of the same member loses its place: its connection
    /// is lost, or will be.
    ///
    /// # Errors
    /// What to change.
    pub fn enter(&mut self, visit: u64, id: MemberId, join: &Join) -> Result<Entered, String> {
        let present = || self.members.iter().filter(|(_, it)| it.is_present());
        if present().any(|(other, it)| it.name == join.name && *other != id) {
            return Err(format!("{} is here already: take another name", join.name));
        }
        let was_here = self.members.get(&id).filter(|it| it.is_present());
        if was_here.is_some_and(|it| it.name != join.name) {
            return Err("you are here already by another name".to_owned());
        }
        let is_news = was_here.is_none();
        if is_news && present().count() >= PRESENT_MAX {
            return Err("the room is full: try again later".to_owned());
        }
        if !self.members.contains_key(&id) {
            self.add(id);
        }
        self.moves += 1;
        let member = self.members.get_mut(&id).expect("it is there or was added");
        join.name.clone_into(&mut member.name);
        member.place = Place::Here { visit };
        member.moved = self.moves;
        let (speaker, heard) = (member.speaker, member.heard);
        // Who is new begins with the next line.
        let after = match join.room == self.id {
            true => join
                .seen
                .clamp(self.newest - self.lines.len() as u64, self.newest),
            false => self.newest,
        };
        let welcome = Welcome {
            room: self.id,
            speaker,
            heard,
            after,
        };
        Ok(Entered { welcome, is_news })
    }

    fn add(&mut self, id: MemberId) {
        if self.members.len() >= KNOWN_MAX {
            let gone = self.members.iter().filter(|(_, it)| !it.is_present());
            let first = gone.min_by_key(|(_, it)| it.moved).map(|(id, _)| *id);
            self.members
                .remove(&first.expect("more are known than may be here"));
        }
        self.speakers += 1;
        let member = Member {
            name: String::new(),
            speaker: self.speakers,
            heard: 0,
            place: Place::Gone,
            moved: 0,
        };
        self.members.insert(id, member);
    }

    /// A line; none if it came before, or if the member has come by another session since.
    pub fn say(&mut self, visit: u64, id: MemberId, number: u64, text: &str) -> Option<&Said> {
        let member = self.members.get_mut(&id)?;
        if member.place != (Place::Here { visit }) || number <= member.heard {
            return None;
        }
        member.heard = number;
        self.newest += 1;
        self.bytes += text.len();
        self.lines.push_back(Said {
            line: self.newest,
            speaker: member.speaker,
            number,
            name: member.name.clone(),
            text: text.to_owned(),
        });
        while self.lines.len() > LINES_MAX || self.bytes > LINES_BYTES_MAX {
            let oldest = self.lines.pop_front();
            self.bytes -= oldest.map_or(0, |said| said.text.len());
        }
        self.lines.back()
    }

    /// The lines behind this one, as far as they are kept.
    pub fn lines_after(&self, line: u64) -> impl Iterator<Item = &Said> {
        let wanted = self.newest.saturating_sub(line);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let skipped = self.lines.len().saturating_sub(wanted);
        self.lines.range(skipped..)
    }

    /// The name of a member whose session ended; none if it has come by another one since.
    pub fn leave(&mut self, visit: u64, id: MemberId) -> Option<&str> {
        let member = self.members.get_mut(&id)?;
        if member.place != (Place::Here { visit }) {
            return None;
        }
        self.moves += 1;
        member.place = Place::Gone;
        member.moved = self.moves;
        Some(&member.name)
    }

    /// The names of those who were expected back and did not come. They are gone now.
    pub fn give_up(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        for member in self.members.values_mut() {
            if member.place == Place::Expected {
                member.place = Place::Gone;
                names.push(member.name.clone());
            }
        }
        names
    }

    /// Who is in the room, except for this member.
    pub fn others(&self, than: MemberId) -> Vec<&str> {
        let members = self.members.iter();
        let others = members.filter(|(id, it)| **id != than && it.is_present());
        let mut names: Vec<_> = others.map(|(_, it)| it.name.as_str()).collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests;
