//! Encoded commands, one behind the other, as pipelines and transactions keep them until they run.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::command::{Class, Command, Route};
use crate::error::Error;

/// Names a command's result in the [`Results`](super::Results) of a run.
#[must_use = "only the key takes the command's result"]
pub struct ResultKey<R> {
    pub(crate) index: usize,
    result: PhantomData<fn() -> R>,
}

impl<R> fmt::Debug for ResultKey<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResultKey({})", self.index)
    }
}

/// An encoded command.
#[derive(Debug, Clone)]
pub(crate) struct EncodedCommand {
    pub bytes: Range<usize>,
    pub route: Route,
    pub class: Class,
    pub replies: u32,
    pub may_fail_midway: bool,
    /// Why the client must not send it.
    pub refused: Option<Error>,
}

/// Encoded commands, one behind the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct EncodedCommands {
    pub bytes: Vec<u8>,
    pub commands: Vec<EncodedCommand>,
}

impl EncodedCommands {
    pub fn add<R>(&mut self, command: &impl Command) -> ResultKey<R> {
        self.add_to(command, command.route_with_others());
        ResultKey {
            index: self.commands.len() - 1,
            result: PhantomData,
        }
    }

    /// As [`EncodedCommands::add`], for a command that goes by this route instead of its own.
    pub fn add_to(&mut self, command: &impl Command, route: Route) {
        let start = self.bytes.len();
        let len = command.encoded_len();
        self.bytes.resize(start + len, 0);
        command.encode(&mut self.bytes[start..]);
        self.commands.push(EncodedCommand {
            bytes: start..start + len,
            route,
            class: command.class(),
            replies: command.replies(),
            may_fail_midway: command.may_fail_midway(),
            refused: command.refused(),
        });
    }

    /// Adds one command of one reply that is encoded already.
    pub fn add_encoded(&mut self, bytes: &[u8], route: Route, class: Class) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.commands.push(EncodedCommand {
            bytes: start..self.bytes.len(),
            route,
            class,
            replies: 1,
            may_fail_midway: false,
            refused: None,
        });
    }

    /// Removes all commands, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.commands.clear();
    }
}
