//! Encrypted sessions behind proxies.

use super::*;
use crate::hello::hello;
use crate::proxies::speaks_for;

#[test]
fn a_proxy_speaks_before_the_handshake() {
    let authority = Authority::new();
    let proxies = embar_session::Proxies::new(["127.0.0.1"]).unwrap();
    let server = Server::builder()
        .listen_behind(loopback(), &proxies)
        .tls(authority.server())
        .start(|_| Echo)
        .unwrap();
    let mut stream = TcpStream::connect(tcp(&server.address())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(&speaks_for(9)).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(authority.client(), name).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(&hello()).unwrap();
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    let welcome = crate::admission::WELCOME.to_le_bytes();
    assert_eq!(header[4..6], welcome);
    let peer = server.sessions()[0].peer().to_string();
    assert_eq!(peer, "192.0.2.9:4660");
    // Without a word of the proxy there is no handshake.
    let stream = TcpStream::connect(tcp(&server.address())).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(authority.client(), name).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(&hello()).unwrap_err();
    until("it is counted", || {
        refusals(&server) == [(Refusal::ProxyHeader, 1)]
    });
}
