//! Why nodes did not tell the topology.

use std::fmt;

use super::question::NoAnswer;
use crate::endpoint::Endpoint;
use crate::error::Error;

/// How many nodes an error names.
const NAMED: usize = 3;

/// Why nodes did not tell the topology.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// The first of these nodes, and why.
    named: Vec<(Endpoint, String)>,
    /// Others that did not tell in an earlier reading, and were not asked in this one, as they back off.
    earlier: Vec<(Endpoint, String)>,
    /// Why one refused.
    refused: Option<Error>,
    /// How many servers refused.
    refusals: u32,
    /// How many nodes did not tell, with those that refused.
    nodes: u32,
}

impl Failures {
    pub fn note(&mut self, node: &Endpoint, why: NoAnswer) {
        let why = match why {
            NoAnswer::Refused(error) => {
                self.refusals += 1;
                match self.refused.insert(error) {
                    Error::Server(error) => error.text.clone(),
                    other => other.to_string(),
                }
            }
            NoAnswer::Failed(why) => why,
        };
        self.nodes += 1;
        tracing::debug!(%node, "no topology: {why}");
        if self.named.len() < NAMED {
            self.named.push((node.clone(), why));
        }
    }

    /// Remembers those of the reading before that were not asked again: one of them may have said what is wrong.
    pub fn recall(&mut self, before: Self) {
        let mut earlier = before.named;
        earlier.extend(before.earlier);
        earlier.retain(|(node, _)| self.named.iter().all(|(asked, _)| asked != node));
        earlier.truncate(NAMED);
        self.earlier = earlier;
    }

    /// No node was asked, because all back off.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// Why the last one refused, when all that were asked did: to ask them again is no use.
    pub fn all_refused(&self) -> Option<&Error> {
        let refused = self.refused.as_ref();
        refused.filter(|_| self.refusals == self.nodes)
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.named.iter().chain(&self.earlier);
        let all: Vec<String> = all.map(|(node, why)| format!("{node}: {why}")).collect();
        match &*all {
            [] => f.write_str("no node has answered"),
            all => f.write_str(&all.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::ServerError;

    fn refused() -> NoAnswer {
        NoAnswer::Refused(ServerError::new("NOPERM no").into())
    }

    #[test]
    fn all_refused_when_no_node_failed_otherwise() {
        let mut failures = Failures::default();
        assert!(failures.is_empty() && failures.all_refused().is_none());
        for port in 1..=2 {
            failures.note(&Endpoint::tcp("a", port), refused());
            assert!(
                failures
                    .all_refused()
                    .is_some_and(|error| error.to_string().contains("NOPERM no"))
            );
        }
        failures.note(
            &Endpoint::tcp("b", 3),
            NoAnswer::Failed("silent".to_owned()),
        );
        assert_eq!(failures.all_refused(), None);
        let all = failures.to_string();
        assert_eq!(all, "a:1: NOPERM no; a:2: NOPERM no; b:3: silent");
        failures.note(&Endpoint::tcp("c", 4), refused());
        assert_eq!(failures.to_string(), all, "it names only some");
    }

    #[test]
    fn nodes_that_were_not_asked_again_are_remembered() {
        let failed = |why: &str| NoAnswer::Failed(why.to_owned());
        let (a, b) = (Endpoint::tcp("a", 1), Endpoint::tcp("b", 2));
        let mut failures = Failures::default();
        failures.note(&a, failed("WRONGPASS"));
        for _ in 0..2 {
            let mut next = Failures::default();
            next.note(&b, failed("gone"));
            next.recall(failures);
            assert_eq!(next.to_string(), "b:2: gone; a:1: WRONGPASS");
            failures = next;
        }
        let mut next = Failures::default();
        next.note(&a, failed("gone, too"));
        next.recall(failures);
        assert_eq!(next.to_string(), "a:1: gone, too; b:2: gone");
    }
}
