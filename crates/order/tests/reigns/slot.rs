//! A process on a host of its own, or the place where one was and will be.

use std::sync::Arc;

use embar_fabric::{Device, Faults, Outage, Power, Region};

use crate::broker::Broker;
use crate::candidate::Seat;
use crate::memory::Tapped;
use crate::random::Random;
use crate::reader::Reader;

/// What runs in a process.
pub enum Actor {
    Broker(Box<Broker>),
    Seat(Box<Seat>),
    Reader(Reader),
}

impl Actor {
    pub fn step(&mut self) {
        match self {
            Self::Broker(broker) => broker.step(),
            Self::Seat(seat) => seat.step(),
            Self::Reader(reader) => reader.step(),
        }
    }
}

/// What kind of process it is, and its row, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Broker(u16),
    Seat(u16),
    Reader,
}

/// See the module.
pub struct Slot {
    pub kind: Kind,
    /// Not here while it takes a step.
    pub actor: Option<Actor>,
    /// It takes a step somewhere below on the stack, or starts.
    pub busy: bool,
    /// Grows with each process.
    pub life: u64,
    pub host: Option<Host>,
    /// It takes no step before this one.
    pub paused_until: u64,
}

impl Slot {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            actor: None,
            busy: false,
            life: 0,
            host: None,
            paused_until: 0,
        }
    }

    /// Whether its process lives.
    pub fn lives(&self) -> bool {
        let on = self.host.as_ref();
        (self.busy || self.actor.is_some()) && on.is_some_and(|on| on.power.failed().is_none())
    }

    pub fn row(&self) -> Option<u16> {
        match self.kind {
            Kind::Broker(row) | Kind::Seat(row) => Some(row),
            Kind::Reader => None,
        }
    }
}

/// A host: its view of the devices, and its power.
#[derive(Clone)]
pub struct Host {
    pub power: Power,
    memories: Vec<Arc<Tapped>>,
}

impl Host {
    pub fn new(control: &Device, blogs: &[Device], random: &mut Random) -> Self {
        let power = Power::default();
        let files = std::iter::once(control).chain(blogs);
        let view = |file: &Device| {
            Arc::new(Tapped(file.host_on(
                random.bits(),
                Faults::default(),
                &power,
            )))
        };
        let memories = files.map(view).collect();
        Self { power, memories }
    }

    pub fn region(&self) -> Region<Tapped> {
        let (control, blogs) = self
            .memories
            .split_first()
            .expect("there is a control file");
        Region::from_parts(Arc::clone(control), blogs.to_vec())
            .expect("the superblock is never written again")
    }

    /// It ends now, unless it has already.
    pub fn end(&self, outage: Outage) {
        if self.power.failed().is_none() {
            self.power.fail_after(0, outage);
        }
        self.memories
            .iter()
            .for_each(|memory| memory.0.settle_outage());
    }
}
