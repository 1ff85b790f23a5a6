//! Socket files: who may open them, and who removes them.
//!
//! A file outlives a process that was killed. Such a file is replaced, one whose owner lives is
//! not. Whoever looks and replaces, or removes, holds a lock on the directory meanwhile, so two
//! processes that start at once do not remove each other's file.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A socket file of this process, removed on drop unless another took its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            identity: identity(path)?,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _lock = lock_directory(&self.path);
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // Whoever cannot remove it leaves a stale file, which the next owner replaces.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn lock_directory(path: &Path) -> io::Result<File> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let directory = File::open(parent.unwrap_or(Path::new(".")))?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
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
    let _lock = lock_directory(path)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if is_stale(path, &address)? => {
            fs::remove_file(path)?;
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile::of(path)?;
    // Nobody can connect before `listen`, so nobody comes through while it is open to more.
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

/// Starts to connect; that is done at once or not at all.
pub(super) fn connect(socket: impl AsFd, path: &Path) -> io::Result<()> {
    Ok(rustix::net::connect(socket, &SocketAddrUnix::new(path)?)?)
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
            Address::Tcp(_) => panic!("not a path"),
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
}
