//! What to run: a seed, and in which of its worlds.

use embar_memory::canary::Canary;

/// Which of the worlds of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The whole cluster, with its clients.
    #[default]
    Cluster,
    /// The protocol of ordering alone.
    Protocol,
    /// Streams by shared memory alone.
    Streams,
}

impl Part {
    /// All that a seed is run in; the quick ones first.
    pub const ALL: [Self; 3] = [Self::Streams, Self::Protocol, Self::Cluster];

    /// As the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Protocol => "protocol",
            Self::Streams => "streams",
        }
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed; equal options give equal runs.
    pub seed: u64,
    /// The world.
    pub part: Part,
    /// Steps of a cluster before everything heals.
    pub steps: u64,
    /// A rule to break on purpose.
    pub canary: Option<Canary>,
    /// Keep the text of the trace.
    pub verbose: bool,
}
