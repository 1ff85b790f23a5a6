//! What one node does differently from the others.

use super::super::observed::{KeyShare, Node};
use super::servers::{blocked, long_commands};
use super::{Case, middle_of_others};
use crate::cause::Cause;
use crate::finding::{Evidence, Finding, Remedy};
use crate::limits::{Resource, SATURATED};
use crate::observed::per;
use crate::rules::confidence;

/// A node answers so many times later than those in the middle do.
const LATER_MIN: f64 = 2.5;
/// And by so much, seconds: less is a matter of when the kernel lets whom run.
const LATER_BY_MIN_S: f64 = 150e-6;
/// PINGs come at any time and wait for whatever keeps a server; commands come where callers are, who wait elsewhere, too. So PINGs
/// are so many times later.
const PING_LATER: f64 = 1.6;
/// And later by so much, seconds.
const PING_LATER_BY_MIN_S: f64 = 500e-6;
/// Part of the time in which one server alone says nothing to those that wait.
const SILENT_MIN: f64 = 0.15;
/// A node gets so many times its part of the commands.
const HOT_MIN: f64 = 1.5;
/// And so much of all commands more than its part.
const HOT_BY_MIN: f64 = 0.15;
/// A key with this part of what is too much explains it.
const KEY_MIN: f64 = 0.5;
/// A node's replies are so many times as long as those in the middle.
const LARGER_MIN: f64 = 6.0;
/// Shorter ones are not large, whatever the others are like, bytes.
const LARGE_MIN: f64 = 2048.0;
/// One server's are large if they have so many bytes at the mean.
const LARGE_ALONE: f64 = 32_768.0;
/// What a byte of a large reply takes of a server's and of a client's time, seconds: copies into and out of the kernel, on two
/// virtual processors.
const SERVER_BYTE_S: f64 = 0.12e-9;
/// See [`SERVER_BYTE_S`].
const CLIENT_BYTE_S: f64 = 0.2e-9;

/// With so many PINGs without an answer that was no chance.
const UNANSWERED_SURE: f64 = 4.0;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let nodes = &case.observed.nodes;
    let mutes = nodes.iter().filter(|node| mute(node).is_some());
    let longest = mutes.max_by(|a, b| mute(a).unwrap_or(0.0).total_cmp(&mute(b).unwrap_or(0.0)));
    found.extend(longest.and_then(|node| says_nothing(case, node)));
    let by = |of: &dyn Fn(&Node) -> Option<f64>| {
        let known = nodes
            .iter()
            .filter_map(|node| Some((of(node)?, node)))
            .filter(|(value, _)| value.is_finite());
        known
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, node)| node)
    };
    found.extend(by(&|node| hot_by(case, node)).and_then(|node| hot(case, node)));
    found.extend(by(&Node::bytes_per_reply).and_then(|node| big(case, node)));
    let late = |node: &Node| lateness(case, node).or(node.latency_s().map(|_| 0.0));
    found.extend(by(&late).and_then(|node| slow(case, node)));
}

/// How many times its part of the commands a node gets: its slots say how large that is.
fn hot_by(case: &Case<'_>, node: &Node) -> Option<f64> {
    let (share, fair) = shares(case, node)?;
    Some(per(share, fair))
}

/// Of all commands, and of all slots.
fn shares(case: &Case<'_>, node: &Node) -> Option<(f64, f64)> {
    let nodes = &case.observed.nodes;
    if nodes.len() < 2 {
        return None;
    }
    let all: f64 = nodes.iter().filter_map(Node::commands).sum();
    let slots: Option<f64> = nodes.iter().map(|it| Some(it.slots? as f64)).sum();
    let fair = match slots.zip(node.slots) {
        Some((all, own)) if all > 0.0 => own as f64 / all,
        _ => 1.0 / nodes.len() as f64,
    };
    Some((per(node.commands()?, all), fair))
}

fn is_hot(case: &Case<'_>, node: &Node) -> bool {
    let hot = |(share, fair): (f64, f64)| share >= HOT_MIN * fair && share - fair >= HOT_BY_MIN;
    shares(case, node).is_some_and(hot)
}

/// Whether a node's replies are large beside those of others, and what is usual.
fn is_big(case: &Case<'_>, node: &Node) -> Option<f64> {
    let bytes = node.bytes_per_reply()?;
    let nodes = &case.observed.nodes;
    match middle_of_others(nodes, node, Node::bytes_per_reply) {
        Some(usual) => (bytes >= LARGE_MIN && bytes >= LARGER_MIN * usual).then_some(usual),
        None => (bytes >= LARGE_ALONE).then_some(0.0),
    }
}

/// Part of the callers' time that would be gone if this node answered as soon as those in the middle do.
fn waited_for(case: &Case<'_>, node: &Node) -> f64 {
    let nodes = &case.observed.nodes;
    let Some(usual) = middle_of_others(nodes, node, Node::latency_s) else {
        return node.traffic.as_ref().map_or(0.0, |it| it.silent);
    };
    let counted = |it: &Node| it.traffic.as_ref().map(|it| it.replies as f64);
    let time = |it: &Node, latency: f64| counted(it).or(it.commands()).unwrap_or(0.0) * latency;
    let now: f64 = nodes
        .iter()
        .map(|it| time(it, it.latency_s().unwrap_or(0.0)))
        .sum();
    let latency = node.latency_s().unwrap_or(0.0);
    per(time(node, (latency - usual).max(0.0)), now)
}

/// How many times later than the one in the middle a node answers, commands or PINGs, if that is more than chance. `None` if
/// nobody is there to compare it with.
fn lateness(case: &Case<'_>, node: &Node) -> Option<f64> {
    let nodes = &case.observed.nodes;
    let times = |of: &dyn Fn(&Node) -> Option<f64>, by: f64| {
        let (own, usual) = (of(node)?, middle_of_others(nodes, node, of)?);
        Some(if own - usual >= by {
            per(own, usual)
        } else {
            0.0
        })
    };
    let ping = |node: &Node| {
        let probe = node.probe.as_ref().filter(|it| it.answered > 0);
        probe.map(|it| it.mean_s)
    };
    let commands = times(&Node::latency_s, LATER_BY_MIN_S)?;
    let pings = times(&ping, PING_LATER_BY_MIN_S).unwrap_or(0.0);
    Some(commands.max(pings / PING_LATER))
}

/// Part of the span in which those that wait for a node had no answer, if none of them had one at all.
fn mute(node: &Node) -> Option<f64> {
    let probe = node.probe.as_ref();
    let ignores = probe.is_some_and(|it| it.answered == 0 && it.unanswered > 0);
    match &node.traffic {
        Some(traffic) if traffic.replies > 0 => None,
        Some(traffic) if traffic.silent >= SILENT_MIN => Some(traffic.silent.min(1.0)),
        _ => ignores.then_some(1.0),
    }
}

/// One that never answers has no time in which it does, so nothing to compare. On a processor all the time it is at work on one
/// command; otherwise somebody keeps it from working.
fn says_nothing(case: &Case<'_>, node: &Node) -> Option<Finding> {
    let silent = mute(node)?;
    if blocked(case, node) {
        return None;
    }
    let works = node.on_cpu(case.observed.seconds);
    let mut evidence = Vec::new();
    let mut sure: f64 = 0.5;
    if let Some(traffic) = &node.traffic {
        let what = format!("commands waited for {}, and none was answered", node.name);
        evidence.push(Evidence::share(what, traffic.silent));
        sure = sure.max(confidence(traffic.silent, SILENT_MIN, 0.4));
    }
    if let Some(probe) = &node.probe {
        let what = format!("PINGs that {} answered", node.name);
        evidence.push(Evidence::count(what, probe.answered as f64));
        let unanswered = probe.unanswered as f64;
        evidence.push(Evidence::count(
            "PINGs without an answer in time",
            unanswered,
        ));
        sure = sure.max(confidence(unanswered, 0.0, UNANSWERED_SURE));
    }
    evidence.extend(works.map(|it| Evidence::share("its thread was on a processor", it)));
    let is_busy = works.is_some_and(|it| it >= SATURATED);
    let advice = match is_busy {
        true => format!(
            "A server does one command at a time: look which {} is at (CLIENT LIST, a stack of its thread), and end it by SCRIPT KILL or CLIENT KILL.",
            node.name
        ),
        false => format!(
            "Look whether the process of {} is stopped or waits for a disk, and whether something on the way to it drops packets.",
            node.name
        ),
    };
    Some(Finding {
        cause: match is_busy {
            true => Cause::BlockedServer,
            false => Cause::SlowNode,
        },
        part: Resource::Servers,
        evidence,
        confidence: sure,
        gain_at_most: case.gain_of_answers(silent),
        remedy: Remedy::advice(advice),
        verified: None,
    })
}

fn slow(case: &Case<'_>, node: &Node) -> Option<Finding> {
    let observed = case.observed;
    let is_other = is_hot(case, node) || is_big(case, node).is_some() || blocked(case, node);
    if is_other || mute(node).is_some() {
        return None;
    }
    let latency = node.latency_s()?;
    let (silent, longest) = match &node.traffic {
        Some(traffic) => (traffic.silent, traffic.silent_longest_s),
        None => (0.0, 0.0),
    };
    let sure = match lateness(case, node) {
        Some(times) if times < LATER_MIN => return None,
        Some(times) => confidence(times, LATER_MIN, 6.0),
        None => {
            // Nobody is there to compare it with. A server that says nothing works, or somebody keeps it from working.
            let works = node.on_cpu(observed.seconds)?;
            if silent < SILENT_MIN || works + silent > 1.1 {
                return None;
            }
            confidence(silent, SILENT_MIN, 0.4)
        }
    };
    let mut evidence = vec![Evidence::seconds(
        format!("{} answers after", node.name),
        latency,
    )];
    if let Some(usual) = middle_of_others(&observed.nodes, node, Node::latency_s) {
        evidence.push(Evidence::seconds("the node in the middle after", usual));
    }
    if let Some(on_cpu) = node.on_cpu(observed.seconds) {
        evidence.push(Evidence::share("its thread was on a processor", on_cpu));
        evidence.push(Evidence::share(
            "its thread waited for a processor",
            node.waiting(),
        ));
    }
    if let Some(probe) = node.probe.as_ref().filter(|_| node.traffic.is_some()) {
        evidence.push(Evidence::seconds("it answers PING after", probe.mean_s));
    }
    if silent > 0.0 {
        evidence.push(Evidence::share(
            "commands waited, and it said nothing",
            silent,
        ));
        evidence.push(Evidence::seconds("at most for", longest));
    }
    if let Some((long, Some(_))) = long_commands(node) {
        evidence.push(Evidence::seconds("its own slow commands took", long));
    }
    Some(Finding {
        cause: Cause::SlowNode,
        part: Resource::Servers,
        evidence,
        confidence: sure,
        gain_at_most: case.gain_of_answers(waited_for(case, node)),
        remedy: Remedy::advice(format!(
            "Look what else runs where {} does: whether it is stopped, short of processors, swaps, writes to disk (latency doctor), or is on a longer way.",
            node.name
        )),
        verified: None,
    })
}

fn hot(case: &Case<'_>, node: &Node) -> Option<Finding> {
    let (share, fair) = shares(case, node)?;
    if !is_hot(case, node) {
        return None;
    }
    let mut evidence = vec![
        Evidence::share(format!("commands that went to {}", node.name), share),
        Evidence::share("its part of all slots", fair),
    ];
    let works = node.on_cpu(case.observed.seconds);
    if let Some(works) = works {
        evidence.push(Evidence::share("its thread was on a processor", works));
    }
    if let Some(latency) = node.latency_s() {
        evidence.push(Evidence::seconds("it answers after", latency));
    }
    let usual = middle_of_others(&case.observed.nodes, node, Node::latency_s);
    evidence.extend(usual.map(|it| Evidence::seconds("the node in the middle after", it)));
    let explains = |key: &&KeyShare| key.share >= KEY_MIN * (share - fair);
    let keys = case.observed.client.iter().flat_map(|it| &it.keys);
    let key = { keys }.next().filter(explains);
    if let Some(key) = key {
        let what = format!("operations on the key {:?} of slot {}", key.key, key.slot);
        evidence.push(Evidence::share(what, key.share));
    }
    // Others do nothing while it works: spread evenly, at most so much of the time would not be waited for any more. Whether there are
    // processors for that is for another day: this machine may be full, and the next one is not.
    let less = works.unwrap_or(0.0) * (1.0 - per(fair, share));
    let spread = 1.0 / (1.0 - less).max(0.05) - 1.0;
    let remedy = match key {
        Some(_) => {
            "Keep the key's value in the application for a moment, or split it over several keys; reads may go to replicas (read_from)."
        }
        None => {
            "Find the key (redis-cli --hotkeys, or MONITOR for a second), and split it; if there is none, move slots to other nodes."
        }
    };
    Some(Finding {
        cause: match key {
            Some(_) => Cause::HotKey,
            None => Cause::HotSlot,
        },
        part: Resource::Servers,
        evidence,
        confidence: confidence(per(share, fair), HOT_MIN, 2.2),
        gain_at_most: spread.max(case.gain_of_answers(waited_for(case, node))),
        remedy: Remedy::advice(remedy),
        verified: None,
    })
}

fn big(case: &Case<'_>, node: &Node) -> Option<Finding> {
    let usual = is_big(case, node)?;
    let bytes = node.bytes_per_reply()?;
    let seconds = case.observed.seconds;
    let more = per(node.sent_bytes()? * (1.0 - per(usual, bytes)), seconds);
    let (server, client) = (more * SERVER_BYTE_S, more * CLIENT_BYTE_S);
    let mut evidence = vec![
        Evidence::bytes(format!("of a reply of {}, at the mean", node.name), bytes),
        Evidence::per_second(
            format!("bytes that {} sends", node.name),
            per(node.sent_bytes()?, seconds),
        ),
    ];
    if usual > 0.0 {
        evidence.insert(
            1,
            Evidence::bytes("of a reply of the node in the middle", usual),
        );
    }
    if let Some(latency) = node.latency_s() {
        evidence.push(Evidence::seconds("it answers after", latency));
    }
    let others = middle_of_others(&case.observed.nodes, node, Node::latency_s);
    evidence.extend(others.map(|it| Evidence::seconds("the node in the middle after", it)));
    let moved = case.gain_without(&[
        (Resource::Servers, server),
        (Resource::ClientThreads, client),
        (Resource::Processors, case.of_machine(server + client)),
    ]);
    Some(Finding {
        cause: Cause::BigValue,
        part: Resource::Servers,
        evidence,
        confidence: match usual > 0.0 {
            true => confidence(per(bytes, usual), LARGER_MIN, 20.0),
            false => confidence(bytes, LARGE_ALONE, 4.0 * LARGE_ALONE),
        },
        gain_at_most: moved.max(case.gain_of_answers(waited_for(case, node))),
        remedy: Remedy::advice(
            "Find the value (redis-cli --bigkeys), and split it or read parts of it (GETRANGE, HGET, LRANGE); or read it by a client of its own, so that small replies need not wait behind it.",
        ),
        verified: None,
    })
}
