//! Finds the file that this program runs from, and raises the limit on files that it may have open.

use std::path::PathBuf;

/// The file that this program runs from.
pub fn own_executable() -> PathBuf {
    let path = std::env::current_exe().ok();
    // After it was replaced by a newer build only the link leads to the file that is running.
    path.filter(|path| path.exists())
        .unwrap_or_else(|| "/proc/self/exe".into())
}

/// Allows as many open files as the system does: each connection is one, and the usual soft limit is made for programs
/// that use `select`.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}
