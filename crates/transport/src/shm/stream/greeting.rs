//! How both sides of a connection say hello, and what they have of each other then.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use embar_memory::{LentOpening, LentView, Sealed, SealedFile, SealedView};

use super::super::hello::{Descriptors, Heard, Hello, Incoming, Lent};
use super::super::layout::{MEMORIES_MAX, Sizes, violation};
use super::super::leases::ConnectionLeases;
use super::super::nap::Nap;
use super::super::receiver::Receiver;
use super::super::sender::Sender;
use super::{Link, Shm, lock};
use crate::aside::Aside;
use crate::handed::{self, Handed};
use crate::peer_user::has_trusted_peer;

#[derive(Debug)]
pub(super) struct Greeting {
    /// The side that connects says hello first.
    connects: bool,
    said: Option<(Arc<Sealed>, Sizes)>,
    heard: Incoming,
    /// How it failed, for all who ask later.
    failed: Option<(ErrorKind, String)>,
}

impl Greeting {
    pub(super) fn new(connects: bool) -> Self {
        Self {
            connects,
            said: None,
            heard: Incoming::default(),
            failed: None,
        }
    }
}

impl Shm {
    /// Goes on with the greeting, as far as it goes without waiting. True: it is over, and bytes can pass.
    ///
    /// # Errors
    /// `InvalidData` if the peer breaks a rule or hands over what is no sealed memory; `PermissionDenied` if it lends memory and is
    /// of another user; what the kernel says.
    pub(crate) fn greet(&self) -> io::Result<bool> {
        if self.is_linked() {
            return Ok(true);
        }
        let mut greeting = lock(&self.greeting);
        if let Some((kind, text)) = &greeting.failed {
            return Err(io::Error::new(*kind, text.clone()));
        }
        let done = self.greet_on(&mut greeting);
        if let Err(error) = &done {
            // Descriptors that came are of no use.
            greeting.heard = Incoming::default();
            greeting.failed = Some((error.kind(), error.to_string()));
        }
        done
    }

    fn greet_on(&self, greeting: &mut Greeting) -> io::Result<bool> {
        if greeting.connects && greeting.said.is_none() {
            let wanted = Lent::Wanted(self.options.borrows);
            greeting.said = Some(self.say_hello(wanted, None)?);
        }
        let of_connecting = !greeting.connects;
        let (hello, descriptors) = match greeting.heard.receive(self.socket(), of_connecting)? {
            Heard::Part => return Ok(false),
            Heard::Nothing if greeting.connects => return Err(ErrorKind::ConnectionReset.into()),
            Heard::Nothing => {
                self.gone.store(true, Ordering::Release);
                return Ok(false);
            }
            Heard::All(hello, descriptors) => (hello, descriptors),
        };
        // From here on only doorbells come.
        handed::refuse(self.socket());
        // Before what else leads to it, so that it is dropped after that, whatever fails.
        let mut views = PeerViews::default();
        let (peer, memories, lent) = self.map(&hello, descriptors, &mut views)?;
        let lends = self.lends_to(hello.lent)?;
        let (own, sizes) = match greeting.said.take() {
            Some(said) => said,
            None => {
                let bytes = lends.as_ref().map_or(0, |it| it.file().len());
                self.say_hello(Lent::Bytes(bytes), lends.as_ref())?
            }
        };
        let sender = Sender::new(Arc::clone(&own), Arc::clone(&peer), sizes);
        let receiver = Receiver::new(Arc::clone(&own), peer, hello.sizes, memories, lent);
        let handed = self.options.memories.iter().map(SealedFile::id);
        let leases = ConnectionLeases {
            leases: Arc::clone(receiver.leases()),
            doorbell: Arc::downgrade(&self.doorbell),
        };
        let link = Link {
            leases: Arc::new(leases),
            sender: Mutex::new(sender),
            receiver: Mutex::new(receiver),
            nap: Mutex::new(Nap::new(own)),
            handed: handed
                .chain(lends.as_ref().map(|it| it.file().id()))
                .collect(),
            lends: lends.map(Arc::new),
            _views: views,
        };
        let link = self.link.get_or_init(|| link);
        if self.ends.load(Ordering::Acquire) {
            self.end_on(link);
        }
        Ok(true)
    }

    /// Maps what the peer handed over and lends, if it may.
    fn map(
        &self,
        hello: &Hello,
        descriptors: Descriptors,
        views: &mut PeerViews,
    ) -> io::Result<PeerMemory> {
        let most = self.options.map_bytes_max;
        if hello.total_bytes() > most {
            return Err(violation(format!(
                "it hands over {} bytes of memory, and the limit is {most}",
                hello.total_bytes()
            )));
        }
        let peer = views.map(descriptors.outbox, hello.sizes.outbox_bytes())?;
        peer.populate()?;
        let memories = descriptors.memories.into_iter().zip(&hello.memories);
        let memories = memories
            .map(|(memory, len)| views.map(memory, *len))
            .collect::<io::Result<Box<[_]>>>()?;
        let lent = match descriptors.lent {
            None => None,
            Some(_) if !self.options.borrows => {
                return Err(violation("it lends memory that nobody asked for"));
            }
            Some(_) if !has_trusted_peer(self.socket())? => {
                let text = "memory is lent by a process that is neither of this user nor of root";
                return Err(io::Error::new(ErrorKind::PermissionDenied, text));
            }
            Some(lent) => {
                // By a second descriptor: the first one is closed aside, and is the last.
                let opening = lent.as_fd().try_clone_to_owned()?;
                Some(LentView::map(opening, hello.lent.bytes())?)
            }
        };
        Ok((peer, memories, lent))
    }

    /// What is lent to a peer that said this, if it may read it, and if there is a descriptor for it.
    fn lends_to(&self, said: Lent) -> io::Result<Option<LentOpening>> {
        let lends = self.options.lends.as_ref().filter(|it| !it.is_empty());
        match lends {
            Some(file) if said == Lent::Wanted(true) && has_trusted_peer(self.socket())? => {
                Ok(file.open().ok())
            }
            _ => Ok(None),
        }
    }

    /// Makes this side's outbox, and hands it over.
    fn say_hello(
        &self,
        lent: Lent,
        lends: Option<&LentOpening>,
    ) -> io::Result<(Arc<Sealed>, Sizes)> {
        let memories = &self.options.memories;
        if memories.len() > MEMORIES_MAX {
            let text = format!(
                "{} memories to hand over: at most {MEMORIES_MAX}",
                memories.len()
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let sizes = Sizes::at_least(self.options.ring_records, self.options.ring_bytes);
        let outbox = Sealed::new(sizes.outbox_bytes())?;
        let hello = Hello {
            sizes,
            memories: memories.iter().map(SealedFile::len).collect(),
            lent,
        };
        let own = outbox.handle();
        let all = [&own].into_iter().chain(memories);
        let mut descriptors: Vec<BorrowedFd<'_>> = all.map(AsFd::as_fd).collect();
        descriptors.extend(lends.map(AsFd::as_fd));
        hello.send(self.socket(), &descriptors)?;
        Ok((Arc::new(outbox), sizes))
    }
}

/// Each connection's views wait there for no longer than it takes to unmap those before.
static UNMAPPER: Aside<Arc<SealedView>> = Aside::new("embar-unmapper", drop);

/// What a peer handed over, and whatever else leads to it. When its peer is dead, the last mapping of it frees its pages, which takes
/// tens of milliseconds for 256 MiB. So this is dropped last, and unmaps it aside.
#[derive(Default)]
pub(super) struct PeerViews(Vec<Arc<SealedView>>);

impl PeerViews {
    /// Maps what a stranger handed over, and closes it here only once it is known to be memory.
    fn map(&mut self, memory: Handed, len: u64) -> io::Result<Arc<SealedView>> {
        let view = Arc::new(SealedView::map(&memory, len)?);
        drop(memory.take());
        self.0.push(Arc::clone(&view));
        Ok(view)
    }
}

impl Drop for PeerViews {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|view| UNMAPPER.give(view));
    }
}

/// The peer's outbox, what else it handed over, and what it lends.
type PeerMemory = (
    Arc<SealedView>,
    Box<[Arc<SealedView>]>,
    Option<Arc<LentView>>,
);
