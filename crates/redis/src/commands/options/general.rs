//! Options of commands for strings, lists, and keys of any type.

use super::words;
use crate::cmd::Cmd;

/// When a key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// `EX`: after so many seconds.
    Seconds(u64),
    /// `PX`: after so many milliseconds.
    Millis(u64),
    /// `EXAT`: then, in seconds of Unix time.
    AtSeconds(u64),
    /// `PXAT`: then, in milliseconds of Unix time.
    AtMillis(u64),
}

impl Expiry {
    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let (word, time) = match self {
            Self::Seconds(time) => ("EX", time),
            Self::Millis(time) => ("PX", time),
            Self::AtSeconds(time) => ("EXAT", time),
            Self::AtMillis(time) => ("PXAT", time),
        };
        cmd.arg(word).arg(time)
    }
}

words! {
    /// Under which condition a key is set to expire.
    ExpireIf {
        /// `NX`: it does not expire yet.
        Never => "NX",
        /// `XX`: it expires already.
        Expires => "XX",
        /// `GT`: the new time is later.
        Later => "GT",
        /// `LT`: the new time is sooner.
        Sooner => "LT",
    }
}

words! {
    /// An end of a list.
    Side {
        /// The head.
        Left => "LEFT",
        /// The tail.
        Right => "RIGHT",
    }
}

/// Options of `SET`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetOptions {
    expiry: Option<Expiry>,
    keep_ttl: bool,
    condition: Option<&'static str>,
    old: bool,
}

impl SetOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `EX`, `PX`, `EXAT`, `PXAT`: when it expires.
    #[must_use]
    pub fn expiry(mut self, expiry: Expiry) -> Self {
        self.expiry = Some(expiry);
        self
    }

    /// `KEEPTTL`: it expires when it would have.
    #[must_use]
    pub fn keep_ttl(mut self) -> Self {
        self.keep_ttl = true;
        self
    }

    /// `NX`: only if there is none.
    #[must_use]
    pub fn if_absent(mut self) -> Self {
        self.condition = Some("NX");
        self
    }

    /// `XX`: only if there is one.
    #[must_use]
    pub fn if_present(mut self) -> Self {
        self.condition = Some("XX");
        self
    }

    /// `GET`: the result is the value before; null if there was none.
    #[must_use]
    pub fn old(mut self) -> Self {
        self.old = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = self.condition.into_iter().fold(cmd, Cmd::arg);
        let cmd = cmd.word_if(self.old, "GET");
        let cmd = cmd.word_if(self.keep_ttl, "KEEPTTL");
        self.expiry
            .into_iter()
            .fold(cmd, |cmd, expiry| expiry.add(cmd))
    }
}

/// Options of `LPOS`.
#[derive(Debug, Clone, Copy, Default)]
pub struct LPosOptions {
    rank: Option<i64>,
    count: Option<u64>,
    max_len: Option<u64>,
}

impl LPosOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `RANK`: from which match on, 1 for the first; negative ones count from the tail.
    #[must_use]
    pub fn rank(mut self, rank: i64) -> Self {
        self.rank = Some(rank);
        self
    }

    /// `COUNT`: a list of so many, all if 0.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// `MAXLEN`: how many elements are compared, all if 0.
    #[must_use]
    pub fn max_len(mut self, max_len: u64) -> Self {
        self.max_len = Some(max_len);
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = cmd.option("RANK", self.rank).option("COUNT", self.count);
        cmd.option("MAXLEN", self.max_len)
    }
}

/// Options of `HSCAN`, `SSCAN`, `ZSCAN`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanOptions<'a> {
    pattern: Option<&'a str>,
    count: Option<u64>,
}

impl<'a> ScanOptions<'a> {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `MATCH`: only what matches.
    #[must_use]
    pub fn pattern(mut self, pattern: &'a str) -> Self {
        self.pattern = Some(pattern);
        self
    }

    /// `COUNT`: about how many are looked at each time.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        cmd.option("MATCH", self.pattern)
            .option("COUNT", self.count)
    }
}

/// Options of `COPY`.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyOptions {
    database: Option<u32>,
    replace: bool,
}

impl CopyOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `DB`: to which database. Not in a cluster.
    #[must_use]
    pub fn database(mut self, database: u32) -> Self {
        self.database = Some(database);
        self
    }

    /// `REPLACE`: also if the destination is there.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        cmd.option("DB", self.database)
            .word_if(self.replace, "REPLACE")
    }
}

/// Options of `RESTORE`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RestoreOptions {
    replace: bool,
    absolute: bool,
    idle_seconds: Option<u64>,
    frequency: Option<u8>,
}

impl RestoreOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `REPLACE`: also if the key is there.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// `ABSTTL`: the time is one of Unix time, in milliseconds.
    #[must_use]
    pub fn absolute(mut self) -> Self {
        self.absolute = true;
        self
    }

    /// `IDLETIME`: for how many seconds it counts as not used.
    #[must_use]
    pub fn idle_seconds(mut self, seconds: u64) -> Self {
        self.idle_seconds = Some(seconds);
        self
    }

    /// `FREQ`: how often it counts as used.
    #[must_use]
    pub fn frequency(mut self, frequency: u8) -> Self {
        self.frequency = Some(frequency);
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = cmd.word_if(self.replace, "REPLACE");
        let cmd = cmd.word_if(self.absolute, "ABSTTL");
        let cmd = cmd.option("IDLETIME", self.idle_seconds);
        cmd.option("FREQ", self.frequency)
    }
}

/// Options of `SORT`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SortOptions<'a> {
    by: Option<&'a str>,
    limit: Option<(u64, u64)>,
    get: &'a [&'a str],
    descending: bool,
    alphabetic: bool,
}

impl<'a> SortOptions<'a> {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `BY`: the order is that of other keys, with the element in place of the `*`. Not in a
    /// cluster.
    #[must_use]
    pub fn by(mut self, pattern: &'a str) -> Self {
        self.by = Some(pattern);
        self
    }

    /// `LIMIT`: without the first `offset`, and at most `count`.
    #[must_use]
    pub fn limit(mut self, offset: u64, count: u64) -> Self {
        self.limit = Some((offset, count));
        self
    }

    /// `GET`: instead of the elements the values of other keys, `#` for the element. Not in a
    /// cluster.
    #[must_use]
    pub fn get(mut self, patterns: &'a [&'a str]) -> Self {
        self.get = patterns;
        self
    }

    /// `DESC`: the greatest first.
    #[must_use]
    pub fn descending(mut self) -> Self {
        self.descending = true;
        self
    }

    /// `ALPHA`: as text, not as numbers.
    #[must_use]
    pub fn alphabetic(mut self) -> Self {
        self.alphabetic = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let limit = |cmd: Cmd, (offset, count)| cmd.arg("LIMIT").arg(offset).arg(count);
        let cmd = self
            .limit
            .into_iter()
            .fold(cmd.option("BY", self.by), limit);
        let cmd = cmd.pairs(self.get.iter().map(|pattern| ("GET", pattern)));
        let cmd = cmd.word_if(self.descending, "DESC");
        cmd.word_if(self.alphabetic, "ALPHA")
    }
}
