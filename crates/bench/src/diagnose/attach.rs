//! Looks at a cluster that runs, whoever started it, and at the clients that it has on this machine.
//!
//! A broker's process is the one that has the other end of our connection to it; clients are those that have ends of connections
//! with brokers, by TCP, or by a Unix socket, by which shared memory begins, too. Nothing of them changes while they are looked at.

pub mod asking;

use std::collections::{BTreeMap, BTreeSet};
use std::process;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use embar_client::{Admin, BrokerStatus, ClientProfiles, ClusterMetadata};
use embar_console::interrupt::Interrupt;
use embar_diagnose::Observed;
use embar_diagnose::observed::{Broker, Flow, Missing, Publisher, Subscriber, Thread};
use embar_meter::Snapshot;
use embar_readings::tcp::TcpReader;
use embar_readings::{sockets, unix};

use self::asking::{Asker, is_here, lack};
use super::observe::{Known, broker, connections, machine, missing, named};
use super::sampling::{Sampling, Span};

/// Less than this in a second is no flow: heartbeats and questions.
const FLOW_MIN: f64 = 10_000.0;
/// How long a broker may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// A thread that used less of its time is no part of a pipeline.
const IDLE_THREAD: f64 = 0.002;

/// What brokers said at one moment.
struct Said {
    statuses: BTreeMap<u32, BrokerStatus>,
    profiles: BTreeMap<u32, Snapshot>,
    /// By process.
    clients: BTreeMap<u32, ClientProfiles>,
    /// Why clients that should tell do not.
    silent: BTreeMap<u32, String>,
}

/// What was seen of a cluster.
pub struct Look {
    /// Who is in it.
    pub cluster: ClusterMetadata,
    /// What its brokers said before and after, by their rows.
    pub statuses: BTreeMap<u32, (BrokerStatus, BrokerStatus)>,
    /// What a diagnosis looks at.
    pub observed: Observed,
}

/// Looks for so long at the cluster that this client asks.
///
/// # Errors
/// No broker answers.
pub fn look(admin: &Admin, span: Duration, interrupt: &Interrupt) -> Result<Look> {
    look_by(admin, &mut Asker::new(ANSWER_WITHIN), span, interrupt)
}

/// The same, with clients of its brokers that outlast the look.
///
/// # Errors
/// No broker answers.
pub fn look_by(
    admin: &Admin,
    asker: &mut Asker,
    span: Duration,
    interrupt: &Interrupt,
) -> Result<Look> {
    let cluster = admin.metadata().wait()?;
    asker.begin(&cluster)?;
    let mut brokers = brokers(&cluster)?;
    let mut absent = Vec::new();
    let mut before = said(asker, &brokers, &mut absent);
    ensure!(
        !before.statuses.is_empty(),
        "no broker of this cluster answers: `embar status` says why"
    );
    let clients = find_processes(&mut brokers, &mut absent);
    before.ask(&clients);
    let pids: BTreeSet<u32> = brokers.iter().filter_map(|it| it.pid).collect();
    let pids = pids.into_iter().chain(clients.iter().copied()).collect();
    let servers = brokers.iter().map(|it| it.address).collect();
    let mut sampling = Sampling::start(pids, servers)?;
    sampling.watch_until(span, interrupt)?;
    let span = sampling.end()?;
    let mut after = said(asker, &brokers, &mut absent);
    after.ask(&clients);
    let both = after.statuses.iter().filter_map(|(id, after)| {
        let before = before.statuses.get(id)?;
        Some((*id, (before.clone(), after.clone())))
    });
    Ok(Look {
        statuses: both.collect(),
        observed: observed(&brokers, &clients, &span, &before, &after, absent),
        cluster,
    })
}

fn brokers(cluster: &ClusterMetadata) -> Result<Vec<Known>> {
    let here = cluster.brokers.iter();
    let here = here.filter(|it| is_here(it));
    here.map(|it| {
        Ok(Known {
            id: it.id,
            pid: None,
            address: it.address.parse().with_context(|| {
                format!("broker {} says that it listens on {:?}", it.id, it.address)
            })?,
            takes_data: it.takes_data,
        })
    })
    .collect()
}

/// Asks all brokers at once, so that one that hangs does not hold up the others. One that does not tell its status is not asked for
/// its stages.
fn said(asker: &mut Asker, brokers: &[Known], absent: &mut Vec<Missing>) -> Said {
    let mut said = Said {
        statuses: BTreeMap::new(),
        profiles: BTreeMap::new(),
        clients: BTreeMap::new(),
        silent: BTreeMap::new(),
    };
    let all = brokers.iter().map(|it| it.id).collect();
    for (id, status) in asker.each(&all, Admin::status) {
        match status {
            Ok(status) => drop(said.statuses.insert(id, status)),
            Err(error) => lack(
                absent,
                format!("what broker {id} counts"),
                error.to_string(),
            ),
        }
    }
    let data = brokers.iter().filter(|it| it.takes_data);
    let data = data
        .map(|it| it.id)
        .filter(|id| said.statuses.contains_key(id));
    for (id, profile) in asker.each(&data.collect(), Admin::profile) {
        match profile {
            Ok(profile) => drop(said.profiles.insert(id, profile)),
            Err(error) => lack(
                absent,
                format!("the stages of broker {id}"),
                error.to_string(),
            ),
        }
    }
    said
}

/// So many clients are asked at a time: each may take its second.
const ASKED_AT_ONCE: usize = 64;

impl Said {
    /// Asks the clients that tell.
    fn ask(&mut self, clients: &BTreeSet<u32>) {
        let all: Vec<u32> = clients.iter().copied().collect();
        for some in all.chunks(ASKED_AT_ONCE) {
            let answers = thread::scope(|scope| {
                let asked = some
                    .iter()
                    .map(|pid| scope.spawn(|| ClientProfiles::of(*pid)));
                let asked: Vec<_> = asked.collect();
                let answers = asked.into_iter().map(|it| it.join().ok());
                answers.collect::<Vec<_>>()
            });
            for (pid, answer) in some.iter().zip(answers) {
                match answer {
                    Some(Ok(Some(told))) => drop(self.clients.insert(*pid, told)),
                    Some(Err(error)) => drop(self.silent.insert(*pid, error.to_string())),
                    Some(Ok(None)) | None => {}
                }
            }
        }
    }
}

/// Finds the processes of the brokers, and those of their clients.
fn find_processes(brokers: &mut [Known], absent: &mut Vec<Missing>) -> BTreeSet<u32> {
    let owners = sockets::owners();
    let mut clients = BTreeSet::new();
    let addresses: BTreeSet<_> = brokers.iter().map(|it| it.address).collect();
    let ends = TcpReader::open().and_then(|mut reader| {
        reader.connections(|it| addresses.contains(&it.local) || addresses.contains(&it.remote))
    });
    match ends {
        Ok(ends) => {
            for end in &ends {
                let owner = owners.get(&end.inode).copied();
                match brokers.iter_mut().find(|it| it.address == end.local) {
                    Some(broker) => broker.pid = broker.pid.or(owner),
                    None => clients.extend(owner),
                }
            }
        }
        Err(error) => absent.push(Missing {
            what: "who has TCP connections with the brokers".to_owned(),
            why: error.to_string(),
        }),
    }
    let servers: BTreeSet<u32> = brokers.iter().filter_map(|it| it.pid).collect();
    let is_server = |inode: u32| owners.get(&inode).is_some_and(|pid| servers.contains(pid));
    match unix::connections(|end| end.path.is_some() && is_server(end.inode)) {
        Ok(ends) => {
            let peers = ends.iter().filter_map(|end| end.peer);
            clients.extend(peers.filter_map(|inode| owners.get(&inode).copied()));
        }
        Err(error) => absent.push(Missing {
            what: "who has Unix sockets with the brokers".to_owned(),
            why: error.to_string(),
        }),
    }
    // Brokers ask each other, and we ask them.
    clients.retain(|pid| !servers.contains(pid) && *pid != process::id());
    for broker in brokers.iter().filter(|it| it.pid.is_none()) {
        absent.push(Missing {
            what: format!("the threads of broker {}", broker.id),
            why: "it is not on this machine, or another user's".to_owned(),
        });
    }
    clients
}

fn observed(
    brokers: &[Known],
    clients: &BTreeSet<u32>,
    span: &Span,
    before: &Said,
    after: &Said,
    mut absent: Vec<Missing>,
) -> Observed {
    let moved = |of: fn(&BrokerStatus) -> u64| -> u64 {
        let each = after.statuses.iter().map(|(id, now)| {
            // One that was started anew counts anew; what one counted before that did not answer then, nobody knows.
            match before.statuses.get(id) {
                Some(then) if then.uptime_ns <= now.uptime_ns => of(now).saturating_sub(of(then)),
                _ if started_in(now, span) => of(now),
                _ => 0,
            }
        });
        each.sum()
    };
    for (id, now) in &after.statuses {
        if !before.statuses.contains_key(id) && !started_in(now, span) {
            absent.push(Missing {
                what: format!("what broker {id} moved"),
                why: "it did not answer at the beginning".to_owned(),
            });
        }
    }
    let (came, went) = (moved(|it| it.bytes_in), moved(|it| it.bytes_out));
    let flows = |bytes: u64| bytes as f64 / span.seconds > FLOW_MIN;
    let flow = match (flows(came), flows(went)) {
        (true, true) => Flow::Both,
        (false, true) => Flow::Read,
        _ => Flow::Publish,
    };
    let (publishing, senders) = side(clients, span, "embar-pub-");
    let (reading, receivers) = side(clients, span, "embar-sub");
    let silent: Vec<String> = clients
        .iter()
        .filter(|pid| !after.clients.contains_key(pid) && !after.silent.contains_key(pid))
        .map(u32::to_string)
        .collect();
    for (pid, why) in &after.silent {
        absent.push(Missing {
            what: format!("the stages of client {pid}"),
            why: why.clone(),
        });
    }
    if !silent.is_empty() {
        absent.push(Missing {
            what: format!("the stages of client {}", silent.join(", ")),
            why: "a client tells them if it calls embar_client::serve_profiles".to_owned(),
        });
    }
    if clients.is_empty() && (flows(came) || flows(went)) {
        absent.push(Missing {
            what: "the clients".to_owned(),
            why: "they are on other machines, or another user's".to_owned(),
        });
    }
    absent.extend(missing(span));
    let bytes = if flow.publishes() { came } else { went };
    Observed {
        seconds: span.seconds,
        flow,
        bytes,
        messages: match flow.publishes() {
            true => moved(|it| it.messages),
            false => 0,
        },
        machine: machine(span),
        publisher: (!senders.is_empty()).then(|| publisher(publishing, senders, before, after)),
        brokers: brokers
            .iter()
            .map(|it| of_broker(it, span, before, after))
            .collect(),
        subscriber: (!receivers.is_empty()).then(|| Subscriber {
            application: reading,
            receivers,
            profile: merged(before, after, |it| it.subscribers.iter()),
            is_bench: false,
        }),
        connections: connections(span, brokers),
        missing: absent,
    }
}

/// Whether a broker began in the span that was looked at.
fn started_in(status: &BrokerStatus, span: &Span) -> bool {
    Duration::from_nanos(status.uptime_ns).as_secs_f64() <= span.seconds
}

/// The threads of the processes that have such threads of ours: those of the application, and ours.
fn side(clients: &BTreeSet<u32>, span: &Span, ours: &str) -> (Vec<Thread>, Vec<Thread>) {
    let (mut applications, mut all_ours) = (Vec::new(), Vec::new());
    for threads in clients.iter().filter_map(|pid| span.threads.get(pid)) {
        let ours = named(threads, ours);
        if ours.is_empty() {
            continue;
        }
        let is_application =
            |it: &&Thread| !it.name.starts_with("embar-") && it.occupied() > IDLE_THREAD;
        applications.extend(threads.iter().filter(is_application).cloned());
        all_ours.extend(ours);
    }
    (applications, all_ours)
}

/// All publishers together.
fn publisher(
    application: Vec<Thread>,
    senders: Vec<Thread>,
    before: &Said,
    after: &Said,
) -> Publisher {
    let told: Vec<_> = after
        .clients
        .values()
        .flat_map(|it| &it.publishers)
        .collect();
    // Each publisher's are its own, and its threads beside them do not publish.
    let in_flight = told
        .iter()
        .map(|it| it.batches_in_flight * open_connections(&it.profile));
    Publisher {
        application,
        profile: merged(before, after, |it| {
            it.publishers.iter().map(|it| &it.profile)
        }),
        batch_bytes: told.iter().map(|it| it.batch_bytes).max(),
        linger_s: told.iter().map(|it| it.linger_s).reduce(f64::max),
        in_flight_max: (!told.is_empty()).then(|| in_flight.sum()),
        senders,
        ..Publisher::default()
    }
}

/// Connections with data brokers that a publisher has.
fn open_connections(profile: &Snapshot) -> u64 {
    let count = |name| profile.counter(name).unwrap_or(0);
    let made = ["tcp_connections", "unix_connections", "shm_connections"].map(count);
    made.iter()
        .sum::<u64>()
        .saturating_sub(count("reconnects"))
        .max(1)
}

/// What all clients of a kind did in the span, in processes that answered before and after it.
fn merged<'a, I: Iterator<Item = &'a Snapshot>>(
    before: &'a Said,
    after: &'a Said,
    of: impl Fn(&'a ClientProfiles) -> I,
) -> Option<Snapshot> {
    let sum = |said: &'a Said, pids: &dyn Fn(&u32) -> bool| {
        let here = said.clients.iter().filter(|(pid, _)| pids(pid));
        let all = here.flat_map(|(_, it)| of(it));
        all.fold(None, |sum: Option<Snapshot>, it| {
            Some(sum.map_or_else(|| it.clone(), |sum| sum.merge(it)))
        })
    };
    let now = sum(after, &|pid| before.clients.contains_key(pid))?;
    let then = sum(before, &|pid| after.clients.contains_key(pid));
    Some(then.map_or_else(|| now.clone(), |then| now.since(&then)))
}

fn of_broker(known: &Known, span: &Span, before: &Said, after: &Said) -> Broker {
    let is_new = after.statuses.get(&known.id);
    let is_new = is_new.is_some_and(|it| started_in(it, span));
    let profile = after.profiles.get(&known.id).and_then(|now| {
        let then = before.profiles.get(&known.id);
        match then {
            Some(then) if !is_new => Some(now.since(then)),
            _ => is_new.then(|| now.clone()),
        }
    });
    broker(known, span, profile.as_ref(), after.statuses.get(&known.id))
}
