//! gRPC: streams of messages over one HTTP/2 connection, a thread with a Tokio runtime for each side.

use super::{Connected, Counter, PAYLOAD, RoundTrips, check, check_count};
use anyhow::Context;
use prost::bytes::Bytes;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::thread;
use std::time::Instant;
use tokio::runtime::{self, Runtime};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

mod messages {
    #![allow(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/grpc/peers.v1.rs"));
}
mod calls {
    #![allow(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/grpc/calls.v1.rs"));
}
use calls::calls_client::CallsClient;
use calls::calls_server::CallsServer;
use messages::peer_client::PeerClient;
use messages::peer_server::{Peer, PeerServer};
use messages::{Count, Ping};

/// Bytes of a stream, and of a connection, that may be under way; 64 KiB is the default of HTTP/2.
const WINDOW_BYTES: u32 = 1 << 20;

/// A channel of gRPC.
pub struct Tonic {
    runtime: Runtime,
    client: PeerClient<Channel>,
    calls: CallsClient<Channel>,
}

impl Connected for Tonic {
    fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        // It ends with this process.
        thread::Builder::new()
            .name("server".into())
            .spawn(move || serve(listener))?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let channel = runtime.block_on(connect(address))?;
        Ok(Self {
            runtime,
            client: PeerClient::new(channel.clone()),
            calls: CallsClient::new(channel),
        })
    }

    fn round_trips(&mut self, messages: u64) -> anyhow::Result<RoundTrips> {
        self.runtime.block_on(async {
            let (sender, pings) = mpsc::channel(1);
            let back = self.client.echo(ReceiverStream::new(pings)).await?;
            let mut back = back.into_inner();
            let mut round_trips = RoundTrips::with_capacity(messages);
            for sequence in 1..=messages {
                let begin = Instant::now();
                sender.send(ping(sequence)).await?;
                let ping = back.message().await?.context("the stream ended")?;
                round_trips.add(begin);
                check(sequence, ping.sequence, &ping.payload)?;
            }
            Ok(round_trips)
        })
    }

    fn calls(&mut self, calls: u64) -> anyhow::Result<RoundTrips> {
        self.runtime.block_on(async {
            let mut round_trips = RoundTrips::with_capacity(calls);
            for sequence in 1..=calls {
                let begin = Instant::now();
                let call = calls::Ping {
                    sequence,
                    payload: Bytes::from_static(&PAYLOAD),
                };
                let ping = self.calls.echo(call).await?.into_inner();
                round_trips.add(begin);
                check(sequence, ping.sequence, &ping.payload)?;
            }
            Ok(round_trips)
        })
    }

    fn one_way(&mut self, messages: u64) -> anyhow::Result<()> {
        let pings = tokio_stream::iter((1..=messages).map(ping));
        let count = self.runtime.block_on(self.client.one_way(pings))?;
        check_count(messages, count.into_inner().pings)
    }
}

fn ping(sequence: u64) -> Ping {
    Ping {
        sequence,
        payload: Bytes::from_static(&PAYLOAD),
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    Ok(endpoint.connect().await?)
}

fn serve(listener: TcpListener) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?);
        Server::builder()
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .add_service(PeerServer::new(Answering))
            .add_service(CallsServer::new(Answering))
            .serve_with_incoming(incoming)
            .await?;
        Ok(())
    })
}

struct Answering;

#[tonic::async_trait]
impl Peer for Answering {
    type EchoStream = Pin<Box<dyn Stream<Item = Result<Ping, Status>> + Send>>;

    async fn echo(
        &self,
        pings: Request<Streaming<Ping>>,
    ) -> Result<Response<Self::EchoStream>, Status> {
        Ok(Response::new(Box::pin(pings.into_inner())))
    }

    async fn one_way(&self, pings: Request<Streaming<Ping>>) -> Result<Response<Count>, Status> {
        let mut pings = pings.into_inner();
        let mut counter = Counter::default();
        while let Some(ping) = pings.message().await? {
            counter.see(ping.sequence, &ping.payload);
        }
        Ok(Response::new(Count {
            pings: counter.take(),
        }))
    }
}

#[tonic::async_trait]
impl calls::calls_server::Calls for Answering {
    async fn echo(&self, ping: Request<calls::Ping>) -> Result<Response<calls::Ping>, Status> {
        Ok(Response::new(ping.into_inner()))
    }
}
