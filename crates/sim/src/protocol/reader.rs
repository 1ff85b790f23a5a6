//! A reader of the order and the bytes, on a host of its own.

use std::collections::BTreeMap;

use embar_fabric::Region;
use embar_fabric::geometry::topic_record_of;
use embar_memory::{Power, Simulated};
use embar_order::follower::Found;
use embar_order::{Follower, Leadership};

use super::bytes::is_batch;
use super::env;
use super::oracle::OrderOracle;
use super::process::Process;

/// Records of one read.
const LIMIT: usize = 16;

/// Follows all chains, and checks the bytes that their records point to.
pub struct Reader {
    region: Region<Simulated>,
    power: Power,
    followers: BTreeMap<u32, Follower<Simulated>>,
}

impl Reader {
    pub fn new(region: Region<Simulated>, power: Power) -> Self {
        Self {
            region,
            power,
            followers: BTreeMap::new(),
        }
    }

    fn next(&self, chain: u32) -> u64 {
        self.followers.get(&chain).map_or(0, Follower::next)
    }
}

impl Process for Reader {
    fn step(&mut self) {
        let chains = env::chains();
        self.followers.retain(|chain, _| chains.contains_key(chain));
        for (chain, end) in chains {
            let region = &self.region;
            let follower = self.followers.entry(chain).or_insert_with(|| {
                // It may begin inside of a batch.
                Follower::new(region, chain, env::below(end + 1))
            });
            if env::one_in(50) {
                follower.seek(env::below(end + 1));
            }
            read(region, chain, follower, &self.power);
        }
    }

    fn is_finished(&self, oracle: &OrderOracle) -> bool {
        let mut chains = oracle.chains.iter();
        chains.all(|(chain, order)| self.next(*chain) >= order.end)
    }

    fn state(&self, oracle: &OrderOracle) -> String {
        let nexts = oracle.chains.keys().map(|chain| self.next(*chain));
        format!("{:?}", nexts.collect::<Vec<_>>())
    }
}

fn read(region: &Region<Simulated>, chain: u32, follower: &mut Follower<Simulated>, power: &Power) {
    let Some(term) = Leadership::observe(region).term else {
        return;
    };
    let mark = follower.mark();
    let mut records = Vec::new();
    let found = follower.read(term, LIMIT, &mut records);
    if !term.lasts(region) {
        env::count("reads that did not count");
        follower.back_to(mark);
        return;
    }
    for record in &records {
        if power.failed().is_some() {
            // What a dead process believes to see reaches no one.
            return;
        }
        env::record_seen("a reader", chain, record);
        let foreign = region.foreign(record.row.into(), record.payload_at, record.len);
        let foreign = foreign.expect("a batch lies in its broker's file");
        let mut bytes = vec![0; foreign.len()];
        foreign.invalidate();
        foreign.copy_to(0, &mut bytes);
        let rows = region.geometry().data_rows();
        let windows = rows.filter_map(|row| region.window(row, topic_record_of(chain)).found());
        let windows = windows.filter(|window| window.chain == chain);
        let first = windows.map(|window| window.first).max().unwrap_or(0);
        let root = region.goi_root(term.area, topic_record_of(chain)).found();
        let first = root.map_or(first, |root| first.max(root.first));
        let gone = first > record.base || !env::exists(chain);
        assert!(
            gone || is_batch(chain, record, &bytes)
                || !term.lasts(region)
                || power.failed().is_some(),
            "a reader: {record:?} points to other bytes, first is {first}"
        );
    }
    if let Found::Gone { first } = found {
        env::count("readers too late");
        follower.seek(first);
    }
}
