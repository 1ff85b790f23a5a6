//! Descriptors that peers hand over by Unix sockets.
//!
//! Whoever closes the last descriptor of a file waits for as long as that file likes: a TCP socket may linger for its peer, a
//! file of FUSE asks its server. And the kernel closes for the thread that receives a message what that has no room for, and for
//! the one that closes a socket what still lies in it. So no thread that serves others receives here without room, closes what was
//! not proven to be harmless, or closes a socket in which something lies. One thread of the process does all of that closing.
//!
//! It may be held up for ever by a peer that goes to such lengths. Then what was handed over against the rules stays open, behind it.
//! [`is_behind`] says so long before the process runs out of descriptors.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketFlags,
    sockopt,
};

use crate::aside::Aside;

/// Descriptors that one message carries at most, by the kernel's word (`SCM_MAX_FD`).
const PER_MESSAGE: usize = 253;

/// While so many wait to be closed, no more are taken from anybody.
const WAITING_MAX: usize = 512;

/// Messages that are taken out of a socket before it is closed, at most: more than fit into one.
const MESSAGES_MAX: usize = 4096;

/// `SO_PASSRIGHTS`, of Linux 6.16 and later.
const PASSRIGHTS: libc::c_int = 83;

static CLOSER: Aside<OwnedFd> = Aside::new("embar-closer", close_patiently);

/// Closes it, and what lies in it if it is a socket. As far as is known how, none of them is waited for.
fn close_patiently(descriptor: OwnedFd) {
    let mut all = vec![descriptor];
    let mut handed = Vec::new();
    while let Some(descriptor) = all.pop() {
        let _ = sockopt::set_socket_linger(&descriptor, None);
        for _ in 0..MESSAGES_MAX {
            match receive(&descriptor, &mut [0; 4096], &mut handed) {
                Ok(received) if received.bytes > 0 => {}
                Err(Errno::INTR) => {}
                // Most are no sockets.
                _ => break,
            }
        }
        all.extend(handed.drain(..).map(Handed::take));
    }
}

/// A descriptor of anything. It is closed aside, unless somebody [takes](Handed::take) it.
#[derive(Debug)]
pub(crate) struct Handed(Option<OwnedFd>);

impl Handed {
    /// The descriptor, for who knows that closing it waits for nobody, or may wait.
    pub fn take(mut self) -> OwnedFd {
        self.0.take().expect("taken with the value only")
    }
}

impl AsFd for Handed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("taken with the value only").as_fd()
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(descriptor) = self.0.take() {
            CLOSER.give(descriptor);
        }
    }
}

/// Whether so many descriptors wait to be closed that nobody is to take more.
pub(crate) fn is_behind() -> bool {
    CLOSER.waiting() >= WAITING_MAX
}

/// What one message brought.
pub(crate) struct Received {
    pub bytes: usize,
    /// Not all descriptors that came were taken: this process has no room for more, and the kernel closed them.
    pub lost: bool,
}

/// Receives without waiting, and adds what is handed over to `handed`.
pub(crate) fn receive(
    socket: impl AsFd,
    into: &mut [u8],
    handed: &mut Vec<Handed>,
) -> rustix::io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let into = &mut [IoSliceMut::new(into)];
    let received = rustix::net::recvmsg(socket, into, &mut ancillary, flags)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            handed.extend(descriptors.map(|it| Handed(Some(it))));
        }
    }
    Ok(Received {
        bytes: received.bytes,
        lost: received.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// From now on the kernel refuses peers that hand over descriptors by this socket, or by those that it accepts. Kernels before
/// 6.16 know no such thing.
#[allow(unsafe_code, reason = "an option that rustix does not know")]
pub(crate) fn refuse(socket: impl AsFd) {
    let none: libc::c_int = 0;
    // SAFETY: the socket is borrowed, and the kernel reads the bytes of `none`, which outlives the call.
    let _unknown = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            PASSRIGHTS,
            std::ptr::from_ref(&none).cast(),
            size_of_val(&none) as libc::socklen_t,
        )
    };
}

/// A socket by which descriptors may have come that nobody received. Dropping it waits for none of them.
#[derive(Debug)]
pub struct Unread<S: Into<OwnedFd>>(Option<S>);

impl<S: Into<OwnedFd>> Unread<S> {
    pub(crate) fn new(socket: S) -> Self {
        Self(Some(socket))
    }
}

impl<S: Into<OwnedFd>> Deref for Unread<S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.0.as_ref().expect("taken by the drop only")
    }
}

impl<S: Into<OwnedFd>> Drop for Unread<S> {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take() {
            close(socket.into());
        }
    }
}

fn close(socket: OwnedFd) {
    // The peer learns of the end now, and hands over nothing more.
    let _ = rustix::net::shutdown(&socket, Shutdown::Both);
    if !is_behind() {
        // What woke this side and was not heard, mostly.
        let _ = receive(&socket, &mut [0; 64], &mut Vec::new());
    }
    match rustix::io::ioctl_fionread(&socket) {
        Ok(0) => return,
        Ok(_) => {}
        // It is a listener's: peers that were not accepted may have handed something over.
        Err(_) => loop {
            match rustix::net::accept_with(&socket, SocketFlags::CLOEXEC) {
                Ok(unaccepted) => close(unaccepted),
                Err(Errno::INTR) => {}
                // None is left.
                Err(Errno::INVAL) => return,
                Err(_) => break,
            }
        },
    }
    CLOSER.give(socket);
}
