//! Methods of the client that read, set, delete or find keys of many slots, and so of several
//! nodes.

use std::collections::VecDeque;
use std::fmt;

use crate::client::Client;
use crate::cmd::cmd;
use crate::command::{Command, Key, Route};
use crate::commands::keys::KeyCommands;
use crate::commands::strings::StringCommands;
use crate::error::Error;
use crate::resp::{Arg, FromReply};

impl Client {
    /// Finds all keys of all primaries, or those that match `pattern`. See [`Scan`].
    pub fn scan(&self, pattern: Option<&str>) -> Scan<'_> {
        Scan {
            client: self,
            pattern: pattern.map(str::to_owned),
            count: None,
            nodes: None,
            cursor: 0,
            found: VecDeque::new(),
        }
    }

    /// The values of keys of any slots, in their order: a `GET` for each, sent together. Unlike
    /// `MGET` they are not read at one instant.
    ///
    /// # Errors
    /// The first one of any of them.
    pub async fn get_all<R: FromReply, K: Key>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<R>, Error> {
        let mut pipeline = self.pipeline();
        let result_keys: Vec<_> = keys
            .into_iter()
            .map(|key| pipeline.get::<R, K>(key))
            .collect();
        let results = pipeline.run().await;
        result_keys
            .into_iter()
            .map(|key| results.take(key))
            .collect()
    }

    /// Sets keys of any slots: a `SET` for each, sent together. Unlike with `MSET`, others may see
    /// some of them set and others not yet.
    ///
    /// # Errors
    /// The first one of any of them; others may have been set.
    pub async fn set_all<K: Key, V: Arg>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), Error> {
        let mut pipeline = self.pipeline();
        let pairs = pairs.into_iter();
        let result_keys: Vec<_> = pairs.map(|(key, value)| pipeline.set(key, value)).collect();
        let results = pipeline.run().await;
        result_keys
            .into_iter()
            .try_for_each(|key| results.take(key))
    }

    /// Deletes keys of any slots: a `DEL` for each, sent together. How many there were.
    ///
    /// # Errors
    /// The first one of any of them; others may have been deleted.
    pub async fn del_all<K: Key>(&self, keys: impl IntoIterator<Item = K>) -> Result<u64, Error> {
        let mut pipeline = self.pipeline();
        let result_keys: Vec<_> = keys.into_iter().map(|key| pipeline.del(key)).collect();
        let results = pipeline.run().await;
        let mut count = 0;
        for key in result_keys {
            count += results.take(key)?;
        }
        Ok(count)
    }
}

/// Iterates over the keys of all primaries, one node after the other.
///
/// As `SCAN` on one server, it finds every key that exists all the time, some perhaps more than once,
/// and may find keys that come or go meanwhile. It may miss keys of slots that move to another node
/// meanwhile.
#[must_use = "only `next` and `collect` scan"]
pub struct Scan<'c> {
    client: &'c Client,
    pattern: Option<String>,
    count: Option<u32>,
    /// One slot of each node that is still to be scanned.
    nodes: Option<Vec<u16>>,
    cursor: u64,
    found: VecDeque<Vec<u8>>,
}

impl Scan<'_> {
    /// About how many keys a server looks at in one step. More is faster, and delays other clients
    /// longer.
    pub fn count(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }

    /// The next key; `None` at the end.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some(key) = self.found.pop_front() {
                return Ok(Some(key));
            }
            let client = self.client;
            let nodes = self
                .nodes
                .get_or_insert_with(|| client.router.slot_of_each_primary());
            let Some(&slot) = nodes.last() else {
                return Ok(None);
            };
            let mut scan = cmd("SCAN").arg(self.cursor);
            if let Some(pattern) = &self.pattern {
                scan = scan.arg("MATCH").arg(pattern);
            }
            if let Some(count) = self.count {
                scan = scan.arg("COUNT").arg(count);
            }
            let scan = scan.to(Route::Slot(slot));
            debug_assert_eq!(scan.replies(), 1);
            let (cursor, keys): (u64, Vec<Vec<u8>>) = client.send(scan).await?;
            self.found.extend(keys);
            self.cursor = cursor;
            if cursor == 0 {
                nodes.pop();
            }
        }
    }

    /// All keys that are left.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn collect(mut self) -> Result<Vec<Vec<u8>>, Error> {
        let mut keys = Vec::new();
        while let Some(key) = self.next().await? {
            keys.push(key);
        }
        Ok(keys)
    }
}

impl fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.nodes.as_ref().map(Vec::len);
        write!(f, "Scan({left:?} nodes left, cursor {})", self.cursor)
    }
}
