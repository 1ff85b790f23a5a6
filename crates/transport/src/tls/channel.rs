//! One end of an encrypted connection, without its socket: encrypts what is to be sent, and
//! decrypts what was received.

use std::fmt;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, ServerConfig,
    ServerConnection,
};

use super::{ServerNameError, TlsError, TlsFault, Turn};
use crate::{RecvBuf, SendBuf, Store};

/// Ciphertext received at once: two records, roughly.
const RECEIVE_BYTES: usize = 32 << 10;
/// Plaintext encrypted and sent at once: four records.
const SEND_BYTES: usize = 64 << 10;

/// Which server to trust: a configuration, and the name that the server must prove to have.
#[derive(Clone)]
pub struct TlsTarget {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsTarget {
    /// The server that proves by the rules of `config` that it is `name`, a host name or an IP
    /// address.
    ///
    /// # Errors
    /// When `name` is neither.
    pub fn new(config: Arc<ClientConfig>, name: &str) -> Result<Self, ServerNameError> {
        let parsed = ServerName::try_from(name.to_owned());
        let name = parsed.map_err(|_| ServerNameError(name.to_owned()))?;
        Ok(Self { config, name })
    }

    /// The configuration, for those who encrypt in another way than by a [`Channel`].
    #[must_use]
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// The name that the server must prove to have.
    #[must_use]
    pub fn name(&self) -> &ServerName<'static> {
        &self.name
    }

    /// The connecting end of a connection to it, for the crates that put it before a reactor.
    ///
    /// # Errors
    /// When the configuration is of no use.
    #[doc(hidden)]
    pub fn connect(&self) -> Result<Channel, TlsError> {
        let tls = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        Ok(TlsChannel::new(
            tls.map_err(|error| failure(&error))?.into(),
        ))
    }
}

impl fmt::Debug for TlsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsTarget({:?})", self.name)
    }
}

/// The accepting side of a server.
#[derive(Clone)]
pub struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    /// Accepts by the rules of `config`.
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(config)
    }

    /// The accepting end of a connection.
    ///
    /// # Errors
    /// When the configuration is of no use.
    pub fn accept(&self) -> Result<Channel, TlsError> {
        let tls = ServerConnection::new(Arc::clone(&self.0));
        Ok(TlsChannel::new(
            tls.map_err(|error| failure(&error))?.into(),
        ))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shutdown {
    No,
    Asked,
    Notified,
    Done,
}

/// Boxed, so that connections that are not encrypted pay nothing for it.
pub type Channel = Box<TlsChannel>;

/// One end of an encrypted connection, without its socket.
///
/// At most one buffer of plaintext is wanted, and one is sent; at most one of ciphertext is
/// received, and one is sent. What was received and sent is reported by [`TlsChannel::arrived`] and
/// [`TlsChannel::sent`]; after these, and after anything else was asked for, [`TlsChannel::turn`]
/// returns what is next.
pub struct TlsChannel {
    tls: Connection,
    /// Where ciphertext is received; `None` while the reactor has it.
    landing: Option<Vec<u8>>,
    /// The part of it that `tls` has not seen.
    unread: Range<usize>,
    /// The ciphertext is over: in order, or with an error.
    end: Option<Result<(), io::ErrorKind>>,
    end_told: bool,
    /// Where plaintext is wanted.
    want: Option<RecvBuf>,
    /// Plaintext that is being sent.
    sending: Option<SendBuf>,
    /// A step of it is encrypted: it goes back once that is sent.
    step_taken: bool,
    /// Ciphertext to send; `None` while the reactor has it.
    outgoing: Option<Vec<u8>>,
    write_failed: Option<io::ErrorKind>,
    shutdown: Shutdown,
    failed: Option<TlsError>,
}

impl TlsChannel {
    fn new(tls: Connection) -> Channel {
        Box::new(Self {
            tls,
            landing: Some(Vec::new()),
            unread: 0..0,
            end: None,
            end_told: false,
            want: None,
            sending: None,
            step_taken: false,
            outgoing: Some(Vec::new()),
            write_failed: None,
            shutdown: Shutdown::No,
            failed: None,
        })
    }

    /// Whether both ends still agree on how to encrypt: nothing of theirs is sent until they do.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Plaintext is wanted here.
    pub fn receive(&mut self, buf: RecvBuf) {
        debug_assert!(self.want.is_none(), "one receive at a time");
        self.want = Some(buf);
    }

    /// Plaintext is to be sent.
    pub fn send(&mut self, buf: SendBuf) {
        debug_assert!(self.sending.is_none(), "one send at a time");
        self.sending = Some(buf);
    }

    /// Nothing follows what was sent.
    pub fn shutdown(&mut self) {
        self.shutdown = Shutdown::Asked;
    }

    /// The reactor received ciphertext.
    pub fn arrived(&mut self, buf: RecvBuf, result: &io::Result<usize>) {
        self.unread = buf.filled();
        if let Store::Heap(bytes) = buf.into_store() {
            self.landing = Some(bytes);
        }
        match result {
            Ok(0) => self.end = Some(Ok(())),
            Ok(_) => {}
            Err(error) => self.end = Some(Err(error.kind())),
        }
    }

    /// The reactor sent ciphertext.
    pub fn sent(&mut self, buf: SendBuf, result: &io::Result<()>) {
        let mut bytes = buf.into_parts().0.into_heap();
        bytes.clear();
        self.outgoing = Some(bytes);
        if let Err(error) = result {
            self.write_failed = Some(error.kind());
        }
    }

    /// The buffers that the channel's user gave it, when nothing will come of them any more. What
    /// [`SendBuf::sent`] counts was encrypted, and may have reached the peer.
    pub fn take_all(&mut self) -> (Option<RecvBuf>, Option<SendBuf>) {
        (self.want.take(), self.sending.take())
    }

    /// Goes as far as it can without the reactor. To be called again after each turn but
    /// [`Turn::Wait`].
    pub fn turn(&mut self) -> Turn {
        if let Some(turn) = self.turn_in() {
            return turn;
        }
        match self.turn_out() {
            Ok(turn) => turn,
            Err(send) => Turn::Wait {
                send,
                receive: self.wanted(),
            },
        }
    }

    fn turn_in(&mut self) -> Option<Turn> {
        if self.failed.is_some() {
            return None;
        }
        let mut want = self.want.take()?;
        match self.read_into(&mut want) {
            Some(result) => Some(Turn::Received(want, result)),
            None => {
                self.want = Some(want);
                None
            }
        }
    }

    /// Decrypts what is there into `want`. `None`: nothing is there.
    fn read_into(&mut self, want: &mut RecvBuf) -> Option<io::Result<usize>> {
        let mut count = 0;
        loop {
            let (first, second) = want.spaces();
            let space = if first.is_empty() { second } else { first };
            if space.is_empty() {
                break;
            }
            match self.tls.reader().read(space) {
                Ok(0) if count == 0 => return Some(Ok(0)),
                Ok(0) => break,
                Ok(more) => {
                    want.advance(more);
                    count += more;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) if count > 0 => break,
                Err(error) => return Some(Err(error)),
            }
            if !self.feed() {
                break;
            }
        }
        if count > 0 {
            return Some(Ok(count));
        }
        match self.end? {
            Err(kind) if self.unread.is_empty() => Some(Err(kind.into())),
            _ => None,
        }
    }

    /// Gives `tls` some ciphertext, or the end of it. False if there is none.
    fn feed(&mut self) -> bool {
        let bytes = match &self.landing {
            Some(landing) if self.failed.is_none() => &landing[self.unread.clone()],
            _ => return false,
        };
        if bytes.is_empty() && (self.end != Some(Ok(())) || self.end_told) {
            return false;
        }
        self.end_told = bytes.is_empty();
        let read = self.tls.read_tls(&mut { bytes });
        let outcome = match read {
            Ok(count) => {
                self.unread.start += count;
                self.tls.process_new_packets()
            }
            // It has a limit for what it keeps of a handshake.
            Err(error) => Err(rustls::Error::General(error.to_string())),
        };
        if let Err(error) = outcome {
            self.failed = Some(failure(&error));
            return false;
        }
        true
    }

    /// What to report of the sending side, or else what to send.
    fn turn_out(&mut self) -> Result<Turn, Option<SendBuf>> {
        let Some(outgoing) = &mut self.outgoing else {
            // The alert could not be sent before what is on its way, which may never arrive.
            return self.failed.take().map(Turn::Failed).ok_or(None);
        };
        if let Some(kind) = self.write_failed {
            if let Some(sending) = self.sending.take() {
                return Ok(Turn::Sent(sending, Err(kind.into())));
            }
            return self.failed.take().map(Turn::Failed).ok_or(None);
        }
        if self.failed.is_none() && !self.tls.is_handshaking() {
            if let Some(sending) = &mut self.sending {
                if !self.step_taken {
                    let before = sending.sent();
                    encrypt(&mut self.tls, sending);
                    self.step_taken = sending.goes_in_steps() && sending.sent() > before;
                }
            } else if self.shutdown == Shutdown::Asked {
                self.tls.send_close_notify();
                self.shutdown = Shutdown::Notified;
            }
        }
        while self.tls.wants_write() {
            // A Vec takes everything.
            let _ = self.tls.write_tls(outgoing);
        }
        if !outgoing.is_empty() {
            return Err(self.outgoing.take().map(SendBuf::heap));
        }
        if let Some(failed) = self.failed.take() {
            return Ok(Turn::Failed(failed));
        }
        if self
            .sending
            .as_ref()
            .is_some_and(|buf| self.step_taken || buf.remaining() == 0)
            && let Some(sending) = self.sending.take()
        {
            self.step_taken = false;
            return Ok(Turn::Sent(sending, Ok(())));
        }
        if self.shutdown == Shutdown::Notified {
            self.shutdown = Shutdown::Done;
            return Ok(Turn::Shutdown);
        }
        Err(None)
    }

    /// A receive of ciphertext, if one is due.
    fn wanted(&mut self) -> Option<RecvBuf> {
        let due = self.want.is_some() && self.failed.is_none() && self.end.is_none();
        if !due || !self.unread.is_empty() {
            return None;
        }
        let mut landing = self.landing.take()?;
        landing.resize(RECEIVE_BYTES, 0);
        self.unread = 0..0;
        Some(RecvBuf::heap(landing, 0..RECEIVE_BYTES))
    }
}

/// Encrypts the next part of `sending`.
fn encrypt(tls: &mut Connection, sending: &mut SendBuf) {
    let mut left = SEND_BYTES;
    while left > 0 && sending.remaining() > 0 {
        // It takes no more than it has room for, and fails never.
        let count = sending.with_next(left, |part| tls.writer().write(part));
        match count {
            Ok(count @ 1..) => {
                sending.advance(count);
                left -= count;
            }
            _ => return,
        }
    }
}

/// What kind of failure this is.
fn failure(error: &rustls::Error) -> TlsError {
    use rustls::Error::{
        AlertReceived, InvalidCertificate, InvalidMessage, NoCertificatesPresented,
    };
    let fault = match error {
        InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer => TlsFault::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFault::WrongName
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => TlsFault::OutOfDate,
            _ => TlsFault::BadCertificate,
        },
        NoCertificatesPresented => TlsFault::BadCertificate,
        AlertReceived(alert) if is_about_certificates(*alert) => TlsFault::Refused,
        AlertReceived(AlertDescription::HandshakeFailure) => TlsFault::NoAgreement,
        AlertReceived(_) => TlsFault::PeerAlert,
        InvalidMessage(rustls::InvalidMessage::InvalidContentType) => TlsFault::NotTls,
        _ => TlsFault::Other,
    };
    TlsError::new(fault, error)
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::CertificateRequired
    )
}
