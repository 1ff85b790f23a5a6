//! Cap'n Proto: calls that carry a message, and streaming calls, a thread with a Tokio runtime for each side.

use super::{Connected, Counter, PAYLOAD, RoundTrips, check, check_count};
use capnp::Error;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use capnp_rpc::{RpcSystem, new_client};
use futures_util::AsyncReadExt;
use futures_util::io::{BufReader, BufWriter};
use peers_capnp::peer;
use std::cell::RefCell;
use std::net::TcpListener;
use std::rc::Rc;
use std::thread;
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::runtime::{self, Runtime};
use tokio::task::LocalSet;
use tokio_util::compat::TokioAsyncReadCompatExt;

#[allow(missing_docs, clippy::all, reason = "generated")]
mod peers_capnp {
    include!(concat!(env!("OUT_DIR"), "/peers_capnp.rs"));
}

/// Bytes of streaming calls that may be under way; 64 KiB is the default.
const WINDOW_BYTES: usize = 1 << 20;

/// A connection of Cap'n Proto.
pub struct CapnpRpc {
    runtime: Runtime,
    tasks: LocalSet,
    client: peer::Client,
}

impl Connected for CapnpRpc {
    fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        // It ends with this process.
        thread::Builder::new()
            .name("server".into())
            .spawn(move || serve(&listener))?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let tasks = LocalSet::new();
        let client = tasks.block_on(&runtime, async {
            let stream = TcpStream::connect(address).await?;
            let mut system = system(stream, Side::Client, None)?;
            let client: peer::Client = system.bootstrap(Side::Server);
            tokio::task::spawn_local(system);
            anyhow::Ok(client)
        })?;
        Ok(Self {
            runtime,
            tasks,
            client,
        })
    }

    fn round_trips(&mut self, messages: u64) -> anyhow::Result<RoundTrips> {
        self.tasks.block_on(&self.runtime, async {
            let mut round_trips = RoundTrips::with_capacity(messages);
            for sequence in 1..=messages {
                let begin = Instant::now();
                let mut call = self.client.echo_request();
                let mut ping = call.get().init_ping();
                ping.set_sequence(sequence);
                ping.set_payload(&PAYLOAD);
                let answer = call.send().promise.await?;
                round_trips.add(begin);
                let ping = answer.get()?.get_ping()?;
                check(sequence, ping.get_sequence(), ping.get_payload()?)?;
            }
            Ok(round_trips)
        })
    }

    /// Its round trips are calls.
    fn calls(&mut self, calls: u64) -> anyhow::Result<RoundTrips> {
        self.round_trips(calls)
    }

    fn one_way(&mut self, messages: u64) -> anyhow::Result<()> {
        self.tasks.block_on(&self.runtime, async {
            for sequence in 1..=messages {
                let mut call = self.client.one_way_request();
                let mut ping = call.get().init_ping();
                ping.set_sequence(sequence);
                ping.set_payload(&PAYLOAD);
                // Until the next one may leave.
                call.send().await?;
            }
            let count = self.client.count_request().send().promise.await?;
            check_count(messages, count.get()?.get_pings())
        })
    }
}

/// One end of a connection.
fn system(
    stream: TcpStream,
    side: Side,
    main: Option<capnp::capability::Client>,
) -> anyhow::Result<RpcSystem<Side>> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.compat().split();
    let (reader, writer) = (BufReader::new(reader), BufWriter::new(writer));
    let mut network = VatNetwork::new(reader, writer, side, Default::default());
    network.set_window_size(WINDOW_BYTES);
    Ok(RpcSystem::new(Box::new(network), main))
}

fn serve(listener: &TcpListener) -> anyhow::Result<()> {
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let client: peer::Client = new_client(Answering::default());
        let stream = TcpStream::from_std(stream)?;
        system(stream, Side::Server, Some(client.client))?.await?;
        Ok(())
    })
}

#[derive(Default)]
struct Answering(RefCell<Counter>);

impl peer::Server for Answering {
    async fn echo(
        self: Rc<Self>,
        call: peer::EchoParams,
        mut answer: peer::EchoResults,
    ) -> Result<(), Error> {
        answer.get().set_ping(call.get()?.get_ping()?)
    }

    async fn one_way(self: Rc<Self>, call: peer::OneWayParams) -> Result<(), Error> {
        let ping = call.get()?.get_ping()?;
        self.0
            .borrow_mut()
            .see(ping.get_sequence(), ping.get_payload()?);
        Ok(())
    }

    async fn count(
        self: Rc<Self>,
        _: peer::CountParams,
        mut answer: peer::CountResults,
    ) -> Result<(), Error> {
        answer.get().set_pings(self.0.borrow_mut().take());
        Ok(())
    }
}
