//! What must hold after every step, looked at on the devices themselves.

use std::collections::BTreeMap;

use embar_fabric::Region;
use embar_fabric::geometry::topic_record_of;
use embar_memory::Simulated;
use embar_memory::canary::without_canary;
use embar_order::follower::Found;
use embar_order::leadership::Term;
use embar_order::{Follower, Leadership};

use super::bytes::is_batch;
use super::env;
use super::oracle::BatchId;

/// Steps between looks at all of the order, and not only what is new.
const ALL_EVERY: u64 = 32;

/// Reads the order from the devices, and compares it with what the oracle knows.
pub struct Checker {
    region: Region<Simulated>,
    followers: BTreeMap<u32, Follower<Simulated>>,
}

impl Checker {
    pub fn new(region: Region<Simulated>) -> Self {
        Self {
            region,
            followers: BTreeMap::new(),
        }
    }

    pub fn step(&mut self) {
        let Some(term) = Leadership::observe(&self.region).term else {
            return;
        };
        let chains = env::chains();
        self.followers.retain(|chain, _| chains.contains_key(chain));
        for chain in chains.keys() {
            let region = &self.region;
            let follower = self.followers.entry(*chain);
            let follower = follower.or_insert_with(|| Follower::new(region, *chain, 0));
            read(*chain, term, follower);
        }
        if env::oracle(|_, step| step.is_multiple_of(ALL_EVERY)) {
            self.all();
        }
    }

    /// All that is kept is where it was, and points to its bytes.
    pub fn all(&mut self) {
        let Some(term) = Leadership::observe(&self.region).term else {
            return;
        };
        for (chain, end) in env::chains() {
            let first = self.first(term, chain);
            let mut follower = Follower::new(&self.region, chain, first);
            read(chain, term, &mut follower);
            let next = follower.next();
            assert!(
                next >= end || term_knows_less(&follower, term, end),
                "positions {next}..{end} of chain {chain} are lost in {term:?}, first is {first}"
            );
            self.bytes(chain, first);
        }
        env::oracle(|oracle, _| oracle.are_in_order());
    }

    /// The first position of a chain that is kept.
    fn first(&self, term: Term, chain: u32) -> u64 {
        let rows = self.region.geometry().data_rows();
        let windows =
            rows.filter_map(|row| self.region.window(row, topic_record_of(chain)).found());
        let windows = windows.filter(|window| window.chain == chain);
        let first = windows.map(|window| window.first).max().unwrap_or(0);
        let root = self
            .region
            .goi_root(term.area, topic_record_of(chain))
            .found();
        let root = root.filter(|root| root.chain == chain);
        root.map_or(first, |root| first.max(root.first))
    }

    fn bytes(&self, chain: u32, first: u64) {
        env::oracle(|oracle, _| {
            let Some(order) = oracle.chains.get(&chain) else {
                return;
            };
            for record in order.records.range(first..).map(|(_, record)| record) {
                let foreign = self
                    .region
                    .foreign(record.row.into(), record.payload_at, record.len);
                let foreign = foreign.expect("a batch lies in its broker's file");
                let mut bytes = vec![0; foreign.len()];
                foreign.copy_to(0, &mut bytes);
                assert!(
                    is_batch(chain, record, &bytes),
                    "{record:?} points to other bytes, first is {first}"
                );
            }
        });
    }
}

/// A term that has not ordered anything of a chain yet, of which nothing was left to it either.
fn term_knows_less(follower: &Follower<Simulated>, term: Term, end: u64) -> bool {
    follower.start_of(term).is_none() && end == 0
}

/// A broker says that a batch is in the order already: the devices must show it.
pub fn is_placed(chain: u32, batch_id: BatchId) {
    without_canary(|| {
        if !env::chains().contains_key(&chain) || may_be_placed(chain, batch_id) {
            return;
        }
        let region = env::raw();
        let Some(term) = Leadership::observe(&region).term else {
            return;
        };
        read(chain, term, &mut Follower::new(&region, chain, 0));
        assert!(
            may_be_placed(chain, batch_id),
            "{batch_id:?} of {chain} is told to be placed already, and is not there"
        );
    });
}

fn may_be_placed(chain: u32, batch_id: BatchId) -> bool {
    env::oracle(|oracle, _| oracle.may_be_placed(chain, batch_id))
}

/// Reads on in a chain, as the devices have it.
fn read(chain: u32, term: Term, follower: &mut Follower<Simulated>) {
    let mut records = Vec::new();
    loop {
        let found = follower.read(term, usize::MAX >> 1, &mut records);
        for record in records.drain(..) {
            env::record_seen("the devices", chain, &record);
        }
        match found {
            Found::Gone { first } => {
                assert!(first > follower.next(), "it goes on where it is: {first}");
                follower.seek(first);
                env::oracle(|oracle, _| oracle.reaches(chain, first));
            }
            Found::End | Found::More => return,
        }
    }
}
