//! Which process has which socket: `/proc/PID/fd` names the numbers of sockets. Of other users' processes only root sees them.

use std::collections::BTreeMap;
use std::fs;

/// The processes of sockets, by the sockets' numbers, as far as this user may see them. Of several processes that share one it has one.
pub fn owners() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut owners = BTreeMap::new();
    for pid in pids {
        // Another user's, or gone.
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        for file in files.into_iter().flatten().flatten() {
            let target = fs::read_link(file.path()).ok();
            if let Some(inode) = target.as_deref().and_then(|it| it.to_str()).and_then(inode) {
                owners.insert(inode, pid);
            }
        }
    }
    owners
}

/// `socket:[123]`
fn inode(target: &str) -> Option<u32> {
    let rest = target.strip_prefix("socket:[")?;
    rest.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process;

    use super::*;
    use crate::tcp::TcpReader;

    #[test]
    fn a_connection_leads_to_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let _client = TcpStream::connect(address).expect("connected");
        let _server = listener.accept().expect("accepted");
        let mut reader = TcpReader::open().expect("sock_diag");
        let ends = reader.connections(|end| end.local == address);
        let ends = ends.expect("sock_diag");
        let owners = owners();
        assert_eq!(owners.get(&ends[0].inode), Some(&process::id()));
    }

    #[test]
    fn other_files_are_no_sockets() {
        assert_eq!(inode("socket:[123]"), Some(123));
        for other in ["/dev/null", "pipe:[123]", "socket:[x]", "socket:[1", ""] {
            assert_eq!(inode(other), None, "{other}");
        }
    }
}
