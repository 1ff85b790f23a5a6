//! A data broker: it keeps batches in extents of its payload memory, submits them, follows the order, and gives
//! memory back when no reader may read it any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use embar_fabric::geometry::topic_record_of;
use embar_fabric::{
    Claim, GoiRecord, NoticeKind, PbrKind, PbrRecord, Region, Secret, SharedNews, WindowWriter,
};
use embar_memory::{Extent, Outage, PayloadFile, Power, Simulated};
use embar_order::{Event, Operation, Participant, Term};

use super::bytes::{batch, checksum};
use super::check;
use super::env;
use super::oracle::OrderOracle;
use super::process::Process;
use super::publisher::{Answer, Request, RequestBody};

/// Batches of one extent: few, so that memory is used again soon.
const BATCHES_PER_EXTENT: usize = 3;

/// Which batch lies where.
#[derive(Debug, Clone, Copy)]
pub struct Tag {
    request: Request,
    at: u64,
}

struct Block {
    extent: Extent<Simulated>,
    chain: u32,
    batches: usize,
    /// Batches that are neither placed nor refused.
    pending: BTreeSet<u64>,
    /// One above the last position in it, by chain. What a dead incarnation left may lie between
    /// what it put there later.
    ends: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The sequencer still takes what older incarnations left.
    Entering,
    Ready,
}

/// One incarnation of a data broker.
pub struct Broker {
    row: u16,
    incarnation: u32,
    power: Power,
    region: Region<Simulated>,
    payload_file: PayloadFile<Simulated>,
    participant: Participant<Simulated, Tag>,
    windows: BTreeMap<u32, WindowWriter<Simulated>>,
    /// By which others hear of the windows that it raises.
    news: SharedNews<Simulated>,
    claim: Claim,
    blocks: BTreeMap<u64, Block>,
    phase: Phase,
    pub inbox: VecDeque<Request>,
    lanes: u64,
}

impl Broker {
    /// The next incarnation of a row.
    pub fn start(region: Region<Simulated>, row: u16, power: Power) -> Self {
        let claim = region.claim_unlocked(row);
        let participant = Participant::new(&region, &claim);
        Self {
            row,
            incarnation: claim.incarnation(),
            power,
            payload_file: region.payload_file(&claim),
            lanes: region.geometry().lanes.into(),
            participant,
            news: region.window_news_writer(&claim),
            region,
            windows: BTreeMap::new(),
            claim,
            blocks: BTreeMap::new(),
            phase: Phase::Entering,
            inbox: VecDeque::new(),
        }
    }

    fn next(&self, chain: u32) -> u64 {
        self.participant.next(chain).unwrap_or(0)
    }

    fn look_at_topics(&mut self) {
        let chains = env::chains();
        for chain in chains.keys() {
            if self.windows.contains_key(chain) {
                continue;
            }
            let window = self
                .region
                .window_writer(&self.claim, topic_record_of(*chain));
            let mut window = window.announcing_to(&self.news);
            if window.window().chain != *chain {
                window.reset(*chain, 0, 0);
            }
            self.participant.open_chain(*chain, window.window().first);
            self.windows.insert(*chain, window);
        }
        let gone: Vec<u32> = self
            .windows
            .keys()
            .copied()
            .filter(|it| !chains.contains_key(it))
            .collect();
        for chain in gone {
            self.windows.remove(&chain);
            self.participant.close_chain(chain);
            self.inbox.retain(|request| request.chain != chain);
            // What is in the lanes may still be ordered, but no publisher waits for it.
            for block in self.blocks.values_mut() {
                block.ends.remove(&chain);
                if block.chain == chain {
                    block.pending.clear();
                    block.batches = BATCHES_PER_EXTENT;
                }
            }
        }
    }

    fn take(&mut self) {
        let Some(request) = self.inbox.pop_front() else {
            return;
        };
        if !self.windows.contains_key(&request.chain) {
            return;
        }
        let mut record = PbrRecord {
            chain: request.chain,
            incarnation: self.incarnation,
            orders: PbrRecord::pack_orders(0, request.level),
            ..asked(&request)
        };
        match request.body {
            RequestBody::Open(_) | RequestBody::Close => {}
            RequestBody::Batch { .. } => {
                if !self.store(&request, &mut record) {
                    self.inbox.push_back(request);
                    return;
                }
            }
        }
        let lane = env::below(self.lanes) as u16;
        let tag = Tag {
            request,
            at: record.payload_at,
        };
        env::note(|| format!("broker {} submits to lane {lane}: {record:?}", self.row));
        if let Err((_, tag)) = self.participant.submit(lane, record, tag) {
            env::count("lanes full");
            self.settled(&tag);
            self.inbox.push_front(tag.request);
        }
    }

    /// Writes a batch to payload memory; false when there is no room.
    fn store(&mut self, request: &Request, record: &mut PbrRecord) -> bool {
        let bytes = batch(record);
        let open = self
            .blocks
            .iter()
            .find(|(_, block)| block.chain == request.chain && block.batches < BATCHES_PER_EXTENT);
        let at = match open {
            Some((at, _)) => *at,
            None => {
                if self.payload_file.free_bytes() == 0 {
                    env::count("payload full");
                    self.retire();
                }
                let Some(extent) = self.payload_file.allocate(64 << 10) else {
                    return false;
                };
                let at = extent.at();
                let block = Block {
                    extent,
                    chain: request.chain,
                    batches: 0,
                    pending: BTreeSet::new(),
                    ends: BTreeMap::new(),
                };
                self.blocks.insert(at, block);
                at
            }
        };
        let block = self.blocks.get_mut(&at).expect("it was found or made");
        let mut reservation = block
            .extent
            .reserve(bytes.len() as u32)
            .expect("batches are small");
        reservation.write(0, &bytes);
        let span = reservation.commit();
        record.payload_at = span.at();
        record.len = bytes.len() as u32;
        record.count = 1 + (record.sequence % 3) as u32;
        record.payload_crc = checksum(&bytes);
        record.orders = PbrRecord::pack_orders(block.extent.order(), request.level);
        block.batches += 1;
        block.pending.insert(span.at());
        true
    }

    fn poll(&mut self) -> bool {
        let mut events = Vec::new();
        let before = self.participant.term();
        let more = self.participant.poll(&mut events);
        if self.power.failed().is_some() {
            // What a dead process believes to see reaches no one.
            return true;
        }
        if let Some(term) = self.participant.term().filter(|it| Some(*it) != before) {
            self.begins(term);
        }
        for event in events {
            match event {
                Event::Ordered {
                    chain,
                    record,
                    mine,
                } => {
                    env::record_seen("a broker", chain, &record);
                    self.ordered(chain, &record, mine);
                }
                Event::Answered { tag, outcome, .. } => {
                    self.settled(&tag);
                    env::count(match outcome.kind {
                        NoticeKind::Duplicate => "told duplicate",
                        NoticeKind::Fenced => "told fenced",
                        NoticeKind::BeyondWindow => "told beyond the window",
                        NoticeKind::HeldFull => "told that too many are held",
                        NoticeKind::GivenUp => "told that it was given up",
                        NoticeKind::SessionsFull => "told that sessions are full",
                        NoticeKind::InUse => "told of another instance",
                        _ => "told opened or closed",
                    });
                    if let RequestBody::Batch { batch_id, .. } = tag.request.body
                        && outcome.kind == NoticeKind::Duplicate
                    {
                        check::is_placed(tag.request.chain, batch_id);
                    }
                    env::answer(&tag.request, Answer::Outcome(outcome));
                }
                Event::Skipped { chain, first } => {
                    env::count("positions skipped");
                    let in_doubt = |it: &Block| it.chain == chain && !it.pending.is_empty();
                    if self.blocks.values().any(in_doubt) {
                        env::count("brokers ended as they came too late");
                        self.power.fail_after(0, Outage::Process);
                        return true;
                    }
                    self.raise(chain, first);
                }
            }
        }
        more
    }

    /// What is submitted again, to another sequencer, was not ordered: all that was is known by then.
    fn begins(&self, term: Term) {
        for chain in self.windows.keys() {
            let (next, start) = (self.next(*chain), env::start_of(term, *chain));
            assert!(
                start <= next,
                "broker {} submits to {term:?} again, and knows {chain} up to {next}, not {start}",
                self.row
            );
        }
    }

    fn ordered(&mut self, chain: u32, record: &GoiRecord, mine: Option<(u16, Tag)>) {
        self.raise(chain, record.end());
        if u16::from(record.row) != self.row {
            assert!(
                mine.is_none(),
                "a batch of another broker settled one of ours"
            );
            return;
        }
        let ours = record.incarnation == self.incarnation as u16;
        assert_eq!(
            mine.is_some(),
            ours,
            "broker {} of incarnation {} came upon {record:?}",
            self.row,
            self.incarnation
        );
        if let Some((_, tag)) = mine {
            let same = tag.at == record.payload_at && tag.request.producer == record.producer;
            assert!(same, "{record:?} settled {tag:?}");
            self.settled(&tag);
            env::answer(&tag.request, Answer::Placed { base: record.base });
        } else {
            assert_ne!(
                self.phase,
                Phase::Ready,
                "what an older incarnation left was ordered after the broker went on: {record:?}"
            );
        }
        self.keep(chain, record);
    }

    /// The memory of a placed batch stays as long as its positions.
    fn keep(&mut self, chain: u32, record: &GoiRecord) {
        let first = self
            .windows
            .get(&chain)
            .map_or(0, |window| window.window().first);
        if record.end() <= first {
            return;
        }
        let order = record.extent_order();
        let (start, _) = PayloadFile::<Simulated>::locate(record.payload_at, record.len, order)
            .expect("a sequencer copies what a broker wrote");
        let block = self.blocks.entry(start).or_insert_with(|| Block {
            extent: self
                .payload_file
                .allocate_at(start, order)
                .expect("nobody else has this memory"),
            chain,
            batches: BATCHES_PER_EXTENT,
            pending: BTreeSet::new(),
            ends: BTreeMap::new(),
        });
        let end = block.ends.entry(chain).or_default();
        *end = record.end().max(*end);
    }

    fn settled(&mut self, tag: &Tag) {
        let holds =
            |at: u64, block: &Block| (at..at + u64::from(block.extent.len())).contains(&tag.at);
        if matches!(tag.request.body, RequestBody::Batch { .. })
            && let Some((at, block)) = self.blocks.range_mut(..=tag.at).next_back()
            && holds(*at, block)
        {
            assert!(block.pending.remove(&tag.at), "{tag:?} was settled before");
        }
    }

    fn raise(&mut self, chain: u32, next: u64) {
        if let Some(window) = self.windows.get_mut(&chain)
            && next > window.window().next
        {
            window.raise_next(next);
        }
    }

    /// Gives up positions, also those that others gave up, and then the memory of all below them.
    fn retire(&mut self) {
        for (chain, window) in &mut self.windows {
            let rows = self.region.geometry().data_rows();
            let others =
                rows.filter_map(|row| self.region.window(row, topic_record_of(*chain)).found());
            let first = others
                .filter(|it| it.chain == *chain)
                .map(|it| it.first)
                .max();
            let mine = window.window();
            let wanted = mine.first + env::below(mine.next - mine.first + 1);
            let first = first.unwrap_or(0).max(wanted).min(mine.next);
            if first > mine.first {
                env::note(|| format!("broker {} keeps of {chain} from {first} on", self.row));
                window.raise_first(first);
                env::count("windows raised");
            }
        }
        let windows = &self.windows;
        self.blocks.retain(|_, block| {
            let first = |chain| windows.get(chain).map_or(u64::MAX, |it| it.window().first);
            let kept = block.ends.iter().any(|(chain, end)| *end > first(chain));
            let keep = kept || !block.pending.is_empty();
            if !keep {
                env::count("extents given back");
            }
            keep
        });
    }
}

impl Process for Broker {
    fn step(&mut self) {
        self.look_at_topics();
        self.inbox.extend(env::requests(self.row));
        match self.phase {
            Phase::Entering => {
                self.poll();
                if self.participant.enter() {
                    self.phase = Phase::Ready;
                    env::note(|| format!("broker {} enters", self.row));
                    env::count("brokers ready");
                }
            }
            Phase::Ready => {
                for _ in 0..env::below(4) {
                    self.take();
                }
                if !env::one_in(3) {
                    self.poll();
                }
                if env::one_in(env::plan(|plan| plan.retire)) {
                    self.retire();
                }
            }
        }
    }

    fn is_finished(&self, oracle: &OrderOracle) -> bool {
        let has_pending = self.blocks.values().any(|block| !block.pending.is_empty());
        let mut chains = oracle.chains.iter();
        let has_seen_all = chains.all(|(chain, order)| self.next(*chain) >= order.end);
        self.phase == Phase::Ready && !has_pending && self.inbox.is_empty() && has_seen_all
    }

    fn state(&self, _: &OrderOracle) -> String {
        let nexts = self.windows.keys().map(|chain| self.next(*chain));
        let pending = self.blocks.values().map(|block| block.pending.len());
        format!(
            "{:?}, {} requests, {} pending, {:?}",
            self.phase,
            self.inbox.len(),
            pending.sum::<usize>(),
            nexts.collect::<Vec<_>>()
        )
    }
}

/// The record of what is asked for.
fn asked(request: &Request) -> PbrRecord {
    let (session, epoch) = (request.place, request.epoch);
    let operation = match request.body {
        RequestBody::Open(operation) => operation,
        RequestBody::Close => Operation::Close { session, epoch },
        RequestBody::Batch { number, .. } => {
            return PbrRecord {
                producer: request.producer,
                session,
                session_epoch: epoch,
                sequence: number,
                kind: PbrKind::Batch as u8,
                ..PbrRecord::default()
            };
        }
    };
    let of_producer = embar_order::Request {
        producer: request.producer,
        instance: request.instance,
        secret: match request.is_forged {
            true => Secret::default(),
            false => Secret(u128::from(request.producer).to_le_bytes()),
        },
        peer: 0,
        operation,
    };
    of_producer.record()
}
