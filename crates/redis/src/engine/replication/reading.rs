//! Finds the primary and its replicas: asks servers what they are, and adopts what `inquiry` decides.
//!
//! The manager's thread polls it and never blocks in it.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::info::{QUESTION, REPLIES, ReplicationInfo};
use super::inquiry::{Decision, RoleInquiry, Wanted};
use crate::endpoint::Endpoint;
use crate::engine::failures::Failures;
use crate::engine::node::Node;
use crate::engine::question::{NoAnswer, Question, wake_again};
use crate::engine::router::Router;
use crate::engine::schedule::{Again, Timer};
use crate::topology::Topology;

/// One reading of the roles of servers.
pub struct RoleReading {
    inquiry: RoleInquiry,
    named: Option<Endpoint>,
    questions: Vec<Question>,
    /// The servers that were asked, and those that the client knew before.
    nodes: Vec<Arc<Node>>,
    timer: Option<Timer>,
    failures: Failures,
    /// The client may get other credentials.
    has_provider: bool,
}

impl RoleReading {
    /// Asks the seeds and the servers that the client has; they name the others.
    pub fn of_seeds(router: &Router, acquainted: Vec<Arc<Node>>) -> Self {
        let seeds = &router.shared.config.seeds;
        let (present, present_replicas) = router.only_shard();
        let wanted = Wanted {
            named: None,
            // Of a server with two addresses that counts which the client has.
            known: present.iter().chain(&present_replicas).cloned().collect(),
            expected: seeds.clone(),
            present,
            present_replicas,
        };
        Self::new(router, acquainted, wanted)
    }

    /// Asks the primary that sentinels name, and those of its replicas that they do not call down.
    pub fn of_named(
        router: &Router,
        acquainted: Vec<Arc<Node>>,
        primary: Endpoint,
        replicas: Vec<Endpoint>,
    ) -> Self {
        let (present, present_replicas) = router.only_shard();
        let wanted = Wanted {
            named: Some(primary),
            known: Vec::new(),
            expected: replicas,
            present,
            present_replicas,
        };
        Self::new(router, acquainted, wanted)
    }

    fn new(router: &Router, acquainted: Vec<Arc<Node>>, wanted: Wanted) -> Self {
        let mut nodes = router.routes().nodes.clone();
        nodes.extend(acquainted);
        nodes.retain(|node| !node.is_retired());
        Self {
            named: wanted.named.clone(),
            inquiry: RoleInquiry::new(wanted),
            questions: Vec::new(),
            nodes,
            timer: None,
            failures: Failures::default(),
            has_provider: router.shared.credentials.is_some(),
        }
    }

    /// Ready when the reading is over, and the client has what it found: when to read again.
    ///
    /// # Errors
    /// Why no primary is known.
    pub fn poll(&mut self, router: &Router, cx: &mut Context<'_>) -> Poll<Result<Again, Failures>> {
        loop {
            let now = Instant::now();
            self.ask(router, now);
            let some_ended = self.poll_questions(cx);
            let is_busy = |node: &Endpoint| {
                let mut questions = self.questions.iter();
                questions.any(|one| one.node.endpoint == *node && one.is_with_server())
            };
            match self.inquiry.decide(now, is_busy) {
                Decision::Adopt(primary, replicas, again) => {
                    self.adopt(router, primary, replicas);
                    return Poll::Ready(Ok(again));
                }
                Decision::Nothing => return Poll::Ready(Err(std::mem::take(&mut self.failures))),
                Decision::Wait if some_ended => {}
                Decision::Wait => {
                    let questions = self.questions.iter();
                    let decide_at = self.inquiry.decide_again_at(now);
                    let schedule = &router.shared.schedule;
                    wake_again(questions, decide_at, schedule, &mut self.timer, cx);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Does nothing if the client has it: it may look each second, and subscribers go through all that they have with each
    /// topology.
    fn adopt(&self, router: &Router, primary: Endpoint, mut replicas: Vec<Endpoint>) {
        replicas.sort();
        let known = router.routes().nodes.len();
        let (present, present_replicas) = router.only_shard();
        let is_same = present.as_ref() == Some(&primary) && present_replicas == replicas;
        // A replica that left may still be among the nodes.
        if !is_same || known > 1 + replicas.len() {
            let topology = Topology::of_one_shard(primary, replicas);
            router.adopt(&topology, &self.nodes);
        }
    }

    /// The servers that were asked and are not part of what was adopted: their connections are of use the next time.
    pub fn into_acquainted(self, router: &Router) -> Vec<Arc<Node>> {
        let routes = router.routes();
        let mut nodes = self.nodes;
        nodes.retain(|node| routes.find(&node.endpoint).is_none() && !node.is_retired());
        nodes
    }

    fn ask(&mut self, router: &Router, now: Instant) {
        for endpoint in self.inquiry.ask(now) {
            let known = self.nodes.iter().find(|node| node.endpoint == endpoint);
            let node = known.map_or_else(|| Node::new(endpoint, &router.shared), Arc::clone);
            if known.is_none() {
                self.nodes.push(Arc::clone(&node));
            }
            if node.connection(0).is_backing_off() {
                // It could not be reached just now, and has its turn in another reading.
                self.ended(
                    &node,
                    Err(NoAnswer::failed(&"it could not be reached just now")),
                );
                continue;
            }
            let question = Question::new(node, Cow::Borrowed(QUESTION), REPLIES);
            self.questions.push(question);
        }
    }

    /// Takes reports that have come; whether there were any, or failures.
    fn poll_questions(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.questions.len();
        for mut question in std::mem::take(&mut self.questions) {
            match question.poll(cx, ReplicationInfo::read) {
                Poll::Ready(info) => self.ended(&question.node, info),
                Poll::Pending => self.questions.push(question),
            }
        }
        self.questions.len() < before
    }

    fn ended(&mut self, node: &Node, info: Result<ReplicationInfo, NoAnswer>) {
        let (info, why) = match info {
            Ok(info) if info.is_primary() => (Some(info), None),
            Ok(info) => (Some(info), Some(NoAnswer::failed(&"it is a replica"))),
            Err(why) => (
                None,
                Some(NoAnswer::lasting(node, self.has_provider).unwrap_or(why)),
            ),
        };
        // If there is a named one, only that matters.
        let matters = self
            .named
            .as_ref()
            .is_none_or(|named| *named == node.endpoint);
        if let Some(why) = why.filter(|_| matters) {
            self.failures.note(&node.endpoint, why);
        }
        self.inquiry.ended(&node.endpoint, info);
    }
}
