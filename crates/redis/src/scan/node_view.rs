//! What a node says of itself in `CLUSTER NODES`: which slots it has, and which of them are moving:
//! <https://redis.io/docs/latest/commands/cluster-nodes/>.

use std::collections::BTreeMap;

use super::slot_set::SlotSet;
use crate::endpoint::Endpoint;
use crate::slot::SLOTS;

/// A node, as it sees itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeView {
    /// The cluster's name of it.
    pub id: String,
    /// The slots that it serves as a primary.
    pub owned: SlotSet,
    /// Those of them that it is giving to another node, and which.
    pub migrating: BTreeMap<u16, Peer>,
    /// Slots of others that it is taking over, and the names of their nodes.
    pub importing: BTreeMap<u16, String>,
    /// How many nodes it knows.
    pub nodes: u32,
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub id: String,
    /// Where it listens: its IP address and, if it has one, its name.
    pub addresses: Vec<Endpoint>,
}

impl NodeView {
    /// A server without a cluster: it has all keys.
    pub fn standalone() -> Self {
        Self {
            id: String::new(),
            owned: SlotSet::all(),
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            nodes: 1,
        }
    }

    /// Reads the reply to `CLUSTER NODES`. `None` if it has another form.
    pub fn read(text: &str) -> Option<Self> {
        let lines = || text.lines().filter(|line| !line.is_empty());
        let is_self = |line: &&str| {
            let flags = line.split(' ').nth(2).unwrap_or_default();
            flags.split(',').any(|flag| flag == "myself")
        };
        let mut words = lines().find(is_self)?.split(' ');
        let id = words.next()?.to_owned();
        let is_primary = words.nth(1)?.split(',').any(|flag| flag == "master");
        let mut view = Self {
            id,
            owned: SlotSet::empty(),
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            nodes: u32::try_from(lines().count()).unwrap_or(u32::MAX),
        };
        // Behind the flags: its primary, two times, the epoch and the state of the link.
        for word in words.skip(5) {
            match word.strip_prefix('[') {
                Some(moving) => view.add_moving(moving.strip_suffix(']')?, text)?,
                None if is_primary => view.add_owned(word)?,
                None => {}
            }
        }
        Some(view)
    }

    /// `7` or `7-9`
    fn add_owned(&mut self, word: &str) -> Option<()> {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last) = (first.parse().ok()?, read_slot(last)?);
        for slot in first..=last {
            self.owned.insert(slot);
        }
        Some(())
    }

    /// `7->-node` or `7-<-node`
    fn add_moving(&mut self, word: &str, text: &str) -> Option<()> {
        if let Some((slot, to)) = word.split_once("->-") {
            let peer = Peer {
                id: to.to_owned(),
                addresses: addresses(text, to),
            };
            self.migrating.insert(read_slot(slot)?, peer);
        } else {
            let (slot, from) = word.split_once("-<-")?;
            self.importing.insert(read_slot(slot)?, from.to_owned());
        }
        Some(())
    }
}

fn read_slot(text: &str) -> Option<u16> {
    text.parse().ok().filter(|slot| *slot < SLOTS)
}

/// Where a node listens, as another one knows: `ip:port@bus-port[,name[,...]]`. Empty if that one does not know.
fn addresses(text: &str, id: &str) -> Vec<Endpoint> {
    let mut words = text.lines().map(|line| line.split(' '));
    let found = words.find_map(|mut words| (words.next() == Some(id)).then(|| words.next())?);
    let read = |address: &str| {
        let mut parts = address.split(',');
        let (ip, port) = parts.next()?.split('@').next()?.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let hosts = [Some(ip), parts.next()].into_iter().flatten();
        let hosts = hosts.filter(|host| !host.is_empty());
        Some(hosts.map(|host| Endpoint::tcp(host, port)).collect())
    };
    found.and_then(read).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
bb 10.0.0.2:7001@17001,b.example master - 0 1 2 connected 100-200\n\
aa 10.0.0.1:7000@17000 myself,master - 0 0 7 connected 0-2 9 [9->-bb] [150-<-bb] [1->-zz]\n\
cc 10.0.0.3:7002@17002 slave aa 0 1 7 connected\n";

    #[test]
    fn a_primary_says_what_it_has_and_what_moves() {
        let view = NodeView::read(TEXT).expect("it is well formed");
        assert_eq!((view.id.as_str(), view.nodes), ("aa", 3));
        assert_eq!(view.owned.from(0).collect::<Vec<_>>(), [0, 1, 2, 9]);
        let bb = ["10.0.0.2", "b.example"].map(|host| Endpoint::tcp(host, 7001));
        assert_eq!(view.migrating[&9].id, "bb");
        assert_eq!(view.migrating[&9].addresses, bb);
        assert_eq!(
            view.migrating[&1].addresses,
            [],
            "it does not know that one"
        );
        assert_eq!(view.importing[&150], "bb");
    }

    #[test]
    fn a_replica_serves_nothing() {
        let text = TEXT
            .replace("myself,", "")
            .replace(" slave", " myself,slave");
        let view = NodeView::read(&text).expect("it is well formed");
        assert_eq!(view.id, "cc");
        assert!(view.owned.is_empty());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "aa 10.0.0.1:7000@17000 master - 0 0 7 connected 0-2",
            "aa 10.0.0.1:7000@17000 myself,master - 0 0 7 connected 0-16384",
            "aa 10.0.0.1:7000@17000 myself,master - 0 0 7 connected [x->-bb]",
            "aa 10.0.0.1:7000@17000 myself,master - 0 0 7 connected [7->-bb",
            "aa 10.0.0.1:7000@17000 myself,master - 0 0 7 connected [7?bb]",
        ] {
            assert_eq!(NodeView::read(text), None, "{text}");
        }
    }
}
