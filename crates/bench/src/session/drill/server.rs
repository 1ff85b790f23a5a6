//! The server of a drill, in a process of its own: it echoes, and says what it counted when its parent asks.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_console::interrupt::Interrupt;
use embar_session::{Admission, Server, Settings, StatusPolicy};
use embar_transport::Address;
use serde::{Deserialize, Serialize};

use super::child::Child;
use crate::session::certificate;
use crate::session::server::EchoServer;

/// The command of the program that runs one; the specification is its argument.
pub const COMMAND: &str = "drill-server";

/// What a server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How often a server that is to come to rest is asked.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Longest body that it takes.
const BODY_BYTES_MAX: u32 = 16 << 20;

/// A server, as its parent wants it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServerSpec {
    /// Threads that serve sessions.
    pub threads: u16,
    /// Whether it speaks TLS.
    pub encrypted: bool,
    /// Sessions that it has to take, if they are all honest; else it has the limits that every server has at first.
    pub honest_sessions: Option<u32>,
}

/// That a server listens, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listening {
    /// Its address.
    pub address: SocketAddr,
    /// The certificate that its clients trust; none without TLS.
    pub certificate: Option<Vec<u8>>,
}

/// What a server counted so far, and its memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Memory of the process, bytes. A page that is mapped twice counts once.
    pub memory_bytes: u64,
    /// Sessions there are.
    pub sessions: u64,
    /// Connections there are that are no sessions.
    pub arrivals: u64,
    /// Sessions that opened.
    pub opened: u64,
    /// Connections whose peer left before it had greeted.
    pub left_early: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Connections that did not become sessions, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Sessions that ended, by reason.
    pub closed: BTreeMap<String, u64>,
}

impl Figures {
    /// Connections there are, with sessions or without.
    pub fn connections(&self) -> u64 {
        self.sessions + self.arrivals
    }
}

impl ServerSpec {
    fn settings(&self) -> Settings {
        let mut settings = Settings::default().with(|settings| {
            settings.workers = self.threads.into();
            settings.status = StatusPolicy::Everyone;
            settings.session.max_body_bytes = BODY_BYTES_MAX;
            settings.admission = Admission::default().with(|it| it.local_is_exempt = false);
        });
        if let Some(sessions) = self.honest_sessions {
            settings.max_sessions = sessions as usize;
            settings.admission.local_is_exempt = true;
        }
        settings
    }
}

/// Serves until standard input ends; each line of it is answered with [`Figures`]. `spec` is a [`ServerSpec`] in JSON.
pub fn run(spec: &str) -> Result<()> {
    let spec: ServerSpec = serde_json::from_str(spec).context("this is no server of a drill")?;
    embar_console::process::raise_file_limit();
    let any: Address = SocketAddr::from(([127, 0, 0, 1], 0)).into();
    let mut builder = Server::builder().settings(spec.settings()).listen(any);
    let mut trusted = None;
    if spec.encrypted {
        let (config, certificate) = certificate::make()?;
        builder = builder.tls(config);
        trusted = Some(certificate);
    }
    let server = builder
        .start(|_| EchoServer::default())
        .context("cannot start the server")?;
    let Address::Tcp(address) = server.address() else {
        bail!("it does not listen on TCP");
    };
    say(&Listening {
        address,
        certificate: trusted,
    })?;
    for line in io::stdin().lock().lines() {
        let _anything = line?;
        say(&figures(&server)?)?;
    }
    // The drill is over, and its sessions are: there is nobody to say goodbye to.
    std::process::exit(0)
}

/// A line for the parent.
pub(super) fn say(what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .context("the parent does not listen any more")
}

fn figures(server: &Server) -> Result<Figures> {
    let (totals, monitor) = (server.stats(), server.monitor());
    let refused = monitor.refused_by_reason();
    let closed = monitor.closed_by_reason();
    Ok(Figures {
        memory_bytes: memory_of_self()?,
        sessions: totals.sessions,
        arrivals: totals.arrivals,
        opened: totals.opened,
        left_early: totals.left_early,
        panics: totals.panics,
        refused: refused
            .into_iter()
            .map(|(refusal, count)| (refusal.name().to_owned(), count))
            .collect(),
        closed: closed
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect(),
    })
}

/// The memory that is this process's own: not its file, nor those of libraries. By the proportional set, as rings are
/// mapped twice: see `smaps_rollup` in proc(5).
fn memory_of_self() -> Result<u64> {
    let path = Path::new("/proc/self/smaps_rollup");
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read {}; is /proc mounted?", path.display()))?;
    let kib = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim()
            .strip_suffix("kB")?
            .trim_end()
            .parse::<u64>()
            .ok()
    };
    let own = kib("Pss_Anon:").zip(kib("Pss_Shmem:"));
    let (private, shared) =
        own.context("this kernel does not say how much memory a process has")?;
    Ok((private + shared) * 1024)
}

/// A server that runs.
pub(super) struct DrillServer {
    child: Child,
    /// Where it listens, and whom its clients trust.
    pub(super) listening: Listening,
}

impl DrillServer {
    pub(super) fn start(program: &Path, spec: &ServerSpec, interrupt: &Interrupt) -> Result<Self> {
        let mut child = Child::start(program, COMMAND, spec)?;
        let listening = child.hear(ANSWER_WITHIN, interrupt)?;
        Ok(Self { child, listening })
    }

    pub(super) fn figures(&mut self, interrupt: &Interrupt) -> Result<Figures> {
        self.child.ask()?;
        self.child.hear(ANSWER_WITHIN, interrupt)
    }

    /// What it counted once `is_so`, or when this took too long.
    pub(super) fn figures_when(
        &mut self,
        interrupt: &Interrupt,
        within: Duration,
        is_so: impl Fn(&Figures) -> bool,
    ) -> Result<Figures> {
        let deadline = Instant::now() + within;
        loop {
            let figures = self.figures(interrupt)?;
            if is_so(&figures) || Instant::now() > deadline {
                return Ok(figures);
            }
            std::thread::sleep(ASK_EVERY);
        }
    }
}
