//! The socket files of a broker, for clients on its machine: one for Unix sockets, and one for connections by shared
//! memory.
//!
//! They are in a directory of the region's that only this user may enter, so whoever may not map the region may not
//! connect there. A broker serves without them just as well, so whatever is in the way is logged, and no error.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use embar_fabric::Claim;
use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_transport::socket::{self, MAX_UNIX_PATH_BYTES, SocketOptions};
use embar_transport::{Address, Listener};

use crate::config::BrokerConfig;
use crate::receive_path::ReceivePath;

/// How long the owner of the row before, which is dead, may still have a file open: the kernel may give a
/// dead process's locks free before its sockets.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often to look meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Socket files of this process.
#[derive(Default)]
pub(super) struct LocalSockets {
    pub listeners: Vec<Listener>,
    /// Where they are; `None` if there are none.
    pub machine: Option<NonZeroU64>,
}

impl LocalSockets {
    /// Listens on the files of a row, which this process has claimed, as far as it may and can.
    pub fn open(
        region: &Region<Mapped>,
        claim: &Claim,
        config: &BrokerConfig,
        options: &SocketOptions,
    ) -> Self {
        if !config.unix_socket {
            return Self::default();
        }
        let opened = Self::listen(region, claim, config, options);
        opened.unwrap_or_else(|why| {
            tracing::warn!(
                "no Unix socket for clients on this machine, who come by TCP instead: {why}"
            );
            Self::default()
        })
    }

    fn listen(
        region: &Region<Mapped>,
        claim: &Claim,
        config: &BrokerConfig,
        options: &SocketOptions,
    ) -> Result<Self, String> {
        let row = claim.row();
        let machine = socket::machine_id().ok_or("this machine tells no boot id")?;
        let Some(dir) = region.make_socket_dir().map_err(|e| e.to_string())? else {
            return Ok(Self::default());
        };
        let unix = Address::Unix(checked(dir.join(row.to_string()))?);
        let mut listeners = vec![listen(&unix, options)?];
        // The other reactors leave waiting to the kernel, which knows nothing of such connections.
        let can = matches!(config.receive, ReceivePath::Direct | ReceivePath::Staging);
        if config.shared_memory && can && region.geometry().takes_data(row) {
            let path = checked(dir.join(format!("{row}.shm")));
            let mut options = options.clone();
            options.shm.lends = claim.lends().cloned();
            match path.and_then(|path| listen(&Address::Shm(path), &options)) {
                Ok(listener) => listeners.push(listener),
                Err(why) => tracing::warn!(
                    "no connections by shared memory, clients on this machine use Unix sockets instead: {why}"
                ),
            }
        }
        Ok(Self {
            listeners,
            machine: Some(machine),
        })
    }
}

/// The path of a socket file, if it can be one. Clients get it as text.
fn checked(path: PathBuf) -> Result<PathBuf, String> {
    let text = path.to_str().ok_or("its path is not UTF-8")?;
    if text.len() > MAX_UNIX_PATH_BYTES {
        return Err(format!(
            "the path {text} has {} bytes, and a socket's at most {MAX_UNIX_PATH_BYTES}: give the region a shorter one (--region)",
            text.len()
        ));
    }
    Ok(path)
}

fn listen(address: &Address, options: &SocketOptions) -> Result<Listener, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match socket::listen(address, options) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.is_in_use() && Instant::now() < deadline => {
                thread::sleep(LOOK_EVERY);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
