//! Reads `CLUSTER INFO`: how a node sees its cluster. See <https://redis.io/docs/latest/commands/cluster-info/>.

use crate::resp::View;

/// Whether a node takes commands, as it says itself; the later, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Health {
    /// No: slots have no primary, or it reaches too few primaries. So does a node that is cut off from its peers.
    Down,
    /// It does not say, or not to this user.
    #[default]
    Unknown,
    /// Yes.
    Up,
}

/// What a node says of its cluster. The default is a node that says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClusterInfo {
    pub health: Health,
    /// The greatest epoch that it knows. Each failover begins a new one, so a node that is cut off falls behind.
    pub epoch: Option<u64>,
}

impl ClusterInfo {
    /// Reads the reply to `CLUSTER INFO`, also one that refuses it.
    pub fn read(reply: View<'_>) -> Self {
        let mut info = Self::default();
        let (View::Bulk(text) | View::Simple(text) | View::Verbatim { text, .. }) = reply else {
            return info;
        };
        for line in String::from_utf8_lossy(text).lines() {
            match line.trim_end().split_once(':') {
                Some(("cluster_state", "ok")) => info.health = Health::Up,
                Some(("cluster_state", _)) => info.health = Health::Down,
                Some(("cluster_current_epoch", epoch)) => info.epoch = epoch.parse().ok(),
                _ => {}
            }
        }
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::parse;

    /// As Redis 7.0.15 answers, shortened.
    const TEXT: &str = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_size:3\r\n\
        cluster_current_epoch:7\r\ncluster_my_epoch:2\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n";

    fn read(reply: &str) -> ClusterInfo {
        let (view, _) = parse(reply.as_bytes()).expect("a reply");
        ClusterInfo::read(view)
    }

    #[test]
    fn health_and_epoch_are_read_in_both_protocols() {
        let wanted = ClusterInfo {
            health: Health::Up,
            epoch: Some(7),
        };
        assert_eq!(read(&format!("${}\r\n{TEXT}\r\n", TEXT.len())), wanted);
        let verbatim = format!("={}\r\ntxt:{TEXT}\r\n", TEXT.len() + 4);
        assert_eq!(read(&verbatim), wanted);
        let down = TEXT.replace(":ok", ":fail");
        let down = read(&format!("${}\r\n{down}\r\n", down.len()));
        assert_eq!((down.health, down.epoch), (Health::Down, Some(7)));
    }

    #[test]
    fn a_node_that_does_not_say_is_unknown() {
        let refused = "-NOPERM this user has no permissions to run the 'cluster|info' command\r\n";
        for reply in [
            refused,
            "$-1\r\n",
            "$0\r\n\r\n",
            "*0\r\n",
            ":7\r\n",
            "+x:y\r\n",
        ] {
            assert_eq!(read(reply), ClusterInfo::default(), "{reply}");
        }
        let odd = read("+cluster_current_epoch:many\r\n");
        assert_eq!(odd, ClusterInfo::default());
    }
}
