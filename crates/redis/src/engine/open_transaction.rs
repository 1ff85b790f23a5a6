//! Notices that a server accepted `MULTI` and refused `EXEC`. The connection then stays inside the transaction:
//! the server would answer everything behind it with `QUEUED`, to all callers, and never execute it.
//!
//! Servers of today end the transaction when they refuse `EXEC` (`EXECABORT`), but not if they do not know that
//! command, as when it was renamed; older ones and proxies may refuse it for other reasons.

/// Bytes of a frame that are looked at.
const LOOKED_AT_BYTES: usize = 256;

/// Errors of `EXEC` after which there is no transaction any more: it was refused as a whole, or a cluster led it
/// elsewhere.
const ENDS_IT: &[&[u8]] = &[
    b"-EXECABORT",
    b"-MOVED",
    b"-ASK",
    b"-TRYAGAIN",
    b"-CLUSTERDOWN",
    b"-CROSSSLOT",
];

/// Looks at the replies to several commands in one, part by part.
#[derive(Debug, Default)]
pub(super) struct OpenTransaction {
    /// The beginning of a frame that is not complete.
    begun_frame: Vec<u8>,
    /// What the frames so far say.
    seen: Seen,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Seen {
    #[default]
    Nothing,
    /// The first frame was no `OK`: `MULTI` was refused, or there was none.
    Refused,
    /// It was `OK`, as that to `MULTI`.
    Ok,
    /// A command was queued behind it.
    Queued,
}

impl OpenTransaction {
    /// Takes a part of a frame; `complete` says that the frame ends with it, and `is_last` that it is the last
    /// frame of the reply. True when the connection is inside a transaction for good.
    #[inline]
    pub fn is_left_by(&mut self, part: &[u8], complete: bool, is_last: bool) -> bool {
        let before = self.begun_frame.len();
        if !complete || before > 0 {
            let room = LOOKED_AT_BYTES - before;
            self.begun_frame.extend(part.iter().take(room));
        }
        if !complete {
            return false;
        }
        let frame = if before > 0 { &self.begun_frame } else { part };
        let seen = self.seen;
        let is_left = is_last && seen >= Seen::Ok && refuses_exec(frame, seen == Seen::Queued);
        self.seen = match seen {
            _ if is_last => Seen::Nothing,
            Seen::Nothing if frame == b"+OK\r\n" => Seen::Ok,
            Seen::Nothing => Seen::Refused,
            Seen::Ok if frame == b"+QUEUED\r\n" => Seen::Queued,
            known => known,
        };
        self.begun_frame.clear();
        is_left
    }
}

/// Whether the last answer refuses `EXEC` and leaves the transaction open. Commands of a pipeline are refused,
/// too; if nothing `was_queued`, only the name tells them apart.
fn refuses_exec(frame: &[u8], was_queued: bool) -> bool {
    if frame.first() != Some(&b'-') || ENDS_IT.iter().any(|end| frame.starts_with(end)) {
        return false;
    }
    let frame = &frame[..frame.len().min(LOOKED_AT_BYTES)];
    was_queued
        || frame.windows(6).any(|word| {
            let [b'\'' | b'`', name @ .., b'\'' | b'`'] = word else {
                return false;
            };
            name.eq_ignore_ascii_case(b"EXEC")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each of these replies leaves a transaction open, in one piece and byte by byte.
    fn leaves(replies: &[&[&str]]) -> Vec<bool> {
        let whole = look(replies, usize::MAX);
        assert_eq!(look(replies, 1), whole, "{replies:?}");
        whole
    }

    fn look(replies: &[&[&str]], piece: usize) -> Vec<bool> {
        let mut looks = OpenTransaction::default();
        let mut reply_leaves = |reply: &&[&str]| {
            let mut left = false;
            for (index, frame) in reply.iter().enumerate() {
                let frame = format!("{frame}\r\n").into_bytes();
                let is_last = index + 1 == reply.len();
                let mut rest = &frame[..];
                while !rest.is_empty() {
                    let (part, behind) = rest.split_at(piece.min(rest.len()));
                    rest = behind;
                    left |= looks.is_left_by(part, rest.is_empty(), is_last);
                }
            }
            left
        };
        replies.iter().map(&mut reply_leaves).collect()
    }

    #[test]
    fn a_refused_exec_leaves_the_transaction_open() {
        let unknown = "-ERR unknown command 'EXEC', with args beginning with: ";
        let denied = "-NOPERM this user has no permissions to run the 'exec' command";
        for refusal in [unknown, denied, "-ERR unknown command `exec`", "-ERR no"] {
            assert_eq!(leaves(&[&["+OK", "+QUEUED", refusal]]), [true]);
            assert_eq!(
                leaves(&[&["+OK", "+OK", "-ERR x", "+QUEUED", refusal]]),
                [true]
            );
        }
        // All commands were refused, too.
        assert_eq!(leaves(&[&["+OK", denied, denied]]), [true]);
    }

    #[test]
    fn what_ends_or_never_began_leaves_nothing() {
        let denied = "-NOPERM this user has no permissions to run the 'exec' command";
        let open: &[&str] = &["+OK", "+QUEUED", denied];
        let replies: &[&[&str]] = &[
            &["+OK", "+QUEUED", "*1\r\n+OK"],
            &[
                "+OK",
                "+QUEUED",
                "-EXECABORT Transaction discarded because of: 'exec'",
            ],
            &["+OK", "+QUEUED", "-MOVED 1 127.0.0.1:7000"],
            // MULTI was refused, too.
            &["-NOPERM no 'multi'", "-NOPERM no 'incr'", denied],
            // Pipelines.
            &["+OK", ":1", "-WRONGTYPE x"],
            &["+OK", "-ERR unknown command 'EXECUTE'"],
            open,
            &["+OK", "-WRONGTYPE x"],
        ];
        let expected = [false, false, false, false, false, false, true, false];
        assert_eq!(leaves(replies), expected);
    }
}
