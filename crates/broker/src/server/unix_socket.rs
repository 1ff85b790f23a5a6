//! The socket file of a broker, for clients on its machine.
//!
//! It is in a directory of the region's that only this user may enter, so whoever may not map the region may not
//! connect there. A broker serves without it just as well, so whatever is in the way is logged, and no error.

use std::io;
use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_transport::socket::{self, MAX_UNIX_PATH_BYTES, SocketError, SocketOptions};
use embar_transport::{Address, Listener};

/// How long the owner of the row before, which is dead, may still have the file open: the kernel may give a
/// dead process's locks free before its sockets.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often to look meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A socket file of this process.
pub(super) struct UnixSocket {
    pub listener: Listener,
    /// Where it is.
    pub machine: NonZeroU64,
}

impl UnixSocket {
    /// Listens on the file of a row, which this process has claimed; `None` if it cannot.
    pub fn open(region: &Region<Mapped>, row: u16, options: &SocketOptions) -> Option<Self> {
        match listen(region, row, options) {
            Ok(socket) => socket,
            Err(why) => {
                tracing::warn!(
                    "no Unix socket for clients on this machine, who come by TCP instead: {why}"
                );
                None
            }
        }
    }
}

fn listen(
    region: &Region<Mapped>,
    row: u16,
    options: &SocketOptions,
) -> Result<Option<UnixSocket>, String> {
    let machine = socket::machine_id().ok_or("this machine tells no boot id")?;
    let Some(dir) = region.make_socket_dir().map_err(|e| e.to_string())? else {
        return Ok(None);
    };
    // Clients get it as text.
    let path = dir.join(row.to_string());
    let text = path.to_str().ok_or("its path is not UTF-8")?;
    if text.len() > MAX_UNIX_PATH_BYTES {
        return Err(format!(
            "the path {text} has {} bytes, and a socket's at most {MAX_UNIX_PATH_BYTES}: give the region a shorter one (--region)",
            text.len()
        ));
    }
    let address = Address::Unix(path);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match socket::listen(&address, options) {
            Ok(listener) => return Ok(Some(UnixSocket { listener, machine })),
            Err(SocketError::Listen { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline =>
            {
                thread::sleep(LOOK_EVERY);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
