//! Keeps a cluster going until the user ends it: does what [`RestartPolicy`] decides, and reports it.

use std::time::Instant;

use embar_console::context::Context;
use embar_console::explain::explain;

use super::cluster::{Broker, Cluster, ClusterEvent};
use super::occupancy::Occupancy;
use super::plan::Role;
use super::restart_policy::{RestartPolicy, Step};

/// Keeps one cluster going.
pub struct Supervisor<'a> {
    cluster: &'a mut Cluster,
    context: &'a Context,
    policy: RestartPolicy,
}

impl<'a> Supervisor<'a> {
    /// For a cluster that was started.
    pub fn new(cluster: &'a mut Cluster, context: &'a Context) -> Self {
        let now = Instant::now();
        let mut policy = RestartPolicy::default();
        for broker in cluster.brokers() {
            policy.serves(broker.id, now);
        }
        let mut supervisor = Self {
            policy,
            context,
            cluster,
        };
        for (id, pid) in supervisor.cluster.foreign().clone() {
            supervisor.foreign(id, pid);
        }
        supervisor
    }

    /// Returns when the user ends it.
    pub fn run(mut self) {
        loop {
            match self.cluster.wait(self.policy.next_due()) {
                ClusterEvent::Interrupted => return,
                ClusterEvent::Died { id, how } => self.died(id, &how),
                ClusterEvent::Serves(broker) => self.serves(&broker),
                ClusterEvent::Left { id } => self.left(id),
                ClusterEvent::Woken | ClusterEvent::TimedOut => {}
            }
            for step in self.policy.take_due(Instant::now()) {
                match step {
                    Step::Start(id) => self.start(id),
                    Step::Look(id) => self.look(id),
                }
            }
        }
    }

    fn start(&mut self, id: u16) {
        match self.cluster.occupancy(id) {
            Occupancy::Held { pid, .. } => self.foreign(id, pid),
            Occupancy::Left => self.left(id),
            Occupancy::Free { .. } => {
                if let Err(error) = self.cluster.restart(id) {
                    self.died(
                        id,
                        &format!("cannot be started: {}", explain(error.as_ref())),
                    );
                }
            }
        }
    }

    fn look(&mut self, id: u16) {
        match self.cluster.occupancy(id) {
            Occupancy::Held { .. } => {}
            Occupancy::Left => self.left(id),
            Occupancy::Free { .. } => {
                self.note(format_args!(
                    "broker {id}, which another command had started, has ended: it is started again"
                ));
                self.policy.freed(id, Instant::now());
            }
        }
    }

    fn died(&mut self, id: u16, how: &str) {
        // It had left the cluster, and was killed before it could report that.
        if self.cluster.occupancy(id) == Occupancy::Left {
            return self.left(id);
        }
        let wait = self.policy.ended(id, Instant::now());
        self.note(format_args!(
            "broker {id} {how}\nbroker {id} is restarted in {wait:?}"
        ));
    }

    fn serves(&mut self, broker: &Broker) {
        self.policy.serves(broker.id, Instant::now());
        let with = match broker.role {
            Role::Data => format!(" with {} batches", broker.recovered_batches),
            Role::Head | Role::Standby => String::new(),
        };
        self.note(format_args!(
            "broker {} serves again at {} (pid {}){with}",
            broker.id, broker.address, broker.pid
        ));
    }

    fn left(&mut self, id: u16) {
        self.policy.left(id);
        self.note(format_args!(
            "broker {id} has left the cluster, as it was asked to"
        ));
    }

    fn foreign(&mut self, id: u16, pid: u32) {
        self.policy.foreign(id, Instant::now());
        self.note(format_args!(
            "broker {id} lives (pid {pid}) and was not started by this command: it stays, and is started again when it ends"
        ));
    }

    fn note(&self, text: std::fmt::Arguments<'_>) {
        self.context.note(text);
    }
}
