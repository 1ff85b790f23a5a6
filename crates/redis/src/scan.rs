//! Iterators over keys, and over the elements of one key, that servers tell piece by piece.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use embar_mux::Call;

use crate::client::Client;
use crate::cmd::{Cmd, cmd};
use crate::command::{Class, Route};
use crate::config::Mode;
use crate::engine::{after, sleep_until};
use crate::error::Error;
use crate::slot::{SLOTS, slot};
use node_view::NodeView;
use passes::{MAX_VAIN, Passes, Progress, Target};
use process::Process;
use slot_set::SlotSet;

mod elements;
mod node_view;
mod passes;
mod process;
mod slot_set;

pub use elements::ElementScan;

/// What Redis takes for `COUNT` by default.
const DEFAULT_COUNT: u32 = 10;

/// How long to wait between two looks whether the topology was read.
const TOPOLOGY_LOOK: Duration = Duration::from_millis(20);

impl Client {
    /// Finds all keys of all primaries, or those that match `pattern`. See [`Scan`].
    pub fn scan(&self, pattern: Option<&str>) -> Scan<'_> {
        let slots = match (self.config().mode, pattern.and_then(slot_of_pattern)) {
            (Mode::Cluster, Some(slot)) => SlotSet::only(slot),
            _ => SlotSet::all(),
        };
        Scan {
            client: self,
            pattern: pattern.map(str::to_owned),
            count: None,
            passes: Passes::new(slots),
            process: None,
            nodes: 1,
            found: VecDeque::new(),
        }
    }
}

/// Iterates over the keys of all primaries, one node after the other.
///
/// It promises what Redis promises of `SCAN` on one server, also while slots move, replicas take over and
/// servers restart: it finds each key that exists all the time, some perhaps more than once, and
/// may find keys that come or go meanwhile. What a primary had not passed on when its replica took over did
/// not exist all the time.
///
/// # In a cluster
/// Each step asks the node in the same transaction which slots it has (`MULTI`, `CLUSTER NODES`, `SCAN`, `EXEC`, which
/// the user must be allowed). The slots that a node had from its first step to its last are done;
/// other slots are scanned at the node that has them by then. So a slot that moves costs a further scan of the
/// node to which it moves, of which only keys of such slots are reported. Of a slot that is half
/// on its way both nodes are scanned. If 16 scans of nodes in a row bring no slot to an end, as
/// where a cluster moves its slots to and fro all the time, `next` fails with [`Error::Unavailable`]; it may be called again.
///
/// A scan of a node begins anew when another process answers: its replica has taken over, or it was restarted. After
/// its connection broke, it goes on if the server says that it is the same process (`INFO`); for
/// a user who may not ask it that, it begins anew.
///
/// It takes 10 KiB and the keys of one step, and remembers no keys. A pattern whose matches all have one slot by their
/// hash tag (`{user7}*`) is looked for only at the node of that slot; Redis since 7.4 and Valkey since 8.0 look at no keys of
/// other slots then. Replicas are not asked, whatever [`read_from`](crate::Config::read_from) says.
#[must_use = "only `next` and `collect` scan"]
pub struct Scan<'c> {
    client: &'c Client,
    pattern: Option<String>,
    count: Option<u32>,
    passes: Passes,
    /// Who answered the running pass. `None`: there was no more than one step.
    process: Option<Process>,
    /// How many nodes the cluster has, as far as is known.
    nodes: u32,
    found: VecDeque<Vec<u8>>,
}

/// A server's answer to a step.
struct Page {
    view: NodeView,
    cursor: u64,
    keys: Vec<Vec<u8>>,
    call: Call,
}

impl Scan<'_> {
    /// About how many keys a server looks at in one step. More is faster, and delays other clients
    /// longer. By default 10; in a cluster of more nodes at least as many as it has, as a node takes about as long to tell which
    /// slots each of them has.
    pub fn count(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }

    /// The next key; `None` at the end.
    ///
    /// # Errors
    /// When a node does not answer in time, or refuses; when slots do not come to rest. After an error the scan goes on where it
    /// was if this is called again.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some(key) = self.found.pop_front() {
                return Ok(Some(key));
            }
            if self.passes.is_over() {
                return Ok(None);
            }
            self.step().await?;
        }
    }

    /// All keys that are left.
    ///
    /// # Errors
    /// As [`Scan::next`].
    pub async fn collect(mut self) -> Result<Vec<Vec<u8>>, Error> {
        let mut keys = Vec::new();
        while let Some(key) = self.next().await? {
            keys.push(key);
        }
        Ok(keys)
    }

    /// Asks a node for some more keys.
    async fn step(&mut self) -> Result<(), Error> {
        let client = self.client;
        let has_node = |slot| client.router.primary_of(slot).is_some();
        let Some((target, cursor)) = self.passes.next(has_node) else {
            return self.find_nodes().await;
        };
        let Some(route) = self.route(&target) else {
            let progress = self.passes.abandon();
            return self.follow(progress).await;
        };
        let page = match self.ask(route, cursor).await {
            Ok(page) => page,
            // The node to which a slot moved has gone again, and its routes with it.
            Err(Error::Unavailable { .. }) if matches!(target, Target::Importer(..)) => {
                let progress = self.passes.abandon();
                return self.follow(progress).await;
            }
            Err(error) => return Err(error),
        };
        let asked = (route, Class::Write);
        let is_same = match (&mut self.process, self.passes.has_begun()) {
            (Some(process), true) => process.has_answered(client, asked, page.call).await?,
            // The first step. Where one is enough, nobody needs to know who answered.
            _ if page.cursor == 0 => {
                self.process = None;
                true
            }
            _ => {
                self.process = Some(Process::of(client, asked, page.call).await?);
                true
            }
        };
        self.nodes = page.view.nodes;
        let passes = &mut self.passes;
        let wanted = page.keys.into_iter().filter(|key| passes.wants(slot(key)));
        self.found.extend(wanted);
        let progress = match is_same {
            true => self.passes.answered(&page.view, page.cursor),
            false => self.passes.restart(),
        };
        self.follow(progress).await
    }

    /// Sends a step to the node.
    async fn ask(&self, route: Route, cursor: u64) -> Result<Page, Error> {
        let scan = self.command(cursor).to(route);
        if self.client.config().mode != Mode::Cluster {
            let mut request = self.client.send::<_, (u64, Vec<Vec<u8>>)>(scan);
            let (cursor, keys) = (&mut request).await?;
            let call = request.into_answered().ok_or(Error::Closed)?;
            let view = NodeView::standalone();
            return Ok(Page {
                view,
                cursor,
                keys,
                call,
            });
        }
        let mut both = self.client.transaction();
        let nodes = both.add::<_, String>(&Cmd::write("CLUSTER").arg("NODES").to(route));
        let page = both.add::<_, (u64, Vec<Vec<u8>>)>(&scan);
        let (results, call) = both.run_repeatable().await?;
        let view = NodeView::read(&results.take(nodes)?);
        let view = view.ok_or_else(|| Error::Unavailable {
            why: "the node's answer to CLUSTER NODES is malformed".to_owned(),
        })?;
        let (cursor, keys) = results.take(page)?;
        Ok(Page {
            view,
            cursor,
            keys,
            call,
        })
    }

    fn command(&self, cursor: u64) -> Cmd {
        let mut scan = cmd("SCAN").arg(cursor);
        if let Some(pattern) = &self.pattern {
            scan = scan.arg("MATCH").arg(pattern);
        }
        let count = self.count.unwrap_or(DEFAULT_COUNT).max(self.nodes);
        match count {
            DEFAULT_COUNT => scan,
            count => scan.arg("COUNT").arg(count),
        }
    }

    /// How to reach a node; `None` if nobody knows where it is.
    fn route(&self, target: &Target) -> Option<Route> {
        match target {
            Target::Owner(_) if self.client.config().mode != Mode::Cluster => Some(Route::Any),
            Target::Owner(slot) => Some(Route::Slot(*slot)),
            Target::Importer(_, peer) => {
                let node = self.client.router.node_at(&peer.addresses)?;
                Some(Route::Node(node))
            }
        }
    }

    /// After a pass that brought nothing, the topology is read again, and time passes.
    async fn follow(&mut self, progress: Progress) -> Result<(), Error> {
        if progress != Progress::Vain {
            return Ok(());
        }
        if self.passes.give_up() {
            let (left, first) = (self.passes.slots_left(), self.passes.first_left());
            let why = match self.client.config().mode {
                Mode::Standalone | Mode::Replicated | Mode::Sentinel => {
                    "the server was another one again and again".to_owned()
                }
                Mode::Cluster => format!(
                    "{MAX_VAIN} scans of nodes in a row found no slot that stayed where it was, and {left} slots are left, \
                     slot {} among them; go on when the cluster is at rest",
                    first.unwrap_or_default()
                ),
            };
            return Err(Error::Unavailable { why });
        }
        let shared = &self.client.router.shared;
        shared.schedule.request_refresh();
        let pause = shared.config.retries.backoff(self.passes.vain());
        self.pause(pause).await;
        Ok(())
    }

    /// No slot that is left has a node: reads the topology again. If that says the same, the scan is over.
    async fn find_nodes(&mut self) -> Result<(), Error> {
        let router = &self.client.router;
        let deadline = after(router.shared.config.timeout);
        let known = router.generation();
        router.shared.schedule.request_refresh();
        while router.generation() == known {
            if Instant::now() >= deadline {
                let slot = self.passes.first_left().unwrap_or(SLOTS - 1);
                let why = router.why_no_node(Route::Slot(slot)).into_owned();
                return Err(Error::Unavailable { why });
            }
            self.pause(TOPOLOGY_LOOK).await;
        }
        if self
            .passes
            .next(|slot| router.primary_of(slot).is_some())
            .is_none()
        {
            self.passes.end();
        }
        Ok(())
    }

    async fn pause(&self, pause: Duration) {
        sleep_until(&self.client.router.shared.schedule, after(pause)).await;
    }
}

/// The slot of all keys that match a pattern, if its hash tag says so.
fn slot_of_pattern(pattern: &str) -> Option<u16> {
    let bytes = pattern.as_bytes();
    let literal = bytes
        .iter()
        .position(|byte| b"*?[\\".contains(byte))
        .unwrap_or(bytes.len());
    let open = bytes[..literal].iter().position(|byte| *byte == b'{');
    let close = open.and_then(|open| {
        let behind = &bytes[open..literal];
        behind.iter().position(|byte| *byte == b'}')
    });
    // Of an empty tag, the whole key counts.
    let has_tag = close.is_some_and(|close| close > 1);
    (has_tag || literal == bytes.len()).then(|| slot(bytes))
}

impl fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scan({} slots left)", self.passes.slots_left())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_tag_before_any_wildcard_gives_the_slot() {
        for (pattern, key) in [
            ("{a}*", "a"),
            ("x{a}*{b}?", "a"),
            ("{a}", "a"),
            ("key", "key"),
            ("{}key", "{}key"),
        ] {
            let wanted = slot(key.as_bytes());
            assert_eq!(slot_of_pattern(pattern), Some(wanted), "{pattern}");
        }
        for pattern in ["*", "*{a}", "{a*}", "{}*", "{}{a}*", "{a", "k?y", "\\{a}"] {
            let known = pattern == "{a";
            assert_eq!(slot_of_pattern(pattern).is_some(), known, "{pattern}");
        }
    }
}
