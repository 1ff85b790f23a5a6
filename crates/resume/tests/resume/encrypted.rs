//! Encrypted sessions resume as others do.

use std::sync::{Arc, Mutex};

use embar_resume::{Keeper, KeeperSettings, Target};
use embar_session::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use embar_session::rustls::{ClientConfig, RootCertStore, ServerConfig};
use embar_session::{Server, TlsTarget};

use crate::support::{
    Cut, Proxy, Recorder, connector, expect, loopback, quick, recorder, resumed, send,
};

#[test]
fn an_encrypted_session_goes_on_when_its_connection_is_cut() {
    let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = issued.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::from(key))
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = TlsTarget::new(Arc::new(client), "localhost").unwrap();
    let keeper = Keeper::new(KeeperSettings::default()).unwrap();
    let (echo, at_server) = recorder(true);
    let events = Mutex::new(echo.events);
    let make = keeper.handlers(move |_| Recorder {
        events: events.lock().unwrap().clone(),
        echoes: true,
    });
    let server = Server::builder()
        .listen(loopback())
        .tls(Arc::new(config))
        .start(make)
        .unwrap();
    // Behind the handshake, inside of what follows.
    let proxy = Proxy::start(&server.address(), [Cut::Up(3000)]);
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let session = connector.open(Target::new(&proxy.address).tls(tls), handler);
    for number in 0..300 {
        send(&session, number).unwrap();
    }
    expect(&at_server, 0..300);
    expect(&seen, 0..300);
    proxy.cut_all();
    resumed(&seen);
    send(&session, 300).unwrap();
    expect(&seen, 300..301);
}
