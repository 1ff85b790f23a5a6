//! Which servers the client asks for their roles, and when it has heard enough. Does no I/O.
//!
//! It asks all at once that it knows of, and, if no sentinel has named them, also those that they name. Once there is a
//! primary it waits for the others no longer than [`GRACE`].

use std::time::Instant;

use super::info::ReplicationInfo;
use super::roles::{Report, group};
use crate::endpoint::Endpoint;
use crate::engine::inquiry::GRACE;
use crate::engine::schedule::Again;

/// The most servers that it asks: further ones do not count.
const MOST_ASKED: usize = 256;

/// What the client wants to know.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The primary, as sentinels name it. `None`: the servers themselves tell.
    pub named: Option<Endpoint>,
    /// Those to ask that may be silent or gone without a meaning: what the client knew before.
    pub known: Vec<Endpoint>,
    /// Those to ask that ought to answer: whoever named them takes them for alive.
    pub expected: Vec<Endpoint>,
    /// The primary that the client has.
    pub present: Option<Endpoint>,
    /// Its replicas.
    pub present_replicas: Vec<Endpoint>,
}

/// Reports of servers, until they are enough.
pub struct RoleInquiry {
    wanted: Wanted,
    asked: Vec<Asked>,
    reports: Vec<Report>,
}

struct Asked {
    node: Endpoint,
    /// When it was asked; `None`: it is still to be.
    since: Option<Instant>,
    state: State,
    is_expected: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Told,
    Failed,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// Wait for reports.
    Wait,
    /// Adopt this primary and these replicas, and ask again then.
    Adopt(Endpoint, Vec<Endpoint>, Again),
    /// There is no primary.
    Nothing,
}

impl RoleInquiry {
    pub fn new(mut wanted: Wanted) -> Self {
        let (known, expected) = (
            std::mem::take(&mut wanted.known),
            std::mem::take(&mut wanted.expected),
        );
        let named = wanted.named.clone();
        let mut inquiry = Self {
            wanted,
            asked: Vec::new(),
            reports: Vec::new(),
        };
        for node in named.into_iter().chain(expected) {
            inquiry.add(node, true);
        }
        for node in known {
            inquiry.add(node, false);
        }
        inquiry
    }

    fn add(&mut self, node: Endpoint, is_expected: bool) {
        let is_known = self.asked.iter().any(|asked| asked.node == node);
        if !is_known && self.asked.len() < MOST_ASKED {
            self.asked.push(Asked {
                node,
                since: None,
                state: State::Open,
                is_expected,
            });
        }
    }

    /// Those to ask now.
    pub fn ask(&mut self, now: Instant) -> Vec<Endpoint> {
        let new = self.asked.iter_mut().filter(|asked| asked.since.is_none());
        new.map(|asked| {
            asked.since = Some(now);
            asked.node.clone()
        })
        .collect()
    }

    /// A server has told what it is; `None`: it did not, and will not.
    pub fn ended(&mut self, node: &Endpoint, info: Option<ReplicationInfo>) {
        let Some(asked) = self.asked.iter_mut().find(|asked| asked.node == *node) else {
            return;
        };
        asked.state = match &info {
            Some(_) => State::Told,
            None => State::Failed,
        };
        let Some(info) = info else {
            return;
        };
        if self.wanted.named.is_none() {
            for named in info.names() {
                self.add(named.clone(), false);
            }
        }
        self.reports.push(Report {
            node: node.clone(),
            info,
        });
    }

    /// What to do now. `is_busy` says whether a server has the question on a connection that stands.
    pub fn decide(&self, now: Instant, is_busy: impl Fn(&Endpoint) -> bool) -> Decision {
        let Wanted {
            named,
            present,
            present_replicas,
            ..
        } = &self.wanted;
        let Some(group) = group(&self.reports, named.as_ref(), present.as_ref()) else {
            // The named one has ended, or all have.
            let waits = match named {
                Some(named) => self.open().any(|asked| asked.node == *named),
                None => self.open().next().is_some(),
            };
            return match waits {
                true => Decision::Wait,
                false => Decision::Nothing,
            };
        };
        let is_to_ask = self.open().any(|asked| asked.since.is_none());
        if is_to_ask || self.decide_again_at(now).is_some() {
            return Decision::Wait;
        }
        let late = self.open().map(|asked| &asked.node);
        let late: Vec<&Endpoint> = late.filter(|node| is_busy(node)).collect();
        if named.is_none()
            && let Some(present) = present
            && *present != group.primary
            && late.contains(&present)
        {
            // It stands and is busy, which is no sign that another one took over: it may have left this one behind.
            return Decision::Wait;
        }
        let mut replicas = group.replicas;
        if present.as_ref() == Some(&group.primary) {
            let stay = late.iter().filter(|node| present_replicas.contains(node));
            replicas.extend(stay.map(|node| (*node).clone()));
        }
        let is_missing = |asked: &Asked| asked.is_expected && asked.state == State::Failed;
        let is_settled = !group.has_others && late.is_empty() && !self.asked.iter().any(is_missing);
        let again = match is_settled {
            true => Again::Usual,
            false => Again::Soon,
        };
        Decision::Adopt(group.primary, replicas, again)
    }

    /// When to decide again, if nothing comes before.
    pub fn decide_again_at(&self, now: Instant) -> Option<Instant> {
        let ends = self.open().filter_map(|asked| Some(asked.since? + GRACE));
        ends.filter(|end| now < *end).min()
    }

    fn open(&self) -> impl Iterator<Item = &Asked> {
        let asked = self.asked.iter();
        asked.filter(|asked| asked.state == State::Open)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::info::Role;
    use super::*;

    fn node(port: u16) -> Endpoint {
        Endpoint::tcp("h", port)
    }

    fn nodes(ports: &[u16]) -> Vec<Endpoint> {
        ports.iter().copied().map(node).collect()
    }

    fn told(role: Role) -> Option<ReplicationInfo> {
        Some(ReplicationInfo {
            role,
            run_id: None,
            history: Some("a".to_owned()),
            continued: None,
            offset: 0,
        })
    }

    fn primary(replicas: &[u16]) -> Option<ReplicationInfo> {
        let replicas = nodes(replicas);
        told(Role::Primary { replicas })
    }

    fn replica(of: u16, is_linked: bool) -> Option<ReplicationInfo> {
        let of = Some(node(of));
        told(Role::Replica { of, is_linked })
    }

    struct World {
        inquiry: RoleInquiry,
        now: Instant,
        busy: Vec<Endpoint>,
    }

    impl World {
        fn new(wanted: Wanted) -> Self {
            Self {
                inquiry: RoleInquiry::new(wanted),
                now: Instant::now(),
                busy: Vec::new(),
            }
        }

        fn ask(&mut self) -> Vec<Endpoint> {
            self.inquiry.ask(self.now)
        }

        fn hear(&mut self, port: u16, info: Option<ReplicationInfo>) -> Decision {
            self.inquiry.ended(&node(port), info);
            self.decide()
        }

        fn decide(&self) -> Decision {
            let is_busy = |node: &Endpoint| self.busy.contains(node);
            self.inquiry.decide(self.now, is_busy)
        }

        fn pass(&mut self, time: Duration) -> Decision {
            self.now += time;
            self.decide()
        }
    }

    fn adopt(primary: u16, replicas: &[u16], again: Again) -> Decision {
        Decision::Adopt(node(primary), nodes(replicas), again)
    }

    #[test]
    fn servers_name_each_other() {
        let expected = nodes(&[1]);
        let mut world = World::new(Wanted {
            expected,
            ..Wanted::default()
        });
        assert_eq!(world.ask(), nodes(&[1]));
        assert_eq!(world.hear(1, replica(2, true)), Decision::Wait);
        assert_eq!(world.ask(), nodes(&[2]));
        assert_eq!(world.hear(2, primary(&[1, 3])), Decision::Wait);
        assert_eq!(world.ask(), nodes(&[3]));
        let all = adopt(2, &[1, 3], Again::Usual);
        assert_eq!(world.hear(3, replica(2, true)), all);
        assert_eq!(world.ask(), []);
    }

    #[test]
    fn of_those_that_sentinels_name_none_is_asked_further() {
        let wanted = || Wanted {
            named: Some(node(2)),
            expected: nodes(&[1]),
            ..Wanted::default()
        };
        let mut world = World::new(wanted());
        assert_eq!(world.ask(), nodes(&[2, 1]));
        assert_eq!(world.hear(2, primary(&[1, 3])), Decision::Wait);
        assert_eq!(world.ask(), []);
        assert_eq!(
            world.hear(1, replica(2, true)),
            adopt(2, &[1], Again::Usual)
        );
        // Nobody else is waited for, if the named one is none.
        for ended in [None, replica(1, true)] {
            let mut world = World::new(wanted());
            world.ask();
            assert_eq!(world.hear(2, ended), Decision::Nothing);
        }
    }

    #[test]
    fn without_a_primary_all_are_waited_for() {
        let mut world = World::new(Wanted {
            known: nodes(&[1, 2]),
            ..Wanted::default()
        });
        world.ask();
        assert_eq!(world.hear(1, replica(2, true)), Decision::Wait);
        assert_eq!(world.pass(100 * GRACE), Decision::Wait);
        assert_eq!(world.hear(2, None), Decision::Nothing);
        assert_eq!(World::new(Wanted::default()).decide(), Decision::Nothing);
    }

    #[test]
    fn a_primary_that_is_busy_is_not_left_for_another() {
        let wanted = Wanted {
            known: nodes(&[1, 2]),
            present: Some(node(1)),
            ..Wanted::default()
        };
        let mut world = World::new(wanted);
        world.busy = nodes(&[1]);
        world.ask();
        assert_eq!(world.hear(2, primary(&[])), Decision::Wait);
        assert_eq!(world.pass(100 * GRACE), Decision::Wait);
        // Its connection is over, and it cannot be asked.
        world.busy.clear();
        assert!(matches!(world.hear(1, None), Decision::Adopt(primary, ..) if primary == node(2)));
    }

    #[test]
    fn with_a_primary_others_have_a_grace() {
        let wanted = Wanted {
            known: nodes(&[1, 2, 3, 4]),
            present: Some(node(1)),
            present_replicas: nodes(&[2, 3]),
            ..Wanted::default()
        };
        let mut world = World::new(wanted);
        world.ask();
        assert_eq!(world.hear(1, primary(&[])), Decision::Wait);
        assert_eq!(
            world.inquiry.decide_again_at(world.now),
            Some(world.now + GRACE)
        );
        // 2 was a replica, and is busy. 3 cannot be reached, and 4 was none.
        world.busy = nodes(&[2, 4]);
        assert_eq!(world.pass(GRACE), adopt(1, &[2], Again::Soon));
        assert_eq!(world.inquiry.decide_again_at(world.now), None);
        world.busy.clear();
        assert_eq!(world.decide(), adopt(1, &[], Again::Usual));
    }

    #[test]
    fn of_a_new_primary_no_late_replica_is_one() {
        let wanted = Wanted {
            known: nodes(&[1, 2]),
            present: Some(node(3)),
            present_replicas: nodes(&[2]),
            ..Wanted::default()
        };
        let mut world = World::new(wanted);
        world.ask();
        world.hear(1, primary(&[]));
        world.busy = nodes(&[2]);
        assert_eq!(world.pass(GRACE), adopt(1, &[], Again::Soon));
    }

    #[test]
    fn what_is_not_ready_or_missing_is_looked_for_soon() {
        let wanted = || Wanted {
            expected: nodes(&[1, 2]),
            ..Wanted::default()
        };
        for ended in [None, replica(1, false), primary(&[])] {
            let mut world = World::new(wanted());
            world.ask();
            world.hear(1, primary(&[2]));
            assert_eq!(world.hear(2, ended), adopt(1, &[], Again::Soon));
        }
    }

    #[test]
    fn a_server_that_makes_up_others_has_no_end_of_them() {
        let mut world = World::new(Wanted {
            known: nodes(&[1]),
            ..Wanted::default()
        });
        world.ask();
        let many: Vec<u16> = (1..1000).collect();
        world.hear(1, primary(&many));
        assert_eq!(world.ask().len(), MOST_ASKED - 1);
    }
}
