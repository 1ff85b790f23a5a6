//! Peers that ask for another handshake on a connection that has had its own, which TLS 1.2 allows.

use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite,
    Tls12CipherSuite,
};

use super::*;
use crate::admission::WELCOME;
use crate::hello::hello;

/// A client without TLS of its own: it has the keys of a connection, and says under them what it likes.
struct Peer {
    socket: TcpStream,
    seals: Box<dyn MessageEncrypter>,
    sealed: u64,
    opens: Box<dyn MessageDecrypter>,
    opened: u64,
}

impl Peer {
    /// Has a session with `server` that is open.
    fn connect(authority: &Authority, server: &Server) -> Self {
        let mut config = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS12])
            .with_root_certificates(authority.roots())
            .with_no_client_auth();
        config.enable_secret_extraction = true;
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(tcp(&server.address())).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let mut stream = StreamOwned::new(tls, socket);
        stream.write_all(&hello()).unwrap();
        let mut header = [0; 8];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header[4..6], WELCOME.to_le_bytes());
        let content = u32::from_le_bytes(*header.first_chunk().unwrap());
        stream.read_exact(&mut vec![0; content as usize]).unwrap();
        let (tls, socket) = stream.into_parts();
        let Some(SupportedCipherSuite::Tls12(suite)) = tls.negotiated_cipher_suite() else {
            panic!("not TLS 1.2");
        };
        let secrets = tls.dangerous_extract_secrets().unwrap();
        let (sealed, seals) = secrets.tx;
        let (opened, opens) = secrets.rx;
        Self {
            socket,
            seals: keys(seals, suite, |key, iv, more| {
                suite.aead_alg.encrypter(key, iv, more)
            }),
            sealed,
            opens: keys(opens, suite, |key, iv, _| suite.aead_alg.decrypter(key, iv)),
            opened,
        }
    }

    fn say(&mut self, what: ContentType, bytes: &[u8]) {
        let plain = OutboundPlainMessage {
            typ: what,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(bytes),
        };
        let record = self.seals.encrypt(plain, self.sealed).unwrap();
        self.sealed += 1;
        self.socket.write_all(&record.encode()).unwrap();
    }

    /// The next record.
    fn hear(&mut self) -> (ContentType, Vec<u8>) {
        let mut header = [0; 5];
        self.socket.read_exact(&mut header).unwrap();
        let len = u16::from_be_bytes([header[3], header[4]]);
        let mut content = vec![0; len.into()];
        self.socket.read_exact(&mut content).unwrap();
        let what = ContentType::from(header[0]);
        let record = InboundOpaqueMessage::new(what, ProtocolVersion::TLSv1_2, &mut content);
        let plain = self.opens.decrypt(record, self.opened).unwrap();
        self.opened += 1;
        (what, plain.payload.to_vec())
    }

    /// Begins another handshake.
    fn ask_for_another_handshake(&mut self, authority: &Authority) {
        let name = ServerName::try_from("localhost").unwrap();
        let mut another = ClientConnection::new(authority.client(), name).unwrap();
        let mut record = Vec::new();
        another.write_tls(&mut record).unwrap();
        self.say(ContentType::Handshake, &record[5..]);
    }

    /// Whether a message comes back.
    fn echoes(&mut self, number: u8) -> bool {
        let frame = [1, 0, 0, 0, 9, 0, 0, 0, number];
        self.say(ContentType::ApplicationData, &frame);
        self.hear() == (ContentType::ApplicationData, frame.to_vec())
    }
}

/// What `made` makes of a key, and of the two parts that its cipher has of the rest.
fn keys<T>(
    secrets: ConnectionTrafficSecrets,
    suite: &Tls12CipherSuite,
    made: impl FnOnce(rustls::crypto::cipher::AeadKey, &[u8], &[u8]) -> T,
) -> T {
    let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
    | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
    | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
    else {
        panic!("another cipher");
    };
    let (fixed, explicit) = iv
        .as_ref()
        .split_at(suite.aead_alg.key_block_shape().fixed_iv_len);
    made(key, fixed, explicit)
}

/// A warning, which leaves the connection as it is (RFC 5246, 7.2.2).
const WARNING: u8 = 1;

#[test]
fn who_asks_for_another_handshake_is_told_no_and_ended_when_it_asks_again() {
    let authority = Authority::new();
    let server = encrypted(&authority, Settings::default()).start(|_| Echo);
    let server = server.unwrap();
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let other = client
        .connect_tls(server.address(), &authority.target(), handler)
        .unwrap();
    let mut peer = Peer::connect(&authority, &server);
    assert!(peer.echoes(1));
    peer.ask_for_another_handshake(&authority);
    let no = vec![WARNING, AlertDescription::NoRenegotiation.into()];
    assert_eq!(peer.hear(), (ContentType::Alert, no));
    assert!(peer.echoes(2), "the session goes on");
    let ending = server.sessions().pop().unwrap();
    peer.ask_for_another_handshake(&authority);
    until("it is over", || ending.closed().is_some());
    let why = ending.closed().unwrap();
    assert_eq!((why.by, why.reason), (Side::Local, CloseReason::Tls));
    assert!(why.text.contains("TooManyRenegotiationRequests"), "{why}");
    assert_eq!(server.monitor().closed_by_reason(), [("Tls", 1)]);
    exchange(&other, &seen);
}
