//! What a bench does with the messages that it reads.

use std::fmt;
use std::hint::black_box;

use embar_client::Checksums;
use serde::Serialize;

use crate::wall::shm::messages::sum;

/// What becomes of each message that a bench reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Reader {
    /// Its number and its checksum are checked, after the subscriber has checked that of its batch
    #[default]
    Verifies,
    /// All its words are added up; of what it reads in place the subscriber leaves the check to the broker
    Touches,
    /// It is counted; the subscriber checks the checksums of batches
    Counts,
}

impl Reader {
    /// What the subscriber checks.
    pub fn checksums(self) -> Checksums {
        match self {
            Self::Touches => Checksums::Copied,
            Self::Verifies | Self::Counts => Checksums::All,
        }
    }

    /// Touches the message if that is what it does.
    #[inline]
    pub fn touch(self, message: &[u8]) {
        if self == Self::Touches {
            black_box(sum(message));
        }
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verifies => "verifies",
            Self::Touches => "touches",
            Self::Counts => "counts",
        })
    }
}
