//! Keeps a cluster going until the user ends it: does what [`Keeper`] decides, and says it.

use std::time::Instant;

use embar_console::context::Context;
use embar_console::explain::explain;

use super::cluster::{Broker, Cluster, Happening};
use super::keeper::{Keeper, Step};
use super::plan::Role;
use super::tenure::Tenure;

/// One cluster that is kept going.
pub struct Watch<'a> {
    cluster: &'a mut Cluster,
    context: &'a Context,
    keeper: Keeper,
}

impl<'a> Watch<'a> {
    /// Of a cluster that was started.
    pub fn new(cluster: &'a mut Cluster, context: &'a Context) -> Self {
        let now = Instant::now();
        let mut keeper = Keeper::default();
        for broker in cluster.brokers() {
            keeper.serves(broker.id, now);
        }
        let mut watch = Self {
            keeper,
            context,
            cluster,
        };
        for (id, pid) in watch.cluster.strangers().clone() {
            watch.stranger(id, pid);
        }
        watch
    }

    /// Returns when the user wants it to end.
    pub fn run(mut self) {
        loop {
            match self.cluster.wait(self.keeper.next_due()) {
                Happening::Interrupted => return,
                Happening::Died { id, how } => self.died(id, &how),
                Happening::Serves(broker) => self.serves(&broker),
                Happening::Left { id } => self.left(id),
                Happening::Woken | Happening::TimedOut => {}
            }
            for step in self.keeper.take_due(Instant::now()) {
                match step {
                    Step::Start(id) => self.start(id),
                    Step::Look(id) => self.look(id),
                }
            }
        }
    }

    fn start(&mut self, id: u16) {
        match self.cluster.tenure(id) {
            Tenure::Held { pid, .. } => self.stranger(id, pid),
            Tenure::Left => self.left(id),
            Tenure::Free { .. } => {
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
        match self.cluster.tenure(id) {
            Tenure::Held { .. } => {}
            Tenure::Left => self.left(id),
            Tenure::Free { .. } => {
                self.note(format_args!(
                    "broker {id}, which another command had started, has ended: it is started again"
                ));
                self.keeper.freed(id, Instant::now());
            }
        }
    }

    fn died(&mut self, id: u16, how: &str) {
        // It had left the cluster, and was killed before it could say so here.
        if self.cluster.tenure(id) == Tenure::Left {
            return self.left(id);
        }
        let wait = self.keeper.ended(id, Instant::now());
        self.note(format_args!(
            "broker {id} {how}\nbroker {id} is restarted in {wait:?}"
        ));
    }

    fn serves(&mut self, broker: &Broker) {
        self.keeper.serves(broker.id, Instant::now());
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
        self.keeper.left(id);
        self.note(format_args!(
            "broker {id} has left the cluster, as it was asked to"
        ));
    }

    fn stranger(&mut self, id: u16, pid: u32) {
        self.keeper.stranger(id, Instant::now());
        self.note(format_args!(
            "broker {id} lives (pid {pid}) and was not started by this command: it stays, and is started again when it ends"
        ));
    }

    fn note(&self, text: std::fmt::Arguments<'_>) {
        self.context.note(text);
    }
}
