//! Asks the brokers of a cluster, all at once, and one that does not answer in time only once in a look.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use embar_client::{
    Admin, AdminError, BrokerInfo, BrokerState, ClientError, ClusterMetadata, ConnectionError,
    Request, TopicDescription, Transport,
};
use embar_diagnose::observed::Missing;

/// Topics that are described in a look, at most.
const TOPICS_MAX: usize = 64;

/// A client for each broker, because a client asks one after the other.
pub struct Asker {
    brokers: BTreeMap<u32, Asked>,
    within: Duration,
}

struct Asked {
    address: String,
    admin: Admin,
    /// It did not answer in time, and is left out until the next look.
    is_silent: bool,
}

/// The topics of a cluster.
pub struct Topics {
    /// With what brokers that answer retain of them.
    pub described: Vec<TopicDescription>,
    /// Why there is no list of them.
    pub unlisted: Option<String>,
}

impl Asker {
    /// Gives each broker so much time for an answer.
    pub fn new(within: Duration) -> Self {
        Self {
            brokers: BTreeMap::new(),
            within,
        }
    }

    /// A look begins, at these brokers: connections with them stay as they are from look to look.
    pub(super) fn begin(&mut self, cluster: &ClusterMetadata) -> Result<()> {
        let here = |id: &u32, asked: &Asked| {
            let mut brokers = cluster.brokers.iter().filter(|it| is_here(it));
            brokers.any(|it| it.id == *id && it.address == asked.address)
        };
        self.brokers.retain(|id, asked| here(id, asked));
        for asked in self.brokers.values_mut() {
            asked.is_silent = false;
        }
        for info in cluster.brokers.iter().filter(|it| is_here(it)) {
            if !self.brokers.contains_key(&info.id) {
                // By TCP, whose other end says which process a broker is.
                let admin = Admin::connect(&info.address)?
                    .timeout(self.within)
                    .transport(Transport::Tcp);
                let address = info.address.clone();
                let asked = Asked {
                    address,
                    admin,
                    is_silent: false,
                };
                self.brokers.insert(info.id, asked);
            }
        }
        Ok(())
    }

    /// Asks these brokers at once, those aside that did not answer in time in this look.
    pub(super) fn each<T>(
        &mut self,
        ids: &BTreeSet<u32>,
        question: impl Fn(&Admin, u32) -> Request<T>,
    ) -> Vec<(u32, Result<T, AdminError>)> {
        let asked = self.brokers.iter_mut();
        let asked = asked.filter(|(id, it)| ids.contains(id) && !it.is_silent);
        let asked: Vec<_> = asked
            .map(|(id, it)| (*id, question(&it.admin, *id), it))
            .collect();
        let answers = asked.into_iter().map(|(id, request, it)| {
            let answer = request.wait();
            it.is_silent = answer.as_ref().is_err_and(is_late);
            (id, answer)
        });
        answers.collect()
    }

    /// The topics; of those that `known` names if nobody lists them.
    pub fn topics(&mut self, cluster: &ClusterMetadata, known: &[String]) -> Topics {
        let head = BTreeSet::from([cluster.head]);
        let listed = self.each(&head, |admin, _| admin.list_topics()).pop();
        let (names, unlisted) = match listed {
            Some((_, Ok(topics))) => (topics.into_iter().map(|it| it.name).collect(), None),
            Some((_, Err(error))) => (known.to_vec(), Some(error.to_string())),
            None => {
                let why = format!("broker {}, the head, does not answer", cluster.head);
                (known.to_vec(), Some(why))
            }
        };
        let names: Vec<String> = names;
        let serves = |it: &&BrokerInfo| {
            it.takes_data && matches!(it.state, BrokerState::Ready | BrokerState::Draining)
        };
        let data = cluster.brokers.iter().filter(serves);
        let data: BTreeSet<u32> = data.map(|it| it.id).collect();
        let names = names.into_iter().take(TOPICS_MAX);
        let described = names.filter_map(|name| {
            let parts = self.each(&data, |admin, id| {
                admin.describe_topic_on(id, name.as_str())
            });
            // One that was deleted meanwhile, or of which nobody tells, is left out.
            let parts = parts.into_iter().filter_map(|(_, part)| part.ok());
            parts.reduce(|mut all, part| {
                all.partitions.extend(part.partitions);
                all
            })
        });
        Topics {
            described: described.collect(),
            unlisted,
        }
    }
}

/// Whether it is still in the cluster.
pub(super) fn is_here(broker: &BrokerInfo) -> bool {
    broker.state != BrokerState::Left
}

/// Whether nobody answered in time: one that refuses does so at once.
fn is_late(error: &AdminError) -> bool {
    match error {
        AdminError::TimedOut { .. } => true,
        AdminError::Client(ClientError::Unreachable { source, .. }) => {
            matches!(source, ConnectionError::Late { .. })
        }
        _ => false,
    }
}

/// Adds what could not be had, once.
pub(super) fn lack(absent: &mut Vec<Missing>, what: String, why: impl Into<String>) {
    if absent.iter().all(|it| it.what != what) {
        let why = why.into();
        absent.push(Missing { what, why });
    }
}
