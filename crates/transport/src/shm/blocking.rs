//! Connections by shared memory for those without a reactor: reads and writes that wait.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::stream::Shm;

impl Shm {
    /// Waits until both sides have said hello, at most until `deadline`.
    ///
    /// # Errors
    /// `TimedOut`, or as the greeting fails.
    pub(crate) fn greet_until(&self, deadline: Instant) -> io::Result<()> {
        while !self.greet()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match self.await_socket(Some(left)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// As [`Shm::try_recv`], but waits if the stream blocks.
    pub(crate) fn read(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        if first.is_empty() {
            return match second.is_empty() {
                true => Ok(0),
                false => self.read(second, &mut []),
            };
        }
        self.repeat(true, self.socket().read_timeout()?, || {
            self.try_recv(first, second, None)
        })
    }

    /// As [`Shm::try_send_bytes`], but waits for room if the stream blocks.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let timeout = self.socket().write_timeout()?;
        self.repeat(false, timeout, || match self.try_send_bytes(bytes)? {
            0 if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        })
    }

    /// Repeats an attempt until it does not have to wait, or the time is over, however often the peer rings meanwhile.
    fn repeat(
        &self,
        news: bool,
        timeout: Option<Duration>,
        mut attempt: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut deadline = None;
        loop {
            match attempt() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.blocks() => {}
                other => return other,
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert_with(|| now.checked_add(timeout?));
            let left = deadline.map(|it| it.saturating_duration_since(now));
            if left.is_some_and(|it| it.is_zero()) {
                return Err(ErrorKind::WouldBlock.into());
            }
            if !self.is_linked() {
                self.await_socket(left)?;
                continue;
            }
            let slept = if self.may_sleep(news, !news) {
                self.await_socket(left)
            } else {
                Ok(())
            };
            self.wake();
            // What is left of it ends the next wait at once.
            self.hear();
            slept?;
        }
    }

    /// Waits for a byte, or for the end. `WouldBlock` when the time is over, as sockets say.
    fn await_socket(&self, timeout: Option<Duration>) -> io::Result<()> {
        let spec = timeout.map(|time| Timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(self.socket(), PollFlags::IN | PollFlags::RDHUP)];
        match rustix::event::poll(&mut fds, spec.as_ref()) {
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
