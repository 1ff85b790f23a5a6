//! The example `cache`, as its visitors see it, with a real server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use embar_redis::{Config, Endpoint};
use embar_redis_servers::{Options, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

#[allow(dead_code, reason = "its `main` is not used here")]
#[path = "../examples/cache.rs"]
mod cache;

/// Sends a request, and returns the whole answer.
async fn request(address: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head = format!("{line} HTTP/1.1\r\nhost: here\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer).await;
    read.expect("it answers and closes");
    answer
}

/// Starts the service; its address.
async fn serve<F: Future<Output = String> + Send + 'static>(
    config: Config,
    timeout: Duration,
    render: impl Fn(String) -> F + Clone + Send + 'static,
) -> SocketAddr {
    let cache = cache::Cache::connect(config, timeout).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let cache = cache.expect("it connects");
    tokio::spawn(cache::serve(listener, cache, render));
    address
}

#[tokio::test]
async fn pages_come_from_the_cache_and_without_it_from_the_service() {
    let mut server = Server::start(&Options::default()).expect("redis-server runs");
    let endpoint = Endpoint::tcp(server.address().ip().to_string(), server.port());
    let config = Config::standalone(endpoint);
    let rendered = Arc::new(AtomicUsize::new(0));
    let render = move |path: String| {
        let turn = rendered.fetch_add(1, Ordering::Relaxed);
        async move { format!("{path} {turn}") }
    };
    // One that waits for the cache as long as it takes, and one that does not wait for long.
    let patient = serve(config.clone(), LONG, render.clone()).await;
    let hasty = serve(config, Duration::from_millis(100), render).await;

    for (line, status, source, body) in [
        ("GET /a", "200 OK", "x-cache: miss", "\r\n/a 0"),
        ("GET /a", "200 OK", "x-cache: hit", "\r\n/a 0"),
        ("GET /b", "200 OK", "x-cache: miss", "\r\n/b 1"),
        ("DELETE /a", "204 No Content", "", ""),
        ("DELETE /a", "404 Not Found", "", ""),
        ("GET /a", "200 OK", "x-cache: miss", "\r\n/a 2"),
        ("POST /a", "405 Method Not Allowed", "", ""),
    ] {
        let answer = request(patient, line).await;
        assert!(answer.contains(status), "{line}: {answer}");
        assert!(answer.contains(source), "{line}: {answer}");
        assert!(answer.ends_with(body), "{line}: {answer}");
    }
    let ttl = server.command(&["TTL", "page:/a"]).expect("it answers");
    assert!((1..=60).contains(&ttl.parse().expect("a number")), "{ttl}");

    server.kill();
    let answer = request(hasty, "GET /a").await;
    assert!(answer.contains("x-cache: off"), "{answer}");
    assert!(answer.ends_with("\r\n/a 3"), "{answer}");
}
