//! What a process may ask of the world: the time, chance, who lives, and the requests of publishers. Each call borrows
//! the world only until it returns.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::mem;

use embar_fabric::geometry::topic_record_of;
use embar_fabric::{GoiRecord, Region};
use embar_memory::canary::without_canary;
use embar_memory::{Outage, Simulated};
use embar_order::Term;

use super::oracle::OrderOracle;
use super::plan::Plan;
use super::publisher::{Answer, Request};
use super::world::with;

pub fn plan<R>(f: impl FnOnce(&Plan) -> R) -> R {
    with(|world| f(&world.plan))
}

/// Adds a line to the trace, if the run keeps one.
pub fn note(line: impl FnOnce() -> String) {
    with(|world| world.note(line));
}

/// The region on the devices.
pub fn raw() -> Region<Simulated> {
    with(|world| world.raw())
}

pub fn now() -> u64 {
    with(|world| world.now)
}

pub fn below(n: u64) -> u64 {
    with(|world| world.random.below(n))
}

/// Never while nothing fails any more, unless it is a common thing.
pub fn one_in(n: u64) -> bool {
    with(|world| world.random.one_in(n))
}

pub fn count(what: &'static str) {
    count_many(what, 1);
}

pub fn count_many(what: &'static str, count: u64) {
    with(|world| world.count(what, count));
}

/// The chains that exist, and how long they are.
pub fn chains() -> BTreeMap<u32, u64> {
    with(|world| {
        world
            .oracle
            .chains
            .iter()
            .map(|(chain, order)| (*chain, order.end))
            .collect()
    })
}

pub fn exists(chain: u32) -> bool {
    with(|world| world.oracle.chains.contains_key(&chain))
}

/// Whether the process of a row lives.
pub fn alive(row: u16) -> bool {
    with(|world| {
        world
            .slots
            .iter()
            .any(|slot| slot.row() == Some(row) && slot.lives())
    })
}

/// Others step more often while a candidate takes over.
pub fn begins_takeover(row: u16) {
    with(|world| {
        world.taking_over = Some(row);
        world.plan_interruption();
    });
}

/// Plans, now and then, that the candidate which takes over does not live to lead.
pub fn perhaps_fail(row: u16) {
    with(|world| {
        let place = world.slots.iter().position(|slot| slot.row() == Some(row));
        let host = place.and_then(|place| world.slots[place].host.clone());
        if let Some(host) = host
            && world.rough
            && host.power.failed().is_none()
            && world.random.one_in(world.plan.crash.min(8))
        {
            let outage = *world.random.pick(&[Outage::Host, Outage::Process]);
            host.power.fail_after(world.random.below(3000), outage);
        }
    });
}

/// It has taken over, or given up.
pub fn ends_takeover(row: u16) {
    with(|world| {
        if world.taking_over == Some(row) {
            world.taking_over = None;
        }
    });
}

/// The requests that have reached a broker.
pub fn requests(row: u16) -> Vec<Request> {
    with(|world| world.requests.get_mut(&row).map_or(Vec::new(), mem::take))
}

/// A broker answers a request.
pub fn answer(request: &Request, answer: Answer) {
    with(|world| {
        world.note(|| format!("{answer:?} to {request:?}"));
        let publisher = &mut world.publishers[request.publisher];
        publisher.inbox.push_back((*request, answer));
    });
}

/// A process, or a checker, saw a record of the order.
pub fn record_seen(who: &str, chain: u32, record: &GoiRecord) {
    with(|world| {
        (chain, record.base, record.producer, record.sequence).hash(&mut world.trace);
        world.note(|| format!("{who} sees of {chain}: {record:?}"));
        if world.oracle.chains.contains_key(&chain) {
            world.oracle.see(who, chain, record);
        }
    });
}

/// A candidate of this row leads: notes where it goes on with each chain, as the devices show. Later a root of
/// which no page is left shows where the order goes on, and not where the term began.
pub fn begins_term(row: u16, epoch: u32) {
    let region = with(|world| world.raw());
    let area = region.geometry().area_of(row).expect("a candidate's row");
    let starts = chains().into_keys();
    let starts = starts.map(|chain| (chain, root_start(&region, Term { epoch, area }, chain)));
    let starts = starts.collect();
    with(|world| world.oracle.starts.insert(epoch, starts));
}

/// Where a term went on with a chain when it began; 0 where it did not know it.
pub fn start_of(term: Term, chain: u32) -> u64 {
    let noted = with(|world| {
        let starts = world.oracle.starts.get(&term.epoch);
        starts.map(|starts| starts.get(&chain).copied().unwrap_or(0))
    });
    // It has done nothing else yet.
    noted.unwrap_or_else(|| root_start(&raw(), term, chain))
}

fn root_start(region: &Region<Simulated>, term: Term, chain: u32) -> u64 {
    let root = without_canary(|| region.goi_root(term.area, topic_record_of(chain)).found());
    let root = root.filter(|root| (root.chain, root.epoch) == (chain, term.epoch));
    root.map_or(0, |root| root.start)
}

/// For the checker.
pub fn oracle<R>(f: impl FnOnce(&mut OrderOracle, u64) -> R) -> R {
    with(|world| f(&mut world.oracle, world.step))
}
