//! A greeter: a service with a call and a stream, in both styles, its client, and a load test.
//!
//! ```sh
//! cargo run -p embar-rpc --example greeter -- server 127.0.0.1:7002
//! cargo run -p embar-rpc --example greeter -- hello 127.0.0.1:7002 Ada
//! cargo run -p embar-rpc --example greeter -- hellos 127.0.0.1:7002 Ada
//! cargo run -p embar-rpc --example greeter -- load 127.0.0.1:7002 --sessions 4 --in-flight 16 --for 5
//! ```
//! A program of its own has `embar-build` among its `build-dependencies`, and compiles its services
//! in `build.rs`: `embar_build::compile_services("proto", "greeter")`.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is what the user of a program sees"
)]

mod load;

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use embar_rpc::session::{self, Address, Settings};
use embar_rpc::{BoxFuture, Call, Channel, Reply, Router, Server, Sink, Status};

#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod generated {
    include!(concat!(env!("OUT_DIR"), "/greeter.include.rs"));
}
use generated::greeter::v1::{
    Greeter, GreeterAsync, GreeterAsyncServer, GreeterClient, GreeterServer, HelloReply,
    HelloReplyView, HelloRequest, HelloRequestView,
};

/// Greets, and is greeted
#[derive(Parser)]
#[command(name = "greeter", version)]
pub enum Command {
    /// Greet whoever calls
    Server {
        /// Where to listen (port 0: any that is free)
        address: Address,
    },
    /// Be greeted once
    Hello {
        /// Where the server listens
        address: Address,
        /// Who is to be greeted
        name: String,
    },
    /// Be greeted in every language that it knows
    Hellos {
        /// Where the server listens
        address: Address,
        /// Who is to be greeted
        name: String,
    },
    /// Call as fast as it answers, check each answer, and print how many came, how soon, and why others did not
    Load(load::Options),
}

fn main() -> ExitCode {
    ExitCode::from(end(run(Command::parse())))
}

/// The exit code, and a line about what went wrong.
pub fn end(outcome: Result<(), Box<dyn Error>>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("greeter: {error}");
            1
        }
    }
}

/// Does what the command line says.
pub fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Server { address } => {
            let server = serve(address)?;
            println!("listening on {}; Ctrl-C stops", server.address());
            loop {
                thread::park();
            }
        }
        Command::Hello { address, name } => println!("{}", hello(address, &name)?),
        Command::Hellos { address, name } => {
            for line in hellos(address, &name)? {
                println!("{line}");
            }
        }
        Command::Load(options) => load::run(&options)?,
    }
    Ok(())
}

/// How to greet.
const GREETINGS: [&str; 4] = ["Hello", "Bonjour", "Hola", "Moin"];

fn greeting(word: &str, name: &str) -> HelloReply {
    HelloReply {
        message: format!("{word}, {name}!"),
    }
}

/// The service as handlers: called on the session's thread, which they must not block.
struct Polite;

impl Greeter for Polite {
    fn say_hello(&self, _: &Call, request: HelloRequestView<'_>, reply: Reply<HelloReply>) {
        if request.name.is_empty() {
            return reply.fail(Status::invalid_argument("say who you are"));
        }
        // Another thread could answer later, as well.
        let message = format!("Hello, {}!", request.name);
        reply.send_view(&HelloReplyView { message: &message });
    }

    fn say_hellos(&self, _: &Call, request: HelloRequestView<'_>, mut items: Sink<HelloReply>) {
        let name = request.name.to_owned();
        // It waits until its caller takes more, so it has a thread of its own.
        thread::spawn(move || {
            let mut words = GREETINGS.iter();
            let outcome = words.try_for_each(|word| items.wait_send(&greeting(word, &name)));
            items.finish(outcome);
        });
    }
}

/// Starts the server. It ends when the caller drops it.
pub fn serve(address: Address) -> Result<Server, Box<dyn Error>> {
    let router = Router::new()
        .add_service(GreeterServer::new(Polite))
        .intercept(|call| match call.metadata().get_text("token") {
            Some("secret") => Ok(()),
            _ => Err(Status::unauthenticated("send the token")),
        });
    Ok(router.start(session::Server::builder().listen(address))?)
}

/// The service as async functions.
struct Patient;

impl GreeterAsync for Patient {
    async fn say_hello(&self, _: Call, request: HelloRequest) -> Result<HelloReply, Status> {
        Ok(greeting("Hello", &request.name))
    }

    async fn say_hellos(
        &self,
        _: Call,
        request: HelloRequest,
        items: &mut Sink<HelloReply>,
    ) -> Result<(), Status> {
        for word in GREETINGS {
            items.send(&greeting(word, &request.name)).await?;
        }
        Ok(())
    }
}

/// The same on an executor: `spawn` is, for example, `|future| { tokio::spawn(future); }`.
pub fn serve_async(
    address: Address,
    spawn: impl Fn(BoxFuture) + Send + Sync + 'static,
) -> Result<Server, Box<dyn Error>> {
    let router = Router::new().add_service(GreeterAsyncServer::new(Patient, spawn));
    Ok(router.start(session::Server::builder().listen(address))?)
}

/// Calls with a token, and has 5 seconds for each call.
fn connect(client: &session::Client, address: Address) -> Result<GreeterClient, Box<dyn Error>> {
    let channel = Channel::connect(client, address)?
        .with_timeout(Duration::from_secs(5))
        .intercept(|_, metadata| {
            let added = metadata.add("token", "secret");
            added.map_err(|error| Status::internal(error.to_string()))
        });
    Ok(GreeterClient::new(channel))
}

/// What the server says to `name`.
pub fn hello(address: Address, name: &str) -> Result<String, Box<dyn Error>> {
    let client = embar_rpc::client(Settings::default())?;
    let greeter = connect(&client, address)?;
    // In async code: greeter.say_hello(&request).await
    let reply = greeter.say_hello_view(&HelloRequestView { name }).wait()?;
    Ok(reply.view()?.message.to_owned())
}

/// All that it says.
pub fn hellos(address: Address, name: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let client = embar_rpc::client(Settings::default())?;
    let greeter = connect(&client, address)?;
    let request = HelloRequest {
        name: name.to_owned(),
    };
    let mut items = greeter.say_hellos(&request);
    let mut lines = Vec::new();
    while let Some(item) = items.wait_next() {
        lines.push(item?.view()?.message.to_owned());
    }
    Ok(lines)
}
