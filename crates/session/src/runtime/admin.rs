//! Figures for people and their tools, by HTTP: `GET /metrics` for Prometheus (OpenMetrics text),
//! `GET /sessions` for a look (JSON).
//!
//! Nothing listens unless an [`Admin`] is started. Without a token it listens on loopback addresses
//! and Unix sockets (which only this user can open) and refuses all others. It is for trusted
//! tools: one thread, on which no session depends, serves connections one at a time, each within a
//! deadline. A client that keeps it busy keeps other tools waiting, and nothing else. It speaks no
//! TLS: with a token on a public address, put a proxy with TLS in front.
//!
//! ```
//! use embar_session::{Address, Admin, Flow, Handler, Message, Server, Session};
//!
//! struct Game;
//! impl Handler for Game {
//!     fn message(&mut self, _: &Session, _: Message<'_>) -> Flow { Flow::Continue }
//! }
//!
//! let any: Address = "127.0.0.1:0".parse()?;
//! let server = Server::builder().listen(&any).start(|_peer| Game)?;
//! let admin = Admin::listen(&any).watch("game", server.monitor()).start()?;
//! println!("curl http://{}/metrics", admin.address());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod http;
mod metrics;
mod report;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_transport::{Address, Listener, SocketError, SocketOptions, socket};
use rustix::event::PollFlags;

use self::http::{Request, Response};
use self::report::Report;
use super::registry::Monitor;
use super::stop::{Stop, Waited};

/// Connections that may wait for their turn.
const BACKLOG: u16 = 64;
/// How long to wait when no connection can be accepted, most often for a free descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Shortest token; anything shorter is guessed.
const TOKEN_MIN_BYTES: usize = 16;

/// Why the figures are not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// All peers on the network could read them.
    #[error(
        "{address} is not a loopback address, and no token is set: set one of at least {TOKEN_MIN_BYTES} characters, or listen on 127.0.0.1 or on a Unix socket"
    )]
    Unprotected {
        /// The address asked for.
        address: Address,
    },
    /// The token protects nothing, or cannot be sent.
    #[error(
        "the token is no good: use at least {TOKEN_MIN_BYTES} letters, digits or signs, without a space"
    )]
    Token,
    /// A name is no good as a label, or is used twice.
    #[error(
        "{name:?} cannot name what is watched: use letters, digits, '-', '_' or '.', and each name once"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] SocketError),
    /// A thread or a descriptor is missing.
    #[error("cannot start the thread that serves figures: {0}")]
    Thread(#[from] io::Error),
}

/// What an [`Admin`] is made of; made by [`Admin::listen`].
#[must_use = "it serves nothing before `start`"]
pub struct AdminBuilder {
    address: Address,
    token: Option<String>,
    watched: Vec<(String, Monitor)>,
    more: Vec<Box<dyn Fn() -> String + Send>>,
    detailed_sessions: usize,
    timeout: Duration,
}

impl AdminBuilder {
    /// Asks each client for this token: `Authorization: Bearer TOKEN`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Shows the figures of this server or client under the label `group="name"`.
    pub fn watch(mut self, name: impl Into<String>, monitor: Monitor) -> Self {
        self.watched.push((name.into(), monitor));
        self
    }

    /// Has `/metrics` end with figures of the program: those that `text` gives, in the format
    /// OpenMetrics and without its `# EOF`. It is called for each request, on the thread that serves figures. If it panics, its figures
    /// are left out.
    pub fn add_metrics(mut self, text: impl Fn() -> String + Send + 'static) -> Self {
        self.more.push(Box::new(text));
        self
    }

    /// How many sessions have figures of their own, those that moved most bytes: each costs
    /// Prometheus seven series, and every new session makes new ones. 0: none has. Default 1000.
    pub fn detailed_sessions(mut self, sessions: usize) -> Self {
        self.detailed_sessions = sessions;
        self
    }

    /// How long one connection may take, from its first byte to its last. Default 5 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Listens from now on.
    ///
    /// # Errors
    /// [`AdminError`].
    pub fn start(self) -> Result<Admin, AdminError> {
        let open = match &self.address {
            Address::Tcp(address) => !address.ip().to_canonical().is_loopback(),
            Address::Unix(_) | Address::Shm(_) => false,
        };
        match &self.token {
            None if open => {
                let address = self.address;
                return Err(AdminError::Unprotected { address });
            }
            Some(token)
                if token.len() < TOKEN_MIN_BYTES
                    || !token.bytes().all(|byte| byte.is_ascii_graphic()) =>
            {
                return Err(AdminError::Token);
            }
            _ => {}
        }
        for (index, (name, _)) in self.watched.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let again = self.watched[..index].iter().any(|(other, _)| other == name);
            if name.is_empty() || again || !name.chars().all(plain) {
                return Err(AdminError::Name { name: name.clone() });
            }
        }
        let options = SocketOptions {
            backlog: BACKLOG,
            ..SocketOptions::default()
        };
        let listener = socket::listen(&self.address, &options)?;
        let address = listener.local_address()?;
        let stop = Arc::new(Stop::new()?);
        let thread = {
            let stop = Arc::clone(&stop);
            let named = std::thread::Builder::new().name("session-admin".into());
            named.spawn(move || serve(&self, &listener, &stop))?
        };
        Ok(Admin {
            address,
            stop,
            thread: Some(thread),
        })
    }
}

/// Serves figures over HTTP until the caller drops it.
#[must_use = "dropped, it stops"]
pub struct Admin {
    address: Address,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Figures at this address: of TCP (port 0: the kernel chooses; ask [`Admin::address`]) or of a
    /// Unix socket, whose file is for this user only (0600).
    pub fn listen(address: impl Into<Address>) -> AdminBuilder {
        AdminBuilder {
            address: address.into(),
            token: None,
            watched: Vec::new(),
            more: Vec::new(),
            detailed_sessions: 1000,
            timeout: Duration::from_secs(5),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Admin({})", self.address)
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(admin: &AdminBuilder, listener: &Listener, stop: &Stop) {
    loop {
        match stop.wait(Some(listener), PollFlags::IN, None) {
            Ok(Waited::Ready) => {}
            _ => return,
        }
        match listener.accept() {
            Ok((stream, _)) => {
                let deadline = Instant::now() + admin.timeout;
                // A connection that fails is its tool's problem.
                let _ = http::serve(stream, stop, deadline, |request| admin.answer(request));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                let retry = Instant::now() + ACCEPT_RETRY;
                if !matches!(
                    stop.wait(None, PollFlags::IN, Some(retry)),
                    Ok(Waited::TimedOut)
                ) {
                    return;
                }
            }
        }
    }
}

impl AdminBuilder {
    fn answer(&self, request: &Request<'_>) -> Response {
        if let Some(token) = &self.token
            && !request.bearer.is_some_and(|given| same(given, token))
        {
            return Response::text("401 Unauthorized", "send Authorization: Bearer TOKEN\n")
                .with("WWW-Authenticate: Bearer");
        }
        if request.method != "GET" {
            return Response::text("405 Method Not Allowed", "GET only\n").with("Allow: GET");
        }
        let path = request.target.split('?').next().unwrap_or_default();
        match path {
            "/metrics" => Response {
                status: "200 OK",
                kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
                header: None,
                body: self.with_more(metrics::text(self.report())),
            },
            "/sessions" => Response {
                status: "200 OK",
                kind: "application/json",
                header: None,
                body: self.report().json(),
            },
            _ => Response::text("404 Not Found", "there is /metrics and /sessions\n"),
        }
    }

    /// The metrics with those of the program before their end.
    fn with_more(&self, metrics: String) -> String {
        let end = "# EOF\n";
        let mut text = metrics;
        if let Some(before) = text.strip_suffix(end) {
            text.truncate(before.len());
            for more in &self.more {
                match catch_unwind(AssertUnwindSafe(more)) {
                    Ok(more) => text.push_str(&more),
                    Err(_) => tracing::error!("figures of the program panicked: they are left out"),
                }
            }
            text.push_str(end);
        }
        text
    }

    fn report(&self) -> Report {
        Report::new(&self.watched, self.detailed_sessions)
    }
}

/// Whether both are the same, in a time that does not tell where they differ.
fn same(given: &str, token: &str) -> bool {
    let differing = given
        .bytes()
        .zip(token.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differing == 0
}
