//! The wall at a given rate: messages leave over bare sockets when they are due. It shows how well this machine keeps
//! time.
//!
//! As with sessions, one thread sends by the clock. The other threads sleep in the kernel until one of their sockets
//! has bytes, and take these with one call. Those of the server send them back with another call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use embar_console::interrupt::Interrupt;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::socket::{BareSocket, pair};
use super::{CALL_BYTES, groups, is_end, joined, start};
use crate::session::pace::Pace;
use crate::session::placement::Side;
use crate::session::plan::SessionPlan;
use crate::session::record::{Clock, EchoLimits, Record};

/// Sockets that one call reports.
const EVENTS: usize = 256;
/// How long to sleep before looking whether all is over; nanoseconds.
const LOOK_EVERY_NS: i64 = 50_000_000;

/// Messages as long as the payload with their number says, and `more` bytes each, echoed.
pub fn paced(
    plan: &SessionPlan,
    pace: &Pace,
    more: usize,
    interrupt: &Interrupt,
) -> Result<Vec<Record>> {
    let clock = Clock::calibrated();
    let threads = usize::from(plan.threads).min(plan.sessions as usize);
    let (mut servers, mut clients) = (groups(threads), groups(threads));
    let mut sockets = Vec::new();
    for session in 0..plan.sessions {
        let spin = std::time::Duration::from_micros(plan.spin_us);
        let (near, far) = pair(plan.transport, spin).context("cannot connect bare sockets")?;
        let near = Arc::new(near);
        let place = session as usize % threads;
        servers[place].push(far);
        clients[place].push(ClientSocket {
            socket: near.clone(),
            record: Record::new(
                session,
                plan.iterations,
                plan.in_flight,
                EchoLimits::of(plan),
            ),
            part: 0,
        });
        sockets.push(near);
    }
    let len = |session, sequence| plan.payload.len(session, sequence) + more;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (mut serving, mut asking) = (Vec::new(), Vec::new());
        for group in servers {
            let over = &over;
            serving.push(start(scope, plan, Side::Server, || serve(group, over))?);
        }
        for mut group in clients {
            let over = &over;
            let take = move || {
                let taken = take(&mut group, plan, pace, len, clock, over);
                taken.map(|()| group)
            };
            asking.push(start(scope, plan, Side::Client, take)?);
        }
        let send = move || {
            let bytes = vec![7; len_max(plan) + more];
            pace.send_all(plan, interrupt, |session, sequence| {
                let socket = &sockets[session as usize];
                socket.send_all(&bytes[..len(session, sequence)]).is_ok()
            })
        };
        let sent = joined(start(scope, plan, Side::Client, send)?);
        if sent.is_err() {
            over.store(true, Ordering::Relaxed);
        }
        let taken: Vec<_> = asking.into_iter().map(joined).collect();
        over.store(true, Ordering::Relaxed);
        let served: Vec<_> = serving.into_iter().map(joined).collect();
        // What failed first comes first: sockets that break after that say nothing new.
        sent?;
        served.into_iter().collect::<Result<()>>()?;
        let mut records = Vec::new();
        for clients in taken {
            records.extend(clients?.into_iter().map(|client| client.record));
        }
        records.sort_by_key(Record::session);
        Ok(records)
    })
}

fn len_max(plan: &SessionPlan) -> usize {
    plan.payload.max as usize
}

/// The client's end of one socket.
struct ClientSocket {
    socket: Arc<BareSocket>,
    record: Record,
    /// Bytes of a message that is still incomplete.
    part: usize,
}

/// Sockets by their place in a group, and which of them have something.
struct ReadySockets {
    epoll: std::os::fd::OwnedFd,
    events: Vec<epoll::Event>,
}

impl ReadySockets {
    fn new<'a>(sockets: impl Iterator<Item = &'a BareSocket>) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (socket, place) in sockets.zip(0..) {
            epoll::add(&epoll, socket, EventData::new_u64(place), EventFlags::IN)?;
        }
        let events = Vec::with_capacity(EVENTS);
        Ok(Self { epoll, events })
    }

    /// Waits until some are ready, at most for a while; returns their places.
    fn ready(&mut self) -> Result<impl Iterator<Item = usize>> {
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: LOOK_EVERY_NS,
        };
        self.events.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| event.data.u64() as usize))
    }
}

fn serve(group: Vec<BareSocket>, over: &AtomicBool) -> Result<()> {
    let mut sockets = ReadySockets::new(group.iter())?;
    let mut buffer = vec![0; CALL_BYTES];
    while !over.load(Ordering::Relaxed) {
        for place in sockets.ready()? {
            let socket = &group[place];
            let passed = socket
                .receive(&mut buffer)
                .and_then(|count| socket.send_all(&buffer[..count]));
            match passed.map_err(anyhow::Error::from) {
                Err(error) if is_end(&error) => return Ok(()),
                other => other?,
            }
        }
    }
    Ok(())
}

/// Takes all that comes back.
fn take(
    group: &mut [ClientSocket],
    plan: &SessionPlan,
    pace: &Pace,
    len: impl Fn(u32, u64) -> usize,
    clock: Clock,
    over: &AtomicBool,
) -> Result<()> {
    let mut sockets = ReadySockets::new(group.iter().map(|client| &*client.socket))?;
    let mut buffer = vec![0; CALL_BYTES];
    let mut left = group.len() as u64 * plan.iterations;
    while left > 0 && !over.load(Ordering::Relaxed) {
        for place in sockets.ready()? {
            let client = &mut group[place];
            client.part += client.socket.receive(&mut buffer)?;
            let now = clock.now();
            let record = &mut client.record;
            while !record.is_complete() {
                let (session, sequence) = (record.session(), record.next_to_arrive());
                let Some(rest) = client.part.checked_sub(len(session, sequence)) else {
                    break;
                };
                client.part = rest;
                record.sent(pace.due(session, sequence));
                record.arrived(now, true);
                left -= 1;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::payloads::Payload;
    use super::super::super::plan::tests::plan;
    use super::super::super::plan::{Test, Transport};
    use embar_console::interrupt::Interrupted;

    use super::*;

    fn many(transport: Transport, threads: u16) -> SessionPlan {
        SessionPlan {
            test: Test::Rate,
            rate: Some(50_000),
            transport,
            threads,
            sessions: 7,
            iterations: 50,
            payload: Payload { min: 1, max: 9_000 },
            ..plan()
        }
    }

    #[test]
    fn messages_of_every_size_come_back_on_every_socket() {
        for (transport, threads) in [(Transport::Tcp, 1), (Transport::Unix, 2)] {
            let plan = many(transport, threads);
            let pace = Pace::new(plan.sessions, 50_000);
            let records = paced(&plan, &pace, 19, &Interrupt::default()).expect("sockets work");
            for (record, session) in records.iter().zip(0..) {
                assert_eq!((record.session(), record.lost()), (session, 0));
                assert_eq!(record.latencies().len() as u64, plan.iterations);
            }
            assert_eq!(records.len(), 7);
        }
    }

    #[test]
    fn an_interrupt_ends_it() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        let plan = many(Transport::Tcp, 1);
        let pace = Pace::new(plan.sessions, 50_000);
        let error = paced(&plan, &pace, 19, &interrupt).expect_err("interrupted");
        assert!(error.is::<Interrupted>(), "{error:#}");
    }
}
