//! The log of throughput runs: one CSV row per trial, in the 14 columns that the reports' tools read.
//!
//! Rates are named `mbps` for their sake and are MiB/s. Sizes are bytes.
//!
//! [`append_under`] is the careful way to append to any log that has a header.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Where the log is, seen from the directory the bench is run in.
pub const DEFAULT_PATH: &str = "data/throughput/pub/result.csv";

/// The first line of the file.
pub const HEADER: &str = "message_size,total_message_size,num_threads_per_broker,ack_level,order,replication_factor,\
replicate_tinode,num_clients,num_brokers_to_kill,failure_percentage,sequencer_type,pub_bandwidth_mbps,\
sub_bandwidth_mbps,e2e_bandwidth_mbps";

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultRow {
    /// Bytes of one message's value.
    pub message_size: u64,
    /// Bytes of all values together.
    pub total_message_size: u64,
    /// Client threads for each data broker.
    pub num_threads_per_broker: u32,
    /// 0, 1 or 2.
    pub ack_level: u8,
    /// Order level: 0, 1, 2 or 5.
    pub order: u8,
    /// Copies of each message, the broker's own included.
    pub replication_factor: u32,
    /// Whether metadata was replicated too; written as 0 or 1.
    pub replicate_tinode: bool,
    /// Client processes.
    pub num_clients: u32,
    /// Brokers killed during the run.
    pub num_brokers_to_kill: u32,
    /// When they were killed: part of the messages sent, 0 to 1.
    pub failure_percentage: f64,
    /// Name of the ordering protocol: letters, digits, `.`, `_` and `-`.
    pub sequencer_type: String,
    /// Published, first publish to last ack, MiB/s; 0 when not measured, as the two below.
    pub pub_bandwidth_mbps: f64,
    /// Read by subscribers, MiB/s.
    pub sub_bandwidth_mbps: f64,
    /// From first publish to last message read, MiB/s.
    pub e2e_bandwidth_mbps: f64,
}

/// Why the log was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file begins with another header, so its columns are others; nothing was written.
    #[error("{} has other columns, or another header, than this version writes; move it away, or log to another file", path.display())]
    OtherHeader {
        /// The file.
        path: PathBuf,
    },
    /// A line does not have the 14 columns in their form.
    #[error("{} line {line}: {column} is missing or malformed; correct or remove the line", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The first column that is wrong.
        column: &'static str,
    },
    /// The row itself cannot be written so that it can be read again.
    #[error("{column} cannot be logged as {value:?}; {rule}")]
    BadRow {
        /// The column.
        column: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        rule: &'static str,
    },
}

/// Appends `row`; creates the file with its header, and its directories, when they are not there.
///
/// Safe against other processes that append to the same file: it is locked meanwhile.
///
/// # Errors
/// [`ResultsError::OtherHeader`] when the file exists with other columns; it is left as it is.
/// [`ResultsError::BadRow`], [`ResultsError::Io`].
pub fn append(path: &Path, row: &ResultRow) -> Result<(), ResultsError> {
    append_under(path, HEADER, &format!("{}\n", row.to_line()?))
}

/// Appends `text`, whole lines, to the log whose first line is `header`; creates the file with its header, and its
/// directories, when they are not there.
///
/// Safe against other processes that append to the same file: it is locked meanwhile.
///
/// # Errors
/// [`ResultsError::OtherHeader`] when the file exists with another first line; it is left as it is.
/// [`ResultsError::Io`].
pub fn append_under(path: &Path, header: &str, text: &str) -> Result<(), ResultsError> {
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
    }
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(path)
        .map_err(failed("open", path))?;
    file.lock().map_err(failed("lock", path))?;
    let before = match existing(&mut file, header).map_err(failed("read", path))? {
        Existing::Nothing => format!("{header}\n"),
        Existing::Header {
            ends_with_newline: true,
        } => String::new(),
        // A line that someone edited, or a crash cut off: keep it, but do not write into it.
        Existing::Header {
            ends_with_newline: false,
        } => "\n".to_owned(),
        Existing::Other => {
            return Err(ResultsError::OtherHeader {
                path: path.to_owned(),
            });
        }
    };
    file.write_all(format!("{before}{text}").as_bytes())
        .map_err(failed("append to", path))
}

/// All rows of the log, oldest first.
///
/// # Errors
/// [`ResultsError::OtherHeader`], [`ResultsError::BadLine`], [`ResultsError::Io`].
pub fn read(path: &Path) -> Result<Vec<ResultRow>, ResultsError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line.trim_end()) != Some(HEADER) {
        return Err(ResultsError::OtherHeader {
            path: path.to_owned(),
        });
    }
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| {
            ResultRow::from_line(line).map_err(|column| ResultsError::BadLine {
                path: path.to_owned(),
                line: index + 1,
                column,
            })
        })
        .collect()
}

impl ResultRow {
    fn to_line(&self) -> Result<String, ResultsError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if self.sequencer_type.is_empty() || !self.sequencer_type.chars().all(allowed) {
            return Err(ResultsError::BadRow {
                column: "sequencer_type",
                value: self.sequencer_type.clone(),
                rule: "use letters, digits, '.', '_' and '-'",
            });
        }
        for (column, value) in [
            ("failure_percentage", self.failure_percentage),
            ("pub_bandwidth_mbps", self.pub_bandwidth_mbps),
            ("sub_bandwidth_mbps", self.sub_bandwidth_mbps),
            ("e2e_bandwidth_mbps", self.e2e_bandwidth_mbps),
        ] {
            if !value.is_finite() {
                return Err(ResultsError::BadRow {
                    column,
                    value: value.to_string(),
                    rule: "log 0 for what was not measured",
                });
            }
        }
        Ok(format!(
            "{},{},{},{},{},{},{},{},{},{},{},{:.2},{:.2},{:.2}",
            self.message_size,
            self.total_message_size,
            self.num_threads_per_broker,
            self.ack_level,
            self.order,
            self.replication_factor,
            u8::from(self.replicate_tinode),
            self.num_clients,
            self.num_brokers_to_kill,
            self.failure_percentage,
            self.sequencer_type,
            self.pub_bandwidth_mbps,
            self.sub_bandwidth_mbps,
            self.e2e_bandwidth_mbps,
        ))
    }

    /// The error is the name of the first column that is wrong.
    fn from_line(line: &str) -> Result<Self, &'static str> {
        let mut cells = Cells {
            names: HEADER.split(','),
            cells: line.trim_end().split(','),
        };
        let row = Self {
            message_size: cells.next()?,
            total_message_size: cells.next()?,
            num_threads_per_broker: cells.next()?,
            ack_level: cells.next()?,
            order: cells.next()?,
            replication_factor: cells.next()?,
            replicate_tinode: cells.next::<u8>()? != 0,
            num_clients: cells.next()?,
            num_brokers_to_kill: cells.next()?,
            failure_percentage: cells.next()?,
            sequencer_type: cells.next()?,
            pub_bandwidth_mbps: cells.next()?,
            sub_bandwidth_mbps: cells.next()?,
            e2e_bandwidth_mbps: cells.next()?,
        };
        match cells.cells.next() {
            None => Ok(row),
            Some(_) => Err("the end of the line"),
        }
    }
}

struct Cells<'a> {
    names: std::str::Split<'static, char>,
    cells: std::str::Split<'a, char>,
}

impl Cells<'_> {
    fn next<T: std::str::FromStr>(&mut self) -> Result<T, &'static str> {
        let name = self
            .names
            .next()
            .expect("a row has as many fields as the header has columns");
        self.cells
            .next()
            .and_then(|cell| cell.trim().parse().ok())
            .ok_or(name)
    }
}

enum Existing {
    Nothing,
    Header { ends_with_newline: bool },
    Other,
}

fn existing(file: &mut File, header: &str) -> io::Result<Existing> {
    let len = file.metadata()?.len();
    if len == 0 {
        return Ok(Existing::Nothing);
    }
    let mut first = Vec::new();
    // One byte more than the header tells a longer header from ours.
    Read::by_ref(file)
        .take(header.len() as u64 + 1)
        .read_to_end(&mut first)?;
    let rest = first.strip_prefix(header.as_bytes());
    if !matches!(rest, Some([] | [b'\n'] | [b'\r'])) {
        return Ok(Existing::Other);
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(len - 1))?;
    file.read_exact(&mut last)?;
    Ok(Existing::Header {
        ends_with_newline: last == [b'\n'],
    })
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ResultsError {
    let path = path.to_owned();
    move |source| ResultsError::Io {
        doing,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_publish_rate_is_the_twelfth_of_fourteen_columns() {
        let columns: Vec<&str> = HEADER.split(',').collect();
        assert_eq!(columns.len(), 14);
        assert_eq!(columns[11], "pub_bandwidth_mbps");
    }
}
