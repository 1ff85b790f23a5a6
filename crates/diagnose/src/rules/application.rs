//! What the publishing process does itself: its application, copying into batches, sending, lingering.

use super::{Case, DEFAULT_SYSCALL_S, SPARE_MIN, confidence, larger_batches};
use crate::cause::Cause;
use crate::finding::{Change, Evidence, Finding, Remedy};
use crate::limits::{Resource, SATURATED, blocked, stage_share, weighted};
use crate::observed::{Publisher, Thread, per};

/// A publisher whose threads wait for buffers longer than this is held up by what follows.
const BLOCKED_MAX: f64 = 0.25;
/// A linger that takes less of the time is not worth a word.
const LINGER_MIN: f64 = 0.08;
/// A thread that does nothing for this share of the time is not what the machine could have.
const IDLE_MIN: f64 = 0.12;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let Some(publisher) = &case.observed.publisher else {
        return;
    };
    if publisher.waits_for_each {
        lingers(case, publisher, found);
        return;
    }
    let Some(blocked) = blocked(case.observed) else {
        unseen(case, publisher, found);
        return;
    };
    if blocked <= BLOCKED_MAX {
        slow(case, publisher, blocked, found);
        copies(case, publisher, blocked, found);
    }
    sends(case, publisher, found);
    writes_little(case, publisher, found);
}

/// What an application thread does on average.
struct Application {
    on_cpu: f64,
    waiting: f64,
    /// Copying messages into batches.
    writing: f64,
}

impl Application {
    fn of(case: &Case<'_>, publisher: &Publisher) -> Self {
        let threads = publisher.application.len().max(1) as f64;
        let mean =
            |of: fn(&Thread) -> f64| publisher.application.iter().map(of).sum::<f64>() / threads;
        let stage = publisher
            .profile
            .as_ref()
            .and_then(|it| it.stage("BufferWrite"));
        let writing = stage.and_then(|stage| {
            stage_share(
                case.observed,
                stage.total_ns as f64,
                publisher.application.len(),
            )
        });
        Self {
            on_cpu: mean(|it| it.on_cpu),
            waiting: mean(|it| it.waiting),
            writing: writing.unwrap_or(0.0),
        }
    }
}

/// The application neither waits for the log nor works for it.
fn slow(case: &Case<'_>, publisher: &Publisher, blocked: f64, found: &mut Vec<Finding>) {
    let does = Application::of(case, publisher);
    let idle = (1.0 - blocked - does.on_cpu - does.waiting).max(0.0);
    // What it computes beside copying into batches; writing is an estimate from samples, so not all of the rest is its own.
    let own = (does.on_cpu - does.writing - OWN_WORK_OF_PUBLISH).max(0.0);
    let gone = idle + own;
    if gone < IDLE_MIN {
        return;
    }
    let mut evidence = vec![
        Evidence::share("application threads waited for the log", blocked),
        Evidence::share("they slept, or waited for something of their own", idle),
        Evidence::share("they computed, beside copying messages into batches", own),
    ];
    if let Some(busy) = connections_busy(case) {
        evidence.push(Evidence::share("connections had something to send", busy));
    }
    let busy_itself = publisher.is_bench && own > idle;
    found.push(Finding {
        cause: if busy_itself {
            Cause::BenchmarkItself
        } else {
            Cause::ApplicationTooSlow
        },
        part: Resource::Application,
        evidence,
        confidence: confidence(gone, IDLE_MIN, 0.5) * confidence(BLOCKED_MAX - blocked, 0.0, 0.2),
        gain_at_most: case.limits.gain_of_wanting_more(gone),
        remedy: Remedy::advice(
            "The log waits for the application: look what it does between its calls of publish, or publish from more threads.",
        ),
        verified: None,
    });
}

/// Calls, loops, and what else a thread that only publishes does outside of the stage that is timed.
const OWN_WORK_OF_PUBLISH: f64 = 0.15;

/// The threads that publish work all the time, and what they do is copying.
fn copies(case: &Case<'_>, publisher: &Publisher, blocked: f64, found: &mut Vec<Finding>) {
    let does = Application::of(case, publisher);
    if does.on_cpu < SATURATED || does.writing < 0.4 {
        return;
    }
    let threads = publisher.application.len().max(1);
    let evidence = vec![
        Evidence::share("application threads were on a processor", does.on_cpu),
        Evidence::share("they copied messages into batches", does.writing),
        Evidence::share("they waited for the log", blocked),
        Evidence::count("processors idle", case.spare()),
    ];
    let sure =
        confidence(does.on_cpu, SATURATED, 0.97) * confidence(BLOCKED_MAX - blocked, 0.0, 0.2);
    if case.spare() >= SPARE_MIN {
        let more = threads as u32 + 1;
        let gain = (1.0 + case.spare() / threads as f64)
            .min(1.0 + case.limits.gain(Resource::Application, 1.0 - blocked, 0.0));
        found.push(Finding {
            cause: Cause::TooFewClientThreads,
            part: Resource::Application,
            evidence,
            confidence: sure,
            gain_at_most: gain - 1.0,
            remedy: Remedy::change(
                format!("Publish from {more} threads, each by a handle of its own."),
                Change::Publishers(more),
            ),
            verified: None,
        });
        return;
    }
    let share = does.writing;
    found.push(Finding {
        cause: Cause::CopyBoundSender,
        part: Resource::Application,
        evidence,
        confidence: sure,
        gain_at_most: case.limits.gain(
            Resource::Application,
            share,
            per(share * threads as f64, f64::from(case.observed.machine.cores)),
        ),
        remedy: Remedy::advice(
            "Build messages in the batch itself (`reserve`) instead of copying them there; or larger messages, of which each costs less for a byte.",
        ),
        verified: None,
    });
}

/// A connection's thread sends all the time, and there are processors for another one.
fn sends(case: &Case<'_>, publisher: &Publisher, found: &mut Vec<Finding>) {
    let Some(busiest) = case.busy_thread(&publisher.senders) else {
        return;
    };
    let more = publisher.threads_per_broker.unwrap_or(1).saturating_add(1);
    let remedy = Remedy::change(
        format!("Open {more} connections to each broker."),
        Change::ThreadsPerBroker(more),
    );
    let limited = (Cause::TooFewClientThreads, Resource::Senders);
    found.push(case.one_more(busiest, limited, remedy));
}

/// Sends that move less are small.
const SMALL_SEND: f64 = (32 << 10) as f64;
/// What takes less of the senders' time is not worth a word.
const CALLS_MIN: f64 = 0.1;

/// The threads that send spend their time in calls that move little.
fn writes_little(case: &Case<'_>, publisher: &Publisher, found: &mut Vec<Finding>) {
    let Some(profile) = &publisher.profile else {
        return;
    };
    let counted = |name| profile.counter(name).unwrap_or(0) as f64;
    let (calls, bytes) = (counted("send_calls"), counted("send_bytes"));
    let cost = case.observed.machine.syscall_s;
    // An application sends itself what is urgent.
    let threads = publisher.senders.len() + publisher.application.len();
    let on_cpu: f64 = publisher.senders.iter().map(|it| it.on_cpu).sum();
    let time = calls * cost.unwrap_or(DEFAULT_SYSCALL_S);
    let share = per(time, case.observed.seconds * threads as f64);
    let share = share.min(per(on_cpu, publisher.senders.len() as f64));
    let each = per(bytes, calls);
    if share < CALLS_MIN || each > SMALL_SEND {
        return;
    }
    let cores = f64::from(case.observed.machine.cores.max(1));
    let of_machine = per(share * threads as f64, cores).min(0.9);
    let batches = counted("batches");
    found.push(Finding {
        cause: Cause::SmallWrites,
        part: Resource::Senders,
        evidence: vec![
            Evidence::bytes("a send took", each),
            Evidence::per_second("sends", per(calls, case.observed.seconds)),
            Evidence::bytes("a batch", per(bytes, batches)),
            Evidence::share("of the time of the threads that send, at least", share),
        ],
        confidence: confidence(share, CALLS_MIN, 0.3),
        gain_at_most: case.limits.gain(Resource::Senders, share, of_machine),
        remedy: larger_batches(
            case,
            "Fill larger batches, by a longer linger if they are sent before they are full; or shared memory, which needs no calls.",
        ),
        verified: None,
    });
}

/// A process that could not be asked: its connections tell whether it has something to send. One that was asked, and named no thread that
/// publishes, is not judged.
fn unseen(case: &Case<'_>, publisher: &Publisher, found: &mut Vec<Finding>) {
    if publisher.profile.is_some() {
        return;
    }
    let Some(busy) = connections_busy(case) else {
        return;
    };
    let on_cpu = publisher
        .application
        .iter()
        .map(|it| it.on_cpu)
        .sum::<f64>();
    if busy >= 0.6 {
        return;
    }
    let idle = 1.0 - busy;
    found.push(Finding {
        cause: Cause::ApplicationTooSlow,
        part: Resource::Application,
        evidence: vec![
            Evidence::share("connections had something to send", busy),
            Evidence::count("processors that the application used", on_cpu),
        ],
        confidence: 0.8 * confidence(idle, 0.4, 0.8),
        gain_at_most: case.limits.gain_of_wanting_more(idle),
        remedy: Remedy::advice(
            "The log waits for the application: look what it does between its calls of publish, or publish from more threads.",
        ),
        verified: None,
    });
}

/// What a linger takes beside its own time: the kernel's timers are 50 us late (prctl(2), `PR_SET_TIMERSLACK`), and another thread wakes to send
/// what the application's own would have sent at once. Fitted to lingers of 20 us to 20 ms on two virtual processors.
const BESIDE_LINGER_S: f64 = 110e-6;
/// No message and its acknowledgement take less than two wake-ups.
const ROUND_TRIP_S: f64 = 50e-6;

/// Who waits for each acknowledgement waits for the linger, too.
fn lingers(case: &Case<'_>, publisher: &Publisher, found: &mut Vec<Finding>) {
    let Some(linger) = publisher.linger_s else {
        return;
    };
    let threads = publisher.application.len().max(1) as f64;
    let each = per(
        case.observed.seconds * threads,
        case.observed.messages as f64,
    );
    if per(linger, each) < LINGER_MIN {
        return;
    }
    let waited = (linger + BESIDE_LINGER_S).min(each);
    let share = per(waited, each);
    found.push(Finding {
        cause: Cause::LingerTooLong,
        part: Resource::Application,
        evidence: vec![
            Evidence::seconds("a message and its acknowledgement took", each),
            Evidence::seconds("the linger, for which its batch waits", linger),
            Evidence::seconds("and a thread sleeps and wakes for it, about", BESIDE_LINGER_S),
        ],
        confidence: confidence(share, LINGER_MIN, 0.5),
        gain_at_most: per(each, (each - waited).max(ROUND_TRIP_S)) - 1.0,
        remedy: Remedy::change(
            "Send each message at once, since nobody publishes meanwhile: a linger of zero, or flush() after the last message before a wait.",
            Change::Linger(0.0),
        ),
        verified: None,
    });
}

/// Share of the time in which publishers' connections had something to send.
fn connections_busy(case: &Case<'_>) -> Option<f64> {
    weighted(case.observed.connections_with(false), |end| end.busy)
}
