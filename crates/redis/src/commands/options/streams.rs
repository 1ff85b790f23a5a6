//! Options of commands for streams and their consumer groups.

use std::time::Duration;

use crate::cmd::Cmd;

/// A time as Redis wants it.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How much of a stream is kept.
#[derive(Debug, Clone, Copy)]
pub struct Trim<'a> {
    keep: Keep<'a>,
    about: bool,
    limit: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Keep<'a> {
    Newest(u64),
    From(&'a str),
}

impl<'a> Trim<'a> {
    fn new(keep: Keep<'a>) -> Self {
        Self {
            keep,
            about: false,
            limit: None,
        }
    }

    /// `MAXLEN`: the newest entries, so many.
    #[must_use]
    pub fn max_len(entries: u64) -> Self {
        Self::new(Keep::Newest(entries))
    }

    /// `MINID`: the entries from this id on.
    #[must_use]
    pub fn min_id(id: &'a str) -> Self {
        Self::new(Keep::From(id))
    }

    /// `~`: some more, where it saves work.
    #[must_use]
    pub fn about(mut self) -> Self {
        self.about = true;
        self
    }

    /// `LIMIT`: at most so many are removed at a time; only with [`Trim::about`].
    #[must_use]
    pub fn limit(mut self, entries: u64) -> Self {
        self.limit = Some(entries);
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let about = if self.about { "~" } else { "=" };
        let cmd = match self.keep {
            Keep::Newest(entries) => cmd.arg("MAXLEN").arg(about).arg(entries),
            Keep::From(id) => cmd.arg("MINID").arg(about).arg(id),
        };
        cmd.option("LIMIT", self.limit)
    }
}

/// Options of `XADD`.
#[derive(Debug, Clone, Copy, Default)]
pub struct XAddOptions<'a> {
    existing: bool,
    trim: Option<Trim<'a>>,
}

impl<'a> XAddOptions<'a> {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `NOMKSTREAM`: only if there is a stream.
    #[must_use]
    pub fn if_present(mut self) -> Self {
        self.existing = true;
        self
    }

    /// `MAXLEN`, `MINID`: how much of it is kept.
    #[must_use]
    pub fn trim(mut self, trim: Trim<'a>) -> Self {
        self.trim = Some(trim);
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = cmd.word_if(self.existing, "NOMKSTREAM");
        self.trim.into_iter().fold(cmd, |cmd, trim| trim.add(cmd))
    }
}

/// Options of `XREADGROUP`.
#[derive(Debug, Clone, Copy, Default)]
pub struct XReadGroupOptions {
    count: Option<u64>,
    no_ack: bool,
}

impl XReadGroupOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `COUNT`: at most so many entries of each stream.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// `NOACK`: they count as acknowledged.
    #[must_use]
    pub fn no_ack(mut self) -> Self {
        self.no_ack = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        cmd.option("COUNT", self.count)
            .word_if(self.no_ack, "NOACK")
    }
}

/// Options of `XPENDING`.
#[derive(Debug, Clone, Copy)]
pub struct XPendingOptions<'a> {
    count: u64,
    min_idle: Option<Duration>,
    consumer: Option<&'a str>,
}

impl<'a> XPendingOptions<'a> {
    /// At most so many entries.
    #[must_use]
    pub fn new(count: u64) -> Self {
        Self {
            count,
            min_idle: None,
            consumer: None,
        }
    }

    /// `IDLE`: only what was given at least so long ago.
    #[must_use]
    pub fn min_idle(mut self, time: Duration) -> Self {
        self.min_idle = Some(time);
        self
    }

    /// Only what this consumer was given.
    #[must_use]
    pub fn consumer(mut self, consumer: &'a str) -> Self {
        self.consumer = Some(consumer);
        self
    }

    pub(crate) fn idle(self, cmd: Cmd) -> Cmd {
        cmd.option("IDLE", self.min_idle.map(millis))
    }

    pub(crate) fn rest(self, cmd: Cmd) -> Cmd {
        cmd.arg(self.count).args(self.consumer)
    }
}

/// Options of `XCLAIM`.
#[derive(Debug, Clone, Copy, Default)]
pub struct XClaimOptions {
    idle: Option<Duration>,
    time_millis: Option<u64>,
    retry_count: Option<u64>,
    force: bool,
    just_id: bool,
}

impl XClaimOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `IDLE`: how long ago they count as given.
    #[must_use]
    pub fn idle(mut self, time: Duration) -> Self {
        self.idle = Some(time);
        self
    }

    /// `TIME`: when they count as given, milliseconds of Unix time.
    #[must_use]
    pub fn time_millis(mut self, time: u64) -> Self {
        self.time_millis = Some(time);
        self
    }

    /// `RETRYCOUNT`: how often they count as given.
    #[must_use]
    pub fn retry_count(mut self, count: u64) -> Self {
        self.retry_count = Some(count);
        self
    }

    /// `FORCE`: also entries that no consumer was given.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// `JUSTID`: the result is their ids; they do not count as given once more.
    #[must_use]
    pub fn just_id(mut self) -> Self {
        self.just_id = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = cmd.option("IDLE", self.idle.map(millis));
        let cmd = cmd.option("TIME", self.time_millis);
        let cmd = cmd.option("RETRYCOUNT", self.retry_count);
        let cmd = cmd.word_if(self.force, "FORCE");
        cmd.word_if(self.just_id, "JUSTID")
    }
}
