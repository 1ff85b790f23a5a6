//! A lane: the commands of a run that go over one connection, in batches one behind the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_mux::{Call, CallError, CloseReason, ConnectionState, SubmitError, Turn};
use tracing::Span;

use super::encoded::EncodedCommands;
use crate::attempt::{ASKING, is_traced, submit};
use crate::command::Class;
use crate::config::Config;
use crate::engine::{ConnWait, NodeConnection, after};

/// The most commands of a batch. One call of the connection takes all of them, and gives their replies
/// back together; what a connection that breaks leaves without a reply is at most the rest of a batch.
const BATCH_COMMANDS_MAX: usize = 1024;

/// Batches of a lane that are in flight at a time: enough that the server never waits for the next one,
/// and few enough that other callers find room between them.
const BATCHES_IN_FLIGHT_MAX: usize = 8;

/// A command on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queued {
    /// Its number in the pipeline.
    pub index: usize,
    /// `ASKING` goes before it.
    pub asking: bool,
}

impl Queued {
    /// Without `ASKING`.
    pub fn plain(index: usize) -> Self {
        let asking = false;
        Self { index, asking }
    }
}

/// The commands of a run that go over one connection.
pub(super) struct Lane {
    connection: Arc<NodeConnection>,
    /// First those in flight, batch by batch; then those to be sent.
    commands: Vec<Queued>,
    /// Where those to be sent begin.
    unsent: usize,
    /// Those to be sent are not in their order.
    is_unsorted: bool,
    in_flight: VecDeque<BatchInFlight>,
    /// What the next batch is, while it waits for room.
    planned: Option<Plan>,
    conn_wait: ConnWait,
    turn: Turn,
    waits_for_connection: bool,
    /// How often the lane's commands looked for another node since it sent any.
    looks: u32,
    /// When those to be sent look again whether another node serves them now.
    look_again: Option<Instant>,
}

struct BatchInFlight {
    call: Call,
    commands: Range<usize>,
    /// Ends with the batch.
    _span: Span,
}

/// The next batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    commands: usize,
    bytes: usize,
    replies: u32,
    class: Class,
}

/// What all batches of a run have in common.
pub(super) struct Terms<'r> {
    pub list: &'r EncodedCommands,
    pub config: &'r Config,
    /// Batches take at most so many commands, less than usual where their replies were too much.
    pub commands_max: usize,
    /// How long a batch may take from now on. `None`: the configuration's `timeout`.
    pub time_left: Option<Duration>,
    /// Only to a connection that is open: see [`NodeConnection::poll_open`].
    pub only_open: bool,
}

/// How far a lane came with sending.
#[derive(Debug)]
pub(super) enum Progress {
    /// It sent all, or as much as may be in flight.
    Sent,
    /// There is no connection.
    NoConnection,
    /// There is no room on the connection. The task is woken when there is.
    NoRoom,
    /// There is no room, and the configuration says not to wait.
    Refused,
    /// The connection broke just now.
    Broke(CloseReason),
}

/// A batch that is over.
pub(super) struct Ended {
    pub call: Call,
    pub commands: Range<usize>,
    /// The frames of the reply that came.
    pub reply: Vec<u8>,
    /// Why not all came.
    pub cut: Option<CallError>,
}

impl Lane {
    /// A lane that will probably have so many commands.
    pub fn new(connection: &Arc<NodeConnection>, expected: usize) -> Self {
        Self {
            connection: Arc::clone(connection),
            commands: Vec::with_capacity(expected),
            unsent: 0,
            is_unsorted: false,
            in_flight: VecDeque::new(),
            planned: None,
            conn_wait: ConnWait::default(),
            turn: Turn::default(),
            waits_for_connection: false,
            looks: 0,
            look_again: None,
        }
    }

    pub fn connection(&self) -> &Arc<NodeConnection> {
        &self.connection
    }

    pub fn commands(&self, range: Range<usize>) -> &[Queued] {
        &self.commands[range]
    }

    /// Adds a command to those to be sent, which go in their order.
    pub fn push(&mut self, command: Queued) {
        let last = self.commands[self.unsent..].last();
        self.is_unsorted |= last.is_some_and(|last| last.index > command.index);
        self.commands.push(command);
    }

    pub fn has_unsent(&self) -> bool {
        self.unsent < self.commands.len()
    }

    /// Takes back what is to be sent.
    pub fn take_unsent(&mut self) -> impl Iterator<Item = usize> {
        self.stop_waiting();
        self.is_unsorted = false;
        let unsent = self.commands.split_off(self.unsent);
        unsent.into_iter().map(|command| command.index)
    }

    /// Whether nothing is in flight, and nothing to be sent.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && !self.has_unsent()
    }

    pub fn is_open(&self) -> bool {
        let conn = self.connection.current();
        conn.is_some_and(|conn| conn.state() == ConnectionState::Open)
    }

    /// Why there is no open connection; `None` if there is one.
    pub fn why_not_open(&self) -> Option<String> {
        if self.is_open() {
            return None;
        }
        let why = self.connection.last_failure();
        Some(why.map_or_else(|| "no connection in time".to_owned(), |why| why.to_string()))
    }

    /// When commands that wait for a connection look whether another node serves them now: soon at
    /// first. `None` if none waits.
    pub fn looks_again_at(&mut self, config: &Config) -> Option<Instant> {
        if !self.waits_for_connection {
            return None;
        }
        let looks = self.looks;
        let at = self
            .look_again
            .get_or_insert_with(|| after(config.retries.backoff(looks)));
        Some(*at)
    }

    /// The commands have looked.
    pub fn has_looked(&mut self) {
        self.look_again = None;
        self.looks = self.looks.saturating_add(1);
    }

    /// The oldest batch, if it is over; `None` if none is in flight.
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Option<Ended>> {
        // Replies come in the order of the batches.
        let Some(oldest) = self.in_flight.front_mut() else {
            return Poll::Ready(None);
        };
        let taken = oldest.call.poll_partial(cx, |outcome, reply| {
            let reply = std::mem::take(reply);
            (outcome.err(), reply)
        });
        let Poll::Ready((cut, reply)) = taken else {
            return Poll::Pending;
        };
        let ended = self.in_flight.pop_front();
        Poll::Ready(ended.map(|batch| Ended {
            call: batch.call,
            commands: batch.commands,
            reply,
            cut,
        }))
    }

    /// There is nothing to be sent, and the caller knows what became of the batches that are over.
    pub fn rest(&mut self) {
        self.stop_waiting();
        if self.in_flight.is_empty() {
            self.commands.clear();
            self.unsent = 0;
        }
    }

    fn stop_waiting(&mut self) {
        self.waits_for_connection = false;
        self.conn_wait.end();
        self.turn.end();
        self.planned = None;
    }

    /// Sends batches until as many are in flight as may be.
    pub fn send(&mut self, terms: &Terms<'_>, cx: &mut Context<'_>) -> Progress {
        if std::mem::take(&mut self.is_unsorted) {
            // The batch that waits for room may be another one now.
            self.planned = None;
            self.turn.end();
            self.commands[self.unsent..].sort_by_key(|command| command.index);
        }
        while self.has_unsent() && self.in_flight.len() < BATCHES_IN_FLIGHT_MAX {
            let conn = match terms.only_open {
                false => self.connection.poll_conn(&mut self.conn_wait, cx),
                true => self.connection.poll_open(&mut self.conn_wait, cx),
            };
            let Poll::Ready(conn) = conn else {
                self.turn.end();
                self.waits_for_connection = true;
                return Progress::NoConnection;
            };
            self.conn_wait.end();
            self.waits_for_connection = false;
            self.look_again = None;
            let plan = self
                .planned
                .unwrap_or_else(|| plan(terms, &self.commands[self.unsent..]));
            let commands = self.unsent..self.unsent + plan.commands;
            let queued = &self.commands[commands.clone()];
            let submitted = submit(
                (&conn, &mut self.turn, terms.config.on_full),
                cx,
                (plan.bytes, plan.replies, plan.class),
                terms.time_left,
                |out| encode(terms.list, queued, out),
            );
            match submitted {
                Poll::Ready(Ok(call)) => {
                    self.planned = None;
                    self.unsent = commands.end;
                    self.looks = 0;
                    let _span = match is_traced() {
                        true => self.span(&plan),
                        false => Span::none(),
                    };
                    self.in_flight.push_back(BatchInFlight {
                        call,
                        commands,
                        _span,
                    });
                }
                Poll::Ready(Err(SubmitError::Closed(reason))) => return Progress::Broke(reason),
                // What is in flight makes room.
                Poll::Ready(Err(SubmitError::Full)) if self.in_flight.is_empty() => {
                    return Progress::Refused;
                }
                Poll::Ready(Err(SubmitError::Full)) | Poll::Pending => {
                    self.planned = Some(plan);
                    return Progress::NoRoom;
                }
            }
        }
        Progress::Sent
    }

    #[cold]
    fn span(&self, plan: &Plan) -> Span {
        let node = &self.connection.endpoint;
        let (commands, bytes) = (plan.commands, plan.bytes);
        tracing::trace_span!("batch", commands, bytes, %node)
    }
}

/// As many of these commands as one batch may have: one at least.
fn plan(terms: &Terms<'_>, commands: &[Queued]) -> Plan {
    // More than half of the ring would go beside it, through a copy of its own.
    let bytes_max = terms.config.ring_bytes / 2;
    let commands_max = terms.commands_max.min(BATCH_COMMANDS_MAX);
    let mut plan = Plan {
        commands: 0,
        bytes: 0,
        replies: 0,
        class: Class::Read,
    };
    for command in commands {
        let entry = &terms.list.commands[command.index];
        let asking = if command.asking { ASKING.len() } else { 0 };
        let bytes = plan.bytes + asking + entry.bytes.len();
        let replies = plan.replies.checked_add(entry.replies);
        let replies = replies.and_then(|all| all.checked_add(command.asking.into()));
        let fits = plan.commands < commands_max && bytes <= bytes_max && replies.is_some();
        if plan.commands > 0 && !fits {
            break;
        }
        plan.commands += 1;
        plan.bytes = bytes;
        plan.replies = replies.unwrap_or(u32::MAX);
        if entry.class == Class::Write {
            plan.class = Class::Write;
        }
    }
    plan
}

/// Writes commands one behind the other. Those that lie so in the list are copied together.
fn encode(list: &EncodedCommands, commands: &[Queued], mut out: &mut [u8]) {
    let mut write = |bytes: &[u8]| {
        let (these, rest) = std::mem::take(&mut out).split_at_mut(bytes.len());
        these.copy_from_slice(bytes);
        out = rest;
    };
    let mut together = 0..0;
    for command in commands {
        let bytes = &list.commands[command.index].bytes;
        if command.asking || bytes.start != together.end {
            write(&list.bytes[together]);
            together = bytes.clone();
        }
        if command.asking {
            write(ASKING);
        }
        together.end = bytes.end;
    }
    write(&list.bytes[together]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd;

    fn list(values: &[&str]) -> EncodedCommands {
        let mut list = EncodedCommands::default();
        for value in values {
            let _by_index = list.add::<()>(&cmd("SET").key("k").arg(value));
        }
        list
    }

    fn queued(numbers: &[(usize, bool)]) -> Vec<Queued> {
        let queued = |&(index, asking): &(usize, bool)| Queued { index, asking };
        numbers.iter().map(queued).collect()
    }

    #[test]
    fn a_batch_is_what_its_commands_are() {
        let list = list(&["one", "two", "three", "four"]);
        let of = |index: usize| &list.bytes[list.commands[index].bytes.clone()];
        for (commands, expected) in [
            (queued(&[]), vec![]),
            (
                queued(&[(0, false), (1, false), (3, false)]),
                vec![of(0), of(1), of(3)],
            ),
            (queued(&[(2, true), (3, false)]), vec![ASKING, of(2), of(3)]),
            (
                queued(&[(0, false), (1, true), (2, true), (0, false)]),
                vec![of(0), ASKING, of(1), ASKING, of(2), of(0)],
            ),
        ] {
            let expected = expected.concat();
            let mut out = vec![0; expected.len()];
            encode(&list, &commands, &mut out);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_batch_is_no_larger_than_its_limits_but_for_one_command() {
        let mut list = list(&["one", "two", &"x".repeat(1000), "four"]);
        let config = Config {
            ring_bytes: 256,
            ..Config::default()
        };
        let len = list.commands[0].bytes.len();
        let parts = |list: &EncodedCommands, commands_max, commands: &[Queued]| {
            let terms = Terms {
                list,
                config: &config,
                commands_max,
                time_left: None,
                only_open: false,
            };
            let mut rest = commands;
            let mut parts = Vec::new();
            while !rest.is_empty() {
                let plan = plan(&terms, rest);
                parts.push((plan.commands, plan.bytes, plan.replies));
                rest = &rest[plan.commands..];
            }
            parts
        };
        let plain = queued(&[
            (0, false),
            (1, false),
            (0, false),
            (1, false),
            (2, false),
            (3, false),
        ]);
        let (large, last) = (list.commands[2].bytes.len(), list.commands[3].bytes.len());
        assert!(4 * len <= 128 && large > 128, "{len}");
        let expected = [(4, 4 * len, 4), (1, large, 1), (1, last, 1)];
        assert_eq!(parts(&list, usize::MAX, &plain), expected);
        let expected = [(3, 3 * len, 3), (1, len, 1), (1, large, 1), (1, last, 1)];
        assert_eq!(parts(&list, 3, &plain), expected);
        let asking = queued(&[(0, true), (1, true), (0, true)]);
        let with = len + ASKING.len();
        assert!(2 * with <= 128 && 3 * with > 128, "{with}");
        assert_eq!(
            parts(&list, usize::MAX, &asking),
            [(2, 2 * with, 4), (1, with, 2)]
        );
        // Replies are counted by a u32.
        list.commands[0].replies = u32::MAX;
        let both = queued(&[(1, false), (0, false), (1, false)]);
        let expected = [(1, len, 1), (1, len, u32::MAX), (1, len, 1)];
        assert_eq!(parts(&list, usize::MAX, &both), expected);
        let many = vec![Queued::plain(1); BATCH_COMMANDS_MAX + 1];
        let config = Config::default();
        let terms = Terms {
            list: &list,
            config: &config,
            commands_max: usize::MAX,
            time_left: None,
            only_open: false,
        };
        assert_eq!(plan(&terms, &many).commands, BATCH_COMMANDS_MAX);
    }
}
