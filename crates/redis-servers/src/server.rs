//! A single Redis server with a folder of its own: starts, pauses, kills and restarts it, and sends it commands.

use crate::control::{Control, Reply};
use crate::error::{CommandError, StartError};
use crate::net::Host;
use crate::ports;
use crate::process::Process;
use std::fmt::{self, Debug, Formatter};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take until it answers: a hundredth of this is usual.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How often to try to reach a server that starts.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// How many free ports to try: another program may take one before the server does.
const PORT_TRIES: u32 = 10;

/// The name of the file with the configuration of a sentinel, in its folder.
const SENTINEL_FILE: &str = "sentinel.conf";

/// How much of a log an error shows, in bytes from its end.
const LOG_BYTES_SHOWN: usize = 4096;

/// Files in PEM form for a server that speaks TLS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate of the server, which it also shows to other nodes as a client.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates that sign those of clients and other nodes.
    pub ca: PathBuf,
}

/// The options of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Its port; a free one when `None`.
    pub port: Option<u16>,
    /// The host on which it runs, and on whose address it listens; this machine and 127.0.0.1 when `None`.
    pub host: Option<Host>,
    /// Whether it is a node of a cluster; its bus is at `port` + 10000.
    pub cluster: bool,
    /// The password of the user `default`, none when `None`.
    pub password: Option<String>,
    /// Files for TLS: the port takes no plain connection then. Clients need no certificate, but the server checks one that
    /// they show.
    pub tls: Option<TlsFiles>,
    /// The configuration of a sentinel: lines that begin with `sentinel`. It is a server like others when `None`.
    pub sentinel: Option<String>,
    /// More arguments, which override all others: `--name` and its values, each in an element of its own, or all in one
    /// with spaces between them.
    pub extra: Vec<String>,
}

/// A `redis-server` process, which ends when this value is dropped.
///
/// It also listens on a Unix socket without TLS ([`Server::unix_socket`]), whatever its options are.
pub struct Server {
    options: Options,
    port: u16,
    dir: TempDir,
    /// `None` after it was killed.
    process: Option<Process>,
    paused: AtomicBool,
}

impl Server {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// A program is missing, the port is taken, or the server ended or did not answer: the error contains its log.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        if let Some(port) = options.port {
            if !ports::is_free(port, options.cluster) {
                return Err(StartError::PortInUse(port));
            }
            return Self::start_on(port, options);
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let port = ports::free().ok_or_else(|| {
                StartError::Options("no port is free: stop servers that are no longer used".into())
            })?;
            match Self::start_on(port, options) {
                Err(StartError::Ended { log, .. })
                    if tries < PORT_TRIES && log.contains("Address already in use") => {}
                result => return result,
            }
        }
    }

    fn start_on(port: u16, options: &Options) -> Result<Self, StartError> {
        let dir = tempfile::Builder::new().prefix("redis-").tempdir();
        let dir = dir.map_err(|source| StartError::Io {
            what: "create a folder for temporary files",
            source,
        })?;
        if let Some(lines) = &options.sentinel {
            // The sentinel keeps there what it learns, so it is written once.
            let written = fs::write(dir.path().join(SENTINEL_FILE), lines);
            written.map_err(|source| StartError::Io {
                what: "write the configuration of a sentinel",
                source,
            })?;
        }
        let mut server = Self {
            options: options.clone(),
            port,
            dir,
            process: None,
            paused: AtomicBool::new(false),
        };
        server.run()?;
        Ok(server)
    }

    /// Starts the process, and waits until it answers.
    fn run(&mut self) -> Result<(), StartError> {
        let log = self.dir.path().join("log");
        let mut process = Process::start(
            &self
                .options
                .host
                .as_ref()
                .map(Host::prefix)
                .unwrap_or_default(),
            &self.arguments(),
            self.dir.path(),
            &log,
        )?;
        let begin = Instant::now();
        loop {
            let last = match self.call(&["PING"]) {
                Ok(_) => break,
                Err(error) => error,
            };
            if let Some(status) = process.ended() {
                let log = end_of(&log);
                return Err(StartError::Ended { status, log });
            }
            let after = begin.elapsed();
            if after > START_TIMEOUT {
                let log = end_of(&log);
                return Err(StartError::Silent { after, last, log });
            }
            thread::sleep(CHECK_INTERVAL);
        }
        self.paused.store(false, Ordering::Relaxed);
        self.process = Some(process);
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        let Options {
            cluster,
            password,
            tls,
            extra,
            ..
        } = &self.options;
        let is_sentinel = self.options.sentinel.is_some();
        let mut arguments = Vec::new();
        if is_sentinel {
            let file = self.dir.path().join(SENTINEL_FILE);
            arguments.push(file.to_string_lossy().into_owned());
            arguments.push("--sentinel".to_owned());
        }
        let mut set = |name: &str, value: &str| {
            arguments.push(format!("--{name}"));
            arguments.push(value.to_owned());
        };
        let port = self.port.to_string();
        set("bind", &self.address().ip().to_string());
        set("protected-mode", "no");
        set("daemonize", "no");
        set("loglevel", "warning");
        if !is_sentinel {
            set("save", "");
            set("appendonly", "no");
            // Tests keep no data, so a server need not wait for replicas when it ends, or before it copies its data to
            // one.
            set("shutdown-timeout", "0");
            set("repl-diskless-sync-delay", "0");
        }
        set("unixsocket", &self.unix_socket().to_string_lossy());
        match tls {
            None => set("port", &port),
            Some(files) => {
                set("port", "0");
                set("tls-port", &port);
                set("tls-cert-file", &files.cert.to_string_lossy());
                set("tls-key-file", &files.key.to_string_lossy());
                set("tls-ca-cert-file", &files.ca.to_string_lossy());
                set("tls-auth-clients", "optional");
                set("tls-replication", "yes");
                set("tls-cluster", "yes");
            }
        }
        if *cluster {
            set("cluster-enabled", "yes");
        }
        if let Some(password) = password {
            set("requirepass", password);
            if !is_sentinel {
                set("masterauth", password);
            }
        }
        arguments.extend(extra.iter().cloned());
        arguments
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address: 127.0.0.1, or the address of its host, and its port.
    pub fn address(&self) -> SocketAddr {
        let host = self.options.host.as_ref();
        (host.map_or(Ipv4Addr::LOCALHOST, Host::address), self.port).into()
    }

    /// Its Unix socket, which takes the same commands without TLS.
    pub fn unix_socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// The folder in which it runs, which is removed with it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The id of its process, `None` after [`Server::kill`].
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Whether it runs: [`Server::kill`] and [`Server::pause`] stop it.
    pub fn is_running(&self) -> bool {
        self.process.is_some() && !self.paused.load(Ordering::Relaxed)
    }

    /// Kills it (SIGKILL) and waits until it is gone: connections are reset, and new ones refused.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops it (SIGSTOP) with all connections open: the kernel still takes connections and bytes for it, but it answers
    /// nothing. Does nothing to a server that was killed.
    pub fn pause(&self) {
        if let Some(process) = &self.process {
            process.pause();
            self.paused.store(true, Ordering::Relaxed);
        }
    }

    /// Lets it go on after [`Server::pause`].
    pub fn resume(&self) {
        if let Some(process) = &self.process {
            process.resume();
            self.paused.store(false, Ordering::Relaxed);
        }
    }

    /// Kills it if it runs, and starts it again with the same port and folder. Its data are gone; a node of a cluster
    /// still knows the others.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.kill();
        self.run()
    }

    /// Runs a command, to set up or check a test. The reply is text as `redis-cli` prints it to a file: one line for each
    /// element, nothing for nil, and replacement characters for bytes that are not UTF-8.
    ///
    /// # Errors
    /// The server refuses it, or does not answer within half a minute.
    pub fn command(&self, arguments: &[&str]) -> Result<String, CommandError> {
        Ok(self.call(arguments)?.text())
    }

    /// As [`Server::command`], with the reply itself.
    pub(crate) fn call(&self, arguments: &[impl AsRef<[u8]>]) -> Result<Reply, CommandError> {
        self.control()?.call(arguments)
    }

    /// A connection for several commands.
    pub(crate) fn control(&self) -> Result<Control, CommandError> {
        Control::connect(&self.unix_socket(), self.options.password.as_deref())
    }

    /// Asks it to end, so that many servers end at the same time although they are dropped one after the other.
    pub(crate) fn ask_to_end(&self) {
        if let Some(process) = &self.process {
            process.ask_to_end();
        }
    }
}

impl Debug for Server {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("port", &self.port)
            .field("pid", &self.pid())
            .field("dir", &self.dir.path())
            .finish_non_exhaustive()
    }
}

fn end_of(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let from = bytes.len().saturating_sub(LOG_BYTES_SHOWN);
    String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
}
