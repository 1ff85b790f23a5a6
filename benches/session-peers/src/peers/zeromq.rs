//! ZeroMQ: a pair of DEALER sockets, each with the thread for I/O that its context has by default, and one that uses it.

use super::by_hand::{COUNT, ECHO, MESSAGE_BYTES, ONE_WAY, message, parts};
use super::{Connected, Counter, RoundTrips, check, check_count};
use anyhow::{Context as _, ensure};
use std::thread;
use std::time::Instant;
use zmq::{Context, DEALER, Socket};

/// Messages that wait at each end of a connection; 1,000 is the default.
const HIGH_WATER_MARK: i32 = 100_000;

/// How long a single answer may take, in milliseconds.
const PATIENCE: i32 = 120_000;

/// A connection of ZeroMQ.
pub struct Zeromq {
    socket: Socket,
}

impl Connected for Zeromq {
    fn start() -> anyhow::Result<Self> {
        let server = socket()?;
        server.bind("tcp://127.0.0.1:*")?;
        let address = server.get_last_endpoint()?;
        let address = address.ok().context("the socket has no address")?;
        // It ends with this process.
        thread::Builder::new()
            .name("server".into())
            .spawn(move || serve(&server))?;
        let socket = socket()?;
        socket.set_rcvtimeo(PATIENCE)?;
        socket.connect(&address)?;
        Ok(Self { socket })
    }

    fn round_trips(&mut self, messages: u64) -> anyhow::Result<RoundTrips> {
        let mut round_trips = RoundTrips::with_capacity(messages);
        let mut back = [0; MESSAGE_BYTES];
        for sequence in 1..=messages {
            let begin = Instant::now();
            self.socket.send(&message(ECHO, sequence)[..], 0)?;
            let len = self.socket.recv_into(&mut back, 0)?;
            round_trips.add(begin);
            let (_, back, payload) = parts(back.get(..len).context("it is longer now")?)?;
            check(sequence, back, payload)?;
        }
        Ok(round_trips)
    }

    fn one_way(&mut self, messages: u64) -> anyhow::Result<()> {
        for sequence in 1..=messages {
            self.socket.send(&message(ONE_WAY, sequence)[..], 0)?;
        }
        self.socket.send(&message(COUNT, 0)[..], 0)?;
        let mut answer = [0; MESSAGE_BYTES];
        self.socket.recv_into(&mut answer, 0)?;
        let (_, counted, _) = parts(&answer)?;
        check_count(messages, counted)
    }
}

fn socket() -> anyhow::Result<Socket> {
    let socket = Context::new().socket(DEALER)?;
    socket.set_sndhwm(HIGH_WATER_MARK)?;
    socket.set_rcvhwm(HIGH_WATER_MARK)?;
    Ok(socket)
}

fn serve(socket: &Socket) -> anyhow::Result<()> {
    let mut counter = Counter::default();
    let mut buffer = [0; MESSAGE_BYTES];
    loop {
        let len = socket.recv_into(&mut buffer, 0)?;
        ensure!(len <= MESSAGE_BYTES, "a message is too long");
        match parts(&buffer[..len])? {
            (ECHO, ..) => socket.send(&buffer[..len], 0)?,
            (ONE_WAY, sequence, payload) => counter.see(sequence, payload),
            _ => socket.send(&message(COUNT, counter.take())[..], 0)?,
        }
    }
}
