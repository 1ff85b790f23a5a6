//! Processes that may not use io_uring, or not all of it, learn so when they make a reactor, and not later.

use std::thread;

use embar_transport::{Uring, UringError};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
    let step = |code: u32, k: u32, jump_true: u8, jump_false: u8| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    let refused = libc::SECCOMP_RET_ERRNO | errno.raw_os_error() as u32;
    let mut filter = [
        // The number of the call is the first thing that the filter gets.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            call as u32,
            0,
            1,
        ),
        step(libc::BPF_RET | libc::BPF_K, refused, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    rustix::thread::set_no_new_privs(true).unwrap();
    // SAFETY: the kernel copies the program, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
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
