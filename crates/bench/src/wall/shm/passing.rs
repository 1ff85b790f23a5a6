//! Two threads, or three, pass batches.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use embar_console::interrupt::{Interrupt, Interrupted};
use embar_frame::Crc;

use super::hand_over::{Counter, HandOver};
use super::messages::{Shape, copy_checked, sum};
use super::pieces::Pieces;

/// Batches that were handed over and not acknowledged, at most.
const IN_FLIGHT: u64 = 8;

/// How bytes get into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The side that takes copies them, and checksums its copy.
    Copied,
    /// As `Copied`; the side that gives writes past the caches.
    Streamed,
    /// As `Copied`; also a third thread touches each byte of the ring.
    CopiedAndFollowed,
    /// The side that gives builds messages there, and checksums them. The other one looks at records.
    InPlace,
}

/// A trial.
pub struct Passing<'a> {
    pub way: Way,
    pub shape: Shape,
    /// How many batches.
    pub number: u64,
    pub ring: &'a Pieces,
    /// What is copied from.
    pub batches: &'a Pieces,
    pub interrupt: &'a Interrupt,
}

impl Passing<'_> {
    /// Runs it; returns the time from the first message until the last acknowledgement, or until all is followed.
    pub fn run(&self) -> Result<Duration> {
        let hand_over = &HandOver::new(self.interrupt)?;
        let followed = self.way == Way::CopiedAndFollowed;
        let sides = if followed { 3 } else { 2 };
        let side = |work: fn(&Self, &HandOver) -> Result<()>| {
            move || {
                hand_over.side(|| {
                    hand_over.meet(sides)?;
                    work(self, hand_over)
                })
            }
        };
        thread::scope(|scope| {
            let mut others = vec![scope.spawn(side(Self::take))];
            if followed {
                others.push(scope.spawn(side(Self::follow)));
            }
            let gave = hand_over.side(|| {
                hand_over.meet(sides)?;
                let started = Instant::now();
                self.give(hand_over)?;
                Ok(started.elapsed())
            });
            let mut ended = vec![gave.map(Some)];
            for other in others {
                let other = other.join();
                let other = other.map_err(|_| anyhow!("a thread of the wall panicked"));
                ended.push(other.flatten().map(|()| None));
            }
            first_failure(ended)
        })
    }

    /// Puts messages into batches, hands them over, and waits for the last acknowledgement.
    fn give(&self, hand_over: &HandOver) -> Result<()> {
        let value = vec![0x5a; self.shape.message_bytes()];
        for number in 0..self.number {
            hand_over.check()?;
            hand_over.spin(|| {
                let taken = hand_over.counted(Counter::Taken);
                (number - taken < IN_FLIGHT).then_some(())
            })?;
            // Few enough that they stay in the caches.
            let place = number % IN_FLIGHT;
            let (shape, mut crc) = (self.shape, Crc::new());
            match self.way {
                Way::Copied | Way::CopiedAndFollowed => {
                    let fill = |batch: &mut [u8]| shape.fill(batch, &value);
                    self.batches.with(place, fill);
                }
                Way::Streamed => self.batches.with(place, |batch| {
                    shape.stream(batch, &value, |_| {});
                }),
                Way::InPlace => self.ring.with(number, |batch| {
                    shape.stream(batch, &value, |part| crc.update(part));
                }),
            }
            let bytes = self.shape.used() as u64;
            let record = [
                place,
                bytes,
                self.shape.messages(),
                crc.value().into(),
                0,
                0,
                0,
            ];
            hand_over.put(number, &record);
        }
        let last = if self.way == Way::CopiedAndFollowed {
            Counter::Followed
        } else {
            Counter::Taken
        };
        hand_over.spin(|| (hand_over.counted(last) == self.number).then_some(()))
    }

    fn take(&self, hand_over: &HandOver) -> Result<()> {
        let mut crcs = 0;
        for number in 0..self.number {
            let record = hand_over.spin(|| hand_over.get(number))?;
            let [from, bytes, _messages, crc, ..] = record;
            if self.way == Way::InPlace {
                crcs ^= crc;
            } else {
                self.wait_for_follower(hand_over, number)?;
                crcs ^= u64::from(self.copy(from, number, bytes as usize)?);
                hand_over.count(Counter::Readable, number + 1);
            }
            hand_over.count(Counter::Taken, number + 1);
        }
        std::hint::black_box(crcs);
        Ok(())
    }

    /// What the third thread has not touched yet is not written again.
    fn wait_for_follower(&self, hand_over: &HandOver, number: u64) -> Result<()> {
        if self.way != Way::CopiedAndFollowed {
            return Ok(());
        }
        hand_over.spin(|| {
            let followed = hand_over.counted(Counter::Followed);
            (number - followed < self.ring.count()).then_some(())
        })
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<u32> {
        self.batches.with(from, |batch| {
            ensure!(bytes <= batch.len(), "a batch of {bytes} bytes");
            Ok(self
                .ring
                .with(to, |into| copy_checked(&mut into[..bytes], &batch[..bytes])))
        })
    }

    fn follow(&self, hand_over: &HandOver) -> Result<()> {
        let mut all = 0u64;
        for number in 0..self.number {
            hand_over.spin(|| (hand_over.counted(Counter::Readable) > number).then_some(()))?;
            let used = self.shape.used();
            all = all.wrapping_add(self.ring.with(number, |batch| sum(&batch[..used])));
            hand_over.count(Counter::Followed, number + 1);
        }
        std::hint::black_box(all);
        Ok(())
    }
}

/// What the sides returned, or the error of the one that failed first: the others only say that they were given up.
fn first_failure(mut ended: Vec<Result<Option<Duration>>>) -> Result<Duration> {
    let given_up = |side: &Result<_>| side.as_ref().is_err_and(|error| error.is::<Interrupted>());
    ended.sort_by_key(given_up);
    let times: Vec<_> = ended.into_iter().collect::<Result<_>>()?;
    times.into_iter().flatten().next().context("nobody gave")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_in_the_ring_each_way() {
        let (batch_bytes, message_bytes) = (64 << 10, 100);
        let shape = Shape::new(batch_bytes, message_bytes).expect("fits");
        let mut expected = vec![0; batch_bytes as usize];
        shape.fill(&mut expected, &[0x5a; 100]);
        for way in [
            Way::Copied,
            Way::Streamed,
            Way::CopiedAndFollowed,
            Way::InPlace,
        ] {
            let ring = Pieces::new(16 << 20, batch_bytes).expect("memory");
            let batches = Pieces::new(16 << 20, batch_bytes).expect("memory");
            // More than the ring has, so that it comes around.
            let number = ring.count() + 3 * IN_FLIGHT;
            let passing = Passing {
                way,
                shape,
                number,
                ring: &ring,
                batches: &batches,
                interrupt: &Interrupt::default(),
            };
            assert!(passing.run().expect("passed") > Duration::ZERO);
            for piece in 0..ring.count() {
                ring.with(piece, |batch| {
                    let body = 64..shape.used();
                    assert!(batch[body.clone()] == expected[body], "{way:?} {piece}");
                });
            }
        }
    }

    #[test]
    fn a_signal_ends_a_trial() {
        let pieces = || Pieces::new(16 << 20, 64 << 10).expect("memory");
        let (ring, batches, interrupt) = (pieces(), pieces(), Interrupt::default());
        interrupt.raise();
        let passing = Passing {
            way: Way::Copied,
            shape: Shape::new(64 << 10, 100).expect("fits"),
            number: u64::MAX,
            ring: &ring,
            batches: &batches,
            interrupt: &interrupt,
        };
        assert!(passing.run().is_err());
    }

    #[test]
    fn the_first_failure_is_the_one_that_is_reported() {
        let sides = |failed: bool| {
            let given_up = Err(Interrupted.into());
            let other = if failed {
                Err(anyhow!("no memory"))
            } else {
                Ok(None)
            };
            first_failure(vec![given_up, other]).expect_err("failed")
        };
        assert_eq!(sides(true).to_string(), "no memory");
        assert!(sides(false).is::<Interrupted>());
        let well = first_failure(vec![Ok(None), Ok(Some(Duration::MAX))]);
        assert_eq!(well.expect("well"), Duration::MAX);
    }
}
