//! Finds out at the start whether this machine allows the way to receive that was asked for.

use embar_transport::{Uring, UringError};

use crate::receive_path::ReceivePath;

/// Tries to make a reactor on `io_uring`.
pub(super) fn probe_uring() -> Result<(), UringError> {
    Uring::new().map(drop)
}

/// What was asked for, or what to use instead if this machine lacks what that needs; logs which way, and why.
pub(super) fn usable(
    asked: ReceivePath,
    probe_uring: impl FnOnce() -> Result<(), UringError>,
) -> ReceivePath {
    let lacks = match asked {
        ReceivePath::Uring => probe_uring().err(),
        ReceivePath::Direct | ReceivePath::Staging | ReceivePath::Blocking => None,
    };
    let Some(error) = lacks else {
        return asked;
    };
    let instead = ReceivePath::Direct;
    tracing::warn!(receive = %instead, %asked, "payloads are received by epoll: {error}");
    instead
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn what_a_machine_lacks_gives_way_to_the_direct_path() {
        for error in [
            UringError::NotAllowed(ErrorKind::PermissionDenied.into()),
            UringError::Missing("receiving"),
            UringError::NoMemory(ErrorKind::OutOfMemory.into()),
        ] {
            let lacking = || Err(error);
            assert_eq!(usable(ReceivePath::Uring, lacking), ReceivePath::Direct);
        }
        assert_eq!(usable(ReceivePath::Uring, || Ok(())), ReceivePath::Uring);
    }

    #[test]
    fn the_other_paths_need_nothing() {
        for path in [
            ReceivePath::Direct,
            ReceivePath::Staging,
            ReceivePath::Blocking,
        ] {
            assert_eq!(usable(path, || panic!("asked for")), path);
        }
    }
}
