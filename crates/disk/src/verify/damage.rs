//! What can be wrong with what a disk has.

use std::fmt;
use std::ops::Range;

use crate::format::Chain;
use crate::format::IdentityError;

/// A place of a disk that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the file.
    pub file: String,
    /// What is wrong with it.
    pub what: Wrong,
    /// Positions that were there and are whole nowhere else on the disk, as far as this is known.
    pub lost: Vec<Lost>,
    /// Positions that were in this place, also those that are whole elsewhere on the disk.
    pub was_there: Vec<Lost>,
    /// Where nothing says whether more was there: chains of which nothing is behind it.
    pub unseen_behind: Vec<Chain>,
    /// Nothing says whether more was there.
    pub may_be_more: bool,
}

/// Positions of a chain that a disk has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The chain.
    pub chain: Chain,
    /// The first of them.
    pub first: u64,
    /// The one after the last.
    pub next: u64,
}

impl Lost {
    pub(super) fn new(chain: Chain, positions: Range<u64>) -> Self {
        Self {
            chain,
            first: positions.start,
            next: positions.end,
        }
    }

    /// All of them.
    #[must_use]
    pub fn positions(&self) -> Range<u64> {
        self.first..self.next
    }
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Parts of a segment or of an index cannot be read.
    Unreadable {
        /// How many parts of 4096 bytes.
        pages: u64,
        /// Where the first of them begins.
        at: u64,
        /// What the system says of it.
        why: String,
    },
    /// One of the two copies of which disk it is. The other one is used.
    Identity,
    /// Both of them.
    NoIdentity(IdentityError),
    /// A file cannot be opened: what the system says.
    Closed(String),
    /// A segment was written for another disk.
    Foreign,
    /// A segment that counts is not there, or another one has its name.
    Missing,
    /// The header of a segment.
    Header,
    /// Headers or tables of commits that counted.
    Commits {
        /// Number of the first.
        first: u32,
        /// Number of the last.
        last: u32,
    },
    /// A commit is whole, and another one was at its place when the next one was written.
    Replaced {
        /// Its number.
        commit: u32,
    },
    /// Batches of a commit.
    Batches {
        /// The commit's number.
        commit: u32,
        /// The place of their run in its table.
        run: u32,
    },
    /// A fact of a commit.
    Fact {
        /// The commit's number.
        commit: u32,
        /// The place of its run in its table.
        run: u32,
    },
    /// A chain goes on behind where it ended, and all that was written in between is whole.
    Gap {
        /// Number of the commit in which it goes on.
        commit: u32,
    },
    /// The bytes of an index.
    Index,
    /// An index is whole, and not that of its segment.
    OtherIndex,
}

impl Wrong {
    /// In a word, for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::Identity | Self::NoIdentity(_) => "identity",
            Self::Closed(_) => "closed",
            Self::Foreign => "foreign",
            Self::Missing => "missing",
            Self::Header => "header",
            Self::Commits { .. } => "commits",
            Self::Replaced { .. } => "replaced",
            Self::Batches { .. } => "batches",
            Self::Fact { .. } => "fact",
            Self::Gap { .. } => "gap",
            Self::Index => "index",
            Self::OtherIndex => "other-index",
        }
    }

    /// Number of the commit, or of the first of several.
    #[must_use]
    pub fn commit(&self) -> Option<u32> {
        match self {
            Self::Commits { first, .. } => Some(*first),
            Self::Replaced { commit }
            | Self::Batches { commit, .. }
            | Self::Fact { commit, .. }
            | Self::Gap { commit } => Some(*commit),
            _ => None,
        }
    }

    /// The place in the commit's table.
    #[must_use]
    pub fn run(&self) -> Option<u32> {
        match self {
            Self::Batches { run, .. } | Self::Fact { run, .. } => Some(*run),
            _ => None,
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { pages, at, why } => {
                write!(f, "{pages} pages from byte {at} on cannot be read: {why}")
            }
            Self::Identity => {
                f.write_str("one of its two copies is damaged; the other one is used")
            }
            Self::NoIdentity(why) => why.fmt(f),
            Self::Closed(why) => write!(f, "it cannot be opened: {why}"),
            Self::Foreign => f.write_str("it belongs to another disk"),
            Self::Missing => f.write_str("it is missing, and counts"),
            Self::Header => f.write_str("the segment's header is damaged"),
            Self::Commits { first, last } if first == last => {
                write!(f, "commit {first}: its header or its table is damaged")
            }
            Self::Commits { first, last } => {
                write!(
                    f,
                    "commits {first} to {last}: headers or tables are damaged"
                )
            }
            Self::Replaced { commit } => write!(
                f,
                "commit {commit}: another one was there when the next was written"
            ),
            Self::Batches { commit, run } => {
                write!(f, "commit {commit}, run {run}: batches are damaged")
            }
            Self::Fact { commit, run } => {
                write!(f, "commit {commit}, run {run}: a fact is damaged")
            }
            Self::Gap { commit } => write!(
                f,
                "commit {commit}: a chain goes on behind where it ended, and nothing before is damaged"
            ),
            Self::Index => f.write_str("the index is damaged; it is made from its segment again"),
            Self::OtherIndex => {
                f.write_str("the index does not say what is in its segment; remove it")
            }
        }
    }
}
