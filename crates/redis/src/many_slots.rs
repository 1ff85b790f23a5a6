//! Methods of the client that read, set or delete keys of many slots, and so of several nodes.

use crate::client::Client;
use crate::command::Key;
use crate::commands::keys::KeyCommands;
use crate::commands::strings::StringCommands;
use crate::error::Error;
use crate::resp::{Arg, FromReply};

impl Client {
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
