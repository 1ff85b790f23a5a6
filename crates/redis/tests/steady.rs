//! A warm client allocates nothing for a command, in any of its threads.

use std::cell::RefCell;
use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{CacheConfig, Endpoint};
use embar_redis::{Client, Config};
use embar_redis_servers::{Options, Server};
use embar_transport::alloc::{Counting, of_process, set_counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COMMANDS: u64 = 10_000;

/// How many allocations `commands` make once the client is warm; each command gets its number.
async fn allocations(commands: impl AsyncFn(u64)) -> u64 {
    set_counting(true);
    // Slots, buffers and lists grow to what they need.
    for number in 0..COMMANDS {
        commands(number).await;
    }
    // Warming up may allocate nothing itself, as memory goes from one reply to the next.
    drop(std::hint::black_box(Box::new(0_u8)));
    let before = of_process().times;
    assert!(before > 0, "allocations are counted");
    for number in 0..COMMANDS {
        commands(number).await;
    }
    of_process().times - before
}

// One test, because the allocator counts for all threads.
#[test]
fn commands_allocate_nothing_once_warm() {
    let server = Server::start(&Options::default()).expect("redis-server runs");
    let address = server.address();
    let config = || {
        let mut config =
            Config::standalone(Endpoint::tcp(address.ip().to_string(), address.port()));
        // The first command's timer fires at its deadline, which must not be during the count.
        config.timeout = Duration::from_secs(600);
        config.cache = Some(CacheConfig::new(1 << 20));
        config
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let keys: Vec<String> = (0..100).map(|number| format!("key{number:013}")).collect();
    let value = [b'v'; 256];
    runtime.block_on(async {
        let of_task = Client::with(config()).await.expect("it connects");
        let of_thread = Client::with_blocking(config()).expect("it connects");
        for client in [of_task, of_thread] {
            let key = |number: u64| &keys[number as usize % keys.len()];
            let sets = allocations(async |number| {
                client.set(key(number), &value).await.expect("it is set");
            });
            assert_eq!(sets.await, 0, "SET");
            let buffer = RefCell::new(Vec::new());
            let gets = allocations(async |number| {
                let mut bytes = buffer.take();
                let len = client.get_into(key(number), &mut bytes).await;
                assert_eq!(len, Ok(Some(256)));
                assert!(bytes == value);
                buffer.replace(bytes);
            });
            assert_eq!(gets.await, 0, "GET");
            let cached = client.cached(Duration::MAX);
            let hits = allocations(async |number| {
                let mut bytes = buffer.take();
                let len = cached.get_into(key(number), &mut bytes).await;
                assert_eq!(len, Ok(Some(256)));
                assert!(bytes == value);
                buffer.replace(bytes);
            });
            assert_eq!(hits.await, 0, "GET from the cache");
            let metrics = client.metrics().cache.expect("there is a cache");
            assert_eq!(metrics.misses, keys.len() as u64);
        }
    });
}
