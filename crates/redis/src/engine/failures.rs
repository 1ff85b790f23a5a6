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
    named: Vec<String>,
    /// The first that refused, and why, of this reading or the last one before it in which any did.
    said: Vec<String>,
    /// Why one refused.
    refused: Option<Error>,
    /// How many servers refused.
    refusals: u32,
    /// How many nodes did not tell, with those that refused.
    nodes: u32,
}

impl Failures {
    pub fn note(&mut self, node: &Endpoint, why: NoAnswer) {
        let has_refused = matches!(why, NoAnswer::Refused(_));
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
        if has_refused && self.said.len() < NAMED {
            self.said.push(format!("{node}: {why}"));
        }
        if self.named.len() < NAMED {
            self.named.push(format!("{node}: {why}"));
        }
    }

    /// Remembers what servers said in an earlier reading, if none said anything in this one: perhaps those were not asked, as they
    /// back off. What a server says helps more than that another one is gone.
    pub fn recall(&mut self, earlier: Self) {
        if self.said.is_empty() {
            self.said = earlier.said;
        }
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
        let recalled = self.said.iter().filter(|said| !self.named.contains(said));
        let all: Vec<&str> = self.named.iter().chain(recalled).map(|it| &**it).collect();
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
        let with_refusal = format!("{all}; c:4: NOPERM no");
        assert_eq!(failures.to_string(), with_refusal, "it names only some");
    }

    #[test]
    fn what_a_server_said_is_told_also_if_only_others_were_asked_after_that() {
        let gone = || NoAnswer::Failed("gone".to_owned());
        let mut failures = Failures::default();
        failures.note(&Endpoint::tcp("a", 1), refused());
        for _ in 0..2 {
            let mut next = Failures::default();
            next.note(&Endpoint::tcp("b", 2), gone());
            next.recall(failures);
            assert_eq!(next.to_string(), "b:2: gone; a:1: NOPERM no");
            assert_eq!(next.all_refused(), None);
            failures = next;
        }
    }
}
