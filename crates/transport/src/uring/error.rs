//! Why a process cannot use io_uring, and what to do about it.

use std::io;

use rustix::io::Errno;

/// Why there is no [`Uring`](super::Uring). [`Epoll`](crate::Epoll) needs nothing of the kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UringError {
    /// Containers often forbid io_uring.
    #[error(
        "this process may not use io_uring ({0}): allow it in the container's seccomp profile, or set the sysctl kernel.io_uring_disabled to 0"
    )]
    NotAllowed(io::Error),
    /// The kernel is too old, or was built without.
    #[error("this kernel's io_uring lacks {0}: Linux 6.1 has it")]
    Missing(&'static str),
    /// There is no memory for the rings, or no more that this process may lock.
    #[error("there is no memory for io_uring ({0}): raise the limit of locked memory (ulimit -l)")]
    NoMemory(io::Error),
    /// Something else, such as too many open files.
    #[error("io_uring does not work: {0}")]
    Other(io::Error),
}

impl UringError {
    /// Says that streams by shared memory are for [`Epoll`](crate::Epoll).
    pub(super) fn no_shared_memory() -> io::Error {
        let text = "streams by shared memory need no kernel, and no io_uring: take the reactor on epoll for them";
        io::Error::new(io::ErrorKind::Unsupported, text)
    }

    /// Of a failed setup.
    pub(super) fn of_setup(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) => Self::NotAllowed(error),
            Some(Errno::NOSYS) => Self::Missing("everything"),
            // Unknown flags of the setup.
            Some(Errno::INVAL) => Self::Missing("completions in the waiting thread"),
            Some(Errno::NOMEM) => Self::NoMemory(error),
            _ => Self::Other(error),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_refusals_say_what_to_do() {
        for (errno, text) in [
            (Errno::PERM, "seccomp"),
            (Errno::NOSYS, "Linux 6.1"),
            (Errno::INVAL, "Linux 6.1"),
            (Errno::NOMEM, "ulimit -l"),
            (Errno::MFILE, "does not work"),
        ] {
            let error = UringError::of_setup(errno.into()).to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
