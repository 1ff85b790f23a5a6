//! ENet, by its translation to Rust: reliable packets in order, over UDP. Each end is a thread that sleeps until its
//! socket has something, as ENet's own loop does.

use super::by_hand::{COUNT, ECHO, ONE_WAY, message, parts};
use super::{Connected, Counter, RoundTrips, check, check_count};
use anyhow::{Context as _, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rusty_enet::{Event, Host, HostSettings, Packet, PeerID};
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

/// Says that the server has so many more.
const PROGRESS: u8 = 4;

/// Messages one way that the client may be ahead of the server: ENet itself queues without a limit.
const AHEAD: u64 = 8192;
/// The server says after each so many that it has them.
const STEP: u64 = 1024;
/// How long an end sleeps when nothing comes, in milliseconds: ENet has timers to look at.
const PAUSE: u16 = 5;
/// How long nothing may come when something is due.
const PATIENCE: u128 = 120_000;

/// A connection of ENet.
pub struct Enet {
    host: Host<UdpSocket>,
    server: PeerID,
    /// What came.
    inbox: VecDeque<Packet>,
}

impl Connected for Enet {
    fn start() -> anyhow::Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let address = socket.local_addr()?;
        let server = host(socket)?;
        // It ends with this process.
        thread::Builder::new()
            .name("server".into())
            .spawn(move || serve(server))?;
        let mut host = host(UdpSocket::bind("127.0.0.1:0")?)?;
        let server = host.connect(address, 1, 0)?.id();
        let began = Instant::now();
        loop {
            match host.service()? {
                Some(Event::Connect { .. }) => break,
                Some(_) => bail!("the server did not let us in"),
                None => rest(&host, began)?,
            }
        }
        let inbox = VecDeque::new();
        Ok(Self {
            host,
            server,
            inbox,
        })
    }

    fn round_trips(&mut self, messages: u64) -> anyhow::Result<RoundTrips> {
        let mut round_trips = RoundTrips::with_capacity(messages);
        for sequence in 1..=messages {
            let begin = Instant::now();
            self.send(ECHO, sequence)?;
            self.host.flush();
            let back = self.receive()?;
            round_trips.add(begin);
            let (_, back, payload) = parts(back.data())?;
            check(sequence, back, payload)?;
        }
        Ok(round_trips)
    }

    fn one_way(&mut self, messages: u64) -> anyhow::Result<()> {
        let mut there = 0;
        for sequence in 1..=messages {
            while sequence - there > AHEAD {
                let progress = self.receive()?;
                there += progress_of(&progress)?;
            }
            self.send(ONE_WAY, sequence)?;
            if sequence % 64 == 0 {
                self.look()?;
            }
        }
        self.send(COUNT, 0)?;
        loop {
            let answer = self.receive()?;
            let (kind, counted, _) = parts(answer.data())?;
            if kind == COUNT {
                return check_count(messages, counted);
            }
        }
    }
}

impl Enet {
    fn send(&mut self, kind: u8, number: u64) -> anyhow::Result<()> {
        let packet = Packet::reliable(&message(kind, number)[..]);
        self.host.peer_mut(self.server).send(0, &packet)?;
        Ok(())
    }

    /// Sends and receives what there is. False: nothing came.
    fn look(&mut self) -> anyhow::Result<bool> {
        match self.host.service()? {
            Some(Event::Receive { packet, .. }) => self.inbox.push_back(packet),
            Some(_) => bail!("the connection is lost"),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn receive(&mut self) -> anyhow::Result<Packet> {
        let began = Instant::now();
        loop {
            if let Some(packet) = self.inbox.pop_front() {
                return Ok(packet);
            }
            if !self.look()? {
                rest(&self.host, began)?;
            }
        }
    }
}

fn host(socket: UdpSocket) -> anyhow::Result<Host<UdpSocket>> {
    let settings = HostSettings {
        peer_limit: 1,
        channel_limit: 1,
        ..HostSettings::default()
    };
    Host::new(socket, settings).context("ENet does not take the socket")
}

/// Sleeps until the socket has something, or ENet has to look at its timers.
fn rest(host: &Host<UdpSocket>, began: Instant) -> anyhow::Result<()> {
    if began.elapsed().as_millis() > PATIENCE {
        bail!("the other end does not answer");
    }
    let mut socket = [PollFd::new(host.socket().as_fd(), PollFlags::POLLIN)];
    poll(&mut socket, PollTimeout::from(PAUSE))?;
    Ok(())
}

fn progress_of(packet: &Packet) -> anyhow::Result<u64> {
    match parts(packet.data())? {
        (PROGRESS, count, _) => Ok(count),
        (kind, ..) => bail!("{kind} is no progress"),
    }
}

fn serve(mut host: Host<UdpSocket>) -> anyhow::Result<()> {
    let (mut counter, mut untold) = (Counter::default(), 0);
    loop {
        let began = Instant::now();
        let Some(event) = host.service()? else {
            host.flush();
            rest(&host, began)?;
            continue;
        };
        let Event::Receive { peer, packet, .. } = event else {
            continue;
        };
        match parts(packet.data())? {
            (ECHO, ..) => {
                peer.send(0, &Packet::reliable(packet.data()))?;
                host.flush();
            }
            (ONE_WAY, sequence, payload) => {
                counter.see(sequence, payload);
                untold += 1;
                if untold == STEP {
                    untold = 0;
                    peer.send(0, &Packet::reliable(&message(PROGRESS, STEP)[..]))?;
                }
            }
            _ => {
                untold = 0;
                let counted = counter.take();
                peer.send(0, &Packet::reliable(&message(COUNT, counted)[..]))?;
            }
        }
    }
}
