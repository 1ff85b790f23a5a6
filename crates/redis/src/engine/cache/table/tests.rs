use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::validity::Tracker;
use super::*;

mod race;

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// A command of this text, whose first two letters are its key.
fn name(command: &str) -> Name<'_> {
    Name {
        command: command.as_bytes(),
        key: (0, 2),
        hash: hash(command.as_bytes()),
        key_hash: hash(&command.as_bytes()[..2]),
    }
}

fn tracker() -> Arc<Tracker> {
    let tracker = Arc::<Tracker>::default();
    tracker.opened(true);
    tracker
}

fn reply(frame: &[u8], tracker: &Arc<Tracker>) -> Reply {
    Reply {
        frame: frame.into(),
        asked_at: 100,
        expires_at: 200,
        validity: Validity::of(tracker),
    }
}

/// A table with all around it.
struct Of {
    table: Table<u64>,
    slots: SlotVersions,
    tracker: Arc<Tracker>,
    tickets: u64,
}

impl Of {
    fn new(max_bytes: usize) -> Self {
        Self {
            table: Table::new(max_bytes),
            slots: SlotVersions::new(),
            tracker: tracker(),
            tickets: 0,
        }
    }

    fn ask(&mut self, command: &str) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        self.table
            .ask(&name(command), self.slots.of(7), ticket, ticket);
        ticket
    }

    fn keep(&mut self, command: &str, frame: &str) -> bool {
        let ticket = self.ask(command);
        let reply = reply(frame.as_bytes(), &self.tracker);
        self.table.store(&name(command), ticket, reply)
    }

    /// The frame, `asked`, or nothing.
    fn at(&mut self, command: &str, now: u64, max_age: u64) -> String {
        match self.table.find(&name(command), now, max_age, &self.slots) {
            Found::Valid(reply) => String::from_utf8(reply.frame.to_vec()).expect("text"),
            Found::Asked(_) => "asked".to_owned(),
            Found::Missing => String::new(),
        }
    }

    fn find(&mut self, command: &str) -> String {
        self.at(command, 100, u64::MAX)
    }

    fn drop_key(&mut self, key: &str) {
        self.table.drop_key(key.as_bytes(), hash(key.as_bytes()));
    }

    /// Whether each entry is found by its command and by its key, and all are counted.
    fn check(&self) {
        let table = &self.table;
        assert_eq!(table.commands.len(), table.entries.len());
        let bytes: usize = table.entries.iter().map(Entry::bytes).sum();
        assert_eq!((bytes, bytes <= table.max_bytes), (table.bytes, true));
        let mut chained = 0;
        for head in &table.keys {
            let (mut place, mut previous) = (*head, NONE);
            let key = table.entries[place as usize].key();
            while place != NONE {
                let entry = &table.entries[place as usize];
                assert_eq!((entry.previous, entry.key()), (previous, key));
                (previous, place) = (place, entry.next);
                chained += 1;
            }
        }
        assert_eq!(chained, table.entries.len());
    }
}

#[test]
fn a_reply_is_kept_for_its_request_only() {
    let mut of = Of::new(10_000);
    assert_eq!(of.find("k1"), "");
    let first = of.ask("k1");
    assert_eq!(of.find("k1"), "asked");
    of.drop_key("k1");
    assert_eq!(of.find("k1"), "", "the next one asks anew");
    let second = of.ask("k1");
    let late = reply(b"old", &of.tracker);
    assert!(!of.table.store(&name("k1"), first, late));
    of.table.forget(&name("k1"), first);
    assert_eq!(of.find("k1"), "asked");
    let new = reply(b"new", &of.tracker);
    assert!(of.table.store(&name("k1"), second, new));
    assert_eq!(of.find("k1"), "new");
    of.table.forget(&name("k1"), second);
    assert_eq!(of.find("k1"), "new");
    of.check();
}

#[test]
fn a_change_of_a_key_takes_all_of_its_commands_and_no_other() {
    let mut of = Of::new(100_000);
    for number in 0..50 {
        assert!(of.keep(&format!("k1 {number}"), "one"));
        assert!(of.keep(&format!("k2 {number}"), "two"));
    }
    let _asked = of.ask("k1 more");
    of.check();
    of.drop_key("k1");
    of.check();
    assert_eq!((of.table.len(), of.table.counts.invalidated), (50, 51));
    assert_eq!(of.find("k1 7"), "");
    assert_eq!(of.find("k2 7"), "two");
    of.drop_key("k3");
    of.drop_key("k2");
    assert_eq!((of.table.len(), of.table.bytes()), (0, 0));
}

#[test]
fn a_reply_ages_and_expires() {
    let mut of = Of::new(10_000);
    assert!(of.keep("k1", "v"));
    assert_eq!(of.at("k1", 149, 50), "v");
    assert_eq!(of.at("k1", 150, 50), "", "who wants it younger asks anew");
    assert!(of.keep("k1", "v"));
    assert_eq!(of.at("k1", 199, u64::MAX), "v");
    assert_eq!(of.at("k1", 200, u64::MAX), "", "it has expired");
    assert_eq!(of.table.len(), 0);
}

#[test]
fn what_a_connection_brought_goes_with_it() {
    let mut of = Of::new(10_000);
    let other = tracker();
    assert!(of.keep("k1", "v"));
    let ticket = of.ask("k2");
    let early = reply(b"v", &of.tracker);
    of.tracker.renew();
    assert_eq!(of.find("k1"), "");
    assert!(!of.table.store(&name("k2"), ticket, early));
    let ticket = of.ask("k3");
    assert!(of.table.store(&name("k3"), ticket, reply(b"v", &other)));
    of.tracker.renew();
    assert_eq!(of.find("k3"), "v", "it came over another connection");
    other.opened(false);
    let ticket = of.ask("k4");
    assert!(!of.table.store(&name("k4"), ticket, reply(b"v", &other)));
}

#[test]
fn what_a_slot_brought_goes_with_it() {
    let mut of = Of::new(10_000);
    assert!(of.keep("k1", "v"));
    of.slots.renew(8);
    assert_eq!(of.find("k1"), "v");
    let asked = of.ask("k2");
    of.slots.renew(7);
    assert_eq!(
        (of.find("k1"), of.find("k2")),
        (String::new(), String::new())
    );
    let late = reply(b"v", &of.tracker);
    assert!(!of.table.store(&name("k2"), asked, late));
    assert!(of.keep("k1", "v"));
    of.slots.renew_all();
    let next = of.table.purge(0, 10, 100, &of.slots);
    assert_eq!((next, of.table.len()), (None, 0));
}

#[test]
fn purging_keeps_what_holds() {
    let mut of = Of::new(100_000);
    let other = tracker();
    for number in 0..100 {
        let command = format!("k{} {number}", number % 7);
        let ticket = of.ask(&command);
        let tracker = if number % 3 == 0 { &other } else { &of.tracker };
        let reply = reply(b"v", tracker);
        assert!(of.table.store(&name(&command), ticket, reply));
    }
    other.renew();
    let mut from = Some(0);
    while let Some(place) = from {
        from = of.table.purge(place, 8, 100, &of.slots);
        of.check();
    }
    assert_eq!(of.table.len(), 66);
}

#[test]
fn what_nobody_uses_makes_room() {
    let entry = ENTRY_BYTES + "k0 0".len() + 100;
    let mut of = Of::new(10 * entry);
    let frame = "v".repeat(100);
    for number in 0..10 {
        assert!(of.keep(&format!("k{number} 0"), &frame));
    }
    assert_eq!(of.table.counts.evicted, 0);
    for number in 0..5 {
        assert_eq!(of.find(&format!("k{number} 0")), frame);
    }
    for number in 0..5 {
        assert!(of.keep(&format!("n{number} 0"), &frame));
        of.check();
    }
    assert_eq!((of.table.counts.evicted, of.table.len()), (5, 10));
    for number in 0..5 {
        assert_eq!(of.find(&format!("k{number} 0")), frame, "it was used");
    }
    // Larger than all there is room for.
    assert!(!of.keep("l1 0", &"v".repeat(11 * entry)));
    let long = format!("l2 {}", "x".repeat(11 * entry));
    let _ticket = of.ask(&long);
    assert_eq!(of.find(&long), "");
    // As large as all.
    let rest = 10 * entry - ENTRY_BYTES - "l1 0".len();
    assert!(of.keep("l1 0", &"v".repeat(rest)));
    of.check();
    assert_eq!(of.table.len(), 1);
}

#[test]
fn whatever_happens_the_table_has_what_was_kept_last_or_nothing() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut of = Of::new(4_000);
        let mut known = HashMap::<String, String>::new();
        for step in 0..400 {
            let command = format!("k{} {}", random.u8(0..5), random.u8(0..8));
            match random.u8(0..10) {
                0 => {
                    of.drop_key(&command[..2]);
                    known.retain(|other, _| other[..2] != command[..2]);
                }
                1 => {
                    of.table.forget(&name(&command), 0);
                }
                2..6 => {
                    let found = of.find(&command);
                    let fine = found.is_empty() || known.get(&command) == Some(&found);
                    assert!(fine, "seed {seed}: {found}");
                }
                _ => {
                    of.drop_key(&command[..2]);
                    known.retain(|other, _| other[..2] != command[..2]);
                    let frame = format!("{step} {}", "v".repeat(random.usize(0..300)));
                    assert!(of.keep(&command, &frame));
                    assert_eq!(of.find(&command), frame);
                    known.insert(command, frame);
                }
            }
            of.check();
        }
        assert!(of.table.counts.evicted + of.table.counts.invalidated > 0);
    }
}
