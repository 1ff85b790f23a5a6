//! Every command with a method, against a real server in both versions of the protocol.

mod bits;
mod checked;
mod cluster;
mod geo;
mod hashes;
mod keys;
mod lists;
mod refused;
mod scripting;
mod server;
mod sets;
mod sorted_sets;
mod streams;
mod strings;
mod table;

use checked::Checked;
use embar_redis::{Client, Error};
use embar_redis_servers::{Options, Server};

/// Runs a test twice, each time with an empty server: in version 2 of the protocol, and in version 3.
async fn both(test: impl AsyncFn(Checked<'_>)) {
    let server = Server::start(&Options::default()).unwrap();
    for protocol in ["resp2", "resp3"] {
        server.command(&["FLUSHALL"]).unwrap();
        server.command(&["FUNCTION", "FLUSH"]).unwrap();
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let url = format!("redis://{}?protocol={protocol}", server.address());
        let client = Client::connect(&url).await.unwrap();
        test(Checked(&client)).await;
    }
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

fn pairs<V: Clone, const N: usize>(pairs: [(&str, V); N]) -> Vec<(String, V)> {
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// The server's error.
fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Server(error)) => error.text,
        other => panic!("the server was to refuse: {other:?}"),
    }
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}
