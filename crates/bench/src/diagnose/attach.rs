//! Looks at a cluster that runs, whoever started it, and at the clients that it has on this machine.
//!
//! A broker's process is the one that has the other end of our connection to it; clients are those that have ends of connections
//! with brokers, by TCP, or by a Unix socket, by which shared memory begins, too. Nothing of them changes while they are looked at.

pub mod asking;
mod carried;

use std::collections::{BTreeMap, BTreeSet};
use std::process;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use embar_client::{
    Admin, BrokerState, BrokerStatus, CallingThread, ClientProfiles, ClusterMetadata,
};
use embar_console::interrupt::Interrupt;
use embar_diagnose::Observed;
use embar_diagnose::observed::{Broker, Flow, Missing, Publisher, Subscriber, Thread};
use embar_meter::Snapshot;
use embar_readings::tcp::TcpReader;
use embar_readings::{sockets, unix};

use self::asking::{Asker, is_here, lack};
use self::carried::Carried;
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
    for broker in cluster.brokers.iter().filter(|it| it.takes_data) {
        if matches!(broker.state, BrokerState::Starting | BrokerState::Draining) {
            let what = format!("the stages of broker {}", broker.id);
            lack(&mut absent, what, "it starts, or drains");
        }
    }
    // Who does not answer is waited for here, so that what counts is of one moment.
    let mut first = said(asker, &brokers, &mut absent);
    ensure!(
        !first.statuses.is_empty(),
        "no broker of this cluster answers: `embar status` says why"
    );
    let clients = find_processes(&mut brokers, &mut absent);
    first.ask(&clients);
    let telling = first.clients.keys().copied().collect();
    let mut before = said(asker, &brokers, &mut absent);
    before.ask(&telling);
    let pids: BTreeSet<u32> = brokers.iter().filter_map(|it| it.pid).collect();
    let pids = pids.into_iter().chain(clients.iter().copied()).collect();
    let servers = brokers.iter().map(|it| it.address).collect();
    let mut sampling = Sampling::start(pids, servers)?;
    let telling_brokers = before.profiles.keys().copied().collect();
    let mut carried = Carried::default();
    sampling.watch_others(span, interrupt, || carried.ask(asker, &telling_brokers))?;
    let span = sampling.end()?;
    let mut after = said(asker, &brokers, &mut absent);
    after.ask(&telling);
    after.silent.append(&mut first.silent);
    for id in before.statuses.keys() {
        if !after.statuses.contains_key(id) {
            let why = carried
                .why_silent(*id)
                .unwrap_or("it does not answer any more");
            lack(&mut absent, format!("what broker {id} counts"), why);
        }
    }
    let both = after.statuses.iter().filter_map(|(id, after)| {
        let before = before.statuses.get(id)?;
        Some((*id, (before.clone(), after.clone())))
    });
    let observed = observed(&brokers, &clients, &span, &before, &after, absent);
    Ok(Look {
        statuses: both.collect(),
        observed: Observed {
            over_time: carried.steps(observed.flow),
            ..observed
        },
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
            // One that starts, drains or is gone takes none, and that is no fault of it.
            takes_data: it.takes_data && it.state == BrokerState::Ready,
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
    let publishes = calling(before, after, publishing_threads);
    let reads = calling(before, after, reading_threads);
    let (publishing, senders) = side(clients, span, "embar-pub-", publishes.as_ref());
    let (reading, receivers) = side(clients, span, "embar-sub", reads.as_ref());
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
            profile: merged(before, after, |it| {
                let live = it.subscribers.iter().map(|it| &it.profile);
                live.chain(&it.ended_subscribers)
            }),
            is_bench: false,
        }),
        connections: connections(span, brokers),
        over_time: Vec::new(),
        missing: absent,
    }
}

/// Whether a broker began in the span that was looked at.
fn started_in(status: &BrokerStatus, span: &Span) -> bool {
    Duration::from_nanos(status.uptime_ns).as_secs_f64() <= span.seconds
}

/// Those threads of a process that use its publishers, or its subscribers; `None` if it has none of these.
type Callers = fn(&ClientProfiles) -> Option<Vec<CallingThread>>;

fn publishing_threads(told: &ClientProfiles) -> Option<Vec<CallingThread>> {
    let callers = told.publishers.iter().flat_map(|it| it.callers.clone());
    (!told.publishers.is_empty()).then(|| callers.collect())
}

fn reading_threads(told: &ClientProfiles) -> Option<Vec<CallingThread>> {
    let callers = told.subscribers.iter().flat_map(|it| it.callers.clone());
    (!told.subscribers.is_empty()).then(|| callers.collect())
}

/// Ids of the threads that began or took batches in the span; `None` if no process tells of such clients. Beside them others compute, wait for something
/// of their own, or are done with what they published: these neither wait for the log nor hold it up.
fn calling(before: &Said, after: &Said, of: Callers) -> Option<BTreeSet<u32>> {
    let sums = |callers: Vec<CallingThread>| {
        let mut sums = BTreeMap::<u32, u64>::new();
        for caller in callers {
            *sums.entry(caller.thread).or_default() += caller.batches;
        }
        sums
    };
    let mut moved: Option<BTreeSet<u32>> = None;
    for (pid, after) in &after.clients {
        let Some((then, now)) = before.clients.get(pid).zip(of(after)) else {
            continue;
        };
        let then = sums(of(then).unwrap_or_default());
        let now = sums(now).into_iter();
        let called = now.filter(|(thread, batches)| then.get(thread) != Some(batches));
        let moved = moved.get_or_insert_default();
        moved.extend(called.map(|(thread, _)| thread));
    }
    moved
}

/// The threads of the processes that have such threads of ours: those of the application that `calling` names, and ours. If no process
/// tells who calls, nothing is known of what they wait for either, and it is all those that do something.
fn side(
    clients: &BTreeSet<u32>,
    span: &Span,
    ours: &str,
    calling: Option<&BTreeSet<u32>>,
) -> (Vec<Thread>, Vec<Thread>) {
    let (mut active, mut all_ours) = (Vec::new(), Vec::new());
    for threads in clients.iter().filter_map(|pid| span.threads.get(pid)) {
        let ours = named(threads, ours);
        if ours.is_empty() {
            continue;
        }
        let is_application =
            |it: &&Thread| !it.name.starts_with("embar-") && it.occupied() > IDLE_THREAD;
        active.extend(threads.iter().filter(is_application).cloned());
        all_ours.extend(ours);
    }
    let applications = calling.map(|calling| {
        let threads = calling.iter().filter_map(|id| span.by_id.get(id).cloned());
        threads.collect()
    });
    (applications.unwrap_or(active), all_ours)
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
            let live = it.publishers.iter().map(|it| &it.profile);
            live.chain(&it.ended_publishers)
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

#[cfg(test)]
mod tests {
    use embar_client::PublisherProfile;

    use super::*;

    fn snapshot(messages: u64) -> Snapshot {
        Snapshot::new("S", [], [("messages".to_owned(), messages)])
    }

    fn publisher(messages: u64, callers: &[(u32, u64)]) -> PublisherProfile {
        let callers = callers.iter().map(|(thread, batches)| CallingThread {
            thread: *thread,
            batches: *batches,
        });
        PublisherProfile {
            profile: snapshot(messages),
            batch_bytes: 1,
            linger_s: 0.0,
            batches_in_flight: 1,
            callers: callers.collect(),
        }
    }

    fn said(publishers: Vec<PublisherProfile>, ended: Option<Snapshot>) -> Said {
        let told = ClientProfiles {
            publishers,
            ended_publishers: ended,
            ..ClientProfiles::default()
        };
        Said {
            statuses: BTreeMap::new(),
            profiles: BTreeMap::new(),
            clients: BTreeMap::from([(7, told)]),
            silent: BTreeMap::new(),
        }
    }

    fn thread(name: &str, on_cpu: f64) -> Thread {
        Thread {
            name: name.to_owned(),
            on_cpu,
            ..Thread::default()
        }
    }

    #[test]
    fn a_publisher_that_ends_takes_nothing_from_one_that_stays() {
        let before = said(vec![publisher(1000, &[]), publisher(50, &[])], None);
        let after = said(vec![publisher(80, &[])], Some(snapshot(1010)));
        let seen = super::publisher(Vec::new(), Vec::new(), &before, &after);
        let profile = seen.profile.expect("it was told");
        assert_eq!(profile.counter("messages"), Some(40));
    }

    #[test]
    fn threads_that_compute_beside_one_that_publishes_are_no_part_of_it() {
        // One is blocked most of the time, one is done with publishing, and two compute.
        let before = said(vec![publisher(0, &[(11, 5), (12, 9)])], None);
        let after = said(vec![publisher(0, &[(11, 8), (12, 9)])], None);
        assert_eq!(calling(&before, &after, reading_threads), None);
        let calling = calling(&before, &after, publishing_threads);
        assert_eq!(calling, Some(BTreeSet::from([11])));
        let threads = [
            (11, thread("main", 0.05)),
            (12, thread("setup", 0.5)),
            (13, thread("worker", 0.9)),
            (14, thread("worker", 0.9)),
            (15, thread("embar-pub-0", 0.3)),
        ];
        let span = Span {
            threads: BTreeMap::from([(7, threads.iter().map(|it| it.1.clone()).collect())]),
            by_id: BTreeMap::from(threads),
            ..Span::default()
        };
        let clients = BTreeSet::from([7]);
        let (application, senders) = side(&clients, &span, "embar-pub-", calling.as_ref());
        assert_eq!(application, [thread("main", 0.05)]);
        assert_eq!(senders, [thread("embar-pub-0", 0.3)]);
        // A process that does not tell.
        let (application, _) = side(&clients, &span, "embar-pub-", None);
        assert_eq!(application.len(), 4);
    }
}
