//! A run of a pipeline: gives commands to the nodes that serve them, until each has its result.
//!
//! Commands that the client sends again are grouped anew by the nodes that serve them now, and go out
//! together. There are no rounds of the whole run: each batch that comes back is looked at at once, and
//! what is left of it goes on at its own pace. If the run waited for the last batch of a round before it
//! began the next one, a node that is silent would hold up the redirects of all others until the
//! deadline.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::encoded::EncodedCommands;
use super::lane::{Progress, Queued, Terms};
use super::lanes::Lanes;
use super::results::Results;
use super::retries::Problem;
use super::run_state::{Round, RunState};
use crate::command::Route;
use crate::engine::{NodeConnection, Router, Routes, Timer, after};
use crate::error::Error;
use crate::metrics::RetryCause;

/// A run of a pipeline.
pub(super) struct Run<'r> {
    router: &'r Arc<Router>,
    list: &'r EncodedCommands,
    timeout: Option<Duration>,
    /// The first poll is over, so its time has begun.
    has_begun: bool,
    state: RunState<'r>,
    lanes: Lanes,
    timer: Option<Timer>,
}

/// Where a command goes.
enum Way {
    /// Over this connection, perhaps behind `ASKING`.
    To(Arc<NodeConnection>, bool),
    /// Nowhere now, and why.
    Nowhere(RetryCause, Cow<'static, str>),
}

impl<'r> Run<'r> {
    pub fn new(
        router: &'r Arc<Router>,
        list: &'r EncodedCommands,
        timeout: Option<Duration>,
    ) -> Self {
        let deadline = after(timeout.unwrap_or(router.shared.config.timeout));
        Self {
            router,
            list,
            timeout,
            has_begun: false,
            state: RunState::new(router, list, deadline),
            lanes: Lanes::default(),
            timer: None,
        }
    }

    /// Ready when each command has a result.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Results> {
        if !self.has_begun {
            self.begin();
        }
        loop {
            let waits = self.drive(cx);
            self.has_begun = true;
            if !waits && self.state.ready.is_empty() && self.state.parked.is_empty() {
                return match self.lanes.all.iter().all(|lane| lane.is_idle()) {
                    true => {
                        Poll::Ready(std::mem::replace(&mut self.state.results, Results::empty()))
                    }
                    false => Poll::Pending,
                };
            }
            let now = Instant::now();
            if now >= self.state.deadline {
                self.give_up();
                continue;
            }
            if let Some(error) = self.router.first_refusal() {
                self.refuse(&error);
                continue;
            }
            self.state.parked.take_due(now, &mut self.state.ready);
            let mut wake_at = self.look_again(now);
            if self.state.ready.is_empty() {
                if let Some(due) = self.state.parked.next() {
                    wake_at = wake_at.min(due);
                }
                let schedule = &self.router.shared.schedule;
                schedule.wake_at(&mut self.timer, wake_at, cx.waker());
                return Poll::Pending;
            }
            self.regroup();
        }
    }

    /// Gives all commands to lanes, but those that the client must not send.
    fn begin(&mut self) {
        let (router, commands) = (self.router, &self.list.commands);
        let routes = router.routes();
        let expected = commands.len() / routes.nodes.len().max(1);
        // There, what has no key goes where keys are read or written.
        let is_one_shard = router.shared.config.mode.is_one_shard();
        let mut along = Vec::new();
        for (index, entry) in commands.iter().enumerate() {
            let refused = router
                .refused(entry.route)
                .or_else(|| entry.refused.clone());
            if let Some(error) = refused {
                self.state.results.outcomes[index] = Err(error);
            } else if entry.route == Route::Any && !is_one_shard {
                along.push(index);
            } else if let Some(connection) = router.connection_in(&routes, entry.route, entry.class)
            {
                let lane = self.lanes.of(connection, expected);
                lane.push(Queued::plain(index));
            } else {
                self.state.ready.push(index);
            }
        }
        // Commands that any node can execute go with the others, in their order.
        let lanes = &mut self.lanes.all;
        let place = match lanes.len() {
            2.. if !along.is_empty() => lanes.iter().position(|lane| lane.is_open()).unwrap_or(0),
            _ => 0,
        };
        match lanes.get_mut(place) {
            Some(lane) => along
                .into_iter()
                .for_each(|index| lane.push(Queued::plain(index))),
            None => self.state.ready.append(&mut along),
        }
    }

    /// Has each lane take what came and send what it can. Whether any of them waits for a connection or
    /// for room.
    fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        let config = &*self.router.shared.config;
        let state = &mut self.state;
        let mut waits = false;
        for lane in &mut self.lanes.all {
            while let Poll::Ready(Some(ended)) = lane.poll_ended(cx) {
                let commands = lane.commands(ended.commands.clone());
                state.settle(ended, commands, lane.connection());
            }
            if !lane.has_unsent() {
                lane.rest();
                continue;
            }
            let time_left = match self.has_begun {
                false => self.timeout,
                true => Some(state.deadline.saturating_duration_since(Instant::now())),
            };
            if time_left == Some(Duration::ZERO) {
                waits = true;
                continue;
            }
            let terms = Terms {
                list: self.list,
                config,
                commands_max: state.batch_commands_max,
                time_left,
                only_open: state.is_troubled(),
            };
            match lane.send(&terms, cx) {
                Progress::Sent => {}
                // Another node serves its commands.
                Progress::NoConnection if lane.connection().is_retired() => {
                    state.ready.extend(lane.take_unsent());
                }
                Progress::NoConnection | Progress::NoRoom => waits = true,
                Progress::Refused => {
                    for index in lane.take_unsent() {
                        state.fail(index, Error::Busy);
                    }
                }
                Progress::Broke(reason) => {
                    let mut round = Round::new();
                    for index in lane.take_unsent() {
                        let problem = Problem::NotTaken(reason.to_string());
                        state.pause(index, RetryCause::NotSent, problem, &mut round);
                    }
                }
            }
        }
        waits
    }

    /// Takes commands back from lanes that wait for a connection: when others are grouped anew, and from
    /// time to time, as another node may serve them by now. When the next such time is.
    fn look_again(&mut self, now: Instant) -> Instant {
        let regroups = !self.state.ready.is_empty();
        let mut next = self.state.deadline;
        for lane in &mut self.lanes.all {
            let Some(at) = lane.looks_again_at(&self.router.shared.config) else {
                continue;
            };
            if at <= now {
                lane.has_looked();
                for index in lane.take_unsent() {
                    // Where a redirect led did not help.
                    if let Some(trouble) = self.state.trouble(index) {
                        trouble.target = None;
                    }
                    self.state.ready.push(index);
                }
            } else if regroups {
                self.state.ready.extend(lane.take_unsent());
            } else {
                next = next.min(at);
            }
        }
        next
    }

    /// Gives the commands that are ready to the lanes of the nodes that serve them now.
    fn regroup(&mut self) {
        let router = self.router;
        let routes = router.routes();
        let mut ready = std::mem::take(&mut self.state.ready);
        ready.sort_unstable();
        let mut round = None;
        for index in ready {
            match self.way(index, &routes) {
                Way::To(connection, asking) => {
                    let lane = self.lanes.of(&connection, 0);
                    lane.push(Queued { index, asking });
                }
                Way::Nowhere(cause, why) => {
                    let round = round.get_or_insert_with(|| {
                        router.shared.schedule.request_refresh();
                        Round::new()
                    });
                    let problem = Problem::NotTaken(why.into_owned());
                    self.state.pause(index, cause, problem, round);
                }
            }
        }
    }

    fn way(&mut self, index: usize, routes: &Routes) -> Way {
        let entry = &self.list.commands[index];
        let target = self.state.trouble(index);
        let target = target.and_then(|trouble| trouble.target.clone());
        let served_by = || {
            let connection = self
                .router
                .connection_in(routes, entry.route, entry.class)?;
            Some((Arc::clone(connection), false))
        };
        let target = target.map(|target| (target.connection, target.asking));
        match target.or_else(served_by) {
            None => Way::Nowhere(RetryCause::NoNode, self.router.why_no_node(entry.route)),
            Some((connection, _)) if connection.is_retired() => Way::Nowhere(
                RetryCause::Redirects,
                "the node has left the cluster".into(),
            ),
            Some((connection, asking)) => Way::To(connection, asking),
        }
    }

    /// No server accepts the client: all commands fail for that.
    #[cold]
    fn refuse(&mut self, error: &Error) {
        let state = &mut self.state;
        let mut left = std::mem::take(&mut state.ready);
        state.parked.take_all(&mut left);
        for lane in &mut self.lanes.all {
            left.extend(lane.take_unsent());
        }
        for index in left {
            state.fail(index, error.clone());
        }
    }

    /// The time is over: all commands fail that no server has. Those in flight have time limits of their
    /// own, which are over, too.
    fn give_up(&mut self) {
        let state = &mut self.state;
        let mut left = std::mem::take(&mut state.ready);
        state.parked.take_all(&mut left);
        for index in left {
            state.give_up(index, None);
        }
        for lane in &mut self.lanes.all {
            if lane.has_unsent() {
                let why = lane.why_not_open();
                for index in lane.take_unsent() {
                    state.give_up(index, why.as_deref());
                }
            }
        }
    }
}
