//! Events that wait for the subscriber to take them, in bounded memory.

use std::collections::VecDeque;

use crate::pubsub_event::Event;

/// A queue of at most `capacity` events. When it is full, it sums up further events until the
/// subscriber has taken the queue: it counts messages, and keeps each other event once.
#[derive(Debug)]
pub(super) struct Events {
    capacity: usize,
    queue: VecDeque<Event>,
    lost: u64,
    interrupted: bool,
    /// At most one for each subscription, which is over then.
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
    use crate::pubsub_event::{Kind, Message};
    use crate::resp::ServerError;

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
            error: ServerError::new("NOPERM"),
        }
    }

    #[test]
    fn a_full_queue_sums_up_and_gives_the_sum_when_it_is_empty() {
        let mut events = Events::new(2);
        for number in 0..4 {
            events.push(message(number));
        }
        for _ in 0..1_000 {
            events.push(Event::Interrupted);
        }
        events.push(refused("a"));
        assert_eq!(events.pop(), Some(message(0)));
        // There is room, but the sum comes first.
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
        let events = std::iter::from_fn(|| events.pop()).count();
        assert_eq!(events, 3);
    }
}
