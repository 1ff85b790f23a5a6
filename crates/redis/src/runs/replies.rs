//! What the reply to a batch says of each of its commands, also where only a part of it came.

use std::ops::Range;

use embar_mux::CallError;

use crate::config::Config;
use crate::error::Error;
use crate::resp::{Malformed, ServerError, View, parse};

/// What a batch's reply says of one command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its frames are here. An error of the server is a reply, too.
    Reply(Range<usize>),
    /// The server did not execute it, and another node or a later attempt may.
    NotExecuted(ServerError),
    /// Its reply did not come, or not all of it. `is_first` says that it is the first such command of
    /// its batch: what ended the reply may be this command's fault.
    Missing { error: CallError, is_first: bool },
    /// It has this error, and will have no other.
    Failed(Error),
}

/// Goes through the frames of a batch's reply, command by command.
pub(super) struct Replies<'b> {
    bytes: &'b [u8],
    at: usize,
    /// Why the bytes end where they end, if not all came.
    cut: Option<CallError>,
    /// A command has no reply, so those behind it have none either.
    is_over: bool,
    config: &'b Config,
    /// An answer for which the configuration leaves the connection, if one came.
    pub told_to_leave: Option<String>,
}

impl<'b> Replies<'b> {
    /// `bytes` has all frames that came, or all and a part of the next one if the reply was `cut`.
    pub fn new(bytes: &'b [u8], cut: Option<CallError>, config: &'b Config) -> Self {
        Self {
            bytes,
            at: 0,
            cut,
            is_over: false,
            config,
            told_to_leave: None,
        }
    }

    /// The outcome of the next command, whose reply has so many frames behind the one that answers
    /// ASKING, if that went before it.
    #[inline]
    pub fn next(&mut self, frames: u32, asking: bool) -> Outcome {
        // Mostly it is one frame, and no error.
        if frames == 1
            && !asking
            && !self.is_over
            && let Ok((view, len)) = parse(&self.bytes[self.at..])
            && !matches!(view, View::Error(_))
        {
            let begin = self.at;
            self.at += len;
            return Outcome::Reply(begin..self.at);
        }
        self.next_of_any_kind(frames, asking)
    }

    #[cold]
    fn next_of_any_kind(&mut self, frames: u32, asking: bool) -> Outcome {
        let is_first = !self.is_over;
        if is_first {
            match (self.read(frames, asking), &self.cut) {
                (Ok(outcome), _) => return outcome,
                (Err(malformed), None) => return Outcome::Failed(malformed.into()),
                (Err(_), Some(_)) => self.is_over = true,
            }
        }
        let error = self.cut.clone().expect("only a cut ends a reply early");
        Outcome::Missing { error, is_first }
    }

    fn read(&mut self, frames: u32, asking: bool) -> Result<Outcome, Malformed> {
        let mut at = self.at;
        let mut not_asked = None;
        if asking {
            let (view, len) = parse(&self.bytes[at..])?;
            if let View::Error(error) = view {
                not_asked = Some(error);
            }
            at += len;
        }
        let begin = at;
        let mut not_executed = None;
        for frame in 0..frames {
            let (view, len) = parse(&self.bytes[at..])?;
            if let View::Error(error) = view
                && frame == 0
            {
                let error = ServerError::from(error);
                let told_to_leave = self.config.reconnects_on(&error.text);
                if told_to_leave {
                    self.told_to_leave = Some(error.text.clone());
                }
                let is_before = told_to_leave && !error.may_have_executed();
                if is_before || error.kind.is_retryable() {
                    not_executed = Some(error);
                }
            }
            at += len;
        }
        self.at = at;
        Ok(match (not_executed, not_asked) {
            (None, _) => Outcome::Reply(begin..at),
            // To go there again would end alike.
            (Some(_), Some(not_asked)) if !not_asked.kind().is_retryable() => {
                Outcome::Failed(ServerError::from(not_asked).into())
            }
            (Some(error), _) => Outcome::NotExecuted(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use embar_mux::CloseReason;

    use super::*;

    const CLOSED: CallError = CallError::Unknown(CloseReason::Silent);

    fn missing(is_first: bool) -> Outcome {
        let error = CLOSED;
        Outcome::Missing { error, is_first }
    }

    fn not_executed(text: &str) -> Outcome {
        let line = format!("-{text}\r\n");
        let (View::Error(error), _) = parse(line.as_bytes()).expect("a line") else {
            panic!("{text} is no error");
        };
        Outcome::NotExecuted(error.into())
    }

    #[test]
    fn each_command_has_its_own_frames() {
        let config = Config::default();
        let mut replies =
            Replies::new(b"+OK\r\n-ERR no\r\n:1\r\n:2\r\n-LOADING\r\n", None, &config);
        assert_eq!(replies.next(1, false), Outcome::Reply(0..5));
        assert_eq!(replies.next(1, false), Outcome::Reply(5..14));
        assert_eq!(replies.next(2, false), Outcome::Reply(14..22));
        assert_eq!(replies.next(1, false), not_executed("LOADING"));
        let more = replies.next(1, false);
        assert!(
            matches!(more, Outcome::Failed(Error::Malformed(_))),
            "{more:?}"
        );
    }

    #[test]
    fn an_answer_that_ends_the_connection_is_told_and_goes_again_if_it_was_not_executed() {
        let config = Config {
            reconnect_on: Some(vec!["NOREPLICAS".to_owned(), "MYPROXY".to_owned()]),
            ..Config::default()
        };
        let bytes = b"+OK\r\n-NOREPLICAS few\r\n-READONLY\r\n";
        let mut replies = Replies::new(bytes, None, &config);
        assert_eq!(replies.next(1, false), Outcome::Reply(0..5));
        assert_eq!(replies.told_to_leave, None);
        assert_eq!(replies.next(1, false), not_executed("NOREPLICAS few"));
        assert_eq!(replies.next(1, false), not_executed("READONLY"));
        assert_eq!(replies.told_to_leave.as_deref(), Some("NOREPLICAS few"));
        let mut replies = Replies::new(b"-MYPROXY gone\r\n", None, &config);
        assert_eq!(replies.next(1, false), Outcome::Reply(0..15));
        assert_eq!(replies.told_to_leave.as_deref(), Some("MYPROXY gone"));
    }

    #[test]
    fn what_came_before_a_cut_counts() {
        let config = Config::default();
        let mut replies = Replies::new(b"+OK\r\n:1\r\n:2\r", Some(CLOSED), &config);
        assert_eq!(replies.next(1, false), Outcome::Reply(0..5));
        // It has one frame of two.
        assert_eq!(replies.next(2, false), missing(true));
        // And the one that is there is not of the next command.
        assert_eq!(replies.next(1, false), missing(false));
        let mut nothing = Replies::new(b"", Some(CLOSED), &config);
        assert_eq!(nothing.next(1, true), missing(true));
    }

    #[test]
    fn the_answer_to_asking_is_not_the_commands() {
        let config = Config::default();
        let moved = "MOVED 1 a:1";
        let bytes = format!(
            "+OK\r\n:1\r\n-NOPERM\r\n-{moved}\r\n-LOADING\r\n-LOADING\r\n-NOPERM\r\n:2\r\n:3\r\n"
        );
        let mut replies = Replies::new(bytes.as_bytes(), None, &config);
        assert_eq!(replies.next(1, true), Outcome::Reply(5..9));
        let refused = replies.next(1, true);
        assert!(
            matches!(refused, Outcome::Failed(Error::Server(_))),
            "{refused:?}"
        );
        assert_eq!(replies.next(1, true), not_executed("LOADING"));
        // The node has the slot meanwhile, and executed it without ASKING.
        let executed = replies.next(1, true);
        assert!(matches!(executed, Outcome::Reply(_)), "{executed:?}");
        assert!(matches!(replies.next(1, false), Outcome::Reply(_)));
    }
}
