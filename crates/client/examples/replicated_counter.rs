//! A counter that several replicas keep: all apply the same commands in the same order, and agree.
//!
//! ```sh
//! cargo run --release -- up &                     # a cluster; it prints its address
//! cargo run -p embar-client --example replicated_counter -- 127.0.0.1:9400 anna   # and in another terminal:
//! cargo run -p embar-client --example replicated_counter -- 127.0.0.1:9400 ben
//! add 5
//! multiply 3
//! show
//! ```
//!
//! A replica publishes its commands, and changes its counter only by what it reads. The topic has one order for
//! all readers, over all brokers, with each publisher's messages in its own order ([`Order::TotalPerPublisher`]).
//! So all replicas go through the same values, whichever broker they read from, and a replica knows what its
//! command made of the counter as soon as it has read it.
//!
//! **Each command counts once.** The log stores each message of a publisher once, although brokers die. A publisher
//! that has ended may leave in doubt whether its last message is stored ([`PublishError::may_be_stored`]). So
//! commands have numbers: a replica may publish a command again, and all replicas ignore what they have applied.
//!
//! **A replica that is started again** goes on at its snapshot. It joins by a message, and applies all that is before
//! it: what its predecessor of the same name left on the way comes too late behind it, and is ignored by all. A
//! process that was taken for dead finds the other one's message, and ends.
//!
//! The snapshot must not become older than what the topic retains. If it does, [`ReadError::Evicted`] says so, and a
//! copy of another replica's file helps.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use embar_client::{
    Admin, AdminError, ClientError, ErrorCode, Message, OpenError, Order, Positions, PublishError,
    Publisher, ReadError, Start, Subscriber, TopicSpec,
};

/// Ends a replica. Unless its own settings are wrong, it may be started again.
pub type Failed = Box<dyn Error + Send + Sync>;

/// The topic with the commands.
const TOPIC: &str = "counter";

/// How often something is tried that may succeed later. Each attempt waits for the cluster by itself.
const ATTEMPTS: usize = 5;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, name] = arguments.as_slice() else {
        return Err("arguments: HOST:PORT NAME".into());
    };
    let snapshot = PathBuf::from(format!("{name}.counter"));
    let mut replica = Replica::open(bootstrap, name, &snapshot)?;
    println!("{} (add N, multiply N, show)", replica.counter().value);
    for line in std::io::stdin().lines() {
        let line = line?;
        if line == "show" {
            replica.catch_up()?;
            println!("{}", replica.counter().value);
            continue;
        }
        match line.parse() {
            Ok(command) => println!("{}", replica.execute(command)?),
            Err(why) => eprintln!("{why}"),
        }
    }
    replica.close()
}

/// What can be done to the counter. It matters which comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Adds a number.
    Add(i64),
    /// Multiplies by a number.
    Multiply(i64),
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(number) => write!(f, "add {number}"),
            Self::Multiply(number) => write!(f, "multiply {number}"),
        }
    }
}

impl FromStr for Command {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once(' ').unwrap_or((text, ""));
        match (name, number.parse()) {
            ("add", Ok(number)) => Ok(Self::Add(number)),
            ("multiply", Ok(number)) => Ok(Self::Multiply(number)),
            _ => Err(format!("{text:?} is neither `add N` nor `multiply N`")),
        }
    }
}

/// The state that is replicated. Two that have applied as much are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counter {
    /// The counter. Beyond the range of its type it goes on at the other end, for all replicas alike.
    pub value: i64,
    /// The next position in the topic.
    pub next: u64,
    /// By replica: the process that has the name, and the number of its last command that was applied.
    last: BTreeMap<String, (u64, u64)>,
}

impl Counter {
    /// Applies the message at the next position. It uses nothing but the message and the state: no clock, no chance,
    /// nothing of this machine.
    fn apply(&mut self, message: &Message<'_>) {
        self.next = message.offset + 1;
        let text = String::from_utf8_lossy(message.value);
        let mut words = text.splitn(4, ' ');
        let (Some(name), Some(Ok(process)), Some(Ok(number))) = (
            words.next(),
            words.next().map(str::parse),
            words.next().map(str::parse),
        ) else {
            return;
        };
        let last = self.last.get(name).copied();
        let Some(command) = words.next() else {
            // Without a command it says that this process has the name from here on.
            if last.is_none_or(|(before, _)| before != process) {
                self.last.insert(name.to_owned(), (process, number));
            }
            return;
        };
        let is_next = |(of, last): (u64, u64)| of == process && last.checked_add(1) == Some(number);
        if !last.is_some_and(is_next) {
            // It was applied before, or comes from a process that another has followed.
            return;
        }
        self.last.insert(name.to_owned(), (process, number));
        match command.parse() {
            Ok(Command::Add(number)) => self.value = self.value.wrapping_add(number),
            Ok(Command::Multiply(number)) => self.value = self.value.wrapping_mul(number),
            Err(_) => {}
        }
    }

    /// Reads the snapshot in a file; a new counter if there is none.
    fn load(file: &Path) -> Result<Self, Failed> {
        let Ok(text) = std::fs::read_to_string(file) else {
            return Ok(Self::default());
        };
        let parse = || {
            let mut lines = text.lines();
            let (value, next) = lines.next()?.split_once(' ')?;
            let last = lines.map(|line| {
                let mut words = line.split(' ');
                let name = words.next()?.to_owned();
                Some((
                    name,
                    (words.next()?.parse().ok()?, words.next()?.parse().ok()?),
                ))
            });
            Some(Self {
                value: value.parse().ok()?,
                next: next.parse().ok()?,
                last: last.collect::<Option<_>>()?,
            })
        };
        parse().ok_or_else(|| format!("{} is no snapshot: delete it", file.display()).into())
    }

    /// Keeps a snapshot: the value and how far it is are in one file, which is replaced as a whole.
    fn save(&self, file: &Path) -> Result<(), Failed> {
        let mut text = format!("{} {}\n", self.value, self.next);
        for (name, (process, number)) in &self.last {
            text += &format!("{name} {process} {number}\n");
        }
        let new = file.with_extension("new");
        std::fs::write(&new, text)?;
        Ok(std::fs::rename(new, file)?)
    }
}

/// One of those who keep the counter.
pub struct Replica {
    bootstrap: String,
    name: String,
    /// Tells this process from others of the name: when it began.
    process: u64,
    /// The number of its last command.
    number: u64,
    snapshot: PathBuf,
    publisher: Publisher,
    subscriber: Subscriber,
    counter: Counter,
}

impl Replica {
    /// Joins the replicas. `name`, a word, is this replica's alone; `snapshot` is the file in which it keeps its state.
    pub fn open(bootstrap: &str, name: &str, snapshot: &Path) -> Result<Self, Failed> {
        let counter = Counter::load(snapshot)?;
        let began = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let mut replica = Self {
            bootstrap: bootstrap.to_owned(),
            name: name.to_owned(),
            process: began.as_nanos() as u64,
            number: 0,
            snapshot: snapshot.to_owned(),
            publisher: open_publisher(bootstrap)?,
            subscriber: open_subscriber(bootstrap, counter.next)?,
            counter,
        };
        replica.publish(&format!("{name} {} 0", replica.process))?;
        while replica.process_of_name() != Some(replica.process) {
            replica.read(Duration::from_secs(1))?;
        }
        Ok(replica)
    }

    /// The counter, as far as this replica has read.
    pub fn counter(&self) -> &Counter {
        &self.counter
    }

    /// Changes the counter, on all replicas. Returns its value right after that: all commands before it count, and
    /// none behind it.
    pub fn execute(&mut self, command: Command) -> Result<i64, Failed> {
        self.number += 1;
        let (name, process, number) = (&self.name, self.process, self.number);
        self.publish(&format!("{name} {process} {number} {command}"))?;
        loop {
            match self.counter.last.get(&self.name) {
                Some((process, number)) if *process == self.process => {
                    if *number == self.number {
                        return Ok(self.counter.value);
                    }
                }
                _ => return Err("another process has joined with this name".into()),
            }
            self.read(Duration::from_secs(1))?;
        }
    }

    /// Applies what has come, and keeps a snapshot.
    pub fn catch_up(&mut self) -> Result<(), Failed> {
        while self.read(Duration::ZERO)? {}
        self.counter.save(&self.snapshot)
    }

    /// Keeps a snapshot, and leaves.
    pub fn close(self) -> Result<(), Failed> {
        self.counter.save(&self.snapshot)?;
        Ok(self.publisher.close()?)
    }

    fn process_of_name(&self) -> Option<u64> {
        let last = self.counter.last.get(&self.name);
        last.map(|(process, _)| *process)
    }

    /// Publishes a message, again even if it may be stored: it has a number, so it counts once.
    fn publish(&mut self, text: &str) -> Result<(), Failed> {
        for attempt in 1.. {
            let sent = self.publisher.publish(text.as_bytes());
            match sent.and_then(|ticket| self.publisher.acked(ticket).wait()) {
                // In the second case it is stored once, and nobody knows where.
                Ok(_) | Err(PublishError::PositionUnknown) => break,
                Err(error) if error.is_retryable() && attempt < ATTEMPTS => {
                    let doubt = if error.may_be_stored() {
                        "perhaps"
                    } else {
                        "not"
                    };
                    eprintln!("{text:?} is published again ({doubt} stored): {error}");
                    self.publisher = open_publisher(&self.bootstrap)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads and applies one message; false if none came for `limit`.
    fn read(&mut self, limit: Duration) -> Result<bool, Failed> {
        let error = match self.subscriber.next_timeout(limit) {
            Ok(Some(message)) => {
                self.counter.apply(&message);
                return Ok(true);
            }
            // Only a subscriber that was opened with `until_end` has an end.
            Ok(None) | Err(ReadError::TimedOut { .. }) => return Ok(false),
            Err(error) => error,
        };
        if !error.is_retryable() {
            return Err(error.into());
        }
        eprintln!("{} reads again: {error}", self.name);
        self.subscriber = open_subscriber(&self.bootstrap, self.counter.next)?;
        Ok(false)
    }
}

/// Opens a publisher, and creates the topic before if there is none. Each message is sent at once, because its replica
/// waits for it.
fn open_publisher(bootstrap: &str) -> Result<Publisher, Failed> {
    let builder = || Publisher::builder(bootstrap).topic(TOPIC);
    let open = || builder().auto_create(false).linger(Duration::ZERO).open();
    match open() {
        Err(OpenError::Client(ClientError::UnknownTopic { .. })) => {
            create_topic(bootstrap)?;
            Ok(open()?)
        }
        opened => Ok(opened?),
    }
}

fn open_subscriber(bootstrap: &str, next: u64) -> Result<Subscriber, Failed> {
    let builder = Subscriber::builder(bootstrap).topic(TOPIC);
    Ok(builder.from(Start::Positions(Positions::at(next))).open()?)
}

/// Creates the topic. (A publisher can do so too, but gives it no order.)
fn create_topic(bootstrap: &str) -> Result<(), Failed> {
    let spec = TopicSpec::new(TOPIC).order(Order::TotalPerPublisher);
    match Admin::connect(bootstrap)?.create_topic(spec).wait() {
        Ok(_)
        // Somebody else was faster.
        | Err(AdminError::Client(ClientError::Refused {
            code: ErrorCode::TopicExists,
            ..
        })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
