//! What a call costs: no allocation, on either end, once everything is warm.

use std::sync::Mutex;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use embar_rpc::session::{Address, Server};
use embar_rpc::{Call, Channel, Reply, Router, Sink};
use embar_session::Settings;
use embar_transport::alloc::{Counting, of_process, set_counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

mod proto {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    mod generated {
        include!(concat!(env!("OUT_DIR"), "/testing.include.rs"));
    }
    pub use self::generated::embar::rpc::testing::v1::*;
}
use proto::{Number, NumberView, Testing, TestingClient, TestingServer, Text, TextView};

/// Answers at once, or from a thread of its own.
struct Echo(Mutex<SyncSender<Reply<Text>>>);

impl Testing for Echo {
    fn echo(&self, _: &Call, request: TextView<'_>, reply: Reply<Text>) {
        reply.send_view(&request);
    }

    fn obey(&self, _: &Call, _: TextView<'_>, reply: Reply<Text>) {
        self.0.lock().unwrap().send(reply).unwrap();
    }

    fn count(&self, _: &Call, request: NumberView<'_>, mut items: Sink<Number>) {
        let number = Number {
            number: request.number,
            ..Default::default()
        };
        for _ in 0..10 {
            items.try_send(&number).unwrap();
        }
        items.finish(Ok(()));
    }
}

/// Of all threads of the process while `run` runs.
fn allocations(run: impl FnOnce()) -> u64 {
    set_counting(true);
    drop(std::hint::black_box(Box::new(0)));
    let before = of_process().times;
    assert!(before > 0, "the box was counted");
    run();
    let after = of_process().times;
    set_counting(false);
    after - before
}

/// One test, because it counts what the whole process allocates.
#[test]
fn calls_cost_no_allocation_on_either_end() {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let (held, replies) = sync_channel::<Reply<Text>>(16);
    std::thread::spawn(move || {
        let text = Text::default();
        replies.into_iter().for_each(|reply| reply.send(&text));
    });
    let router = Router::new().add_service(TestingServer::new(Echo(held.into())));
    let server = router.start(Server::builder().listen(any)).unwrap();
    let client = embar_rpc::client(Settings::default()).unwrap();
    let channel = Channel::connect(&client, server.address()).unwrap();
    let testing = TestingClient::new(channel);
    let request = Text {
        text: "hello".into(),
        data: vec![7; 100],
    };
    let number = Number {
        number: 7,
        ..Default::default()
    };
    let long = Duration::from_secs(60);
    let calls = |rounds: u32| {
        for _ in 0..rounds {
            let reply = testing.echo(&request).wait().unwrap();
            assert_eq!(reply.view().unwrap().data.len(), 100);
            drop(reply);
            let reply = testing.echo(&request).timeout(long).wait().unwrap();
            assert_eq!(reply.view().unwrap().text, "hello");
            drop(reply);
            // Three in flight, of which one waits for a thread.
            let mut first = testing.obey(&request);
            let mut second = testing.echo(&request);
            first.start().unwrap();
            second.start().unwrap();
            testing.echo(&request).wait().unwrap();
            second.wait().unwrap();
            first.wait().unwrap();
            let mut items = testing.count(&number);
            for _ in 0..10 {
                assert_eq!(
                    items.wait_next().unwrap().unwrap().view().unwrap().number,
                    7
                );
            }
            assert!(items.wait_next().is_none());
        }
    };
    calls(300);
    let counted = [(); 4].map(|()| allocations(|| calls(300)));
    assert_eq!(
        counted, [0; 4],
        "in each 300 rounds of five calls and a stream"
    );
}
