//! Load: sessions with many calls in flight on each, whose every answer is checked. At the end it says what became of all calls.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use embar_rpc::session::{Address, Settings};
use embar_rpc::{Code, Status};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::generated::greeter::v1::{GreeterClient, HelloRequestView};

/// Between two lines that say how far it is.
const PROGRESS: Duration = Duration::from_secs(1);

/// What load does.
#[derive(Args)]
pub struct Options {
    /// Where the server listens
    address: Address,
    /// How many sessions call
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    sessions: u32,
    /// How many calls are in flight on each of them
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    in_flight: u32,
    /// How long they call, in seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 5)]
    seconds: u64,
    /// How many calls they make together, however long that takes
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds")]
    calls: Option<u64>,
}

/// What is to be done, and how much of it is.
struct Work {
    ends: Option<Instant>,
    /// Calls that nobody has begun, and how many those were at first.
    left: AtomicU64,
    all: u64,
    answered: AtomicU64,
}

impl Work {
    fn new(options: &Options) -> Self {
        let lasts = Duration::from_secs(options.seconds);
        let all = options.calls.unwrap_or(u64::MAX);
        Self {
            ends: options.calls.is_none().then(|| Instant::now() + lasts),
            left: AtomicU64::new(all),
            all,
            answered: AtomicU64::new(0),
        }
    }

    /// How many calls were begun.
    fn begun(&self) -> u64 {
        self.all - self.left.load(Ordering::Relaxed)
    }

    /// Whether one more call is to be made.
    fn take(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        let order = Ordering::Relaxed;
        self.ends.is_none_or(|ends| Instant::now() < ends)
            && self.left.fetch_update(order, order, one_less).is_ok()
    }
}

/// What became of calls.
struct Figures {
    /// Answered as they should be; how long they took, in microseconds.
    latencies: Histogram<u64>,
    /// Answered otherwise, and the first such answer.
    wrong: u64,
    first_wrong: Option<String>,
    /// Not answered: how many for which reason, and what was said of the first.
    failed: BTreeMap<Code, (u64, Status)>,
}

impl Figures {
    fn new() -> Self {
        Self {
            // Up to an hour.
            latencies: Histogram::new_with_max(3_600_000_000, 3).expect("bounds that it takes"),
            wrong: 0,
            first_wrong: None,
            failed: BTreeMap::new(),
        }
    }

    fn failed(&mut self, count: u64, why: Status) {
        let entry = self.failed.entry(why.code()).or_insert((0, why));
        entry.0 += count;
    }

    fn add(&mut self, other: Self) {
        let added = self.latencies.add(&other.latencies);
        added.expect("they are alike");
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
        for (count, why) in other.failed.into_values() {
            self.failed(count, why);
        }
    }

    /// Prints them, and says whether each of the calls that were begun was answered as it should be.
    fn print(&self, begun: u64, took: Duration) -> bool {
        let (answered, wrong) = (self.latencies.len(), self.wrong);
        let failed: u64 = self.failed.values().map(|(count, _)| count).sum();
        // Whoever began them has not said what became of them: it panicked.
        let lost = begun - answered - wrong - failed;
        println!("calls    {answered} answered, {wrong} wrong, {failed} failed, {lost} lost");
        if let Some(answer) = &self.first_wrong {
            println!("wrong    {answer}");
        }
        for (count, why) in self.failed.values() {
            println!("failed   {count} {why}");
        }
        println!(
            "rate     {:.0} calls/s",
            answered as f64 / took.as_secs_f64()
        );
        let at = |quantile| self.latencies.value_at_quantile(quantile);
        let (half, most, longest) = (at(0.5), at(0.99), at(1.0));
        println!("latency  P50 {half} us, P99 {most} us, max {longest} us");
        answered == begun
    }
}

/// Calls, and prints what became of it.
///
/// # Errors
/// The server is not there; or calls were not answered, or not as they should be.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let client = embar_rpc::client(Settings::default())?;
    let greeters = (0..options.sessions)
        .map(|_| super::connect(&client, options.address.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    println!("{} sessions are open", greeters.len());
    let began = Instant::now();
    let work = Arc::new(Work::new(options));
    let (done, ends) = channel();
    for (session, greeter) in greeters.into_iter().enumerate() {
        let (work, done, in_flight) = (Arc::clone(&work), done.clone(), options.in_flight);
        thread::spawn(move || call(session, &greeter, in_flight, &work, &done));
    }
    drop(done);
    let (mut all, mut next) = (Figures::new(), began + PROGRESS);
    loop {
        match ends.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(figures) => all.add(figures?),
            Err(RecvTimeoutError::Timeout) => {
                let answered = work.answered.load(Ordering::Relaxed);
                println!("so far: {answered} answers");
                next += PROGRESS;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if !all.print(work.begun(), began.elapsed()) {
        return Err("not every call was answered as it should be".into());
    }
    Ok(())
}

fn lock(figures: &Mutex<Figures>) -> MutexGuard<'_, Figures> {
    figures.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has as many tasks call on one session as calls are to be in flight.
fn call(
    session: usize,
    greeter: &GreeterClient,
    in_flight: u32,
    work: &Arc<Work>,
    done: &Sender<std::io::Result<Figures>>,
) {
    let figures = Arc::new(Mutex::new(Figures::new()));
    let called = tokio::runtime::Builder::new_current_thread().build();
    let called = called.map(|runtime| {
        runtime.block_on(async {
            let mut callers = JoinSet::new();
            for caller in 0..in_flight {
                let name = format!("caller {caller} of session {session}");
                let caller = Caller {
                    name,
                    greeter: greeter.clone(),
                    work: Arc::clone(work),
                    figures: Arc::clone(&figures),
                };
                callers.spawn(caller.call());
            }
            callers.join_all().await;
        });
    });
    let figures = called.map(|()| std::mem::replace(&mut *lock(&figures), Figures::new()));
    let _ = done.send(figures);
}

/// One that has one call in flight at a time.
struct Caller {
    name: String,
    greeter: GreeterClient,
    work: Arc<Work>,
    figures: Arc<Mutex<Figures>>,
}

impl Caller {
    async fn call(self) {
        for number in 0u64.. {
            if !self.work.take() {
                return;
            }
            // Each asks something else, so that nobody's answer passes for another one's.
            let name = format!("{}, call {number}", self.name);
            let request = HelloRequestView { name: &name };
            let asked = Instant::now();
            match self.greeter.say_hello_view(&request).await {
                Ok(answer) => {
                    let took = asked.elapsed();
                    let said = answer.view().map(|it| it.message.to_owned());
                    self.check(&name, said.map_err(|error| error.to_string()), took);
                }
                Err(why) => {
                    let is_over = why.code() == Code::Unavailable;
                    lock(&self.figures).failed(1, why);
                    if is_over {
                        return;
                    }
                    // It may have failed at once, and so may the next one: the others have their turns, too.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn check(&self, name: &str, said: Result<String, String>, took: Duration) {
        let mut figures = lock(&self.figures);
        if said.as_ref() == Ok(&format!("Hello, {name}!")) {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            figures.latencies.saturating_record(micros);
            self.work.answered.fetch_add(1, Ordering::Relaxed);
        } else {
            figures.wrong += 1;
            let first = || format!("{said:?} to {name:?}");
            figures.first_wrong.get_or_insert_with(first);
        }
    }
}
