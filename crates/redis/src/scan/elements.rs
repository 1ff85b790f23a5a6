//! Iterators over the elements of one hash, set or sorted set.

use std::collections::VecDeque;
use std::fmt;

use super::passes::MAX_VAIN;
use super::process::Process;
use crate::client::Client;
use crate::cmd::Cmd;
use crate::command::{Class, Key, Route};
use crate::error::Error;
use crate::resp::FromReply;

impl Client {
    /// Iterates over the fields of a hash and their values (`HSCAN`).
    pub fn scan_hash<F: FromReply, V: FromReply>(&self, key: impl Key) -> ElementScan<'_, (F, V)> {
        ElementScan::new(self, "HSCAN", key.as_ref())
    }

    /// Iterates over the members of a set (`SSCAN`).
    pub fn scan_set<M: FromReply>(&self, key: impl Key) -> ElementScan<'_, M> {
        ElementScan::new(self, "SSCAN", key.as_ref())
    }

    /// Iterates over the members of a sorted set and their scores (`ZSCAN`).
    pub fn scan_sorted_set<M: FromReply>(&self, key: impl Key) -> ElementScan<'_, (M, f64)> {
        ElementScan::new(self, "ZSCAN", key.as_ref())
    }
}

/// Iterates over the elements of a hash, a set or a sorted set, piece by piece.
///
/// It finds each element that is there all the time, some perhaps more than once, and may find elements
/// that come or go meanwhile. A key that is not there has none.
///
/// It begins anew when another server process answers, as when the key's slot has moved, a replica has taken
/// over, or the server was restarted: the cursor of one means nothing to another. After 16 such beginnings
/// `next` fails with [`Error::Unavailable`]; it may be called again.
#[must_use = "only `next` and `collect` scan"]
pub struct ElementScan<'c, T> {
    client: &'c Client,
    command: &'static str,
    key: Vec<u8>,
    pattern: Option<String>,
    count: Option<u32>,
    /// `None` at the end.
    cursor: Option<u64>,
    /// Who answered so far. `None`: nobody, or there was only one step.
    process: Option<Process>,
    /// How often it began anew since the caller heard of it.
    restarts: u32,
    found: VecDeque<T>,
}

impl<'c, T: FromReply> ElementScan<'c, T> {
    fn new(client: &'c Client, command: &'static str, key: &[u8]) -> Self {
        Self {
            client,
            command,
            key: key.to_vec(),
            pattern: None,
            count: None,
            cursor: Some(0),
            process: None,
            restarts: 0,
            found: VecDeque::new(),
        }
    }

    /// Only fields or members that match this pattern.
    pub fn pattern(mut self, pattern: &str) -> Self {
        self.pattern = Some(pattern.to_owned());
        self
    }

    /// About how many elements the server looks at in one step; by default 10. More is faster, and delays other clients
    /// longer.
    pub fn count(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }

    /// The next element; `None` at the end.
    ///
    /// # Errors
    /// When the server does not answer in time, or refuses; when another process answers again and again. After an error it goes
    /// on where it was if this is called again.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(element) = self.found.pop_front() {
                return Ok(Some(element));
            }
            let Some(cursor) = self.cursor else {
                return Ok(None);
            };
            self.step(cursor).await?;
        }
    }

    /// All elements that are left.
    ///
    /// # Errors
    /// As [`ElementScan::next`].
    pub async fn collect(mut self) -> Result<Vec<T>, Error> {
        let mut elements = Vec::new();
        while let Some(element) = self.next().await? {
            elements.push(element);
        }
        Ok(elements)
    }

    async fn step(&mut self, cursor: u64) -> Result<(), Error> {
        let client = self.client;
        let scan = Cmd::read(self.command).key(&self.key).arg(cursor);
        let scan = scan.option("MATCH", self.pattern.as_deref());
        let mut request = client.send::<_, (u64, Vec<T>)>(scan.option("COUNT", self.count));
        let (next, elements) = (&mut request).await?;
        let call = request.into_answered().ok_or(Error::Closed)?;
        let asked = (Route::of(&self.key), Class::Read);
        if let Some(process) = &mut self.process {
            if !process.has_answered(client, asked, call).await? {
                self.process = None;
                self.cursor = Some(0);
                return self.begins_anew();
            }
        } else if next != 0 {
            self.process = Some(Process::of(client, asked, call).await?);
        }
        self.found.extend(elements);
        self.cursor = Some(next).filter(|next| *next != 0);
        Ok(())
    }

    fn begins_anew(&mut self) -> Result<(), Error> {
        self.restarts += 1;
        if self.restarts < MAX_VAIN {
            return Ok(());
        }
        self.restarts = 0;
        Err(Error::Unavailable {
            why: "another server process answered again and again, and each counts from the beginning"
                .to_owned(),
        })
    }
}

impl<T> fmt::Debug for ElementScan<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (command, key) = (self.command, self.key.escape_ascii());
        write!(f, "ElementScan({command} of {key})")
    }
}
