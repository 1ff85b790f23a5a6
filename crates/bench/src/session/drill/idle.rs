//! `bench session --idle-sessions`: the memory of a server whose sessions do nothing.

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use embar_console::context::Context;
use embar_session::{Client, Flow, Handler, MIN_RING_BYTES, Message, Plain, Session, Settings};
use serde::Serialize;

use super::server::{DrillServer, ServerSpec};
use crate::session::copying::ECHO;
use crate::session::payloads::{Payload, Payloads};
use crate::session::server::echo_task;

/// What all sessions may take to open, and to have their echoes.
const WITHIN: Duration = Duration::from_secs(120);
/// Sessions that connect at the same time, at most.
const CONNECTING_MAX: usize = 256;

/// What idle sessions take, in a server with the settings that every server has at first.
#[derive(Debug, Serialize)]
pub struct IdleReport {
    /// Which bench.
    pub bench: &'static str,
    /// How many there were.
    pub sessions: u32,
    /// The server's memory without any, bytes.
    pub empty_bytes: u64,
    /// Its memory when they were open, and had said nothing.
    pub open_bytes: u64,
    /// Its memory when each had one message of 64 bytes echoed.
    pub used_bytes: u64,
    /// For each session that was open, bytes.
    pub open_bytes_each: f64,
    /// For each session that had been used, bytes.
    pub used_bytes_each: f64,
}

impl fmt::Display for IdleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: f64| bytes / 1024.0;
        write!(
            f,
            "{} idle sessions: {:.1} KiB of the server each once open, {:.1} KiB each after a message and its echo",
            self.sessions,
            kib(self.open_bytes_each),
            kib(self.used_bytes_each)
        )
    }
}

/// Says when its echo came.
struct Idle(Sender<()>);

impl Handler for Idle {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        let _told = self.0.send(());
        Flow::Continue
    }
}

/// Opens so many sessions, and measures.
pub fn measure(sessions: u32, threads: u16, context: &Context) -> Result<IdleReport> {
    embar_console::process::raise_file_limit();
    let interrupt = &context.interrupt;
    let spec = ServerSpec {
        threads,
        encrypted: false,
        honest_sessions: Some(sessions),
    };
    let mut server = DrillServer::start(&context.program, &spec, interrupt)?;
    let settings = Settings::default().with(|settings| {
        settings.send_ring_bytes = MIN_RING_BYTES;
        settings.recv_ring_bytes = MIN_RING_BYTES;
        settings.max_sessions = sessions as usize;
    });
    let client = Client::with(Plain, settings).context("cannot start the client")?;
    let payload = Payload { min: 64, max: 64 };
    let (payloads, greeting) = (Payloads::new(payload), echo_task(payload));
    let empty = server.figures(interrupt)?;
    let (came, echoes) = channel();
    let mut open = Vec::with_capacity(sessions as usize);
    let all: Vec<u32> = (0..sessions).collect();
    for some in all.chunks(CONNECTING_MAX) {
        interrupt.check()?;
        let address = server.listening.address;
        let connecting: Vec<_> = some
            .iter()
            .map(|_| client.open(address, &greeting, Idle(came.clone())))
            .collect();
        for session in connecting {
            let session = session.wait();
            open.push(session.map_err(|closed| anyhow!("cannot open a session: {closed}"))?);
        }
    }
    let wanted = u64::from(sessions);
    let opened = server.figures_when(interrupt, WITHIN, |it| it.opened == wanted)?;
    for session in &open {
        let sent = session.send_view(ECHO, &payloads.echo(0, 1));
        sent.context("a session takes no message")?;
    }
    for _ in &open {
        interrupt.check()?;
        let echo = echoes.recv_timeout(WITHIN);
        echo.context("an echo did not come")?;
    }
    let used = server.figures(interrupt)?;
    if used.sessions != wanted {
        bail!("{} of {wanted} sessions were left", used.sessions);
    }
    let each = |bytes: u64| bytes.saturating_sub(empty.memory_bytes) as f64 / f64::from(sessions);
    Ok(IdleReport {
        bench: "session idle",
        sessions,
        empty_bytes: empty.memory_bytes,
        open_bytes: opened.memory_bytes,
        used_bytes: used.memory_bytes,
        open_bytes_each: each(opened.memory_bytes),
        used_bytes_each: each(used.memory_bytes),
    })
}
