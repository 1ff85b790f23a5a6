//! The Redis Cluster as one of its nodes sees it: parses the reply to `CLUSTER NODES`
//! (<https://redis.io/docs/latest/commands/cluster-nodes/>).

use crate::error::CommandError;
use crate::server::Server;
use std::ops::RangeInclusive;

/// The cluster as one node sees it.
pub struct View {
    /// All nodes that it knows, itself included.
    pub nodes: Vec<Node>,
}

/// A node as another one sees it.
#[derive(Debug, PartialEq)]
pub struct Node {
    /// 40 hexadecimal digits, which Redis calls the node's name.
    pub id: String,
    /// Words like `myself`, `master`, `fail?`, `handshake`.
    pub flags: Vec<String>,
    /// The name of its master, if it is a replica.
    pub master: Option<String>,
    /// Its configuration epoch: where two nodes claim a slot, the one with the higher epoch owns it.
    pub epoch: u64,
    /// Whether the node that was asked has a connection to this one.
    pub is_linked: bool,
    /// Its slots.
    pub slots: Vec<RangeInclusive<u16>>,
}

/// The cluster as this node sees it.
pub fn view(node: &Server) -> Result<View, CommandError> {
    let text = node.command(&["CLUSTER", "NODES"])?;
    let malformed = |line: &str| CommandError::Malformed(format!("CLUSTER NODES: {line:?}"));
    let node = |line| parse(line).ok_or_else(|| malformed(line));
    Ok(View {
        nodes: text.lines().map(node).collect::<Result<_, _>>()?,
    })
}

impl View {
    /// The node with a name.
    pub fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The node that was asked.
    pub fn myself(&self) -> Result<&Node, CommandError> {
        let myself = self.nodes.iter().find(|node| node.is("myself"));
        myself.ok_or_else(|| CommandError::Malformed("CLUSTER NODES without `myself`".to_owned()))
    }

    /// Whether the asked node has met this one, and has a link to it.
    pub fn knows(&self, id: &str) -> bool {
        let well = |node: &Node| node.is("myself") || (node.is_linked && !node.is_in_doubt());
        self.node(id).is_some_and(well)
    }
}

impl Node {
    /// Whether it has this flag.
    pub fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|is| is == flag)
    }

    /// Whether it is new or may have failed.
    pub fn is_in_doubt(&self) -> bool {
        ["handshake", "noaddr", "fail", "fail?"]
            .iter()
            .any(|flag| self.is(flag))
    }

    /// Whether it has a slot.
    pub fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|slots| slots.contains(&slot))
    }
}

/// `<id> <address> <flags> <master> <ping> <pong> <epoch> <link> <slots> ...`
fn parse(line: &str) -> Option<Node> {
    let mut words = line.split(' ');
    let mut word = || words.next().filter(|word| !word.is_empty());
    let id = word()?.to_owned();
    let _address = word()?;
    let flags = word()?.split(',').map(str::to_owned).collect();
    let master = Some(word()?).filter(|master| *master != "-");
    let (_ping, _pong) = (word()?, word()?);
    let epoch = word()?.parse().ok()?;
    let is_linked = word()? == "connected";
    // Brackets mark moving slots, which the line of their owner has as well.
    let slots = words.filter(|word| !word.starts_with('['));
    Some(Node {
        id,
        flags,
        master: master.map(str::to_owned),
        epoch,
        is_linked,
        slots: slots.map(range).collect::<Option<_>>()?,
    })
}

/// `7` or `7-9`
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::{Node, parse};

    #[test]
    fn lines_of_masters_and_replicas_are_read() {
        let master =
            "aa 127.0.0.1:7000@17000,host myself,master - 0 0 3 connected 0-9 12 [12->-bb]";
        let master = parse(master).unwrap();
        assert!(master.has(9) && master.has(12) && !master.has(11));
        assert!(master.is("myself") && !master.is("slave") && master.is_linked);
        let replica = parse("bb 127.0.0.1:7001@17001 slave,fail? aa 0 0 3 disconnected").unwrap();
        let expected = Node {
            id: "bb".into(),
            flags: vec!["slave".into(), "fail?".into()],
            master: Some("aa".into()),
            epoch: 3,
            is_linked: false,
            slots: vec![],
        };
        assert_eq!(replica, expected);
        assert!(replica.is_in_doubt());
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            "",
            "aa",
            "aa x master - 0 0 x connected",
            "aa x master - 0 0 1 connected 1-x",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
