//! The room as one server tells it to the next.

use super::{Member, Place, Room};
use crate::packets::{MemberState, RoomState};

impl Room {
    /// All that it remembers.
    pub fn state(&self) -> RoomState {
        let mut members: Vec<_> = self.members.iter().collect();
        members.sort_by_key(|(_, member)| member.moved);
        RoomState {
            id: self.id,
            newest: self.newest,
            lines: self.lines.iter().cloned().collect(),
            speakers: self.speakers,
            members: members
                .into_iter()
                .map(|(id, member)| MemberState {
                    id: id.to_vec(),
                    name: member.name.clone(),
                    speaker: member.speaker,
                    heard: member.heard,
                    is_present: member.is_present(),
                })
                .collect(),
        }
    }

    /// The same room in another process. Who was in it is expected back.
    pub fn from_state(state: RoomState) -> Result<Self, &'static str> {
        let mut room = Self::new(state.id);
        room.newest = state.newest;
        room.speakers = state.speakers;
        room.bytes = state.lines.iter().map(|said| said.text.len()).sum();
        room.lines = state.lines.into();
        let lines = room.lines.iter().rev().map(|said| said.line);
        if !lines.eq((1..=room.newest).rev().take(room.lines.len())) {
            return Err("the lines of the room do not follow each other");
        }
        for member in state.members {
            let id = member.id.try_into();
            let id = id.map_err(|_| "a member of the room has no good id")?;
            room.moves += 1;
            let member = Member {
                name: member.name,
                speaker: member.speaker,
                heard: member.heard,
                place: match member.is_present {
                    true => Place::Expected,
                    false => Place::Gone,
                },
                moved: room.moves,
            };
            room.members.insert(id, member);
        }
        Ok(room)
    }
}
