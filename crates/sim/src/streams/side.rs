//! An honest side of a connection: it does what a reactor does with a stream, and checks what it receives.

use std::io;
use std::io::ErrorKind;
use std::panic::panic_any;
use std::sync::Arc;

use embar_memory::Simulated;
use embar_meter::random::SplitMix64;
use embar_transport::shm::cores::{Nap, Receiver, Sender, Sizes, Taken, settle};

use super::pool::{Pool, RANGE_BYTES, Range};
use super::world::{Process, with};
use crate::random::Random;
use crate::violation::{Invariant, Violation};

/// Bytes of one receive at most.
const RECEIVE_MAX: u64 = 5000;
/// Bytes of one piece that is sent at most.
const PIECE_MAX: u64 = 3000;

/// The views that a process has of what both sides of a connection share.
pub struct Views {
    pub own: Arc<Simulated>,
    pub peer: Arc<Simulated>,
    pub own_pool: Arc<Simulated>,
    pub peer_pool: Arc<Simulated>,
}

/// One side of a connection.
pub struct Side {
    /// Its place in the world, and its peer's.
    place: usize,
    peer: usize,
    sender: Sender<Simulated, Simulated, Range>,
    receiver: Receiver<Simulated, Simulated>,
    nap: Nap<Simulated>,
    pool: Pool,
    random: Random,
    /// Bytes that it sends, of which so many are published.
    total: u64,
    sent: u64,
    ended: bool,
    /// Bytes that it received.
    got: u64,
    /// No more comes.
    heard_all: bool,
    asleep: bool,
}

/// The byte of a stream at a place. Streams are known by the place of who sends them.
fn byte_at(stream: usize, at: u64) -> u8 {
    SplitMix64::new(at ^ ((stream as u64) << 40)).next_u64() as u8
}

fn bytes_at(stream: usize, at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|at| byte_at(stream, at)).collect()
}

/// Why a side is through with its connection.
enum Over {
    /// Both sides said that no more comes, or the peer is gone.
    Ended,
    /// What the peer does means nothing any more.
    Broken(io::Error),
}

impl From<io::Error> for Over {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl Side {
    pub fn new(place: usize, views: &Views, sizes: [Sizes; 2], total: u64, random: Random) -> Self {
        let [own, peer] = sizes;
        let share = |view: &Arc<Simulated>| Arc::clone(view);
        Self {
            place,
            peer: place ^ 1,
            sender: Sender::new(share(&views.own), share(&views.peer), own),
            receiver: Receiver::new(
                share(&views.own),
                share(&views.peer),
                peer,
                [share(&views.peer_pool)].into(),
                None,
            ),
            nap: Nap::new(share(&views.own)),
            pool: Pool::new(share(&views.own_pool)),
            random,
            total,
            sent: 0,
            ended: false,
            got: 0,
            heard_all: false,
            asleep: false,
        }
    }

    /// One round of a reactor.
    fn play(&mut self) -> Result<(), Over> {
        if with(|world| world.gives_up(self.place)) {
            let named = self.sender.kept().0 > 0;
            with(|world| {
                world.count("given up", 1);
                world.count("given up while something was named", u64::from(named));
            });
            return Err(Over::Ended);
        }
        // Before the look into memory: what it published before it left is seen then.
        let gone = with(|world| world.is_gone(self.peer));
        let received = self.receive(gone)?;
        let sent = if gone { 0 } else { self.send()? };
        if self.heard_all && (self.ended || gone) {
            with(|world| world.count("ended politely", u64::from(!gone)));
            return Err(Over::Ended);
        }
        if received + sent == 0 || self.random.one_in(8) {
            self.doze(gone)?;
        }
        Ok(())
    }

    fn receive(&mut self, gone: bool) -> Result<u64, Over> {
        let mut received = 0;
        while !self.heard_all && self.random.below(4) > 0 {
            let most = self.random.size(RECEIVE_MAX);
            let mut into = vec![0; most as usize];
            match self.receiver.take(&mut into)? {
                Taken::Bytes(count) => {
                    with(|world| {
                        world.note(|| format!("{} receives {count} at {}", self.place, self.got));
                    });
                    self.check(&into[..count]);
                    received += count as u64;
                }
                Taken::End => self.heard_all = true,
                Taken::Nothing if !gone => break,
                Taken::Nothing => self.heard_all = true,
            }
            if self.receiver.tell() {
                with(|world| world.ring(self.place));
            }
        }
        if self.heard_all && with(|world| world.must_be_right(self.place)) {
            let due = with(|world| world.published(self.peer));
            if self.got < due {
                fail(
                    Invariant::I6,
                    format!(
                        "{} received {} bytes of {due} that were published, and no more comes",
                        self.place, self.got
                    ),
                );
            }
        }
        Ok(received)
    }

    fn check(&mut self, bytes: &[u8]) {
        if with(|world| world.must_be_right(self.place)) {
            let expected = bytes_at(self.peer, self.got, bytes.len() as u64);
            let wrong = bytes.iter().zip(&expected).position(|(is, due)| is != due);
            if let Some(wrong) = wrong {
                let (place, at) = (self.place, self.got + wrong as u64);
                fail(
                    Invariant::I7,
                    format!("{place} received another byte at {at} than was sent"),
                );
            }
        }
        self.got += bytes.len() as u64;
    }

    /// Sends some of what is left. Returns how many bytes.
    fn send(&mut self) -> Result<u64, Over> {
        let before = self.sent;
        self.sender.refresh()?;
        self.pool.use_again();
        while self.sent < self.total && self.random.below(3) > 0 {
            let len = self.random.size(PIECE_MAX).min(self.total - self.sent);
            let (count, how) = if self.random.one_in(3) {
                (self.name(len), "bytes named")
            } else {
                let bytes = bytes_at(self.place, self.sent, len);
                (self.sender.copy(&bytes) as u64, "bytes copied")
            };
            self.sent += count;
            with(|world| {
                world.note(|| format!("{} sends up to {}: {count} {how}", self.place, self.sent));
                world.count(how, count);
                world.has_published(self.place, self.sent);
            });
            if count == 0 {
                break;
            }
        }
        let mut news = self.sent > before;
        if self.sent == self.total && !self.ended {
            self.sender.end();
            self.ended = true;
            news = true;
        }
        if news && self.sender.must_ring() {
            with(|world| world.ring(self.place));
        }
        Ok(self.sent - before)
    }

    fn name(&mut self, len: u64) -> u64 {
        let len = len.min(RANGE_BYTES);
        if !self.sender.may_name() {
            return 0;
        }
        let bytes = bytes_at(self.place, self.sent, len);
        let Some((at, range)) = self.pool.fill(&bytes) else {
            return 0;
        };
        self.sender.name(0, at, len as u32, range);
        len
    }

    /// Falls asleep, unless something came meanwhile.
    fn doze(&mut self, gone: bool) -> Result<(), Over> {
        let room = self.sent < self.total;
        self.sender.refresh()?;
        self.pool.use_again();
        let wanted = self.sender.wanted().filter(|_| room);
        self.nap.begin(!self.heard_all, wanted);
        settle();
        let news = !self.heard_all && self.receiver.has_news();
        let has_room = || {
            let wanted = self.sender.wanted();
            wanted.is_none_or(|wanted| self.sender.has_consumed(wanted))
        };
        if gone || news || (room && has_room()) {
            self.nap.end();
        } else {
            self.asleep = true;
            with(|world| world.count("naps", 1));
        }
        Ok(())
    }

    /// What an honest side is told of its peer must be true.
    fn judge(&self, error: &io::Error) {
        let withdrawn = error.kind() == ErrorKind::ConnectionAborted;
        let is_due = withdrawn && with(|world| world.leaves(self.peer));
        if with(|world| world.lies(self.peer)) {
            with(|world| world.count("lies refused", 1));
        } else if is_due {
            with(|world| world.count("withdrawn in time", 1));
        } else if with(|world| world.must_be_right(self.place)) {
            let place = self.place;
            fail(
                Invariant::Delivery,
                format!("{place} says of an honest peer: {error}"),
            );
        }
    }

    /// Lets go of what it named, and uses that for something else.
    fn give_up(&mut self) {
        with(|world| world.begins_to_leave(self.place));
        self.sender.withdraw();
        self.pool.use_again();
    }
}

impl Process for Side {
    fn step(&mut self) -> bool {
        if self.asleep {
            if !with(|world| world.is_woken(self.place)) {
                return false;
            }
            self.nap.end();
            self.asleep = false;
        }
        let over = match self.play() {
            Ok(()) => return false,
            Err(over) => over,
        };
        if let Over::Broken(error) = over {
            self.judge(&error);
        }
        self.give_up();
        true
    }

    fn state(&self) -> String {
        format!(
            "{}: sent {} of {}, received {}, all {}, asleep {}",
            self.place, self.sent, self.total, self.got, self.heard_all, self.asleep
        )
    }
}

fn fail(invariant: Invariant, what: String) {
    panic_any(Violation { invariant, what })
}
