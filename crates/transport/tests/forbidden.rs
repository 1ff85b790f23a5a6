//! Processes that may not use io_uring, or not all of it, learn so when they make a reactor, and not later.

use std::thread;

use embar_transport::{Uring, UringError};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// In a thread that gets `errno` from this system call, as in a container: makes a reactor.
fn without(call: libc::c_long, errno: Errno) -> Option<UringError> {
    thread::spawn(move || {
        forbid(call, errno);
        Uring::new().err()
    })
    .join()
    .unwrap()
}

/// From now on the calling thread alone gets `errno` from this system call.
fn forbid(call: libc::c_long, errno: Errno) {
    let refused = SeccompAction::Errno(errno.raw_os_error() as u32);
    let rules = [(call, Vec::new())].into();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter(&program).unwrap();
}

#[test]
fn a_container_that_forbids_it_is_told_apart() {
    for call in [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    ] {
        let error = without(call, Errno::PERM).expect("not allowed");
        assert!(
            matches!(error, UringError::NotAllowed(_)),
            "{call}: {error}"
        );
    }
}

#[test]
fn a_kernel_without_it_or_with_an_old_one_is_told_apart() {
    for (call, errno) in [
        (libc::SYS_io_uring_setup, Errno::NOSYS),
        (libc::SYS_io_uring_setup, Errno::INVAL),
        (libc::SYS_io_uring_register, Errno::INVAL),
    ] {
        let error = without(call, errno).expect("too old");
        assert!(matches!(error, UringError::Missing(_)), "{call}: {error}");
    }
    let error = without(libc::SYS_io_uring_setup, Errno::NOMEM).expect("no memory");
    assert!(matches!(error, UringError::NoMemory(_)), "{error}");
}

/// The rings of these kernels are no locked memory, and nothing else is locked.
#[test]
fn nothing_has_to_be_locked() {
    let limit = getrlimit(Resource::Memlock);
    let none = Rlimit {
        current: Some(0),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Memlock, none).unwrap();
    Uring::new().unwrap();
}
