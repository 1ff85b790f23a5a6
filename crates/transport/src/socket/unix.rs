//! Socket files: who may open them, and who removes them.
//!
//! A file outlives a process that was killed. A listener replaces such a file, but not one whose
//! owner lives. While it looks and replaces, or removes, it holds a lock on the directory, so two
//! processes that start at once do not remove each other's file.

use std::fs::{self, File, Permissions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::peer_user::{is_trusted, user_of_peer};

/// Longest path of a socket file in bytes, a limit of the kernel.
pub const MAX_UNIX_PATH_BYTES: usize = 107;

/// How long a listener waits for the lock: its holder needs it for a few system calls, unless it is
/// stuck.
const LISTEN_PATIENCE: Duration = Duration::from_secs(2);

/// The same for a listener that ends, which may be on a thread that serves others.
const REMOVE_PATIENCE: Duration = Duration::from_millis(200);

/// Time between two tries to get the lock.
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// A socket file of this process, removed on drop unless another took its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// Whether it goes with this.
    owned: Arc<AtomicBool>,
}

impl SocketFile {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            identity: identity(path)?,
            owned: Arc::new(AtomicBool::new(true)),
        })
    }

    /// That of a listener of another process, which may have it still.
    pub(super) fn of_another(path: &Path) -> io::Result<Self> {
        let file = Self::of(path)?;
        file.own(false);
        Ok(file)
    }

    /// Whether this process removes it when its listener goes: false once another process goes on with that.
    pub fn own(&self, owned: bool) {
        self.owned.store(owned, Ordering::Relaxed);
    }

    /// The same file, for who decides on it while another has the listener. It does not remove the file by itself.
    #[must_use]
    pub fn ownership(&self) -> FileOwnership {
        FileOwnership(Arc::clone(&self.owned))
    }
}

/// Says who removes a socket file; see [`SocketFile::ownership`].
#[derive(Debug, Clone)]
pub struct FileOwnership(Arc<AtomicBool>);

impl FileOwnership {
    /// As [`SocketFile::own`].
    pub fn set(&self, owned: bool) {
        self.0.store(owned, Ordering::Relaxed);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.owned.load(Ordering::Relaxed) {
            return;
        }
        // Without the lock a stale file stays, which the next owner replaces.
        let Ok(_lock) = lock_directory(&self.path, REMOVE_PATIENCE) else {
            return;
        };
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// The lock on the directory of `path`. A wait by the kernel has no end, so this tries again and
/// again, for as long as `patience`.
fn lock_directory(path: &Path, patience: Duration) -> io::Result<File> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let folder = parent.unwrap_or(Path::new("."));
    let directory = File::open(folder)?;
    let deadline = Instant::now() + patience;
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::WOULDBLOCK) if Instant::now() >= deadline => {
                let folder = folder.display();
                let text = format!(
                    "another process has held the lock on the folder {folder} for {patience:?}: end it (`fuser -v {folder}` names it), or choose a path in another folder"
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(Errno::WOULDBLOCK) => thread::sleep(LOCK_RETRY),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A socket of this kind. It does not block.
pub(super) fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

/// Listens on `socket` at `path`; only the user of this process may connect.
pub(super) fn listen(socket: impl AsFd, path: &Path, backlog: i32) -> io::Result<SocketFile> {
    let address = SocketAddrUnix::new(path)?;
    let _lock = lock_directory(path, LISTEN_PATIENCE)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if is_stale(path, &address)? => {
            fs::remove_file(path)?;
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile::of(path)?;
    // No peer can connect before `listen`, so none comes through while it is open to more.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, backlog)?;
    Ok(file)
}

/// Whether the file is a socket that no process has open.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let probe = rustix::net::connect(open()?, address);
    Ok(probe == Err(Errno::CONNREFUSED))
}

/// Starts to connect; that is done at once or not at all: `WouldBlock` says that the backlog is full.
/// With `same_user`, a listener of a user who is neither this process's nor root is refused.
pub(super) fn connect(socket: impl AsFd, path: &Path, same_user: bool) -> io::Result<()> {
    let socket = socket.as_fd();
    rustix::net::connect(socket, &SocketAddrUnix::new(path)?)?;
    if !same_user {
        return Ok(());
    }
    let user = user_of_peer(socket)?;
    if is_trusted(user) {
        return Ok(());
    }
    let text = format!("user {user} listens there, who is neither this user nor root");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Names this machine until it restarts; containers on it share the name. `None` if it tells no name.
pub fn machine_id() -> Option<NonZeroU64> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = boot.trim().chars().filter(|it| *it != '-').collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    NonZeroU64::new((id >> 64) as u64 ^ id as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::super::{Address, SocketError, SocketOptions, listen};
    use super::*;

    fn at(dir: &tempfile::TempDir) -> Address {
        Address::Unix(dir.path().join("s"))
    }

    fn path(address: &Address) -> &Path {
        match address {
            Address::Unix(path) => path,
            Address::Tcp(_) | Address::Shm(_) => panic!("not a path"),
        }
    }

    #[test]
    fn the_file_is_private_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let address = at(&dir);
        let listener = listen(&address, &SocketOptions::default()).unwrap();
        assert_eq!(listener.local_address().unwrap(), address);
        let mode = fs::metadata(path(&address)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(path(&address)).unwrap();
        drop(listener);
        assert!(!path(&address).exists());
    }

    #[test]
    fn a_dead_owners_file_is_replaced_and_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let address = at(&dir);
        // A listener that does not remove its file, as if its process had been killed.
        drop(UnixListener::bind(path(&address)).unwrap());
        let living = listen(&address, &SocketOptions::default()).unwrap();
        let error = listen(&address, &SocketOptions::default()).unwrap_err();
        let SocketError::Listen { source, .. } = &error else {
            panic!("not a listen error: {error}");
        };
        assert_eq!(source.kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(path(&address)).unwrap();
        drop(living);
    }

    #[test]
    fn a_listener_of_this_user_is_trusted_and_of_a_stranger_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let address = at(&dir);
        let listener = listen(&address, &SocketOptions::default()).unwrap();
        let options = SocketOptions {
            same_user: true,
            ..SocketOptions::default()
        };
        let own = super::super::connect(&address, Duration::from_secs(2), &options).unwrap();
        assert!(own.is_trusted().unwrap());
        drop((own, listener));
        let us = rustix::process::geteuid().as_raw();
        assert!(is_trusted(us) && is_trusted(0));
        assert!(!is_trusted(us + 1));
    }

    #[test]
    fn a_machine_has_one_name() {
        assert!(machine_id().is_some());
        assert_eq!(machine_id(), machine_id());
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let address = at(&dir);
        fs::write(path(&address), "precious").unwrap();
        listen(&address, &SocketOptions::default()).unwrap_err();
        assert_eq!(fs::read(path(&address)).unwrap(), b"precious");
    }

    #[test]
    fn a_file_that_another_put_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let address = at(&dir);
        let first = listen(&address, &SocketOptions::default()).unwrap();
        fs::rename(path(&address), dir.path().join("elsewhere")).unwrap();
        let second = listen(&address, &SocketOptions::default()).unwrap();
        drop(first);
        UnixStream::connect(path(&address)).unwrap();
        drop(second);
    }

    /// Takes the lock on the folder as a process does that is stuck with it.
    fn hold_lock(dir: &tempfile::TempDir) -> File {
        let folder = File::open(dir.path()).unwrap();
        flock(&folder, FlockOperation::NonBlockingLockExclusive).unwrap();
        folder
    }

    #[test]
    fn a_lock_that_is_never_released_is_an_error_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = hold_lock(&dir);
        let begun = Instant::now();
        let error = listen(at(&dir), &SocketOptions::default()).unwrap_err();
        let took = begun.elapsed();
        assert!(took >= LISTEN_PATIENCE, "gave up after {took:?}");
        assert!(took < LISTEN_PATIENCE * 4, "{took:?}");
        let SocketError::Listen { source, .. } = &error else {
            panic!("not a listen error: {error}");
        };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
        let said = error.to_string();
        let folder = dir.path().display().to_string();
        assert!(said.contains(&folder) && said.contains("end it"), "{said}");
        drop(held);
        listen(at(&dir), &SocketOptions::default()).unwrap();
    }

    #[test]
    fn a_lock_released_in_time_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let held = hold_lock(&dir);
        let address = at(&dir);
        thread::scope(|scope| {
            let listening = scope.spawn(|| listen(&address, &SocketOptions::default()).unwrap());
            // Long enough that it has met the lock; if not, it only proves less.
            thread::sleep(Duration::from_millis(50));
            assert!(!listening.is_finished(), "it did not wait for the lock");
            drop(held);
            drop(listening.join().unwrap());
        });
        assert!(!path(&address).exists());
    }

    #[test]
    fn a_listener_that_cannot_get_the_lock_leaves_its_file_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let address = at(&dir);
        let first = listen(&address, &SocketOptions::default()).unwrap();
        let held = hold_lock(&dir);
        drop(first);
        assert!(path(&address).exists(), "removed without the lock");
        drop(held);
        drop(listen(&address, &SocketOptions::default()).unwrap());
    }
}
