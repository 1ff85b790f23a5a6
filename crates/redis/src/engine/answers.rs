//! Which of several nodes' answers about the topology the client believes.
//!
//! Nodes learn of changes one after the other, and a node that is cut off from its peers learns nothing, but still
//! answers that it serves its slots. So the client compares answers:
//!
//! 1. A node that takes commands is believed rather than one that says it takes none. A node that does not reach most
//!    primaries takes none, after the cluster's node timeout.
//! 2. Then the greater epoch counts: each failover begins a new one, with the votes of most primaries.
//! 3. Then the number of nodes that say that the same primaries serve the same slots; then of those that also name the
//!    same replicas.
//! 4. Then the number of slots that have a node.
//! 5. Then the answer that came first.
//!
//! An answer whose epoch is smaller than the one that the client has adopted is *outdated*. The client goes back to it only
//! when all nodes have been asked and none that is up to date takes commands, as when the cluster was made anew, and
//! counts its epochs from the beginning. To the same question, a node whose epoch is unknown is up to date.

use super::cluster_info::{ClusterInfo, Health};
use crate::topology::Topology;

/// What one node says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// At least one shard.
    pub topology: Topology,
    pub info: ClusterInfo,
}

impl Answer {
    /// Whether the client has adopted a topology of a greater epoch.
    pub fn is_outdated(&self, adopted: Option<u64>) -> bool {
        self.info.epoch.is_some_and(|epoch| Some(epoch) < adopted)
    }

    /// Whether both say the same of all slots, and both nodes take commands: then no third one needs to agree. Two nodes
    /// that are cut off together take no commands, so they do not agree in this sense.
    pub fn agrees_with(&self, other: &Self) -> bool {
        let both_up = [self, other].map(|answer| answer.info.health) == [Health::Up; 2];
        both_up && self.topology.has_same_primaries(&other.topology)
    }
}

/// The answer to believe; `None` if there are none. Earlier answers come first.
pub(super) fn best<'a>(answers: &[&'a Answer]) -> Option<&'a Answer> {
    let count = |is_like: &dyn Fn(&Topology) -> bool| {
        let alike = answers.iter().filter(|answer| is_like(&answer.topology));
        alike.count()
    };
    let rank = |answer: &&&Answer| {
        let topology = &answer.topology;
        let same_primaries = count(&|other| other.has_same_primaries(topology));
        let same = count(&|other| other == topology);
        let covered = usize::MAX - topology.uncovered();
        let ClusterInfo { health, epoch } = answer.info;
        (health, epoch, same_primaries, same, covered)
    };
    // The last of equals is taken.
    answers.iter().rev().max_by_key(rank).copied()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::resp::parse;

    /// An answer that these primaries share the slots up to `last`, and each of them has these replicas. A name without
    /// a port is a port.
    pub fn told(
        health: Health,
        epoch: impl Into<Option<u64>>,
        primaries: &[u16],
        replicas: &[u16],
        last: u16,
    ) -> Answer {
        let mut reply = format!("*{}\r\n", primaries.len());
        let each = (last + 1) / primaries.len() as u16;
        for (number, primary) in (0..).zip(primaries) {
            let end = if usize::from(number) + 1 == primaries.len() {
                last
            } else {
                (number + 1) * each - 1
            };
            reply += &format!(
                "*{}\r\n:{}\r\n:{end}\r\n",
                3 + replicas.len(),
                number * each
            );
            for port in std::iter::once(primary).chain(replicas) {
                reply += &format!("*2\r\n$4\r\nhost\r\n:{port}\r\n");
            }
        }
        let (view, _) = parse(reply.as_bytes()).expect("a reply");
        let topology = Topology::from_slots(view, &Endpoint::tcp("asked", 1));
        Answer {
            topology: topology.expect("a topology"),
            info: ClusterInfo {
                health,
                epoch: epoch.into(),
            },
        }
    }

    const LAST: u16 = 16383;

    fn up(epoch: u64, primaries: &[u16]) -> Answer {
        told(Health::Up, epoch, primaries, &[], LAST)
    }

    fn down(epoch: u64, primaries: &[u16]) -> Answer {
        told(Health::Down, epoch, primaries, &[], LAST)
    }

    fn silent(primaries: &[u16]) -> Answer {
        told(Health::Unknown, None, primaries, &[], LAST)
    }

    /// The last of these is believed, in whichever order they come.
    fn last_is_best(answers: &[Answer]) {
        let mut order: Vec<&Answer> = answers.iter().collect();
        for _ in 0..answers.len() {
            order.rotate_left(1);
            let best = best(&order).expect("there is one");
            assert!(
                Some(best) == answers.last(),
                "{:?} {:?}",
                best.info,
                best.topology.shards()
            );
        }
    }

    #[test]
    fn a_node_that_is_cut_off_is_not_believed() {
        // It says that it takes commands until it notices, and then the epoch tells.
        last_is_best(&[up(7, &[1, 2, 3]), up(8, &[4, 2, 3])]);
        last_is_best(&[down(7, &[1, 2, 3]), up(8, &[4, 2, 3])]);
        // When another shard is down, too, nobody takes commands.
        last_is_best(&[down(7, &[1, 2, 3]), down(8, &[4, 2, 3])]);
        // Not even with a second one.
        last_is_best(&[down(7, &[1, 2]), down(7, &[1, 2]), up(8, &[4, 2])]);
        last_is_best(&[up(7, &[1, 2]), up(7, &[1, 2]), up(8, &[4, 2])]);
        // An operator may have given it a greater epoch.
        last_is_best(&[down(9, &[1, 2]), up(8, &[4, 2])]);
    }

    #[test]
    fn of_one_epoch_most_nodes_are_believed() {
        for answer in [up, down, |_, primaries: &[u16]| silent(primaries)] {
            last_is_best(&[answer(7, &[1, 2]), answer(7, &[3, 2]), answer(7, &[3, 2])]);
        }
        // Nodes disagree about replicas more often than about primaries.
        let with = |primary, replicas: &[u16]| told(Health::Up, 7, &[primary], replicas, LAST);
        last_is_best(&[
            with(1, &[5]),
            with(1, &[5]),
            with(2, &[4]),
            with(2, &[5]),
            with(2, &[4]),
        ]);
    }

    #[test]
    fn a_node_that_says_more_is_believed() {
        last_is_best(&[silent(&[1, 2]), silent(&[1, 2]), up(1, &[3, 2])]);
        let part = |last| told(Health::Unknown, None, &[1], &[], last);
        last_is_best(&[part(5), part(7)]);
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn of_equals_the_first_one_is_believed() {
        let (one, other) = (up(7, &[1, 2]), up(7, &[3, 2]));
        assert!(best(&[&one, &other]) == Some(&one));
        assert!(best(&[&other, &one]) == Some(&other));
    }

    #[test]
    fn two_agree_when_both_take_commands_and_say_the_same_of_all_slots() {
        let agree = |one: &Answer, other: &Answer| one.agrees_with(other);
        let one = up(7, &[1, 2]);
        // The epoch grows before anything else changes.
        assert!(agree(&one, &up(8, &[1, 2])));
        assert!(agree(&one, &told(Health::Up, 7, &[1, 2], &[3], LAST)));
        assert!(!agree(&one, &up(7, &[1, 3])));
        assert!(!agree(&one, &told(Health::Up, 7, &[1, 2], &[], LAST - 1)));
        assert!(!agree(&one, &down(7, &[1, 2])));
        assert!(!agree(&down(7, &[1, 2]), &down(7, &[1, 2])));
        assert!(!agree(&silent(&[1, 2]), &silent(&[1, 2])));
    }

    #[test]
    fn an_answer_is_outdated_when_its_epoch_is_smaller_than_the_adopted_one() {
        assert!(up(6, &[1]).is_outdated(Some(7)));
        assert!(!up(7, &[1]).is_outdated(Some(7)));
        assert!(!up(6, &[1]).is_outdated(None));
        assert!(!silent(&[1]).is_outdated(Some(7)));
    }
}
