//! What a subscriber has yet to hear, in bounded memory.

use std::collections::VecDeque;

use crate::pubsub::Event;

/// Holds so many events as they came. What comes beyond that, and until those are taken, is only
/// summed up: messages are counted, and whatever else happened is told once.
#[derive(Debug)]
pub(super) struct Events {
    capacity: usize,
    queue: VecDeque<Event>,
    lost: u64,
    interrupted: bool,
    /// At most one for each subscription, as it is over then.
    refused: VecDeque<Event>,
}

impl Events {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            queue: VecDeque::new(),
            lost: 0,
            interrupted: false,
            refused: VecDeque::new(),
        }
    }

    pub fn push(&mut self, event: Event) {
        let summed_up = self.lost > 0 || self.interrupted || !self.refused.is_empty();
        if summed_up || self.queue.len() >= self.capacity {
            match event {
                Event::Message(_) => self.lost += 1,
                Event::Lost(count) => self.lost += count,
                Event::Interrupted => self.interrupted = true,
                refused @ Event::Refused { .. } => self.refused.push_back(refused),
            }
        } else {
            self.queue.push_back(event);
        }
    }

    pub fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front().or_else(|| self.refused.pop_front());
        if event.is_some() {
            return event;
        }
        if std::mem::take(&mut self.interrupted) {
            return Some(Event::Interrupted);
        }
        let lost = std::mem::take(&mut self.lost);
        (lost > 0).then_some(Event::Lost(lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pubsub::{Kind, Message};
    use crate::resp::{ErrorKind, ServerError};

    fn message(number: u8) -> Event {
        Event::Message(Message {
            kind: Kind::Channel,
            channel: b"news".to_vec(),
            pattern: None,
            payload: vec![number],
        })
    }

    fn refused(name: &str) -> Event {
        Event::Refused {
            kind: Kind::Channel,
            name: name.into(),
            error: ServerError {
                kind: ErrorKind::NoPerm,
                text: "NOPERM".to_owned(),
            },
        }
    }

    #[test]
    fn what_is_too_much_is_summed_up_and_told_when_the_rest_was_taken() {
        let mut events = Events::new(2);
        for number in 0..4 {
            events.push(message(number));
        }
        for _ in 0..1_000 {
            events.push(Event::Interrupted);
        }
        events.push(refused("a"));
        assert_eq!(events.pop(), Some(message(0)));
        // There is room, but what was summed up comes first.
        events.push(message(4));
        events.push(refused("b"));
        assert_eq!(events.pop(), Some(message(1)));
        assert_eq!(events.pop(), Some(refused("a")));
        assert_eq!(events.pop(), Some(refused("b")));
        assert_eq!(events.pop(), Some(Event::Interrupted));
        assert_eq!(events.pop(), Some(Event::Lost(3)));
        assert_eq!(events.pop(), None);
        events.push(message(5));
        assert_eq!(events.pop(), Some(message(5)));
        assert_eq!(events.pop(), None);
    }

    #[test]
    fn interruptions_take_no_more_memory_than_messages() {
        let mut events = Events::new(2);
        for _ in 0..1_000 {
            events.push(Event::Interrupted);
        }
        let told = std::iter::from_fn(|| events.pop()).count();
        assert_eq!(told, 3);
    }
}
