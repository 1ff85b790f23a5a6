//! Reads the topology of a cluster: asks several nodes at once, and adopts the best of their answers.
//!
//! The manager's thread polls it and never blocks in it: a silent node delays only what waits for the
//! answer. `inquiry` says how many nodes to ask and when their answers are enough, and `answers` which of
//! them is the best.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::failures::Failures;
use super::inquiry::{Decision, Inquiry};
use super::node::Node;
use super::question::{Question, wake_again};
use super::router::Router;
use super::schedule::Timer;
use crate::endpoint::Endpoint;

/// One reading of the topology.
pub(super) struct Refresh {
    inquiry: Inquiry,
    /// The known nodes that are left to ask.
    known: Vec<Arc<Node>>,
    /// Other nodes that are left to ask when none of the known ones is any use: they may have left the cluster, or be the
    /// only ones that are still there.
    seeds: Vec<Endpoint>,
    /// The questions that are not over, with their numbers.
    questions: Vec<(u32, Question)>,
    /// How many questions there were.
    asked: u32,
    timer: Option<Timer>,
    failures: Failures,
}

impl Refresh {
    /// `adopted` is the epoch of the topology that the client has, if that is known.
    pub fn new(router: &Router, adopted: Option<u64>) -> Self {
        let mut known = router.routes().nodes.clone();
        let mut seeds = router.shared.config.seeds.clone();
        seeds.retain(|seed| !known.iter().any(|node| node.endpoint == *seed));
        // Many clients ask different nodes so, and a client that was misled asks others the next time.
        fastrand::shuffle(&mut known);
        fastrand::shuffle(&mut seeds);
        Self {
            inquiry: Inquiry::new(adopted),
            known,
            seeds,
            questions: Vec::new(),
            asked: 0,
            timer: None,
            failures: Failures::default(),
        }
    }

    /// Ready when the refresh is over: the epoch of the topology that the client now has, if that is known.
    ///
    /// # Errors
    /// Why there is none.
    pub fn poll(
        &mut self,
        router: &Router,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<u64>, Failures>> {
        loop {
            let now = Instant::now();
            self.ask(router, now);
            let some_ended = self.poll_questions(cx);
            let seeds_left = !self.seeds.is_empty() && !self.inquiry.has_answer();
            let nobody_left = self.known.is_empty() && !seeds_left;
            match self.inquiry.decide(now, nobody_left) {
                Decision::Adopt(answer) => {
                    router.adopt(&answer.topology, &[]);
                    return Poll::Ready(Ok(answer.info.epoch));
                }
                Decision::Nothing => return Poll::Ready(Err(std::mem::take(&mut self.failures))),
                Decision::Wait if some_ended => {}
                Decision::Wait => {
                    let questions = self.questions.iter().map(|(_, question)| question);
                    let decide_at = self.inquiry.decide_again_at(now);
                    let schedule = &router.shared.schedule;
                    wake_again(questions, decide_at, schedule, &mut self.timer, cx);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Asks as many nodes as it needs, if there are any left.
    fn ask(&mut self, router: &Router, now: Instant) {
        for _ in 0..self.inquiry.wanted(now) {
            let Some(node) = self.next_node(router, now) else {
                return;
            };
            self.inquiry.asked(self.asked, now);
            self.questions
                .push((self.asked, Question::of_cluster(node)));
            self.asked += 1;
        }
    }

    /// The next node to ask.
    fn next_node(&mut self, router: &Router, now: Instant) -> Option<Arc<Node>> {
        while let Some(node) = self.known.pop() {
            // A node that could not be reached just now has its turn in another refresh.
            if !node.connection(0).is_backing_off() {
                return Some(node);
            }
        }
        if !self.inquiry.needs_last_resort(now) {
            return None;
        }
        let seed = self.seeds.pop()?;
        Some(Node::new(seed, &router.shared))
    }

    /// Takes answers that have come; whether there were any, or failures.
    fn poll_questions(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.questions.len();
        self.questions.retain_mut(|(number, question)| {
            let Poll::Ready(answer) = question.poll_cluster(cx) else {
                return true;
            };
            let answer = answer.map_err(|why| self.failures.note(&question.node.endpoint, why));
            self.inquiry.ended(*number, answer.ok());
            false
        });
        self.questions.len() < before
    }
}
