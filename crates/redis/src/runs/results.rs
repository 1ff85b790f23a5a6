//! The results of a pipeline or a transaction.

use std::ops::Range;

use super::encoded::ResultKey;
use crate::error::Error;
use crate::resp::{FromReply, ServerError, View, parse};

/// Where the frames of a command's reply are.
#[derive(Debug, Clone)]
pub(crate) struct ReplyRange {
    pub buffer: usize,
    pub range: Range<usize>,
    /// The command may have changed something if it is an error.
    pub may_fail_midway: bool,
}

/// The results of a pipeline or a transaction.
#[derive(Debug)]
pub struct Results {
    pub(crate) buffers: Vec<Vec<u8>>,
    pub(crate) outcomes: Vec<Result<ReplyRange, Error>>,
}

impl Results {
    /// Of so many commands, which have no result yet.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            buffers: Vec::new(),
            outcomes: (0..count).map(|_| Err(Error::Closed)).collect(),
        }
    }

    pub(crate) fn empty() -> Self {
        Self::new(0)
    }

    /// Puts the results of another run in the place of these.
    pub(crate) fn replace(&mut self, places: &[usize], other: Self) {
        let before = self.buffers.len();
        self.buffers.extend(other.buffers);
        for (place, outcome) in places.iter().zip(other.outcomes) {
            self.outcomes[*place] = outcome.map(|reply| ReplyRange {
                buffer: reply.buffer + before,
                ..reply
            });
        }
    }

    /// How many commands there were.
    #[must_use]
    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Whether there were none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// The result of a command.
    ///
    /// # Errors
    /// That command's.
    ///
    /// # Panics
    /// With a key of another pipeline that had more commands.
    pub fn take<R: FromReply>(&self, key: ResultKey<R>) -> Result<R, Error> {
        self.read(key.index)
    }

    /// The result of the command with this number, from 0, as any type.
    ///
    /// # Errors
    /// That command's.
    ///
    /// # Panics
    /// If there were fewer commands.
    pub fn read<R: FromReply>(&self, index: usize) -> Result<R, Error> {
        let view = self.view(index)?;
        R::from_reply(view).map_err(|wrong| match (view, &self.outcomes[index]) {
            (View::Error(error), Ok(reply)) => ServerError::from(error)
                .answering(reply.may_fail_midway)
                .into(),
            _ => wrong.into(),
        })
    }

    /// All frames of the reply to the command with this number.
    pub(crate) fn frames(&self, index: usize) -> Result<&[u8], Error> {
        let stored = self.outcomes[index].as_ref().map_err(Clone::clone)?;
        Ok(&self.buffers[stored.buffer][stored.range.clone()])
    }

    /// The reply to the command with this number, from 0, as the server sent it. An error of the
    /// server is a reply, too.
    ///
    /// # Errors
    /// Why there is no reply.
    ///
    /// # Panics
    /// If there were fewer commands.
    pub fn view(&self, index: usize) -> Result<View<'_>, Error> {
        Ok(parse(self.frames(index)?)?.0)
    }
}
