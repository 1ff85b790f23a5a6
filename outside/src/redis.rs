//! The Redis client: typed commands, any command, several at once.

use std::error::Error as _;
use std::time::Duration;

use embar_redis::pipeline::{Pipeline, ResultKey, Results};
use embar_redis::prelude::*;
use embar_redis::{Client, Cmd, Config, Endpoint, Error, Request, cmd};

fn client(address: &str) -> Result<Client, Error> {
    let (host, port) = address.rsplit_once(':').expect("host and port");
    let port = port.parse().expect("a port");
    let mut config = Config::standalone(Endpoint::tcp(host, port));
    config.timeout = Duration::from_millis(50);
    Client::with_blocking(config)
}

fn use_it(client: &Client) -> Result<String, Error> {
    client.set("greeting", "hello").wait()?;
    let mut pipeline: Pipeline<'_> = client.pipeline();
    let greeting: ResultKey<String> = pipeline.get("greeting");
    let results: Results = pipeline.run_blocking();
    let echo: Request<'_, Cmd, String> = client.send(cmd("ECHO").arg("hello"));
    println!("redis: {}", echo.wait()?);
    results.take(greeting)
}

/// Sets and gets a value; nothing answers, so it reports why that fails.
pub fn run(silent: &str) -> Result<(), String> {
    match client(silent).and_then(|client| use_it(&client)) {
        Ok(_) => Err(format!("something answers at {silent}")),
        Err(error) => {
            let executed = error.may_have_executed();
            println!(
                "redis: {error} ({:?}); executed: {executed}",
                error.source()
            );
            Ok(())
        }
    }
}
