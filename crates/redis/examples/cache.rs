//! A cache in front of a small web service: pages that take long to render come from Redis.
//!
//! ```sh
//! redis-server --port 6379 --save '' &
//! cargo run -p embar-redis --example cache -- redis://127.0.0.1:6379 127.0.0.1:8080 &
//! curl -i http://127.0.0.1:8080/hello            # x-cache: miss
//! curl -i http://127.0.0.1:8080/hello            # x-cache: hit
//! curl -i -X DELETE http://127.0.0.1:8080/hello  # the next one renders again
//! ```
//!
//! All requests share the client's one connection: what they ask at the same time leaves with one
//! write. The cache is an optimisation, so its failure must not be the service's: a request waits a short
//! time for Redis, and does without it then (x-cache: off).

#![expect(clippy::print_stderr, reason = "it is a program")]

use std::time::Duration;

use embar_redis::{Client, Config, Error, prelude::*};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long a page stays in the cache, seconds.
const TTL_SECONDS: u64 = 60;

/// How long a request waits for Redis before it does without.
const CACHE_TIMEOUT: Duration = Duration::from_millis(100);

/// The longest head of a request, bytes.
const MAX_REQUEST_BYTES: usize = 8 << 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next();
    let url = url.as_deref().unwrap_or("redis://127.0.0.1:6379");
    let address = arguments.next();
    let address = address.as_deref().unwrap_or("127.0.0.1:8080");

    let cache = Cache::connect(Config::from_url(url)?, CACHE_TIMEOUT).await?;
    serve(TcpListener::bind(address).await?, cache, render).await?;
    Ok(())
}

/// A page of the service. It stands for a database, a template, or another service.
async fn render(path: String) -> String {
    tokio::time::sleep(Duration::from_millis(300)).await;
    format!("This is {path}.\n")
}

/// Where a page came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The cache had it.
    Hit,
    /// The service rendered it, and the cache has it from now on.
    Miss,
    /// The service rendered it, and the cache did not answer.
    Off,
}

/// Pages by their paths.
#[derive(Clone)]
pub struct Cache {
    client: Client,
    timeout: Duration,
}

impl Cache {
    /// Connects to the server or cluster of a configuration. Requests wait for the cache for `timeout`
    /// at most.
    pub async fn connect(mut config: Config, timeout: Duration) -> Result<Self, Error> {
        config.client_name = Some("page-cache".to_owned());
        let client = Client::with(config).await?;
        Ok(Self { client, timeout })
    }

    /// The page at `path`, from the cache if it has it, else from `render`.
    pub async fn page<F: Future<Output = String>>(
        &self,
        path: &str,
        render: impl FnOnce(String) -> F,
    ) -> (String, Source) {
        let key = key(path);
        match self.client.get(&key).timeout(self.timeout).await {
            Ok(Some(page)) => return (page, Source::Hit),
            Ok(None) => {}
            Err(error) => {
                eprintln!("the cache does not answer: {error}");
                return (render(path.to_owned()).await, Source::Off);
            }
        }
        let page = render(path.to_owned()).await;
        let set = self.client.setex(&key, TTL_SECONDS, &page);
        // Storing the same page twice does no harm, so the client may repeat it.
        match set.repeatable().timeout(self.timeout).await {
            Ok(()) => (page, Source::Miss),
            Err(error) => {
                eprintln!("the cache does not take a page: {error}");
                (page, Source::Off)
            }
        }
    }

    /// Forgets the page at `path`: whether the cache had it.
    pub async fn forget(&self, path: &str) -> Result<bool, Error> {
        let deleted: u64 = self.client.del(key(path)).await?;
        Ok(deleted > 0)
    }
}

fn key(path: &str) -> String {
    format!("page:{path}")
}

/// Serves pages on `listener`: `GET` answers with a page, `DELETE` makes the cache forget it.
pub async fn serve<F>(
    listener: TcpListener,
    cache: Cache,
    render: impl Fn(String) -> F + Clone + Send + 'static,
) -> std::io::Result<()>
where
    F: Future<Output = String> + Send + 'static,
{
    loop {
        let (stream, _) = listener.accept().await?;
        let (cache, render) = (cache.clone(), render.clone());
        tokio::spawn(async move {
            if let Err(error) = answer(stream, &cache, render).await {
                eprintln!("a visitor is gone: {error}");
            }
        });
    }
}

/// Answers one request and closes the connection.
async fn answer<F: Future<Output = String>>(
    mut stream: TcpStream,
    cache: &Cache,
    render: impl FnOnce(String) -> F,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_REQUEST_BYTES || stream.read_buf(&mut head).await? == 0 {
            return respond(&mut stream, "400 Bad Request", "", "").await;
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some(path)) => {
            let (page, source) = cache.page(path, render).await;
            let header = match source {
                Source::Hit => "x-cache: hit\r\n",
                Source::Miss => "x-cache: miss\r\n",
                Source::Off => "x-cache: off\r\n",
            };
            respond(&mut stream, "200 OK", header, &page).await
        }
        (Some("DELETE"), Some(path)) => match cache.forget(path).await {
            Ok(true) => respond(&mut stream, "204 No Content", "", "").await,
            Ok(false) => respond(&mut stream, "404 Not Found", "", "").await,
            Err(error) => {
                let why = format!("{error}\n");
                respond(&mut stream, "503 Service Unavailable", "", &why).await
            }
        },
        _ => respond(&mut stream, "405 Method Not Allowed", "", "").await,
    }
}

async fn respond(
    stream: &mut TcpStream,
    status: &str,
    header: &str,
    body: &str,
) -> std::io::Result<()> {
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\n{header}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await
}
