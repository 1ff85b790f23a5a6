//! What servers do with their time.

use super::super::observed::Node;
use super::Case;
use crate::cause::Cause;
use crate::finding::{Evidence, Finding, Remedy};
use crate::limits::{Resource, SATURATED};
use crate::observed::per;
use crate::rules::confidence;

/// A command takes long if it takes so much, seconds: hundreds of others wait meanwhile.
const LONG_S: f64 = 3e-3;
/// Long commands take this part of a server's time before they are worth a word.
const BLOCKED_MIN: f64 = 0.05;

/// This much of a processor must be idle for another server to take a part of the work.
const SPARE_MIN: f64 = 0.3;

/// Commands whose work does not grow with the data. If one of them takes long, somebody kept the server from running.
const CONSTANT: [&str; 24] = [
    "auth", "decr", "decrby", "echo", "exists", "expire", "get", "getdel", "getset", "hello",
    "hget", "hset", "incr", "incrby", "lpop", "lpush", "ping", "pttl", "rpop", "rpush", "select",
    "set", "setex", "ttl",
];

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let nodes = case.observed.nodes.iter();
    let worst = nodes.max_by(|a, b| {
        let seconds = |node: &Node| long_commands(node).map_or(0.0, |it| it.0);
        seconds(a).total_cmp(&seconds(b))
    });
    found.extend(worst.and_then(|node| block(case, node)));
    found.extend(cpu_bound(case));
}

/// Seconds that a server spent in commands that take long, and the name of the longest kind. By all commands of a name
/// where these take long at the mean, and else by those that it wrote down. `None` if it said nothing.
pub(super) fn long_commands(node: &Node) -> Option<(f64, Option<&str>)> {
    let server = node.server.as_ref()?;
    let mut kinds: Vec<(f64, &str)> = Vec::new();
    for kind in server.by_command.iter().flatten() {
        if per(kind.seconds, kind.calls as f64) >= LONG_S && !is_constant(&kind.name) {
            kinds.push((kind.seconds, &kind.name));
        }
    }
    for slow in server.slow.iter().flatten() {
        let is_counted = kinds.iter().any(|(_, name)| *name == slow.name);
        if !is_counted && !is_constant(&slow.name) && slow.longest_s >= LONG_S {
            kinds.push((slow.seconds, &slow.name));
        }
    }
    if server.by_command.is_none() && server.slow.is_none() {
        return None;
    }
    let all = kinds.iter().map(|(seconds, _)| seconds).sum();
    let most = kinds.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    Some((all, most.map(|(_, name)| name)))
}

fn is_constant(name: &str) -> bool {
    CONSTANT.contains(&name)
}

/// Whether long commands take a server's time.
pub(super) fn blocked(case: &Case<'_>, node: &Node) -> bool {
    let seconds = case.observed.seconds;
    long_commands(node).is_some_and(|(long, _)| per(long, seconds) >= BLOCKED_MIN)
}

fn block(case: &Case<'_>, node: &Node) -> Option<Finding> {
    let (long, name) = long_commands(node)?;
    let share = per(long, case.observed.seconds).min(1.0);
    if !blocked(case, node) {
        return None;
    }
    let name = name.unwrap_or("long commands");
    let server = node.server.as_ref()?;
    let mut evidence = vec![Evidence::share(
        format!("time that {} spent in long commands", node.name),
        share,
    )];
    let kinds = server.by_command.iter().flatten();
    if let Some(kind) = { kinds }.find(|it| it.name == name) {
        let calls = kind.calls as f64;
        evidence.push(Evidence::count(format!("calls of {name}"), calls));
        evidence.push(Evidence::seconds(
            format!("a call of {name} takes"),
            per(kind.seconds, calls),
        ));
    }
    let slow = server.slow.iter().flatten();
    if let Some(slow) = { slow }.find(|it| it.name == name) {
        evidence.push(Evidence::seconds("the longest took", slow.longest_s));
    }
    if let Some(traffic) = &node.traffic {
        evidence.push(Evidence::seconds(
            "it said nothing for at most",
            traffic.silent_longest_s,
        ));
    } else if let Some(probe) = &node.probe {
        evidence.push(Evidence::seconds(
            "it answered PING after at most",
            probe.longest_s,
        ));
    }
    Some(Finding {
        cause: Cause::BlockedServer,
        part: Resource::Servers,
        evidence,
        confidence: confidence(share, BLOCKED_MIN, 0.2),
        // While it is blocked, soon all callers wait for it.
        gain_at_most: case.gain_of_answers(share),
        remedy: Remedy::advice(format!(
            "A server does one command at a time: replace {name} by smaller steps (SCAN for KEYS, UNLINK for DEL, shorter scripts), or run it on a replica. SLOWLOG GET shows its arguments."
        )),
        verified: None,
    })
}

fn cpu_bound(case: &Case<'_>) -> Option<Finding> {
    let seconds = case.observed.seconds;
    let nodes = case.observed.nodes.iter();
    let busiest = nodes.filter_map(|node| Some((node.on_cpu(seconds)?, node)));
    let (on_cpu, node) = busiest.max_by(|a, b| a.0.total_cmp(&b.0))?;
    // Another server finds no processor on a machine that has none to spare. Of another machine we know nothing.
    let is_here = !node.threads.is_empty();
    if on_cpu < SATURATED || (is_here && case.spare() < SPARE_MIN) || blocked(case, node) {
        return None;
    }
    let mut evidence = vec![Evidence::share(
        format!("the thread of {} was on a processor", node.name),
        on_cpu,
    )];
    if let Some(thread) = node.main_thread() {
        evidence.push(Evidence::share("of that, in the kernel", thread.system));
        evidence.push(Evidence::count("processors idle", case.spare()));
    }
    let server = node.server.as_ref();
    let kinds = server.iter().flat_map(|it| it.by_command.iter().flatten());
    if let Some(kind) = kinds.max_by(|a, b| a.seconds.total_cmp(&b.seconds)) {
        evidence.push(Evidence::share(
            format!("of all time, it executed {}", kind.name),
            per(kind.seconds, seconds),
        ));
        evidence.push(Evidence::seconds(
            format!("a call of {} takes", kind.name),
            per(kind.seconds, kind.calls as f64),
        ));
    }
    let gain = case.gain_without(&[(Resource::Servers, on_cpu)]);
    Some(Finding {
        cause: Cause::ServerCpuBound,
        part: Resource::Servers,
        evidence,
        confidence: confidence(on_cpu, SATURATED, 0.97),
        gain_at_most: if is_here {
            gain.min(case.spare())
        } else {
            gain
        },
        remedy: Remedy::advice(
            "Spread the slots over more nodes, use cheaper commands, or send more of them together (pipelines); for large values also io-threads.",
        ),
        verified: None,
    })
}
