//! What a run knows of its commands: the results so far, and what is to be sent again, when and to whom.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use embar_mux::{CallError, CloseReason};

use super::encoded::EncodedCommands;
use super::lane::{Ended, Queued};
use super::replies::{Outcome, Replies};
use super::results::{ReplyRange, Results};
use super::retries::{Parked, Problem, Trouble};
use crate::attempt::{PROMPT_REDIRECTS, Target, cause};
use crate::command::{Class, Route};
use crate::engine::{NodeConnection, Router, after};
use crate::error::Error;
use crate::metrics::RetryCause;
use crate::resp::{Address, ErrorKind, ServerError};

/// What a run knows of its commands. Each command has its result, is with a lane, is ready to be given to
/// one, or is parked.
pub(super) struct RunState<'r> {
    router: &'r Arc<Router>,
    list: &'r EncodedCommands,
    pub results: Results,
    /// Commands to be given to the lanes of the nodes that serve them now.
    pub ready: Vec<usize>,
    pub parked: Parked,
    /// Of those that did not go well at once, by their numbers. Empty as long as all go well.
    troubles: Vec<Option<Box<Trouble>>>,
    /// The most commands of a batch, since replies were too large together.
    pub batch_commands_max: usize,
    /// When the run gives up what is not over.
    pub deadline: Instant,
}

/// What the commands of one batch have in common that are sent again.
pub(super) struct Round {
    now: Instant,
    /// When those go out that pause: one time for all of them.
    pause_until: Option<Instant>,
    /// Where redirects led: each slot's is followed once.
    moved: HashMap<u16, Followed>,
    asked: HashMap<u16, Followed>,
}

/// Whose fault it may be that a reply to a batch ended early.
#[derive(PartialEq, Eq)]
enum Suspect {
    /// The command's: its reply would have been the next one, and perhaps the batch's first.
    Itself { alone: bool },
    /// That of one before it.
    Another,
}

struct Followed {
    address: Address,
    connection: Option<Arc<NodeConnection>>,
}

impl Round {
    pub fn new() -> Self {
        Self {
            now: Instant::now(),
            pause_until: None,
            moved: HashMap::new(),
            asked: HashMap::new(),
        }
    }

    /// Follows a redirect by a node: where it leads, if there is such a node.
    fn follow(
        &mut self,
        router: &Router,
        kind: &ErrorKind,
        answered_by: &NodeConnection,
    ) -> Option<Target> {
        let (followed, slot, address, asking) = match kind {
            ErrorKind::Moved { slot, address } => (&mut self.moved, *slot, address, false),
            ErrorKind::Ask { slot, address } => (&mut self.asked, *slot, address, true),
            _ => return None,
        };
        let counters = &router.shared.counters;
        let connection = match followed.get(&slot) {
            Some(known) if known.address == *address => {
                match asking {
                    true => counters.asked.add(1),
                    false => counters.moved.add(1),
                }
                known.connection.clone()
            }
            _ => {
                let connection = match asking {
                    true => router.asked(slot, address, answered_by),
                    false => router.moved(slot, address, answered_by),
                };
                let known = Followed {
                    address: address.clone(),
                    connection: connection.clone(),
                };
                followed.insert(slot, known);
                connection
            }
        };
        connection.map(|connection| Target { connection, asking })
    }
}

impl<'r> RunState<'r> {
    pub fn new(router: &'r Arc<Router>, list: &'r EncodedCommands, deadline: Instant) -> Self {
        Self {
            router,
            list,
            results: Results::new(list.commands.len()),
            ready: Vec::new(),
            parked: Parked::default(),
            troubles: Vec::new(),
            batch_commands_max: usize::MAX,
            deadline,
        }
    }

    /// Whether anything has gone wrong so far.
    pub fn is_troubled(&self) -> bool {
        !self.troubles.is_empty()
    }

    pub fn trouble(&mut self, index: usize) -> Option<&mut Trouble> {
        self.troubles.get_mut(index)?.as_deref_mut()
    }

    fn note(&mut self, index: usize, problem: Problem) -> &mut Trouble {
        if self.troubles.is_empty() {
            self.troubles.resize_with(self.list.commands.len(), || None);
        }
        let trouble = &mut self.troubles[index];
        match trouble {
            Some(trouble) => trouble.problem = problem,
            None => *trouble = Some(Box::new(Trouble::new(problem))),
        }
        trouble.as_mut().expect("it was just noted")
    }

    fn slot(&self, index: usize) -> Option<u16> {
        match self.list.commands[index].route {
            Route::Slot(slot) => Some(slot),
            _ => None,
        }
    }

    /// The command ends with this error.
    pub fn fail(&mut self, index: usize, error: Error) {
        let entry = &self.list.commands[index];
        let (class, error) = (entry.class, error.of_command(entry.may_fail_midway));
        let error = match self.trouble(index) {
            Some(trouble) => trouble.failed(class, error),
            None => error,
        };
        tracing::trace!(index, %error, "a command of a pipeline failed");
        let counters = &self.router.shared.counters;
        match &error {
            Error::UnknownOutcome(_) => counters.unknown_outcomes.add(1),
            Error::Unavailable { .. } => counters.unavailable.add(1),
            _ => {}
        }
        self.results.outcomes[index] = Err(error);
    }

    /// The command's time is over, and no server has it. `why`: what was wrong with the connection for
    /// which it waited.
    pub fn give_up(&mut self, index: usize, why: Option<&str>) {
        let error = match (why, self.trouble(index)) {
            (None, Some(trouble)) => trouble.at_deadline(),
            (why, _) => Error::Unavailable {
                why: why
                    .unwrap_or("no room on the connection in time")
                    .to_owned(),
            },
        };
        self.fail(index, error);
    }

    /// Puts the replies to a batch into the results, and decides about each command that has none or that
    /// the server did not execute.
    pub fn settle(&mut self, batch: Ended, commands: &[Queued], connection: &Arc<NodeConnection>) {
        let buffer = self.results.buffers.len();
        let config = &*self.router.shared.config;
        let mut replies = Replies::new(&batch.reply, batch.cut, config);
        let mut round = None;
        let mut answered = false;
        for (place, &Queued { index, asking }) in commands.iter().enumerate() {
            let entry = &self.list.commands[index];
            match replies.next(entry.replies, asking) {
                Outcome::Reply(range) => {
                    answered = true;
                    if let Some(cache) = &self.router.shared.cache
                        && entry.class == Class::Write
                    {
                        let bytes = &self.list.bytes[entry.bytes.clone()];
                        cache.wrote_encoded(bytes, entry.route);
                    }
                    self.results.outcomes[index] = Ok(ReplyRange {
                        buffer,
                        range,
                        may_fail_midway: entry.may_fail_midway,
                    });
                }
                Outcome::Failed(error) => self.fail(index, error),
                Outcome::NotExecuted(error) => {
                    let round = round.get_or_insert_with(Round::new);
                    self.not_executed(index, error, connection, round);
                }
                Outcome::Missing { error, is_first } => {
                    if is_first && matches!(error, CallError::TooLarge { .. }) {
                        // So many fit.
                        self.batch_commands_max = place.max(1);
                    }
                    let suspect = match is_first {
                        true => Suspect::Itself { alone: place == 0 },
                        false => Suspect::Another,
                    };
                    let round = round.get_or_insert_with(Round::new);
                    self.missing(index, error, suspect, round);
                }
            }
        }
        if let Some(answer) = replies.told_to_leave {
            connection.leave(&batch.call, &answer);
        }
        if answered {
            self.results.buffers.push(batch.reply);
        }
    }

    /// The server did not execute it: follows the redirect, or sends it again later.
    fn not_executed(
        &mut self,
        index: usize,
        error: ServerError,
        connection: &Arc<NodeConnection>,
        round: &mut Round,
    ) {
        let router = self.router;
        let redirect = matches!(error.kind, ErrorKind::Moved { .. } | ErrorKind::Ask { .. });
        if !redirect {
            if round.pause_until.is_none() {
                router.shared.schedule.request_refresh();
            }
            let cause = cause(&error.kind);
            return self.pause(index, cause, Problem::Said(error), round);
        }
        let trouble = self.note(index, Problem::Said(error.clone()));
        trouble.redirects += 1;
        let redirects = trouble.redirects;
        if redirects > router.shared.config.retries.max_redirects {
            return self.fail(index, error.into());
        }
        let target = round.follow(router, &error.kind, connection);
        // Nodes that redirect to each other do not agree yet who has the slot: that takes time.
        if redirects > PROMPT_REDIRECTS || target.is_none() {
            return self.pause(index, RetryCause::Redirects, Problem::Said(error), round);
        }
        self.go_on(index, target, round);
    }

    /// It goes again at once, but not before those of its slot that wait.
    fn go_on(&mut self, index: usize, target: Option<Target>, round: &Round) {
        let slot = self.slot(index);
        let held = slot.and_then(|slot| self.parked.held_until(slot, round.now));
        if let Some(trouble) = self.trouble(index) {
            // By then a redirect may lead elsewhere.
            trouble.target = target.filter(|_| held.is_none());
        }
        match held {
            Some(until) => self.parked.park(index, slot, until),
            None => self.ready.push(index),
        }
    }

    /// Its reply did not come.
    fn missing(&mut self, index: usize, error: CallError, suspect: Suspect, round: &mut Round) {
        let class = self.list.commands[index].class;
        let repeatable = class == Class::Read || self.router.shared.config.retry_writes;
        let is_suspect = matches!(suspect, Suspect::Itself { .. });
        match error {
            CallError::NotSent(reason) => {
                let problem = Problem::NotTaken(reason.to_string());
                self.pause(index, RetryCause::NotSent, problem, round);
            }
            // A reply that broke the protocol would do so again, and end the connection for others again.
            CallError::Unknown(reason)
                if repeatable && !(is_suspect && matches!(reason, CloseReason::BadReply(_))) =>
            {
                let problem = Problem::NotTaken(reason.to_string());
                self.note(index, problem.clone()).unknown = Some(reason);
                self.pause(index, RetryCause::Unknown, problem, round);
            }
            CallError::Unknown(reason) => self.fail(index, Error::UnknownOutcome(reason)),
            CallError::TimedOut => self.fail(index, Error::TimedOut),
            // The server executed it, so only a read goes again, in a smaller batch.
            CallError::TooLarge { .. }
                if class == Class::Read && suspect != (Suspect::Itself { alone: true }) =>
            {
                self.go_on(index, None, round);
            }
            CallError::TooLarge { max } => self.fail(index, Error::ReplyTooLarge { max }),
        }
    }

    /// It was not executed, or may be repeated: it goes again after a pause, with the others of its round.
    pub fn pause(&mut self, index: usize, cause: RetryCause, problem: Problem, round: &mut Round) {
        let shared = &self.router.shared;
        shared.counters.retried(cause);
        let trouble = self.note(index, problem);
        trouble.target = None;
        let pauses = trouble.pauses;
        trouble.pauses = pauses.saturating_add(1);
        if round.pause_until.is_none() {
            let why = trouble.problem.text();
            tracing::debug!(
                cause = cause.name(),
                why,
                "commands of a pipeline are sent again"
            );
        }
        let until = *round
            .pause_until
            .get_or_insert_with(|| after(shared.config.retries.backoff(pauses)));
        let slot = self.slot(index);
        self.parked.park(index, slot, until.min(self.deadline));
    }
}
