//! Where the topology comes from: the nodes of a cluster, servers that tell their roles, or sentinels.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::failures::Failures;
use super::node::Node;
use super::refresh::Refresh;
use super::replication::reading::RoleReading;
use super::router::Router;
use super::schedule::Again;
use super::sentinel::reading::{Choice, SentinelReading, Sentinels};
use super::shared::Shared;
use crate::config::{Mode, RetryPolicy};

/// Reads the topology, and keeps what the next reading needs of this one.
pub(super) struct Source {
    kind: Kind,
    reading: Option<Reading>,
    /// Servers that the last reading of roles asked, and that are no part of what was adopted.
    acquainted: Vec<Arc<Node>>,
    /// How many readings failed one after the other.
    failed: u32,
}

enum Kind {
    /// A cluster; the epoch of the topology that the client has, if a node told it.
    Cluster(Option<u64>),
    /// A primary with replicas.
    Replicated,
    /// Sentinels, which know a primary and its replicas.
    Sentinels(Sentinels),
}

/// A reading that is not over.
enum Reading {
    Cluster(Refresh),
    Sentinels(SentinelReading),
    /// Of servers; of those that sentinels name, with the epoch, if one told it.
    Roles(RoleReading, Option<u64>),
}

impl Source {
    /// With sentinels, `sentinels` is what their connections share.
    pub fn new(mode: Mode, master_name: &str, sentinels: Option<Arc<Shared>>) -> Self {
        let kind = match (mode, sentinels) {
            (Mode::Sentinel, Some(shared)) => {
                Kind::Sentinels(Sentinels::new(master_name.to_owned(), shared))
            }
            (Mode::Replicated, _) => Kind::Replicated,
            _ => Kind::Cluster(None),
        };
        Self {
            kind,
            reading: None,
            acquainted: Vec::new(),
            failed: 0,
        }
    }

    /// Gives up the reading, and the nodes that it holds.
    pub fn end(&mut self) {
        self.reading = None;
        self.acquainted.clear();
        self.kind = Kind::Cluster(None);
    }

    /// Begins a reading, or goes on with it. Ready when it is over, and the client has what it found: when to read again.
    ///
    /// # Errors
    /// Why there is no topology.
    pub fn poll(&mut self, router: &Router, cx: &mut Context<'_>) -> Poll<Result<Again, Failures>> {
        loop {
            let reading = match self.reading.take() {
                Some(reading) => reading,
                None => self.begin(router),
            };
            match self.poll_reading(reading, router, cx) {
                Step::Next(next) => self.reading = Some(next),
                Step::Wait(reading) => {
                    self.reading = Some(reading);
                    return Poll::Pending;
                }
                Step::Over(outcome) => {
                    self.log(&outcome);
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    fn begin(&mut self, router: &Router) -> Reading {
        match &self.kind {
            Kind::Cluster(epoch) => Reading::Cluster(Refresh::new(router, *epoch)),
            Kind::Sentinels(sentinels) => Reading::Sentinels(SentinelReading::new(sentinels)),
            Kind::Replicated => {
                let acquainted = std::mem::take(&mut self.acquainted);
                Reading::Roles(RoleReading::of_seeds(router, acquainted), None)
            }
        }
    }

    fn poll_reading(&mut self, reading: Reading, router: &Router, cx: &mut Context<'_>) -> Step {
        match (reading, &mut self.kind) {
            (Reading::Cluster(mut refresh), kind) => match refresh.poll(router, cx) {
                Poll::Pending => Step::Wait(Reading::Cluster(refresh)),
                Poll::Ready(outcome) => Step::Over(outcome.map(|epoch| {
                    if let Kind::Cluster(known) = kind {
                        *known = epoch.or(*known);
                    }
                    Again::Usual
                })),
            },
            (Reading::Sentinels(mut reading), Kind::Sentinels(sentinels)) => {
                match reading.poll(sentinels, cx) {
                    Poll::Pending => Step::Wait(Reading::Sentinels(reading)),
                    Poll::Ready(Err(failures)) => Step::Over(Err(failures)),
                    Poll::Ready(Ok(Choice {
                        primary,
                        replicas,
                        epoch,
                    })) => {
                        let acquainted = std::mem::take(&mut self.acquainted);
                        let roles = RoleReading::of_named(router, acquainted, primary, replicas);
                        Step::Next(Reading::Roles(roles, epoch))
                    }
                }
            }
            (Reading::Roles(mut roles, epoch), kind) => match roles.poll(router, cx) {
                Poll::Pending => Step::Wait(Reading::Roles(roles, epoch)),
                Poll::Ready(outcome) => {
                    if let (Kind::Sentinels(sentinels), Ok(_)) = (kind, &outcome) {
                        sentinels.adopted(epoch);
                    }
                    self.acquainted = roles.into_acquainted(router);
                    Step::Over(outcome)
                }
            },
            // Only sentinels have such a reading.
            (Reading::Sentinels(_), _) => Step::Over(Err(Failures::default())),
        }
    }

    /// When to read again after the last reading has failed. Sentinels have a failover to do then, and say when it is
    /// done.
    pub fn after_failure(&self, retries: &RetryPolicy) -> Again {
        Again::After(match &self.kind {
            Kind::Cluster(_) => Duration::ZERO,
            Kind::Replicated | Kind::Sentinels(_) => retries.backoff(self.failed),
        })
    }

    fn log(&mut self, outcome: &Result<Again, Failures>) {
        let Err(failures) = outcome else {
            self.failed = 0;
            return;
        };
        match (&self.kind, self.failed) {
            (Kind::Cluster(_), _) => {
                tracing::warn!("no node of the cluster tells which serves which slot: {failures}");
            }
            // One warning is enough for all readings that fail one after the other.
            (_, 0) => tracing::warn!("no primary is known: {failures}"),
            (_, before) => tracing::debug!(before, "still no primary is known: {failures}"),
        }
        self.failed = self.failed.saturating_add(1);
    }
}

/// What became of a reading.
enum Step {
    Wait(Reading),
    Next(Reading),
    Over(Result<Again, Failures>),
}
