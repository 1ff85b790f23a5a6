//! The connection of one caller, which learns of new credentials: behind what the caller has sent, and never within a transaction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use embar_mux::{Call, Connection, SubmitError, Turn};

use crate::command::{Class, Command};
use crate::credentials::Credentials;
use crate::engine::{Authenticated, encoded_auth};

/// `MULTI`, `EXEC` and `DISCARD` have at most so many bytes, and few other commands so few.
const SHORT: usize = b"*1\r\n$7\r\nDISCARD\r\n".len();

/// The connection of one caller.
pub(super) struct OwnConnection {
    pub connection: Connection,
    gate: Mutex<Gate>,
    /// As the field of the same name there, to look at without the lock.
    has_due: AtomicBool,
    /// The caller has said itself who it is.
    is_callers: AtomicBool,
}

#[derive(Default)]
struct Gate {
    in_transaction: bool,
    /// What tells the server who the client is now, as soon as it may go.
    due: Option<Vec<u8>>,
}

impl OwnConnection {
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            gate: Mutex::default(),
            has_due: AtomicBool::new(false),
            is_callers: AtomicBool::new(false),
        }
    }

    /// Submits a command of the caller.
    pub fn poll_submit(
        &self,
        command: &impl Command,
        turn: &mut Turn,
        cx: &mut Context<'_>,
        timeout: Option<Duration>,
    ) -> Poll<Result<Call, SubmitError>> {
        let (len, replies) = (command.encoded_len(), command.replies());
        // Held until the command has its place, so that nothing goes between it and what it begins or ends.
        let mut gate = (len <= SHORT || self.has_due.load(Ordering::Acquire)).then(|| self.gate());
        if let Some(gate) = &mut gate {
            self.send_due(gate);
        }
        let mut step = None;
        let mut fill = |out: &mut [u8]| {
            command.encode(out);
            let name = name(out);
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            if len <= SHORT && is("MULTI") {
                step = Some(true);
            } else if len <= SHORT && (is("EXEC") || is("DISCARD")) {
                step = Some(false);
            } else if is("AUTH") || is("HELLO") || is("RESET") {
                self.is_callers.store(true, Ordering::Relaxed);
            }
        };
        let class = command.class() as u8;
        let submitted = self
            .connection
            .poll_submit(turn, cx, len, replies, class, timeout, &mut fill);
        if let (Some(gate), Some(begins)) = (&mut gate, step) {
            gate.in_transaction = begins;
            self.send_due(gate);
        }
        submitted
    }

    /// Tells the server, if it may be told now. Without room on the connection, the next command does.
    fn send_due(&self, gate: &mut Gate) {
        if gate.in_transaction || self.is_callers.load(Ordering::Relaxed) {
            return;
        }
        let Some(auth) = gate.due.take() else {
            return;
        };
        let fill = |out: &mut [u8]| out.copy_from_slice(&auth);
        let (len, class) = (auth.len(), Class::Write as u8);
        let submitted = self.connection.submit(len, 1, class, None, None, fill);
        let is_full = matches!(submitted, Err(SubmitError::Full));
        gate.due = Some(auth).filter(|_| is_full);
        self.has_due.store(is_full, Ordering::Release);
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authenticated for OwnConnection {
    fn authenticate(&self, credentials: &Credentials) {
        let mut gate = self.gate();
        gate.due = Some(encoded_auth(credentials));
        self.has_due.store(true, Ordering::Release);
        self.send_due(&mut gate);
    }
}

/// The name of an encoded command.
fn name(bytes: &[u8]) -> &[u8] {
    let mut lines = bytes.split(|byte| *byte == b'\n').skip(2);
    let name = lines.next().unwrap_or_default();
    name.strip_suffix(b"\r").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_command_is_read() {
        assert_eq!(name(b"*1\r\n$5\r\nMULTI\r\n"), b"MULTI");
        assert_eq!(name(b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n"), b"GET");
        assert_eq!(name(b""), b"");
    }
}
