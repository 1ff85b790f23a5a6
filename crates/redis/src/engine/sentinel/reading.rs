//! Asks sentinels whom they name, and believes the best of their answers, by the rules for nodes of a cluster
//! (`inquiry` and `answers`): two that reach most sentinels and agree are enough; a greater epoch counts for more.
//!
//! The manager's thread polls it and never blocks in it.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::known::{to_know, to_watch};
use super::report::{REPLIES, SentinelReport, question};
use super::watch::SentinelWatch;
use crate::endpoint::Endpoint;
use crate::engine::failures::Failures;
use crate::engine::inquiry::{Decision, Inquiry};
use crate::engine::node::Node;
use crate::engine::question::{NoAnswer, Question, wake_again};
use crate::engine::schedule::Timer;
use crate::engine::shared::Shared;

/// The sentinels that a client knows, from one reading to the next.
pub struct Sentinels {
    shared: Arc<Shared>,
    master_name: String,
    known: Vec<Arc<Node>>,
    watches: Vec<Arc<SentinelWatch>>,
    /// The epoch of the primary that the client has, if a sentinel told it.
    epoch: Option<u64>,
}

impl Sentinels {
    /// The seeds, and what their connections share.
    pub fn new(master_name: String, shared: Arc<Shared>) -> Self {
        let seeds = shared.config.seeds.iter();
        Self {
            known: seeds.map(|seed| Node::new(seed.clone(), &shared)).collect(),
            master_name,
            watches: Vec::new(),
            epoch: None,
            shared,
        }
    }

    /// The client has the primary of this epoch.
    pub fn adopted(&mut self, epoch: Option<u64>) {
        self.epoch = epoch.or(self.epoch);
    }

    /// Takes over which sentinels there are, and watches some that have answered.
    fn follow(&mut self, believed: &[&SentinelReport], answered: &[(Endpoint, Option<String>)]) {
        let known = to_know(&self.shared.config.seeds, believed, answered);
        let node = |endpoint: Endpoint| {
            let known = self.known.iter().find(|node| node.endpoint == endpoint);
            known.map_or_else(|| Node::new(endpoint, &self.shared), Arc::clone)
        };
        self.known = known.into_iter().map(node).collect();
        let watched = self.watches.iter();
        let watched: Vec<_> = watched
            .map(|watch| (watch.endpoint.clone(), watch.does_well()))
            .collect();
        let answered: Vec<_> = answered
            .iter()
            .map(|(endpoint, _)| endpoint.clone())
            .collect();
        let watch = |endpoint: Endpoint| {
            let known = self.watches.iter().find(|watch| watch.endpoint == endpoint);
            let start = || SentinelWatch::start(endpoint.clone(), &self.master_name, &self.shared);
            known.map_or_else(start, Arc::clone)
        };
        self.watches = to_watch(&watched, &answered)
            .into_iter()
            .map(watch)
            .collect();
    }
}

/// Whom the sentinels name.
pub struct Choice {
    pub primary: Endpoint,
    /// Those that one of them does not call down.
    pub replicas: Vec<Endpoint>,
    pub epoch: Option<u64>,
}

/// One reading of what sentinels say.
pub struct SentinelReading {
    inquiry: Inquiry,
    question: Arc<[u8]>,
    /// Those that are left to ask, the last one next.
    left: Vec<Arc<Node>>,
    questions: Vec<(u32, Question)>,
    asked: u32,
    reports: Vec<(Endpoint, SentinelReport)>,
    failures: Vec<(Endpoint, NoAnswer)>,
    timer: Option<Timer>,
}

impl SentinelReading {
    pub fn new(sentinels: &Sentinels) -> Self {
        let mut left = sentinels.known.clone();
        // Many clients ask different sentinels so, and a client that was misled asks others the next time.
        fastrand::shuffle(&mut left);
        Self {
            inquiry: Inquiry::new(sentinels.epoch),
            question: question(&sentinels.master_name).into(),
            left,
            questions: Vec::new(),
            asked: 0,
            reports: Vec::new(),
            failures: Vec::new(),
            timer: None,
        }
    }

    /// Ready when enough sentinels have answered: whom to believe.
    ///
    /// # Errors
    /// Why none has answered.
    pub fn poll(
        &mut self,
        sentinels: &mut Sentinels,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Choice, Failures>> {
        loop {
            let now = Instant::now();
            self.ask(now);
            let some_ended = self.poll_questions(&sentinels.master_name, cx);
            let chosen = match self.inquiry.decide(now, self.left.is_empty()) {
                Decision::Adopt(answer) => answer.topology.shards().first(),
                Decision::Nothing => return Poll::Ready(Err(self.why_nothing())),
                Decision::Wait if some_ended => continue,
                Decision::Wait => {
                    let questions = self.questions.iter().map(|(_, question)| question);
                    let decide_at = self.inquiry.decide_again_at(now);
                    let schedule = &sentinels.shared.schedule;
                    wake_again(questions, decide_at, schedule, &mut self.timer, cx);
                    return Poll::Pending;
                }
            };
            let primary = chosen.expect("it has one shard").primary.clone();
            return Poll::Ready(Ok(self.choose(primary, sentinels)));
        }
    }

    /// What those say who name this primary.
    fn choose(&self, primary: Endpoint, sentinels: &mut Sentinels) -> Choice {
        let reports = self.reports.iter().map(|(_, report)| report);
        let believed: Vec<_> = reports.filter(|report| report.primary == primary).collect();
        let answered = self.reports.iter();
        let answered: Vec<_> = answered
            .map(|(endpoint, report)| (endpoint.clone(), report.id.clone()))
            .collect();
        sentinels.follow(&believed, &answered);
        let mut replicas: Vec<_> = believed.iter().flat_map(|it| it.replicas.clone()).collect();
        replicas.sort();
        replicas.dedup();
        Choice {
            epoch: believed.iter().filter_map(|report| report.epoch).max(),
            primary,
            replicas,
        }
    }

    /// If any refused, that is what somebody has to change; that others cannot be reached is less.
    fn why_nothing(&mut self) -> Failures {
        let all = std::mem::take(&mut self.failures);
        let is_refusal = |(_, why): &(_, NoAnswer)| matches!(why, NoAnswer::Refused(_));
        let any_refused = all.iter().any(is_refusal);
        let mut failures = Failures::default();
        for (sentinel, why) in all {
            if !any_refused || matches!(why, NoAnswer::Refused(_)) {
                failures.note(&sentinel, why);
            }
        }
        failures
    }

    fn ask(&mut self, now: Instant) {
        for _ in 0..self.inquiry.wanted(now) {
            // One that could not be reached just now has its turn in another reading.
            let next = self
                .left
                .iter()
                .rposition(|node| !node.connection(0).is_backing_off());
            let Some(next) = next else {
                self.left.clear();
                return;
            };
            let node = self.left.remove(next);
            self.inquiry.asked(self.asked, now);
            let bytes = Cow::Owned(self.question.to_vec());
            self.questions
                .push((self.asked, Question::new(node, bytes, REPLIES)));
            self.asked += 1;
        }
    }

    /// Takes answers that have come; whether there were any, or failures.
    fn poll_questions(&mut self, master_name: &str, cx: &mut Context<'_>) -> bool {
        let before = self.questions.len();
        self.questions.retain_mut(|(number, question)| {
            let read =
                |reply: &[u8], asked: &Endpoint| SentinelReport::read(reply, asked, master_name);
            let Poll::Ready(report) = question.poll(cx, read) else {
                return true;
            };
            let sentinel = question.node.endpoint.clone();
            let answer = match report {
                Ok(report) => {
                    let answer = report.answer();
                    self.reports.push((sentinel, report));
                    Some(answer)
                }
                Err(why) => {
                    let why = NoAnswer::lasting(&question.node, false).unwrap_or(why);
                    tracing::debug!(%sentinel, ?why, "a sentinel does not tell");
                    self.failures.push((sentinel, why));
                    None
                }
            };
            self.inquiry.ended(*number, answer);
            false
        });
        self.questions.len() < before
    }
}
