//! Which server is the primary, by what several servers say of themselves, and which are its replicas.
//!
//! Who is the primary:
//! 1. Where sentinels name one, that one, if it says so itself, too.
//! 2. Otherwise the only one that says so.
//! 3. If several do, one from which another of them took over is out: that one continues its history.
//! 4. Then the primary that the client has stays, so that it does not go to and fro.
//! 5. Then the one with most replicas counts, then the one with the longest history, then the one that comes first.
//!
//! A replica belongs to the primary if it has the same history, and is connected to its own primary: otherwise what it
//! has may be old, or nothing yet.

use super::info::{ReplicationInfo, Role};
use crate::endpoint::Endpoint;

/// What one server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub node: Endpoint,
    pub info: ReplicationInfo,
}

/// A primary and the replicas that may be read.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    pub primary: Endpoint,
    pub replicas: Vec<Endpoint>,
    /// Others answered, too, which may soon belong to it.
    pub has_others: bool,
}

impl Report {
    /// Whether it began as a replica of the other one, and is a primary now.
    fn took_over_from(&self, other: &Self) -> bool {
        let continued = self.info.continued.as_ref();
        continued.is_some() && continued == other.info.history.as_ref()
    }

    /// Whether both are the same process, at two addresses.
    fn is_same(&self, other: &Self) -> bool {
        let id = self.info.run_id.as_ref();
        self.node == other.node || id.is_some() && id == other.info.run_id.as_ref()
    }

    fn is_replica_in(&self, history: Option<&String>) -> bool {
        let is_linked = matches!(
            self.info.role,
            Role::Replica {
                is_linked: true,
                ..
            }
        );
        let its = self.info.history.as_ref();
        // Servers without histories cannot be told apart.
        is_linked && (its.is_none() || history.is_none() || its == history)
    }

    fn rank(&self) -> (usize, u64) {
        let replicas = match &self.info.role {
            Role::Primary { replicas } => replicas.len(),
            Role::Replica { .. } => 0,
        };
        (replicas, self.info.offset)
    }
}

/// The primary; `None` if nobody says that it is one. `named` by sentinels, or else the client has the `present` one.
/// Of a server with two addresses the first report counts.
pub fn group(
    reports: &[Report],
    named: Option<&Endpoint>,
    present: Option<&Endpoint>,
) -> Option<Group> {
    let claims = reports.iter().filter(|report| report.info.is_primary());
    let primary = match named {
        Some(named) => claims.into_iter().find(|report| report.node == *named)?,
        None => of_several(&claims.collect::<Vec<_>>(), present)?,
    };
    let history = primary.info.history.as_ref();
    let mut group: Vec<&Report> = vec![primary];
    let mut has_others = false;
    for report in reports {
        if group.iter().any(|known| known.is_same(report)) {
            continue;
        }
        match report.is_replica_in(history) {
            true => group.push(report),
            false => has_others = true,
        }
    }
    let replicas = group.iter().skip(1).map(|report| report.node.clone());
    Some(Group {
        primary: primary.node.clone(),
        replicas: replicas.collect(),
        has_others,
    })
}

/// The primary of these, which all say that they are one.
fn of_several<'r>(claims: &[&'r Report], present: Option<&Endpoint>) -> Option<&'r Report> {
    let is_out = |one: &&&Report| claims.iter().any(|other| other.took_over_from(one));
    let mut left: Vec<&Report> = claims.iter().filter(|one| !is_out(one)).copied().collect();
    if left.is_empty() {
        left = claims.to_vec();
    }
    let stays = left.iter().find(|report| Some(&report.node) == present);
    // The last of equals is taken.
    let best = || left.iter().rev().max_by_key(|report| report.rank());
    stays.or_else(best).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> Endpoint {
        Endpoint::tcp("h", port)
    }

    /// A primary with a history, and the one that it continues, if that is not 0.
    fn primary(port: u16, [history, continued]: [u8; 2], replicas: u16) -> Report {
        let id = |number: u8| Some(number.to_string());
        Report {
            node: node(port),
            info: ReplicationInfo {
                role: Role::Primary {
                    replicas: (0..replicas).map(|replica| node(100 + replica)).collect(),
                },
                run_id: Some(port.to_string()),
                history: id(history),
                continued: id(continued).filter(|_| continued != 0),
                offset: 5,
            },
        }
    }

    fn replica(port: u16, history: u8, is_linked: bool) -> Report {
        let mut report = primary(port, [history, 0], 0);
        let of = Some(node(99));
        report.info.role = Role::Replica { of, is_linked };
        report
    }

    fn chosen(reports: &[Report], present: Option<u16>) -> Option<u16> {
        let present = present.map(node);
        let group = group(reports, None, present.as_ref())?;
        let Endpoint::Tcp { port, .. } = group.primary else {
            panic!("it is a port");
        };
        Some(port)
    }

    #[test]
    fn replicas_of_the_primary_that_have_its_data_belong_to_it() {
        let reports = [
            replica(1, 7, true),
            replica(2, 7, false),
            primary(3, [7, 0], 2),
            replica(4, 6, true),
            replica(5, 7, true),
        ];
        let found = group(&reports, None, None).expect("there is a primary");
        assert_eq!(
            (found.primary, found.replicas),
            (node(3), vec![node(1), node(5)])
        );
        assert!(found.has_others);
        let settled = [reports[0].clone(), reports[2].clone()];
        assert!(
            !group(&settled, None, None)
                .expect("there is one")
                .has_others
        );
        assert_eq!(group(&reports[..2], None, None), None);
        assert_eq!(group(&[], None, None), None);
    }

    #[test]
    fn a_primary_that_sentinels_name_has_to_say_so_itself() {
        let reports = [
            primary(1, [7, 0], 2),
            primary(2, [8, 0], 0),
            replica(3, 7, true),
        ];
        let named = |port| group(&reports, Some(&node(port)), Some(&node(1)));
        let found = named(2).expect("it says so");
        assert_eq!((found.primary, found.replicas), (node(2), vec![]));
        assert!(found.has_others);
        assert_eq!(named(3), None, "it says that it is a replica");
        assert_eq!(named(4), None, "it says nothing");
    }

    #[test]
    fn of_two_primaries_the_one_that_took_over_counts() {
        let (old, new, newest) = (
            primary(1, [7, 0], 9),
            primary(2, [8, 7], 0),
            primary(3, [9, 8], 0),
        );
        assert_eq!(chosen(&[old.clone(), new.clone()], Some(1)), Some(2));
        assert_eq!(chosen(&[new.clone(), old.clone()], None), Some(2));
        assert_eq!(chosen(&[newest, new, old], Some(1)), Some(3));
        // Each continues the other: that says nothing.
        let circle = [primary(1, [7, 8], 0), primary(2, [8, 7], 0)];
        assert_eq!(chosen(&circle, Some(2)), Some(2));
    }

    #[test]
    fn of_unrelated_primaries_the_present_one_stays() {
        let reports = [
            primary(1, [7, 0], 0),
            primary(2, [8, 0], 1),
            primary(3, [9, 0], 1),
        ];
        assert_eq!(chosen(&reports, Some(1)), Some(1));
        // Without one: most replicas, then the longest history, then the first.
        assert_eq!(chosen(&reports, Some(4)), Some(2));
        let mut reports = reports;
        reports[2].info.offset = 6;
        assert_eq!(chosen(&reports, None), Some(3));
    }

    #[test]
    fn a_server_with_two_addresses_is_one() {
        let alias = |mut report: Report, port| {
            report.node = node(port);
            report
        };
        let reports = [
            primary(1, [7, 0], 1),
            replica(2, 7, true),
            alias(primary(1, [7, 0], 1), 11),
            alias(replica(2, 7, true), 12),
        ];
        let found = group(&reports, None, Some(&node(11))).expect("there is a primary");
        assert_eq!((found.primary, found.replicas), (node(11), vec![node(2)]));
        assert!(!found.has_others);
    }

    #[test]
    fn servers_without_histories_belong_together() {
        let mut reports = [primary(1, [7, 0], 1), replica(2, 8, true)];
        reports
            .iter_mut()
            .for_each(|report| report.info.history = None);
        let found = group(&reports, None, None).expect("there is a primary");
        assert_eq!(found.replicas, [node(2)]);
    }
}
