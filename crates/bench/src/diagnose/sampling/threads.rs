//! The threads of a process in a span. Threads of one name are one thread only if they came one after the other.

use std::collections::BTreeMap;

use embar_diagnose::observed::Thread;
use embar_readings::process::ThreadReading;

/// The threads of a process that is looked at again and again: those of a subscriber that is opened anew come and go.
#[derive(Default)]
pub(super) struct Lives {
    looks: u64,
    /// By id, and when they started.
    all: BTreeMap<(u32, u64), Life>,
}

/// A thread from the first look at it to the last one.
struct Life {
    first: u64,
    last: u64,
    /// As it was at the beginning of the span, if it was there.
    then: Option<ThreadReading>,
    now: ThreadReading,
}

impl Lives {
    /// Takes in all threads that live now.
    pub fn see(&mut self, threads: Vec<ThreadReading>) {
        let is_beginning = self.looks == 0;
        self.looks += 1;
        for now in threads {
            let key = (now.tid, now.started);
            if let Some(life) = self.all.get_mut(&key) {
                (life.last, life.now) = (self.looks, now);
                continue;
            }
            let then = is_beginning.then(|| now.clone());
            let (first, last) = (self.looks, self.looks);
            self.all.insert(
                key,
                Life {
                    first,
                    last,
                    then,
                    now,
                },
            );
        }
    }

    /// What they did in a span so long.
    pub fn threads(&self, seconds: f64) -> Vec<Thread> {
        let mut lives: Vec<&Life> = self.all.values().collect();
        lives.sort_by_key(|it| it.first);
        // Each with the last look at it.
        let mut threads: Vec<(u64, Thread)> = Vec::new();
        for life in lives {
            let thread = between(life.then.as_ref(), &life.now, seconds);
            let follows =
                |(last, it): &&mut (u64, Thread)| *last < life.first && it.name == thread.name;
            match threads.iter_mut().find(follows) {
                Some((last, sum)) => {
                    add(sum, &thread);
                    *last = life.last;
                }
                None => threads.push((life.last, thread)),
            }
        }
        threads.into_iter().map(|(_, thread)| thread).collect()
    }
}

/// What those threads did that were there at both ends of a span so long, by their ids.
pub(super) fn stayed(
    before: &[ThreadReading],
    after: &[ThreadReading],
    seconds: f64,
) -> BTreeMap<u32, Thread> {
    let stayed = after.iter().filter_map(|now| {
        let is_it = |then: &&ThreadReading| (then.tid, then.started) == (now.tid, now.started);
        let then = before.iter().find(is_it)?;
        Some((now.tid, between(Some(then), now, seconds)))
    });
    stayed.collect()
}

/// What a thread did in the span, in which it began if there is nothing from before.
fn between(then: Option<&ThreadReading>, now: &ThreadReading, seconds: f64) -> Thread {
    let since = |of: fn(&ThreadReading) -> f64| (of(now) - then.map_or(0.0, of)).max(0.0);
    let times = |of: fn(&ThreadReading) -> u64| now_less(of(now), then.map(of)) as f64 / seconds;
    let system_s = since(|it| it.system_s);
    let ticks_s = since(|it| it.user_s) + system_s;
    let on_cpu_s = match now.on_cpu_s {
        Some(_) => since(|it| it.on_cpu_s.unwrap_or(0.0)),
        None => ticks_s,
    };
    Thread {
        name: now.name.clone(),
        on_cpu: (on_cpu_s / seconds).min(1.0),
        system: if ticks_s > 0.0 {
            system_s / ticks_s
        } else {
            0.0
        },
        waiting: (since(|it| it.waiting_s.unwrap_or(0.0)) / seconds).min(1.0),
        sleeps_per_s: times(|it| it.voluntary_switches),
        preempted_per_s: times(|it| it.involuntary_switches),
        faults: now_less(now.minor_faults, then.map(|it| it.minor_faults)),
    }
}

fn now_less(now: u64, then: Option<u64>) -> u64 {
    now.saturating_sub(then.unwrap_or(0))
}

/// One after the other.
fn add(sum: &mut Thread, thread: &Thread) {
    let on_cpu = sum.on_cpu + thread.on_cpu;
    if on_cpu > 0.0 {
        sum.system = (sum.system * sum.on_cpu + thread.system * thread.on_cpu) / on_cpu;
    }
    sum.on_cpu = on_cpu.min(1.0);
    sum.waiting = (sum.waiting + thread.waiting).min(1.0);
    sum.sleeps_per_s += thread.sleeps_per_s;
    sum.preempted_per_s += thread.preempted_per_s;
    sum.faults += thread.faults;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32, name: &str, on_cpu_s: f64) -> ThreadReading {
        ThreadReading {
            tid,
            name: name.to_owned(),
            on_cpu_s: Some(on_cpu_s),
            ..ThreadReading::default()
        }
    }

    fn shares<'a>(threads: impl IntoIterator<Item = &'a Thread>) -> Vec<f64> {
        threads.into_iter().map(|it| it.on_cpu).collect()
    }

    #[test]
    fn threads_of_a_name_that_run_at_once_stay_what_they_are() {
        let workers =
            |on_cpu_s| -> Vec<_> { (0..4).map(|tid| thread(tid, "worker", on_cpu_s)).collect() };
        let outside = stayed(&workers(7.0), &workers(7.25), 1.0);
        assert_eq!(shares(outside.values()), [0.25; 4]);
        let mut lives = Lives::default();
        lives.see(workers(7.0));
        lives.see(workers(7.25));
        assert_eq!(shares(&lives.threads(1.0)), [0.25; 4]);
    }

    #[test]
    fn threads_that_follow_one_another_are_one() {
        let mut lives = Lives::default();
        lives.see(vec![thread(1, "main", 5.0), thread(2, "reads", 1.0)]);
        lives.see(vec![thread(1, "main", 5.0), thread(2, "reads", 1.25)]);
        lives.see(vec![thread(1, "main", 5.0), thread(3, "reads", 0.25)]);
        // It began before the one before it ended.
        lives.see(vec![thread(3, "reads", 0.5), thread(4, "reads", 0.125)]);
        let threads = lives.threads(1.0);
        let names: Vec<_> = threads.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["main", "reads", "reads"]);
        assert_eq!(shares(&threads), [0.0, 0.75, 0.125]);
    }

    #[test]
    fn an_id_that_was_given_again_is_of_another_thread() {
        let before = [thread(1, "reads", 5.0)];
        let other = ThreadReading {
            started: 9,
            ..thread(1, "reads", 6.0)
        };
        assert!(stayed(&before, &[other], 1.0).is_empty());
    }
}
