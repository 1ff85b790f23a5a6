//! What a server accepts from: addresses to listen on and listeners that were handed in, and which worker accepts from which.

use std::io;
use std::os::fd::OwnedFd;

use embar_transport::socket::{self, FileOwnership};
use embar_transport::{Address, Listener, SocketError, SocketOptions};

use super::proxies::Proxies;
use super::settings::{Accepting, Settings};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] SocketError),
    /// A listener that was handed in does not listen, or not as what it says.
    #[error("a listener that was handed in is of no use: {0}")]
    Listener(io::Error),
    /// Threads, descriptors or memory are missing, or a setting is out of range.
    #[error(
        "cannot start the workers: {0}; check the settings and the limit of open files (ulimit -n)"
    )]
    Workers(#[from] io::Error),
}

/// A listener as its worker copied it, for another process.
pub(super) struct Offered {
    pub(super) socket: OwnedFd,
    pub(super) address: Address,
    pub(super) file: Option<FileOwnership>,
}

/// Where to accept, as the builder was told.
pub(super) enum Entrance {
    Address(Address),
    Listener(Listener),
}

/// A listener, and how connections come by it.
pub(super) struct Listening {
    pub(super) listener: Listener,
    /// They come through one of these, and begin with a PROXY header.
    pub(super) proxies: Option<Proxies>,
    /// They stay with the worker that accepts them.
    pub(super) stay: bool,
}

/// All that a server accepts from.
#[derive(Default)]
pub(super) struct Opened {
    pub(super) addresses: Vec<Address>,
    /// Each with the number of its worker.
    pub(super) listeners: Vec<(usize, Listening)>,
}

impl Opened {
    pub(super) fn open(
        entrances: Vec<(Entrance, Option<Proxies>)>,
        settings: &Settings,
    ) -> Result<Self, StartError> {
        let workers = settings.workers.max(1);
        let sockets = settings.sockets_in_use();
        let mut opened = Self::default();
        for (entrance, proxies) in entrances {
            let each = settings.accepting == Accepting::EachWorker;
            let listeners = match entrance {
                Entrance::Address(Address::Tcp(mut address)) if each => {
                    let options = SocketOptions {
                        reuse_port: true,
                        ..sockets.clone()
                    };
                    let mut listeners = Vec::new();
                    for _ in 0..workers {
                        let listener = socket::listen_tcp(address, &options)?;
                        // The kernel chooses a port for the first one.
                        address = listener.local_addr()?;
                        listeners.push(listener.into());
                    }
                    listeners
                }
                Entrance::Address(address) => vec![socket::listen(address, &sockets)?],
                Entrance::Listener(listener) => {
                    vec![usable(listener, &sockets).map_err(StartError::Listener)?]
                }
            };
            for listener in listeners {
                opened.enter(listener, proxies.clone())?;
            }
        }
        for address in &opened.addresses {
            let its = opened
                .listeners
                .iter_mut()
                .filter(|(_, its)| its.listener.local_address().is_ok_and(|it| it == *address));
            let its: Vec<_> = its.collect();
            // With fewer of them some workers would have nothing to do.
            let stay = settings.accepting == Accepting::EachWorker && its.len() >= workers;
            for (number, (worker, listening)) in its.into_iter().enumerate() {
                *worker = number % workers;
                listening.stay = stay;
            }
        }
        Ok(opened)
    }

    fn enter(&mut self, listener: Listener, proxies: Option<Proxies>) -> Result<(), StartError> {
        let address = listener.local_address().map_err(StartError::Listener)?;
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
        let listening = Listening {
            listener,
            proxies,
            stay: false,
        };
        self.listeners.push((0, listening));
        Ok(())
    }
}

/// A listener of somebody else, made like one of the server's own.
fn usable(mut listener: Listener, sockets: &SocketOptions) -> io::Result<Listener> {
    listener.check()?;
    match &mut listener {
        Listener::Tcp(listener) => socket::apply(listener, sockets)?,
        Listener::Unix(..) => {}
        Listener::Shm(_, _, options) => options.clone_from(&sockets.shm),
    }
    Ok(listener)
}

/// The listeners that a service manager such as systemd opened for this process, with the names that it gave them (`FileDescriptorName=`).
/// There are none if it was started otherwise.
///
/// They are given out once, and programs that this one starts do not inherit them.
///
/// ```
/// use embar_session::{Address, Server, activated_listeners};
/// # use embar_session::{Flow, Handler, Message, Session};
/// # struct Echo;
/// # impl Handler for Echo {
/// #     fn message(&mut self, _: &Session, _: Message<'_>) -> Flow { Flow::Continue }
/// # }
///
/// let mut server = Server::builder();
/// let passed = activated_listeners()?;
/// if passed.is_empty() {
///     server = server.listen("127.0.0.1:0".parse::<Address>()?);
/// }
/// for (_name, listener) in passed {
///     server = server.listener(listener);
/// }
/// let server = server.start(|_peer| Echo)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// `LISTEN_FDS` says what cannot be, or one of the descriptors is no listening stream socket. The text names it.
pub fn activated_listeners() -> io::Result<Vec<(String, Listener)>> {
    let mut listeners = Vec::new();
    for (name, socket) in socket::passed_by_manager()? {
        match Listener::try_from(socket) {
            Ok(listener) => listeners.push((name, listener)),
            Err(error) => {
                let text = format!("the socket `{name}` that was passed on is of no use: {error}");
                return Err(io::Error::new(error.kind(), text));
            }
        }
    }
    Ok(listeners)
}
