//! A descriptor that the reactor's user supplies, such as a pipe. When it becomes readable, the
//! reactor stops waiting.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most bytes read at once.
const DRAIN_BYTES: usize = 256;

pub(crate) struct Wakeup(OwnedFd);

impl Wakeup {
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self(descriptor))
    }

    /// Takes out what made it readable: a pipe that stays full takes no further byte, and so gives no
    /// further edge.
    pub fn drain(&self) {
        let mut bytes = [0; DRAIN_BYTES];
        while matches!(rustix::io::read(&self.0, &mut bytes), Ok(DRAIN_BYTES)) {}
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
