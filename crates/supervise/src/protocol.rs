//! What a child process reports to its supervisor, on standard output: one line each.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use embar_broker::ReceivePath;

/// The broker ends with this exit code when its options cannot be used as they are.
pub const EXIT_USAGE: u8 = 2;
/// The broker ends with this exit code when it stood still for so long that others went on without it.
pub const EXIT_OVERTAKEN: u8 = 6;

/// One line of a child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessReport {
    /// So much of its memory is present.
    Prefault {
        /// Bytes so far.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// It goes on with something else that takes long.
    Busy,
    /// It serves.
    Ready {
        /// Its row.
        id: u16,
        /// Where it listens.
        address: SocketAddr,
        /// Its process.
        pid: u32,
        /// Topics found in the region.
        topics: u64,
        /// Batches found in the region.
        batches: u64,
        /// How it receives payloads.
        receive: ReceivePath,
    },
    /// It has left the cluster for good, and ends.
    Left {
        /// Its row.
        id: u16,
    },
    /// It ends with an error; the code is that of the process.
    Failed {
        /// Exit code.
        code: u8,
        /// What went wrong and what to do.
        message: String,
    },
}

impl fmt::Display for ProcessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefault { done, total } => write!(f, "prefault done={done} total={total}"),
            Self::Ready {
                id,
                address,
                pid,
                topics,
                batches,
                receive,
            } => write!(
                f,
                "ready id={id} address={address} pid={pid} topics={topics} batches={batches} receive={receive}"
            ),
            Self::Busy => f.write_str("busy"),
            Self::Left { id } => write!(f, "left id={id}"),
            Self::Failed { code, message } => write!(
                f,
                "failed code={code} message={}",
                message.replace('\n', " ")
            ),
        }
    }
}

/// A line that is none of the above.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown;

impl FromStr for ProcessReport {
    type Err = Unknown;

    fn from_str(line: &str) -> Result<Self, Unknown> {
        let line = line.trim_end();
        let (kind, fields) = line.split_once(' ').unwrap_or((line, ""));
        let fields = Fields(fields);
        match kind {
            "prefault" => Ok(Self::Prefault {
                done: fields.parse("done")?,
                total: fields.parse("total")?,
            }),
            "ready" => Ok(Self::Ready {
                id: fields.parse("id")?,
                address: fields.parse("address")?,
                pid: fields.parse("pid")?,
                topics: fields.parse("topics")?,
                batches: fields.parse("batches")?,
                receive: fields.parse("receive")?,
            }),
            "busy" => Ok(Self::Busy),
            "left" => Ok(Self::Left {
                id: fields.parse("id")?,
            }),
            "failed" => {
                let (_, message) = fields.0.split_once("message=").ok_or(Unknown)?;
                Ok(Self::Failed {
                    code: fields.parse("code")?,
                    message: message.to_owned(),
                })
            }
            _ => Err(Unknown),
        }
    }
}

struct Fields<'a>(&'a str);

impl Fields<'_> {
    fn parse<T: FromStr>(&self, name: &str) -> Result<T, Unknown> {
        self.0
            .split(' ')
            .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
            .and_then(|value| value.parse().ok())
            .ok_or(Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_both_ways() {
        let ready = ProcessReport::Ready {
            id: 2,
            address: SocketAddr::from(([127, 0, 0, 1], 9402)),
            pid: 77,
            topics: 1,
            batches: 900,
            receive: ReceivePath::Uring,
        };
        let failed = ProcessReport::Failed {
            code: 2,
            message: "port in use: choose another code=9".into(),
        };
        let left = ProcessReport::Left { id: 2 };
        let prefault = ProcessReport::Prefault { done: 1, total: 2 };
        for report in [ready, failed, left, prefault, ProcessReport::Busy] {
            assert_eq!(report.to_string().parse::<ProcessReport>(), Ok(report));
        }
    }

    #[test]
    fn other_lines_are_nothing() {
        for line in [
            "",
            "ready",
            "ready id=x",
            "hello world",
            "prefault done=1",
            "failed code=1",
        ] {
            assert_eq!(line.parse::<ProcessReport>(), Err(Unknown), "{line}");
        }
    }
}
