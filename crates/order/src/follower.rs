//! Follows the order of one chain through pages, areas and epochs.
//!
//! A follower takes nothing but the next position, so its records are dense, whatever it finds. Of an epoch that is
//! over it takes what lies below the start of the following epoch, as the present term's order has it. What a
//! deposed sequencer wrote beyond that start does not exist for a follower. The successor has seen all that lies
//! below: what is missing there is damage.
//!
//! What a follower read counts only after [`Term::lasts`]; until then [`Follower::mark`] and [`Follower::back_to`]
//! undo it.

use embar_fabric::geometry::topic_record_of;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::{GoiPage, GoiReader, GoiRecord, GoiRoot, Region, Seen};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use crate::leadership::Term;

/// A place in the order, made by [`Follower::mark`].
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    next: u64,
    place: Option<Place>,
}

/// The page that holds the next position, or will.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The term for which it was found.
    epoch: u32,
    area: u16,
    page: u32,
    generation: u32,
    slot: u32,
    /// Where the next epoch starts, if the page's is over.
    until: Option<u64>,
    /// The page is full and has no link, which may be lost: the follower did not see its end before, or an
    /// announcement since says that there is more.
    misses_link: bool,
    /// The page's link is damaged, and no page was found that it may have led to. A writer stores a link after the
    /// page that it names, so there will be none.
    leads_nowhere: bool,
}

/// What [`Follower::read`] came upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All there is, for now.
    End,
    /// As many records as the caller wanted; there may be more.
    More,
    /// The next position is no longer kept: go on at this one, the first that is kept.
    Gone {
        /// First position that is kept.
        first: u64,
    },
}

/// Reads the records of one chain, in their order, from a position on.
#[derive(Debug)]
pub struct Follower<M> {
    region: Region<M>,
    /// The pages of each area.
    pages: Vec<GoiReader<M>>,
    chain: u32,
    next: u64,
    place: Option<Place>,
    damaged: bool,
}

impl<M: Memory> Follower<M> {
    /// Follows `chain` from position `next` on.
    pub fn new(region: &Region<M>, chain: u32, next: u64) -> Self {
        let areas = 0..region.geometry().areas();
        Self {
            pages: areas.map(|area| region.goi_reader(area)).collect(),
            region: region.clone(),
            chain,
            next,
            place: None,
            damaged: false,
        }
    }

    /// Whether the last read found something at the next position that no sequencer writes there. Then memory is
    /// damaged, and the order ends here, at least in this term.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The position that comes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Goes on at another position.
    pub fn seek(&mut self, next: u64) {
        self.next = next;
        self.place = None;
    }

    /// Where the follower is, to come back to.
    pub fn mark(&self) -> Mark {
        Mark {
            next: self.next,
            place: self.place,
        }
    }

    /// Forgets what was read since the mark.
    pub fn back_to(&mut self, mark: Mark) {
        self.next = mark.next;
        self.place = mark.place;
    }

    /// The first position of this term, where its sequencer cut the order of the term before; `None` while the
    /// sequencer does not know the chain.
    pub fn start_of(&self, term: Term) -> Option<u64> {
        self.root(term).found().map(|root| root.start)
    }

    /// Appends records that follow each other from the next position on, at most `limit`.
    pub fn read(&mut self, term: Term, limit: usize, out: &mut Vec<GoiRecord>) -> Found {
        let end = out.len() + limit;
        self.damaged = false;
        loop {
            let place = match self.place {
                Some(place) if place.epoch == term.epoch => place,
                _ => match self.locate(term) {
                    Located::Here(place) => *self.place.insert(place),
                    Located::NotYet => return Found::End,
                    Located::Gone { first } => return Found::Gone { first },
                    Located::Damaged => return self.end_here(),
                },
            };
            if out.len() == end {
                return Found::More;
            }
            if place.until == Some(self.next) {
                self.place = None;
                continue;
            }
            match self.read_page(place, end, out) {
                Step::On => {}
                Step::End => return Found::End,
                Step::Lost => match self.locate(term) {
                    Located::Here(again) if again.is_in(&place) && again.until.is_some() => {
                        return self.end_here();
                    }
                    Located::Damaged => return self.end_here(),
                    Located::Here(other) => self.place = Some(other),
                    Located::NotYet => {
                        self.place = None;
                        return Found::End;
                    }
                    Located::Gone { first } => return Found::Gone { first },
                },
            }
        }
    }

    /// What comes next is damaged.
    fn end_here(&mut self) -> Found {
        self.damaged = true;
        Found::End
    }

    /// Reads on in a page.
    fn read_page(&mut self, mut place: Place, end: usize, out: &mut Vec<GoiRecord>) -> Step {
        self.read_records(&mut place, end, out);
        if self.damaged {
            return Step::End;
        }
        if out.len() == end || place.until == Some(self.next) {
            return Step::On;
        }
        if place.slot == PAGE_RECORDS {
            match self.page_behind(&place) {
                Seen::Found((page, generation)) => {
                    self.place = Some(Place {
                        page,
                        generation,
                        slot: 0,
                        leads_nowhere: false,
                        ..place
                    });
                    return Step::On;
                }
                Seen::Nothing => {
                    self.place = Some(Place {
                        misses_link: true,
                        ..place
                    });
                }
                Seen::Damaged => {
                    self.place = Some(Place {
                        leads_nowhere: true,
                        ..place
                    });
                    self.damaged = true;
                    return Step::End;
                }
            }
        } else {
            // An announcement will follow whatever comes next, the link included.
            self.place = Some(Place {
                misses_link: false,
                ..place
            });
        }
        // Nothing yet, or the page was given back while we were elsewhere.
        if place.until.is_none() && self.is_still(&place) {
            Step::End
        } else {
            Step::Lost
        }
    }

    /// Reads on in the records of a page, up to the first that is missing, damaged or not wanted.
    fn read_records(&mut self, place: &mut Place, end: usize, out: &mut Vec<GoiRecord>) {
        let pages = &self.pages[usize::from(place.area)];
        let from = place.slot;
        while place.slot < PAGE_RECORDS && out.len() < end && place.until != Some(self.next) {
            let record = match pages.record(place.page, place.generation, place.slot) {
                Seen::Found(record) => record,
                Seen::Nothing => break,
                Seen::Damaged => {
                    self.damaged = true;
                    break;
                }
            };
            place.slot += 1;
            if record.end() <= self.next && self.next > record.base {
                continue;
            }
            if record.base < self.next && self.next < record.end() {
                // A reader that began inside of a batch gets all of it.
                self.next = record.base;
            }
            let fits = record.count > 0 && place.until.is_none_or(|until| record.end() <= until);
            if record.base != self.next || !fits {
                place.slot -= 1;
                self.damaged = true;
                break;
            }
            self.next = record.end();
            out.push(record);
        }
        self.place = Some(*place);
        if place.slot > from {
            pages.keep(place.page, from..place.slot);
        }
    }

    /// The page that follows a full one in the same epoch, and its generation.
    fn page_behind(&self, place: &Place) -> Seen<(u32, u32)> {
        let pages = &self.pages[usize::from(place.area)];
        // The next position, unless a link was lost on the way here.
        let last = pages.record(place.page, place.generation, PAGE_RECORDS - 1);
        let start = last.found().map_or(self.next, |last| last.end());
        let link = pages.link(place.page, place.generation);
        if link.is_damaged() && place.leads_nowhere {
            return Seen::Damaged;
        }
        let may_be_lost = || place.misses_link || pages.has_unreadable_link(place.page);
        let next = if link.is_damaged() || link == Seen::Nothing && may_be_lost() {
            let here = pages.page(place.page).found();
            let epoch = here.map(|(_, header)| header.epoch);
            epoch.and_then(|epoch| pages.find(self.chain, epoch, start))
        } else {
            link.found()
        };
        let Some(next) = next else {
            return if link.is_damaged() {
                Seen::Damaged
            } else {
                Seen::Nothing
            };
        };
        match pages.page(next) {
            Seen::Found((generation, header))
                if header.chain == self.chain && header.start == start =>
            {
                Seen::Found((next, generation))
            }
            Seen::Damaged => Seen::Damaged,
            // A link is stored after the page that it names, and pages go in their order.
            _ if place.until.is_none() && self.is_still(place) => Seen::Damaged,
            _ => Seen::Nothing,
        }
    }

    /// Whether a page is in the same use as before.
    fn is_still(&self, place: &Place) -> bool {
        let pages = &self.pages[usize::from(place.area)];
        let now = pages.page(place.page).found();
        now.is_some_and(|(generation, _)| generation == place.generation)
    }

    fn root(&self, term: Term) -> Seen<GoiRoot> {
        match self.region.goi_root(term.area, topic_record_of(self.chain)) {
            Seen::Found(root) if (root.chain, root.epoch) != (self.chain, term.epoch) => {
                Seen::Nothing
            }
            seen => seen,
        }
    }

    /// The page of the next position, in the order as this term has it.
    fn locate(&self, term: Term) -> Located {
        let mut stale = None;
        loop {
            let root = match self.root(term) {
                Seen::Found(root) => root,
                Seen::Nothing => return Located::NotYet,
                Seen::Damaged => return Located::Damaged,
            };
            if self.next < root.first {
                return Located::Gone { first: root.first };
            }
            if self.next < root.start {
                return self.locate_before(term, &root);
            }
            if root.damaged != 0 {
                return Located::Damaged;
            }
            let Some(head) = root.head.checked_sub(1) else {
                return Located::NotYet;
            };
            match self.page(term.area, head) {
                Seen::Found((generation, header)) => {
                    return self.locate_from(term, (head, generation), &header);
                }
                // The sequencer gave the page back since, which it does not announce: the root says so by now.
                Seen::Nothing if stale != Some(root) => stale = Some(root),
                Seen::Nothing | Seen::Damaged => return Located::Damaged,
            }
        }
    }

    /// Walks from the first page of the term to that of the next position.
    fn locate_from(
        &self,
        term: Term,
        (mut page, mut generation): (u32, u32),
        header: &GoiPage,
    ) -> Located {
        let pages = &self.pages[usize::from(term.area)];
        let mut start = header.start;
        if self.next < start {
            return Located::Gone { first: start };
        }
        // Starts grow, or damaged links would lead around for ever.
        while let Seen::Found(next) = pages.link(page, generation)
            && let Seen::Found((its, header)) = self.page(term.area, next)
            && start < header.start
            && header.start <= self.next
        {
            (page, generation, start) = (next, its, header.start);
        }
        Located::Here(Place {
            epoch: term.epoch,
            area: term.area,
            page,
            generation,
            slot: 0,
            until: None,
            misses_link: true,
            leads_nowhere: false,
        })
    }

    /// Walks from the start of the term back to the page of an older epoch.
    fn locate_before(&self, term: Term, root: &GoiRoot) -> Located {
        // Where the page behind starts, and its epoch.
        let (mut start, mut epoch) = (root.start, root.epoch);
        let mut until = start;
        let mut before = (root.before, root.before_area, root.before_generation);
        loop {
            let (page, area, generation) = before;
            let found = page
                .checked_sub(1)
                .filter(|_| usize::from(area) < self.pages.len());
            let Some(page) = found else {
                return Located::Gone { first: start };
            };
            let (its, header) = match self.page(area, page) {
                Seen::Found(found) => found,
                Seen::Nothing => return Located::Gone { first: start },
                Seen::Damaged => return Located::Damaged,
            };
            if its != generation || header.start >= start {
                return Located::Gone { first: start };
            }
            if header.epoch != epoch {
                (until, epoch) = (start, header.epoch);
            }
            if header.start <= self.next {
                return Located::Here(Place {
                    epoch: term.epoch,
                    area,
                    page,
                    generation,
                    slot: 0,
                    until: Some(until).filter(|_| !injected(Canary::CutAtStart)),
                    misses_link: true,
                    leads_nowhere: false,
                });
            }
            start = header.start;
            before = (header.before, header.before_area, header.before_generation);
        }
    }

    /// A page that is in use by this chain.
    fn page(&self, area: u16, page: u32) -> Seen<(u32, GoiPage)> {
        match self.pages[usize::from(area)].page(page) {
            Seen::Found((_, header)) if header.in_use != 1 || header.chain != self.chain => {
                Seen::Nothing
            }
            seen => seen,
        }
    }
}

impl Place {
    /// Whether it is the same page as the other's, in the same use.
    fn is_in(&self, other: &Self) -> bool {
        let page = |it: &Self| (it.area, it.page, it.generation);
        page(self) == page(other)
    }
}

/// What came of reading on in a page.
enum Step {
    /// There may be more.
    On,
    /// There is nothing more for now.
    End,
    /// Something must be there, unless the page was given back while we were elsewhere.
    Lost,
}

enum Located {
    Here(Place),
    NotYet,
    Gone {
        first: u64,
    },
    /// Something on the way to it cannot be read, or the order ended here for good.
    Damaged,
}
