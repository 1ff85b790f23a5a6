//! What each part of a pipeline does with its time, and what would limit if one of them took none.
//!
//! The rule is that of operational analysis (Denning and Buzen, "The Operational Analysis of Queueing Network Models",
//! 1978): a part that works for a share `u` of the time limits the rate to `1 / u` of what it is now, however fast all
//! others become. So the part that works the most limits, and without it the next one does.
//!
//! Buffers do no work. That they are full is the consequence of a part behind them that works all the time, and only if
//! there is none are they too small.

use serde::{Deserialize, Serialize};

use crate::observed::{Connection, Observed, SendingEnd, Thread, per};

/// A part of a pipeline that works for more of the time than this counts as working all the time.
pub const SATURATED: f64 = 0.85;

/// A part of a pipeline, in the order in which bytes come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// The threads that publish.
    Application,
    /// The publisher's threads that send.
    Senders,
    /// Batches that may be on their way.
    InFlight,
    /// Rings in which messages of sessions wait to be sent.
    SendRings,
    /// Send buffers of sockets.
    SendBuffers,
    /// Receive buffers of sockets.
    ReceiveBuffers,
    /// The network between.
    Network,
    /// The brokers' network threads.
    Brokers,
    /// The thread that orders.
    Sequencer,
    /// The brokers' memory.
    Log,
    /// The subscriber's threads that receive.
    Receivers,
    /// The threads that read messages.
    Reader,
    /// The code of applications that takes messages of sessions, on the threads that serve these.
    Handlers,
    /// The threads on which callers of Redis and its client's connections run.
    ClientThreads,
    /// The threads of Redis servers that execute commands.
    Servers,
    /// All processors of the machine.
    Processors,
}

impl Resource {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Senders => "senders",
            Self::InFlight => "in flight",
            Self::SendRings => "send rings",
            Self::SendBuffers => "send buffers",
            Self::ReceiveBuffers => "receive buffers",
            Self::Network => "network",
            Self::Brokers => "brokers",
            Self::Sequencer => "sequencer",
            Self::Log => "log",
            Self::Receivers => "receivers",
            Self::Reader => "reader",
            Self::Handlers => "handlers",
            Self::ClientThreads => "client threads",
            Self::Servers => "servers",
            Self::Processors => "processors",
        }
    }
}

/// What one part does with the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Use {
    /// The part.
    pub part: Resource,
    /// Share of the time in which it works, or, for buffers, in which they are full, 0 to 1.
    pub share: f64,
    /// Of that, share of the time in which it would have worked, but had no processor. Of several threads, `share` is that of the one that
    /// wanted to work the most, and the rest of it is what the busiest one worked.
    pub without_processor: f64,
}

/// The parts of a pipeline and what they do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// In the order in which bytes come by; the processors come last.
    pub uses: Vec<Use>,
    /// Share of the processors that others use, and would have to share with a pipeline that wants more.
    #[serde(default)]
    pub contested: f64,
}

impl Limits {
    /// From what was observed.
    pub fn of(observed: &Observed) -> Self {
        let mut limits = Self::default();
        if observed.flow.publishes() {
            limits.publishing(observed);
        }
        limits.brokers(observed);
        if observed.flow.reads() {
            limits.reading(observed);
        }
        let machine = &observed.machine;
        limits.add(Resource::Processors, machine.busy + machine.steal, 0.0);
        // The scheduler is fair.
        limits.contested = (machine.others + machine.unseen) / 2.0;
        limits
    }

    fn publishing(&mut self, observed: &Observed) {
        if let Some(publisher) = &observed.publisher {
            let blocked = blocked(observed).filter(|_| !publisher.waits_for_each);
            self.application(Resource::Application, blocked, &publisher.application);
            self.threads(Resource::Senders, &publisher.senders);
            if let Some(share) = in_flight(observed) {
                self.add(Resource::InFlight, share, 0.0);
            }
        }
        self.buffers(observed, false);
    }

    fn brokers(&mut self, observed: &Observed) {
        let network = observed.brokers.iter().flat_map(|it| &it.network);
        self.threads(Resource::Brokers, network);
        let sequencers = observed.brokers.iter();
        let sequencers = sequencers.filter_map(|it| it.sequencer.as_ref());
        self.threads(Resource::Sequencer, sequencers);
    }

    fn reading(&mut self, observed: &Observed) {
        self.buffers(observed, true);
        if let Some(subscriber) = &observed.subscriber {
            self.threads(Resource::Receivers, &subscriber.receivers);
            let starved = starved(observed);
            self.application(Resource::Reader, starved, &subscriber.application);
        }
    }

    fn buffers(&mut self, observed: &Observed, to_subscribers: bool) {
        let sending = |part: fn(&SendingEnd) -> f64| {
            weighted(observed.connections_with(to_subscribers), part)
        };
        if let Some(share) = sending(|end| end.send_buffer_full) {
            self.add(Resource::SendBuffers, share, 0.0);
        }
        if let Some(share) = sending(|end| end.window_full) {
            self.add(Resource::ReceiveBuffers, share, 0.0);
        }
    }

    /// An application does something, whatever it is, while it does not wait for the log; of one that does not say for how long it
    /// waited only its threads are known.
    fn application(&mut self, part: Resource, waited_for_log: Option<f64>, threads: &[Thread]) {
        let Some(waited_for_log) = waited_for_log else {
            self.threads(part, threads);
            return;
        };
        let ready: f64 = threads.iter().map(|it| it.waiting).sum();
        self.add(part, 1.0 - waited_for_log, per(ready, threads.len() as f64));
    }

    fn threads<'a>(&mut self, part: Resource, threads: impl IntoIterator<Item = &'a Thread>) {
        let threads: Vec<&Thread> = threads.into_iter().collect();
        if !threads.is_empty() {
            let occupied = most(threads.iter().copied(), Thread::occupied).min(1.0);
            let worked = most(threads, |thread| thread.on_cpu);
            self.add(part, occupied, occupied - worked);
        }
    }

    /// Adds a part, or the more used one of two of a name.
    pub(crate) fn add(&mut self, part: Resource, share: f64, without_processor: f64) {
        let share = share.clamp(0.0, 1.0);
        let without_processor = without_processor.clamp(0.0, share);
        match self.uses.iter_mut().find(|it| it.part == part) {
            Some(used) if used.share >= share => {}
            Some(used) => (used.share, used.without_processor) = (share, without_processor),
            None => self.uses.push(Use {
                part,
                share,
                without_processor,
            }),
        }
    }

    /// The share of a part's time; 0 of one that was not seen.
    pub fn share(&self, part: Resource) -> f64 {
        let found = self.uses.iter().find(|it| it.part == part);
        found.map_or(0.0, |it| it.share)
    }

    /// Share of the time in which a part works on a processor; 0 of one that was not seen.
    pub(crate) fn work(&self, part: Resource) -> f64 {
        let found = self.uses.iter().find(|it| it.part == part);
        found.map_or(0.0, |it| it.share - it.without_processor)
    }

    /// The part that works the most; buffers do not work.
    pub fn busiest(&self) -> Option<Use> {
        let working = self.uses.iter().filter(|it| works(it.part));
        working.max_by(|a, b| a.share.total_cmp(&b.share)).copied()
    }

    /// Whether a part works all the time, or would if it had a processor.
    pub fn saturated(&self) -> bool {
        self.busiest().is_some_and(|it| it.share >= SATURATED)
    }

    /// The same of those behind the publisher, and of its senders.
    pub(crate) fn saturated_behind_publisher(&self) -> bool {
        let behind = self.uses.iter().filter(|it| {
            works(it.part) && !matches!(it.part, Resource::Application | Resource::Reader)
        });
        behind.map(|it| it.share).fold(0.0, f64::max) >= SATURATED
    }

    /// By how much the rate could grow, as a part of itself, if `part` worked a share `gone` less of the time, and the machine
    /// had `gone_of_machine` less to do: until another part limits.
    ///
    /// What a thread waits for processors does not count: that shrinks with what the machine has to do.
    pub fn gain(&self, part: Resource, gone: f64, gone_of_machine: f64) -> f64 {
        let (mut now, mut then) = (MIN_SHARE, MIN_SHARE);
        for used in self.uses.iter().filter(|it| works(it.part)) {
            let share = used.share - used.without_processor;
            let mut less = if used.part == part { gone } else { 0.0 };
            if used.part == Resource::Processors {
                less = less.max(gone_of_machine);
            }
            now = now.max(share);
            then = then.max(share - less);
        }
        (now / then - 1.0).max(0.0)
    }

    /// The same if several parts worked so much less of the time.
    pub(crate) fn gain_without(&self, less: &[(Resource, f64)]) -> f64 {
        let (mut now, mut then) = (MIN_SHARE, MIN_SHARE);
        for used in self.uses.iter().filter(|it| works(it.part)) {
            let share = used.share - used.without_processor;
            let gone = less.iter().filter(|(part, _)| *part == used.part);
            let gone: f64 = gone.map(|(_, gone)| gone).sum();
            now = now.max(share);
            then = then.max(share - gone);
        }
        (now / then - 1.0).max(0.0)
    }

    /// By how much the rate could grow if nobody had to wait a share `waited` of the time any more: until that time is used, or
    /// a part works all the time, `except` aside, which is the one that waited.
    pub fn gain_of_waiting(&self, waited: f64, except: Option<Resource>) -> f64 {
        self.gain_until(waited, except, 0.0)
    }

    /// The same of an application that could hand over more: what it wants of the processors, others have to share with it.
    pub fn gain_of_wanting_more(&self, waited: f64) -> f64 {
        self.gain_until(waited, Some(Resource::Application), self.contested)
    }

    fn gain_until(&self, waited: f64, except: Option<Resource>, contested: f64) -> f64 {
        let others = self
            .uses
            .iter()
            .filter(|it| works(it.part) && Some(it.part) != except);
        let next = others
            .map(|it| match it.part {
                Resource::Processors => it.share - contested,
                _ => it.share - it.without_processor,
            })
            .fold(MIN_SHARE, f64::max);
        (1.0 / next).min(1.0 / (1.0 - waited).max(MIN_SHARE)) - 1.0
    }
}

/// No bound on a gain claims more than the inverse of this: a part that works for less than a twentieth of the time costs
/// something else long before.
pub(crate) const MIN_SHARE: f64 = 0.05;

pub(crate) fn works(part: Resource) -> bool {
    !matches!(
        part,
        Resource::InFlight
            | Resource::SendRings
            | Resource::SendBuffers
            | Resource::ReceiveBuffers
            | Resource::Network
            | Resource::Log
    )
}

fn most<'a>(threads: impl IntoIterator<Item = &'a Thread>, of: impl Fn(&Thread) -> f64) -> f64 {
    threads.into_iter().map(of).fold(0.0, f64::max)
}

/// The mean over connections, weighed by what they sent; `None` where the kernel says nothing of any.
pub(crate) fn weighted<'a>(
    connections: impl Iterator<Item = &'a Connection>,
    of: impl Fn(&SendingEnd) -> f64,
) -> Option<f64> {
    let (sum, weight) = connections
        .filter_map(|connection| connection.sender.as_ref())
        .map(|end| (of(end), end.sent_bytes as f64 + 1.0))
        .fold((0.0, 0.0), |(sum, all), (value, weight)| {
            (sum + value * weight, all + weight)
        });
    (weight > 0.0).then(|| sum / weight)
}

/// Share of the time in which threads that publish waited for a free batch buffer.
pub(crate) fn blocked(observed: &Observed) -> Option<f64> {
    let publisher = observed.publisher.as_ref()?;
    let waited = publisher.profile.as_ref()?.stage("WaitForBuffer")?.total_ns;
    stage_share(observed, waited as f64, publisher.application.len())
}

/// Share of the time in which threads that read waited for a batch.
pub(crate) fn starved(observed: &Observed) -> Option<f64> {
    let subscriber = observed.subscriber.as_ref()?;
    let waited = subscriber.profile.as_ref()?.stage("WaitForBatch")?.total_ns;
    stage_share(observed, waited as f64, subscriber.application.len())
}

/// Share of the batches that may be in flight which were, on average (Little's law: the time that they waited, over the
/// time that passed).
fn in_flight(observed: &Observed) -> Option<f64> {
    let publisher = observed.publisher.as_ref()?;
    let waited = publisher.profile.as_ref()?.stage("WaitForAck")?.total_ns;
    stage_share(observed, waited as f64, publisher.in_flight_max? as usize)
}

/// Time of a stage as a share of what `threads` had.
pub(crate) fn stage_share(observed: &Observed, ns: f64, threads: usize) -> Option<f64> {
    let time = observed.seconds * threads as f64;
    (time > 0.0).then(|| (ns / 1e9 / time).min(1.0))
}
