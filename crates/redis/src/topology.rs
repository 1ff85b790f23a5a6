//! The topology of a cluster: which node serves which slots. A primary with replicas, without a cluster, is one shard.
//!
//! Servers have two commands for it: `CLUSTER SLOTS` since 3.0, and `CLUSTER SHARDS` since 7.0, which
//! also tells the health of nodes. This module reads the replies to both, and does no I/O. See <https://redis.io/docs/latest/commands/cluster-slots/> and
//! <https://redis.io/docs/latest/commands/cluster-shards/>.

use std::{collections::HashMap, ops::RangeInclusive};

use thiserror::Error;

use crate::{
    endpoint::Endpoint,
    resp::{FromReply, Items, ServerError, View},
    slot::SLOTS,
};

/// Which node serves which slots, as one node told. Equal when the same nodes serve the same slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    shards: Vec<Shard>,
    /// The shard of each slot, or [`NO_SHARD`].
    owners: Box<[u16]>,
}

/// A primary, its replicas, and the slots that they serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The node that takes writes.
    pub primary: Endpoint,
    /// The nodes that have copies, sorted, without those that the server calls failed or loading.
    pub replicas: Vec<Endpoint>,
    /// The slots, in order and without overlap; at least one.
    pub ranges: Vec<RangeInclusive<u16>>,
}

/// Why a reply is no topology.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// The server refused to tell.
    #[error(transparent)]
    Refused(#[from] ServerError),
    /// The reply does not have the command's form.
    #[error("the reply is no cluster topology: {what}")]
    Malformed {
        /// What is wrong, in a few words.
        what: &'static str,
    },
    /// A slot belongs to two shards, or twice to one.
    #[error("the reply is no cluster topology: slot {slot} is there twice")]
    Overlap {
        /// The first such slot.
        slot: u16,
    },
}

/// Stands for "no shard".
const NO_SHARD: u16 = u16::MAX;

fn bad(what: &'static str) -> TopologyError {
    TopologyError::Malformed { what }
}

impl Topology {
    /// Reads the reply of the node `asked` to `CLUSTER SLOTS`. Leaves out a shard whose primary the node
    /// cannot name: its slots are uncovered.
    ///
    /// # Errors
    /// When the reply has another form.
    pub fn from_slots(reply: View<'_>, asked: &Endpoint) -> Result<Self, TopologyError> {
        let mut builder = Builder::default();
        for entry in array(reply, "CLUSTER SLOTS is no array")? {
            let mut entry = array(entry, "an entry of CLUSTER SLOTS is no array")?;
            let range = range(entry.next(), entry.next())?;
            let primary = entry.next().ok_or(bad("an entry has no node"))?;
            let primary = slots_node(primary, asked)?;
            let replicas = entry
                .filter_map(|node| slots_node(node, asked).transpose())
                .collect::<Result<_, _>>()?;
            if let Some(primary) = primary {
                builder.add(primary, replicas, &[range])?;
            }
        }
        Ok(builder.finish())
    }

    /// Reads the reply of the node `asked` to `CLUSTER SHARDS`, and takes the ports with TLS or those
    /// without. Leaves out a shard without slots, or without a primary that has such a port.
    ///
    /// # Errors
    /// When the reply has another form.
    pub fn from_shards(
        reply: View<'_>,
        asked: &Endpoint,
        tls: bool,
    ) -> Result<Self, TopologyError> {
        let mut builder = Builder::default();
        for shard in array(reply, "CLUSTER SHARDS is no array")? {
            let mut ranges = Vec::new();
            let mut nodes = Vec::new();
            for (name, value) in fields(shard)? {
                match name {
                    b"slots" => {
                        let mut bounds = array(value, "the slots of a shard are no array")?;
                        while let Some(first) = bounds.next() {
                            ranges.push(range(Some(first), bounds.next())?);
                        }
                    }
                    b"nodes" => {
                        for node in array(value, "the nodes of a shard are no array")? {
                            nodes.extend(ShardsNode::read(node, asked, tls)?);
                        }
                    }
                    _ => {}
                }
            }
            // The reply may still list a replaced primary.
            let primary = nodes
                .iter()
                .filter(|node| node.is_primary)
                .max_by_key(|node| node.is_online)
                .map(|node| node.endpoint.clone());
            let replicas = nodes
                .into_iter()
                .filter(|node| !node.is_primary && node.is_online)
                .map(|node| node.endpoint)
                .collect();
            if let Some(primary) = primary {
                builder.add(primary, replicas, &ranges)?;
            }
        }
        Ok(builder.finish())
    }

    /// One shard with all slots, as where one primary has all keys.
    pub(crate) fn of_one_shard(primary: Endpoint, replicas: Vec<Endpoint>) -> Self {
        let mut builder = Builder::default();
        let added = builder.add(primary, replicas, &[0..=SLOTS - 1]);
        added.expect("the only shard shares no slot");
        builder.finish()
    }

    /// All shards, by their first slots.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The index in [`Topology::shards`] of the shard that serves a slot.
    ///
    /// # Panics
    /// If `slot` is not below [`SLOTS`].
    #[inline]
    #[must_use]
    pub fn index_of(&self, slot: u16) -> Option<usize> {
        match self.owners[usize::from(slot)] {
            NO_SHARD => None,
            shard => Some(usize::from(shard)),
        }
    }

    /// The shard that serves a slot.
    ///
    /// # Panics
    /// If `slot` is not below [`SLOTS`].
    #[inline]
    #[must_use]
    pub fn shard_of(&self, slot: u16) -> Option<&Shard> {
        self.index_of(slot).map(|shard| &self.shards[shard])
    }

    /// Whether the same primaries serve the same slots, whatever their replicas are.
    pub(crate) fn has_same_primaries(&self, other: &Self) -> bool {
        let both = self.shards.iter().zip(&other.shards);
        self.shards.len() == other.shards.len()
            && both
                .into_iter()
                .all(|(one, other)| one.primary == other.primary && one.ranges == other.ranges)
    }

    /// How many slots no shard serves.
    #[must_use]
    pub fn uncovered(&self) -> usize {
        self.owners
            .iter()
            .filter(|shard| **shard == NO_SHARD)
            .count()
    }
}

/// Collects shards and brings them into one form.
struct Builder {
    shards: Vec<Shard>,
    by_primary: HashMap<Endpoint, u16>,
    owners: Box<[u16]>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            shards: Vec::new(),
            by_primary: HashMap::new(),
            owners: vec![NO_SHARD; usize::from(SLOTS)].into(),
        }
    }
}

impl Builder {
    /// Adds ranges of a primary, which may come several times: `CLUSTER SLOTS` has an entry for each
    /// range.
    fn add(
        &mut self,
        primary: Endpoint,
        replicas: Vec<Endpoint>,
        ranges: &[RangeInclusive<u16>],
    ) -> Result<(), TopologyError> {
        for range in ranges {
            let next = u16::try_from(self.shards.len()).expect("each shard has a slot");
            let number = *self.by_primary.entry(primary.clone()).or_insert(next);
            if number == next {
                self.shards.push(Shard {
                    primary: primary.clone(),
                    replicas: Vec::new(),
                    ranges: Vec::new(),
                });
            }
            for slot in range.clone() {
                let owner = &mut self.owners[usize::from(slot)];
                if *owner != NO_SHARD {
                    return Err(TopologyError::Overlap { slot });
                }
                *owner = number;
            }
        }
        if let Some(number) = self.by_primary.get(&primary) {
            let known = &mut self.shards[usize::from(*number)].replicas;
            known.extend(replicas);
            known.retain(|replica| *replica != primary);
        }
        Ok(())
    }

    fn finish(mut self) -> Topology {
        for (slot, owner) in (0..SLOTS).zip(&self.owners) {
            if *owner == NO_SHARD {
                continue;
            }
            let ranges = &mut self.shards[usize::from(*owner)].ranges;
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == slot => *last = *last.start()..=slot,
                _ => ranges.push(slot..=slot),
            }
        }
        self.shards.sort_by_key(|shard| *shard.ranges[0].start());
        for (number, shard) in (0..).zip(&mut self.shards) {
            shard.replicas.sort();
            shard.replicas.dedup();
            for range in &shard.ranges {
                let (first, last) = (usize::from(*range.start()), usize::from(*range.end()));
                self.owners[first..=last].fill(number);
            }
        }
        Topology {
            shards: self.shards,
            owners: self.owners,
        }
    }
}

fn array<'a>(view: View<'a>, otherwise: &'static str) -> Result<Items<'a>, TopologyError> {
    match view {
        View::Array(items) => Ok(items),
        View::Error(error) => Err(TopologyError::Refused(error.into())),
        _ => Err(bad(otherwise)),
    }
}

/// Names and values: a map in RESP3, an array of alternating names and values in RESP2.
pub(crate) fn fields<'a>(
    view: View<'a>,
) -> Result<impl Iterator<Item = (&'a [u8], View<'a>)>, TopologyError> {
    let mut flat = match view {
        View::Array(items) if items.len() % 2 == 0 => items,
        View::Map(pairs) => pairs.flat(),
        _ => return Err(bad("a shard or a node has no names and values")),
    };
    Ok(std::iter::from_fn(move || {
        let name = match flat.next()? {
            View::Bulk(name) | View::Simple(name) => name,
            _ => b"",
        };
        Some((name, flat.next()?))
    }))
}

fn range(
    first: Option<View<'_>>,
    last: Option<View<'_>>,
) -> Result<RangeInclusive<u16>, TopologyError> {
    let bound = |view: Option<View<'_>>| {
        view.and_then(|view| u16::from_reply(view).ok())
            .filter(|slot| *slot < SLOTS)
            .ok_or(bad("a bound of a range is no slot"))
    };
    let (first, last) = (bound(first)?, bound(last)?);
    match first <= last {
        true => Ok(first..=last),
        false => Err(bad("a range ends before it begins")),
    }
}

/// A host as servers name it. Null and an empty text both mean the node that was asked.
fn host<'a>(view: View<'a>) -> Result<&'a str, TopologyError> {
    match view {
        View::Null => Ok(""),
        View::Bulk(host) | View::Simple(host) => {
            std::str::from_utf8(host).map_err(|_| bad("a host is not UTF-8"))
        }
        _ => Err(bad("a host is no text")),
    }
}

/// The endpoint of a node. A node without a name, in a cluster that prefers names, says `?`, but may
/// have an IP address.
fn endpoint(host: &str, ip: &str, port: u16, asked: &Endpoint) -> Option<Endpoint> {
    let host = match host {
        "?" if !ip.is_empty() => ip,
        host => host,
    };
    Endpoint::announced(host, port, asked)
}

fn port(view: View<'_>) -> Result<u16, TopologyError> {
    u16::from_reply(view).map_err(|_| bad("a port is none"))
}

/// Reads `[host, port, id, [name, value, ...]]`; the id exists since 4.0, the names since 7.0.
fn slots_node(view: View<'_>, asked: &Endpoint) -> Result<Option<Endpoint>, TopologyError> {
    let mut node = array(view, "a node of CLUSTER SLOTS is no array")?;
    let (Some(name), Some(number)) = (node.next(), node.next()) else {
        return Err(bad("a node has no host and port"));
    };
    let mut ip = "";
    if let Some(more) = node.nth(1) {
        for (name, value) in fields(more)? {
            if name == b"ip" {
                ip = host(value)?;
            }
        }
    }
    Ok(endpoint(host(name)?, ip, port(number)?, asked))
}

struct ShardsNode {
    endpoint: Endpoint,
    is_primary: bool,
    is_online: bool,
}

impl ShardsNode {
    /// Reads a node; `None` when it has no port with TLS, or without, as `tls` says.
    fn read(view: View<'_>, asked: &Endpoint, tls: bool) -> Result<Option<Self>, TopologyError> {
        let wanted_port: &[u8] = match tls {
            true => b"tls-port",
            false => b"port",
        };
        let (mut name, mut ip, mut number) = (None, "", 0);
        let (mut is_primary, mut is_online) = (false, true);
        for (field, value) in fields(view)? {
            match field {
                b"endpoint" => name = Some(host(value)?),
                b"ip" => ip = host(value)?,
                b"role" => is_primary = matches!(value, View::Bulk(b"master" | b"primary")),
                b"health" => is_online = matches!(value, View::Bulk(b"online")),
                field if field == wanted_port => number = port(value)?,
                _ => {}
            }
        }
        let name = name.ok_or(bad("a node has no endpoint"))?;
        Ok(endpoint(name, ip, number, asked).map(|endpoint| Self {
            endpoint,
            is_primary,
            is_online,
        }))
    }
}

#[cfg(test)]
mod tests;
