//! The file that a page goes to: replaced as a whole, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::fstat;
use rustix::io::Errno;

/// Symbolic links that may follow each other, as for the kernel.
const LINKS_MAX: usize = 40;

/// Whether `path` is the regular file that is open here. What cannot be looked at is none.
pub fn is_same(path: &Path, open: impl AsFd) -> bool {
    let (Ok(target), Ok(open)) = (fs::metadata(path), fstat(open)) else {
        return false;
    };
    target.is_file() && (target.dev(), target.ino()) == (open.st_dev, open.st_ino)
}

/// Puts `bytes` in the place of a file, which keeps its mode and the links to it. They are written beside it first, so that
/// nobody ever sees half of a page.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let there = match fs::metadata(path) {
        Ok(there) => Some(there),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if there.as_ref().is_some_and(|it| !it.is_file()) {
        // A device or a pipe: `/dev/null`, `/dev/stdout`.
        return fs::write(path, bytes);
    }
    let target = resolved(path)?;
    let (part, mut file) = beside(&target)?;
    let written = there
        .map_or(Ok(()), |it| file.set_permissions(it.permissions()))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| fs::rename(&part, &target));
    if written.is_err() {
        // What is left of it is of no use to anybody.
        let _ = fs::remove_file(&part);
    }
    written
}

/// What a path leads to, which need not be there.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&target) {
            Ok(next) => target = target.with_file_name(next),
            // It is no link, or nothing yet.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound) => {
                return Ok(target);
            }
            Err(error) => return Err(error),
        }
    }
    Err(Errno::LOOP.into())
}

/// A new file in the same directory. Its name is short, since that of the other may be as long as names can be.
fn beside(target: &Path) -> io::Result<(PathBuf, File)> {
    if target.file_name().is_none() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let mut number = 0;
    loop {
        let part = target.with_file_name(format!(".embar-{}-{number}", process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&part) {
            Ok(file) => return Ok((part, file)),
            // Of another one with this number, on another machine or long gone.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}
