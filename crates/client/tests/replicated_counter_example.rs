//! The example `replicated_counter`, with real brokers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Barrier;
use std::thread;

use embar_broker::{Cluster, Server};
use embar_client::Subscriber;
use replicated_counter::{Command, Replica};

#[allow(dead_code, reason = "its `main` is not used here")]
#[path = "../examples/replicated_counter.rs"]
mod replicated_counter;

/// What replicas did, by their names: each command, and the value right after it.
type History = BTreeMap<String, Vec<(Command, i64)>>;

/// What each replica does before its restart, and after it. It matters which replica comes first.
fn commands(salt: i64) -> impl Iterator<Item = Command> {
    (0..20).map(move |number| match number % 3 {
        0 => Command::Multiply(2 * salt + 1),
        _ => Command::Add(100 * salt + number),
    })
}

fn execute(replica: &mut Replica, salt: i64) -> Vec<(Command, i64)> {
    commands(salt)
        .map(|command| {
            (
                command,
                replica.execute(command).expect("some broker lives"),
            )
        })
        .collect()
}

/// What somebody sees who reads the topic and knows nothing of replicas but the form of their messages.
fn history(bootstrap: &str) -> History {
    let subscriber = Subscriber::builder(bootstrap).topic("counter");
    let mut subscriber = subscriber.until_end(true).open().expect("brokers serve it");
    let (mut history, mut seen, mut value) = (History::new(), HashSet::new(), 0_i64);
    while let Some(message) = subscriber.next().expect("it can be read") {
        let text = str::from_utf8(message.value).expect("a text");
        let words: Vec<&str> = text.splitn(4, ' ').collect();
        let [name, process, number, command] = words[..] else {
            continue;
        };
        let command: Command = command.parse().expect("a command");
        if seen.insert([name, process, number].join(" ")) {
            value = match command {
                Command::Add(number) => value.wrapping_add(number),
                Command::Multiply(number) => value.wrapping_mul(number),
            };
            let of_replica = history.entry(name.to_owned()).or_default();
            of_replica.push((command, value));
        }
    }
    history
}

#[test]
fn replicas_agree_and_each_command_counts_once_although_brokers_die() {
    let cluster = Cluster::builder().brokers(3).standbys(1);
    let cluster = cluster.region_bytes(96 << 20).start();
    let mut cluster = cluster.expect("a small cluster starts");
    // The head will be gone when somebody looks for the cluster.
    let addresses = (0..4).filter_map(|id| cluster.broker(id).map(Server::address));
    let bootstrap = addresses.map(|address| address.to_string());
    let bootstrap = bootstrap.collect::<Vec<_>>().join(",");
    let dir = tempfile::tempdir().expect("a directory");
    let open = |name: &str| {
        let replica = Replica::open(&bootstrap, name, &dir.path().join(name));
        replica.expect("it joins")
    };

    let names = ["anna", "ben", "carla"];
    let half = Barrier::new(names.len() + 1);
    let executed: History = thread::scope(|scope| {
        let replicas = names.iter().zip(1..).map(|(name, salt)| {
            let (open, half) = (&open, &half);
            scope.spawn(move || {
                let mut replica = open(name);
                let mut executed = execute(&mut replica, salt);
                // As if its process were killed: the next one goes on at the last snapshot.
                replica.catch_up().expect("some broker lives");
                drop(replica);
                half.wait();
                let mut replica = open(name);
                executed.extend(execute(&mut replica, -salt));
                replica.close().expect("all is stored");
                ((*name).to_owned(), executed)
            })
        });
        let replicas: Vec<_> = replicas.collect();
        half.wait();
        // The one that sequences, and one that takes data.
        cluster.crash_broker(0);
        cluster.crash_broker(1);
        cluster.restart_broker(1).expect("it takes its row over");
        let join = |replica: thread::ScopedJoinHandle<'_, _>| replica.join().expect("no panic");
        replicas.into_iter().map(join).collect()
    });
    assert_eq!(history(&bootstrap), executed);

    // One that goes on at its snapshot comes to the same as one that begins with nothing.
    let (mut old, mut new) = (open("anna"), open("dora"));
    new.execute(Command::Add(1)).expect("some broker lives");
    while old.counter().next < new.counter().next {
        old.catch_up().expect("some broker lives");
    }
    assert_eq!(old.counter(), new.counter());
}

#[test]
fn a_replica_of_the_same_name_ends_the_one_before_it() {
    let cluster = Cluster::builder().brokers(2).region_bytes(64 << 20);
    let cluster = cluster.start().expect("a small cluster starts");
    let bootstrap = cluster.bootstrap().to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Replica::open(&bootstrap, "anna", &dir.path().join("anna")).expect("it joins");
    let mut first = open();
    let value = first.execute(Command::Add(5));
    assert_eq!(value.expect("it has the name"), 5);
    let mut second = open();
    let refused = first.execute(Command::Add(7));
    let refused = refused.expect_err("another has its name").to_string();
    assert!(refused.contains("another process"), "{refused}");
    let value = second.execute(Command::Multiply(2));
    assert_eq!(value.expect("it has the name"), 10, "7 was not added");
}
