//! Fetches what the cache is to keep: a read that the server tracks, and behind it the question when the key expires.
//!
//! `CLIENT CACHING YES` has the server track the keys of the next command of the connection, so the two go out as one
//! piece. `PTTL` comes last: whatever changes the key or its expiry behind the read, the server reports, and then the
//! reply is not kept. So no transaction is needed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache_config::Tracking;
use crate::command::{Class, Command, Route};
use crate::engine::{AskedEntry, Asking, NodeConnection, Router, Validity};
use crate::error::Error;
use crate::request::{Answer, ReadReply, Request, WholeReply};
use crate::resp::{ErrorKind, Out, ServerError, View, bulk_len, parse};

const CACHING: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n";
const PTTL: &[u8] = b"*2\r\n$4\r\nPTTL\r\n";

/// The request for what was asked. It goes on by itself, whoever drives it.
pub(super) fn fetch(router: &Arc<Router>, asked: AskedEntry, slot: u16) -> Asking {
    let router = Arc::clone(router);
    Box::pin(async move {
        let opt_in = router.shared.cache.as_ref();
        let opt_in = opt_in.is_some_and(|cache| cache.tracking == Tracking::OptIn);
        let deadline = Instant::now().checked_add(router.shared.config.timeout);
        let reader = ReadFetched {
            opt_in,
            validity: None,
        };
        let read = TrackedRead::new(&asked, opt_in, slot);
        let fetched = Request::<_, Fetched, _>::read_by(&router, read, reader).await?;
        match fetched {
            Fetched::Kept(frame, expires_after, validity) => {
                asked.keep(&frame, expires_after, validity);
                Ok(frame)
            }
            Fetched::Passing(frame) => Ok(frame),
            Fetched::Elsewhere => {
                // Where a slot is moving to, it would take ASKING, which goes with no other command.
                let plain = PlainRead {
                    bytes: asked.command().command,
                    slot,
                };
                let plain = Request::<_, Vec<u8>, _>::read_by(&router, plain, WholeReply);
                let plain = match deadline {
                    Some(at) => plain.timeout(at.saturating_duration_since(Instant::now())),
                    None => plain,
                };
                Ok(plain.await?.into())
            }
        }
    })
}

/// The command as it is.
struct PlainRead<'a> {
    bytes: &'a [u8],
    slot: u16,
}

impl Command for PlainRead<'_> {
    fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self.bytes);
    }

    fn route(&self) -> Route {
        Route::Slot(self.slot)
    }

    fn class(&self) -> Class {
        Class::Read
    }
}

/// The command with what goes before and behind it.
struct TrackedRead {
    bytes: Vec<u8>,
    slot: u16,
    replies: u32,
}

impl TrackedRead {
    fn new(asked: &AskedEntry, opt_in: bool, slot: u16) -> Self {
        let it = asked.command();
        let before = if opt_in { CACHING } else { b"" };
        let mut bytes = [before, it.command, PTTL].concat();
        let begin = bytes.len();
        bytes.resize(begin + bulk_len(it.key().len()), 0);
        let mut out = Out::new(&mut bytes[begin..]);
        out.bulk(it.key());
        out.finish();
        Self {
            bytes,
            slot,
            replies: 2 + u32::from(opt_in),
        }
    }
}

impl Command for TrackedRead {
    fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes);
    }

    fn route(&self) -> Route {
        Route::Slot(self.slot)
    }

    fn class(&self) -> Class {
        Class::Read
    }

    fn replies(&self) -> u32 {
        self.replies
    }
}

/// What came of it.
#[derive(Debug)]
enum Fetched {
    /// A reply that may be kept, until the key expires.
    Kept(Arc<[u8]>, Option<Duration>, Validity),
    /// A reply that may not.
    Passing(Arc<[u8]>),
    /// The slot is moving, and another node has the key or will have it.
    Elsewhere,
}

/// Reads the frames, and knows from whom they come.
struct ReadFetched {
    opt_in: bool,
    validity: Option<Validity>,
}

impl ReadReply<Fetched> for ReadFetched {
    fn read(&mut self, reply: &mut Vec<u8>, _replies: u32) -> Answer<Fetched> {
        match read(reply, self.opt_in, self.validity.take()) {
            Ok(answer) => answer,
            Err(error) => Answer::Result(Err(error)),
        }
    }

    fn submitting(&mut self, to: &Arc<NodeConnection>) {
        self.validity = Some(Validity::of(&to.tracker));
    }
}

fn read(reply: &[u8], opt_in: bool, validity: Option<Validity>) -> Result<Answer<Fetched>, Error> {
    let mut rest = reply;
    let mut refused = None;
    if opt_in {
        let (caching, len) = parse(rest)?;
        if let View::Error(error) = caching {
            refused = Some(error);
        }
        rest = &rest[len..];
    }
    let (view, len) = parse(rest)?;
    let (frame, rest) = rest.split_at(len);
    if let View::Error(error) = view {
        let error = ServerError::from(error);
        return Ok(match error.kind {
            ErrorKind::Ask { .. } => Answer::Result(Ok(Fetched::Elsewhere)),
            ref kind if kind.is_retryable() => Answer::NotExecuted(error),
            _ => Answer::Result(Ok(Fetched::Passing(frame.into()))),
        });
    }
    let expires_after = match parse(rest)?.0 {
        View::Integer(millis @ 0..) => Some(Duration::from_millis(millis.cast_unsigned())),
        View::Error(error) => {
            refused = refused.or(Some(error));
            None
        }
        // It does not expire, or does not exist.
        _ => None,
    };
    Ok(Answer::Result(Ok(match (validity, refused) {
        (Some(validity), None) => Fetched::Kept(frame.into(), expires_after, validity),
        (Some(validity), Some(error)) => {
            let why = error.text();
            tracing::warn!(%why, "nothing is cached: allow CLIENT CACHING and PTTL");
            validity.refuse();
            Fetched::Passing(frame.into())
        }
        (None, _) => Fetched::Passing(frame.into()),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Tracker;

    fn outcome(reply: &[u8], opt_in: bool) -> String {
        let validity = Validity::of(&Arc::<Tracker>::default());
        let frame = |frame: &[u8]| frame.escape_ascii().to_string();
        match read(reply, opt_in, Some(validity)) {
            Ok(Answer::Result(Ok(Fetched::Kept(kept, after, _)))) => {
                format!("kept {} for {after:?}", frame(&kept))
            }
            Ok(Answer::Result(Ok(Fetched::Passing(passing)))) => {
                format!("passing {}", frame(&passing))
            }
            Ok(Answer::Result(Ok(Fetched::Elsewhere))) => "elsewhere".to_owned(),
            Ok(Answer::Result(Err(error))) | Err(error) => error.to_string(),
            Ok(Answer::NotExecuted(error)) => format!("not executed {error}"),
        }
    }

    #[test]
    fn a_reply_is_kept_until_its_key_expires() {
        let fetched = b"+OK\r\n$1\r\nv\r\n:1500\r\n";
        assert_eq!(outcome(fetched, true), r"kept $1\r\nv\r\n for Some(1.5s)");
        assert_eq!(outcome(b"*0\r\n:-1\r\n", false), r"kept *0\r\n for None");
        assert_eq!(
            outcome(b"+OK\r\n_\r\n:-2\r\n", true),
            r"kept _\r\n for None"
        );
    }

    #[test]
    fn what_is_not_tracked_or_an_error_is_not_kept() {
        let untracked = b"-ERR no tracking\r\n$1\r\nv\r\n:-1\r\n";
        assert_eq!(outcome(untracked, true), r"passing $1\r\nv\r\n");
        let wrong = b"+OK\r\n-WRONGTYPE no\r\n:-1\r\n";
        assert_eq!(outcome(wrong, true), r"passing -WRONGTYPE no\r\n");
        let no_pttl = b"+OK\r\n$1\r\nv\r\n-NOPERM no\r\n";
        assert_eq!(outcome(no_pttl, true), r"passing $1\r\nv\r\n");
    }

    #[test]
    fn a_slot_elsewhere_is_followed() {
        let ask = b"+OK\r\n-ASK 1 a:1\r\n-ASK 1 a:1\r\n";
        assert_eq!(outcome(ask, true), "elsewhere");
        let moved = b"-MOVED 1 a:1\r\n-MOVED 1 a:1\r\n";
        assert!(outcome(moved, false).starts_with("not executed"));
        assert!(outcome(b"+OK\r\n$1\r\n", true).contains("too early"));
    }
}
