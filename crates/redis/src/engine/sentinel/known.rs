//! Which sentinels the client knows, and which of them it hears from. Does no I/O.

use super::report::SentinelReport;
use crate::endpoint::Endpoint;

/// The most sentinels that the client knows; further ones that others name are left out. Deployments have three or five.
const MOST_KNOWN: usize = 32;

/// Of so many sentinels it hears when something changes: enough while one of them is there and not cut off.
pub const WATCHED: usize = 3;

/// The sentinels to ask from now on: the seeds, and those that the reports name, which were believed. `answered` have
/// told their ids, by which a seed with another name is recognised.
pub fn to_know(
    seeds: &[Endpoint],
    believed: &[&SentinelReport],
    answered: &[(Endpoint, Option<String>)],
) -> Vec<Endpoint> {
    let mut known = seeds.to_vec();
    let others = believed.iter().flat_map(|report| &report.others);
    for other in others {
        let is_seed = |(endpoint, id): &(Endpoint, Option<String>)| {
            id.is_some() && *id == other.id && seeds.contains(endpoint)
        };
        let is_known = known.contains(&other.endpoint) || answered.iter().any(is_seed);
        if !is_known && known.len() < MOST_KNOWN {
            known.push(other.endpoint.clone());
        }
    }
    known
}

/// The sentinels to watch: those that are watched and do well stay, and others that have answered come.
pub fn to_watch(watched: &[(Endpoint, bool)], answered: &[Endpoint]) -> Vec<Endpoint> {
    let does_well = |wanted: bool| {
        let watched = watched.iter().filter(move |(_, is_up)| *is_up == wanted);
        watched.map(|(endpoint, _)| endpoint)
    };
    let mut chosen: Vec<Endpoint> = Vec::new();
    for endpoint in does_well(true).chain(answered).chain(does_well(false)) {
        if chosen.len() < WATCHED && !chosen.contains(endpoint) {
            chosen.push(endpoint.clone());
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::report::OtherSentinel;
    use super::*;
    use crate::engine::cluster_info::Health;

    fn node(port: u16) -> Endpoint {
        Endpoint::tcp("h", port)
    }

    fn nodes(ports: &[u16]) -> Vec<Endpoint> {
        ports.iter().copied().map(node).collect()
    }

    fn report(others: &[u16]) -> SentinelReport {
        let other = |port: &u16| OtherSentinel {
            endpoint: node(*port),
            id: Some(port.to_string()),
        };
        SentinelReport {
            id: None,
            primary: node(1),
            replicas: Vec::new(),
            others: others.iter().map(other).collect(),
            epoch: None,
            health: Health::Up,
        }
    }

    #[test]
    fn seeds_stay_and_others_come_and_go() {
        let seeds = nodes(&[1, 2]);
        let known = |reports: &[&SentinelReport]| to_know(&seeds, reports, &[]);
        assert_eq!(known(&[]), seeds);
        assert_eq!(
            known(&[&report(&[2, 3]), &report(&[1, 3])]),
            nodes(&[1, 2, 3])
        );
        assert_eq!(known(&[&report(&[4])]), nodes(&[1, 2, 4]));
        let many: Vec<u16> = (1..1000).collect();
        assert_eq!(known(&[&report(&many)]).len(), MOST_KNOWN);
    }

    #[test]
    fn a_seed_with_another_name_is_not_asked_twice() {
        let seeds = [Endpoint::tcp("name", 1), Endpoint::tcp("other", 1)];
        let answered = [
            (seeds[0].clone(), Some("7".to_owned())),
            (seeds[1].clone(), None),
        ];
        let known = to_know(&seeds, &[&report(&[7, 8])], &answered);
        assert_eq!(known[2..], nodes(&[8]));
    }

    #[test]
    fn those_that_do_well_are_watched_further() {
        let watched = [(node(1), true), (node(2), false), (node(3), true)];
        assert_eq!(to_watch(&watched, &nodes(&[4, 1, 5])), nodes(&[1, 3, 4]));
        assert_eq!(
            to_watch(&watched, &[]),
            nodes(&[1, 3, 2]),
            "it may come back"
        );
        assert_eq!(to_watch(&[], &nodes(&[1, 2, 3, 4])), nodes(&[1, 2, 3]));
    }
}
