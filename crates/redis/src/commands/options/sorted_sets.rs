//! Options of commands for sorted sets.

use super::words;
use crate::cmd::Cmd;

words! {
    /// An end of a sorted set.
    Extreme {
        /// The lowest scores.
        Min => "MIN",
        /// The highest scores.
        Max => "MAX",
    }
}

words! {
    /// What the score of a member of several sets is.
    Aggregate {
        /// All added up.
        Sum => "SUM",
        /// The lowest.
        Min => "MIN",
        /// The highest.
        Max => "MAX",
    }
}

/// Some of many: without the first `offset`, and at most `count`, all if that is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// How many are left out at the beginning.
    pub offset: u64,
    /// How many there are at most.
    pub count: i64,
}

/// Options of `ZADD`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZAddOptions {
    presence: Option<&'static str>,
    order: Option<&'static str>,
    changed: bool,
}

impl ZAddOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `NX`: only adds new members.
    #[must_use]
    pub fn if_absent(mut self) -> Self {
        self.presence = Some("NX");
        self
    }

    /// `XX`: only changes members.
    #[must_use]
    pub fn if_present(mut self) -> Self {
        self.presence = Some("XX");
        self
    }

    /// `GT`: a score only rises. New members are added.
    #[must_use]
    pub fn if_greater(mut self) -> Self {
        self.order = Some("GT");
        self
    }

    /// `LT`: a score only falls. New members are added.
    #[must_use]
    pub fn if_less(mut self) -> Self {
        self.order = Some("LT");
        self
    }

    /// `CH`: the result counts members whose score changed too.
    #[must_use]
    pub fn changed(mut self) -> Self {
        self.changed = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = cmd.args(self.presence).args(self.order);
        cmd.word_if(self.changed, "CH")
    }
}

/// Options of `ZRANGE`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZRangeOptions {
    by: Option<&'static str>,
    reverse: bool,
    limit: Option<Limit>,
    scores: bool,
}

impl ZRangeOptions {
    /// No options: by rank.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `BYSCORE`: the ends are scores: a number, `(1.5` without the number itself, `-inf`, `+inf`.
    #[must_use]
    pub fn by_score(mut self) -> Self {
        self.by = Some("BYSCORE");
        self
    }

    /// `BYLEX`: the ends are members: `[a`, `(a` without itself, `-`, `+`. All must have the same
    /// score.
    #[must_use]
    pub fn by_lex(mut self) -> Self {
        self.by = Some("BYLEX");
        self
    }

    /// `REV`: the last first; by score or by members, `start` is the greater end then.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// `LIMIT`: some of them; not by rank.
    #[must_use]
    pub fn limit(mut self, offset: u64, count: i64) -> Self {
        self.limit = Some(Limit { offset, count });
        self
    }

    /// `WITHSCORES`: members with their scores.
    #[must_use]
    pub fn scores(mut self) -> Self {
        self.scores = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = cmd.args(self.by).word_if(self.reverse, "REV");
        let limit = |cmd: Cmd, it: Limit| cmd.arg("LIMIT").arg(it.offset).arg(it.count);
        let cmd = self.limit.into_iter().fold(cmd, limit);
        cmd.word_if(self.scores, "WITHSCORES")
    }
}

/// Options of `ZUNION` and `ZINTER`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZCombine<'a> {
    weights: &'a [f64],
    aggregate: Option<Aggregate>,
    scores: bool,
}

impl<'a> ZCombine<'a> {
    /// No options: the scores are added.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `WEIGHTS`: by what the scores of each set are multiplied first.
    #[must_use]
    pub fn weights(mut self, weights: &'a [f64]) -> Self {
        self.weights = weights;
        self
    }

    /// `AGGREGATE`: what the score is.
    #[must_use]
    pub fn aggregate(mut self, aggregate: Aggregate) -> Self {
        self.aggregate = Some(aggregate);
        self
    }

    /// `WITHSCORES`: members with their scores. Not where the result is stored.
    #[must_use]
    pub fn scores(mut self) -> Self {
        self.scores = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = cmd.word_if(!self.weights.is_empty(), "WEIGHTS");
        let cmd = cmd.args(self.weights);
        let cmd = cmd.option("AGGREGATE", self.aggregate.map(Aggregate::word));
        cmd.word_if(self.scores, "WITHSCORES")
    }
}
