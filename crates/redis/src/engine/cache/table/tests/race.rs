//! Every order in which readers, writers, the server and the client's driver can take their steps, with the table as
//! it is: no caller reads something older than it may.

use std::collections::{HashMap, VecDeque};

use super::*;

const KEY: &str = "k1";

/// What is on its way from the server, in one order.
#[derive(Debug, Clone, Copy)]
enum Frame {
    Reply { ticket: u64, version: u64 },
    Acknowledged { version: u64 },
    Invalidate,
}

#[derive(Debug, Clone, Copy)]
enum Sent {
    Get { ticket: u64 },
    Set,
}

/// A caller that reads; `floor` is the oldest version that it may get.
#[derive(Debug, Clone, Copy)]
enum Reader {
    Idle,
    /// The entry is there, and the command is about to be sent.
    Asks {
        ticket: u64,
        floor: u64,
    },
    /// It waits for the reply to its own command.
    Waits {
        ticket: u64,
        floor: u64,
    },
    /// It waits for what another one gets.
    Shares {
        ticket: u64,
        floor: u64,
    },
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Idle,
    Waits,
    Over,
}

/// The rules, of which a test breaks one to see that it is noticed.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// Older servers report a change before they answer who made it.
    reports_first: bool,
    /// A reply is kept only if its entry is still there.
    keeps_only_asked: bool,
    /// Whoever acknowledges a write removes its key before.
    drops_own: bool,
}

const RULES: Rules = Rules {
    reports_first: false,
    keeps_only_asked: true,
    drops_own: true,
};

#[derive(Clone)]
struct World<'w> {
    rules: Rules,
    table: Table<u64>,
    slots: &'w SlotVersions,
    tracker: Arc<Tracker>,
    version: u64,
    /// The server reports the next change.
    is_tracked: bool,
    to_server: VecDeque<Sent>,
    from_server: VecDeque<Frame>,
    /// Replies that the driver has delivered, and those that callers have.
    delivered: HashMap<u64, u64>,
    shared: HashMap<u64, u64>,
    acknowledged: Option<u64>,
    readers: [Reader; 3],
    writer: Writer,
    /// Writes of another client that are to come.
    others: u8,
    /// Who begins now may not read anything older.
    floor: u64,
    tickets: u64,
}

/// A step that somebody can take.
#[derive(Debug, Clone, Copy)]
enum Step {
    Reader(usize),
    Writer,
    Other,
    Server,
    Driver,
}

const STEPS: [Step; 7] = [
    Step::Reader(0),
    Step::Reader(1),
    Step::Reader(2),
    Step::Writer,
    Step::Other,
    Step::Server,
    Step::Driver,
];

impl World<'_> {
    /// Takes a step: false if it cannot be taken now. An error: somebody read something too old.
    fn take(&mut self, step: Step) -> Result<bool, String> {
        match step {
            Step::Reader(number) => return self.read(number),
            Step::Writer => return Ok(self.write()),
            Step::Other if self.others > 0 => {
                self.others -= 1;
                self.version += 1;
                self.report();
            }
            Step::Other => return Ok(false),
            Step::Server => {
                let Some(sent) = self.to_server.pop_front() else {
                    return Ok(false);
                };
                self.serve(sent);
            }
            Step::Driver => {
                let Some(frame) = self.from_server.pop_front() else {
                    return Ok(false);
                };
                self.deliver(frame);
            }
        }
        Ok(true)
    }

    fn report(&mut self) {
        if std::mem::take(&mut self.is_tracked) {
            self.from_server.push_back(Frame::Invalidate);
        }
    }

    fn serve(&mut self, sent: Sent) {
        match sent {
            Sent::Get { ticket } => {
                let version = self.version;
                self.from_server.push_back(Frame::Reply { ticket, version });
                self.is_tracked = true;
            }
            Sent::Set => {
                self.version += 1;
                let version = self.version;
                if self.rules.reports_first {
                    self.report();
                }
                self.from_server.push_back(Frame::Acknowledged { version });
                self.report();
            }
        }
    }

    fn deliver(&mut self, frame: Frame) {
        match frame {
            Frame::Reply { ticket, version } => drop(self.delivered.insert(ticket, version)),
            Frame::Acknowledged { version } => self.acknowledged = Some(version),
            Frame::Invalidate => self.drop_key(),
        }
    }

    fn drop_key(&mut self) {
        self.table.drop_key(KEY.as_bytes(), hash(KEY.as_bytes()));
    }

    fn write(&mut self) -> bool {
        match (self.writer, self.acknowledged) {
            (Writer::Idle, _) => {
                self.to_server.push_back(Sent::Set);
                self.writer = Writer::Waits;
            }
            (Writer::Waits, Some(version)) => {
                if self.rules.drops_own {
                    self.drop_key();
                }
                self.floor = self.floor.max(version);
                self.writer = Writer::Over;
            }
            (Writer::Waits, None) | (Writer::Over, _) => return false,
        }
        true
    }

    fn read(&mut self, number: usize) -> Result<bool, String> {
        let floor = self.floor;
        self.readers[number] = match self.readers[number] {
            Reader::Idle => match self.table.find(&name(KEY), 100, u64::MAX, self.slots) {
                Found::Valid(reply) => {
                    let version = version_of(reply);
                    return self.over(number, version, floor);
                }
                Found::Asked(ticket) => Reader::Shares {
                    ticket: *ticket,
                    floor,
                },
                Found::Missing => {
                    self.tickets += 1;
                    let ticket = self.tickets;
                    self.table.ask(&name(KEY), self.slots.of(7), ticket, ticket);
                    Reader::Asks { ticket, floor }
                }
            },
            Reader::Asks { ticket, floor } => {
                self.to_server.push_back(Sent::Get { ticket });
                Reader::Waits { ticket, floor }
            }
            Reader::Waits { ticket, floor } => {
                let Some(version) = self.delivered.remove(&ticket) else {
                    return Ok(false);
                };
                self.keep(ticket, version);
                self.shared.insert(ticket, version);
                return self.over(number, version, floor);
            }
            Reader::Shares { ticket, floor } => {
                let Some(version) = self.shared.get(&ticket).copied() else {
                    return Ok(false);
                };
                return self.over(number, version, floor);
            }
            Reader::Over => return Ok(false),
        };
        Ok(true)
    }

    fn keep(&mut self, mut ticket: u64, version: u64) {
        if !self.rules.keeps_only_asked {
            ticket = u64::MAX;
            self.drop_key();
            self.table.ask(&name(KEY), self.slots.of(7), ticket, ticket);
        }
        let reply = reply(&version.to_be_bytes(), &self.tracker);
        self.table.store(&name(KEY), ticket, reply);
    }

    fn over(&mut self, number: usize, version: u64, floor: u64) -> Result<bool, String> {
        self.readers[number] = Reader::Over;
        // Who begins from now on has seen this.
        self.floor = self.floor.max(version);
        match version < floor {
            true => Err(format!("it read {version}, and {floor} was known")),
            false => Ok(true),
        }
    }

    /// Nobody can take a step any more.
    fn end(&mut self) -> Result<(), String> {
        let is_over = |reader: &Reader| matches!(reader, Reader::Over);
        assert!(self.readers.iter().all(is_over), "all get their replies");
        match self.table.find(&name(KEY), 100, u64::MAX, self.slots) {
            Found::Missing => Ok(()),
            Found::Asked(_) => Err("a request is over, and its entry is not".to_owned()),
            Found::Valid(reply) if version_of(reply) == self.version => Ok(()),
            Found::Valid(reply) => Err(format!(
                "it keeps {} for good, and there is {}",
                version_of(reply),
                self.version
            )),
        }
    }

    /// Takes all steps in all orders from here on, and counts these.
    fn go_on(&self, orders: &mut u64) -> Result<(), String> {
        let mut stuck = true;
        for step in STEPS {
            let mut next = self.clone();
            if next.take(step)? {
                stuck = false;
                next.go_on(orders)?;
            }
        }
        if stuck {
            *orders += 1;
            self.clone().end()?;
        }
        Ok(())
    }
}

fn version_of(reply: &Reply) -> u64 {
    u64::from_be_bytes((*reply.frame).try_into().expect("a version"))
}

/// What goes wrong in some order, if anything does; and how many orders there are.
fn explore(rules: Rules, readers: usize, writes: bool, others: u8) -> (Result<(), String>, u64) {
    let slots = SlotVersions::new();
    let world = World {
        rules,
        table: Table::new(10_000),
        slots: &slots,
        tracker: tracker(),
        version: 1,
        is_tracked: false,
        to_server: VecDeque::new(),
        from_server: VecDeque::new(),
        delivered: HashMap::new(),
        shared: HashMap::new(),
        acknowledged: None,
        readers: std::array::from_fn(|number| match number < readers {
            true => Reader::Idle,
            false => Reader::Over,
        }),
        writer: if writes { Writer::Idle } else { Writer::Over },
        others,
        floor: 0,
        tickets: 0,
    };
    let mut orders = 0;
    (world.go_on(&mut orders), orders)
}

/// Explores readers, whether the client writes, and how often another one does.
fn check(rules: Rules, readers: usize, writes: bool, others: u8) {
    let (found, orders) = explore(rules, readers, writes, others);
    assert_eq!(found, Ok(()), "{readers} {writes} {others}");
    assert!(orders > 100, "{orders}");
}

#[test]
fn no_order_of_replies_and_own_writes_gives_a_caller_something_older_than_it_may_read() {
    let first = Rules {
        reports_first: true,
        ..RULES
    };
    check(RULES, 2, true, 0);
    check(first, 2, true, 0);
    check(RULES, 1, true, 1);
}

#[test]
fn no_order_of_replies_and_reports_gives_a_caller_something_older_than_it_may_read() {
    check(RULES, 3, false, 1);
    check(RULES, 2, false, 2);
}

#[test]
fn a_rule_that_is_broken_is_noticed() {
    let keeps_all = Rules {
        keeps_only_asked: false,
        ..RULES
    };
    let (found, _) = explore(keeps_all, 2, false, 1);
    assert!(found.is_err());
    let leaves_own = Rules {
        drops_own: false,
        ..RULES
    };
    let (found, _) = explore(leaves_own, 2, true, 0);
    assert!(found.is_err());
    // A server that reports first needs it for what was asked before and is answered behind.
    let (found, _) = explore(keeps_all, 2, true, 0);
    assert!(found.is_err());
}
