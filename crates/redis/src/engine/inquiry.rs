//! How many nodes the client asks for the topology, and when it has heard enough. Does no I/O.
//!
//! It asks three nodes at once, and one more for each that fails, or lets it wait for [`GRACE`], or says what is outdated.
//! A node that is late may still answer.

use std::time::{Duration, Instant};

use super::answers::{Answer, best};
use super::cluster_info::Health;

/// So many answers are enough, and so many nodes are asked at once.
const WANTED: usize = 3;

/// How long a node may take until another one is asked, too, and until the client decides without it if there is no other.
pub(super) const GRACE: Duration = Duration::from_millis(300);

/// How many outdated answers it keeps, the best ones: they count only when all nodes give such.
const OUTDATED_KEPT: usize = 8;

/// Answers of nodes, until they are enough.
pub(super) struct Inquiry {
    /// The greatest epoch that the client has adopted.
    adopted: Option<u64>,
    /// The questions without an answer: their numbers, and since when they are asked.
    open: Vec<(u32, Instant)>,
    /// Answers that are up to date: no more than there are questions at a time, as [`WANTED`] are enough.
    current: Vec<Answer>,
    outdated: Vec<Answer>,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision<'a> {
    /// Wait for answers.
    Wait,
    /// Adopt this topology.
    Adopt(&'a Answer),
    /// Nobody has an answer.
    Nothing,
}

impl Inquiry {
    pub fn new(adopted: Option<u64>) -> Self {
        Self {
            adopted,
            open: Vec::new(),
            current: Vec::new(),
            outdated: Vec::new(),
        }
    }

    /// How many more nodes to ask.
    pub fn wanted(&self, now: Instant) -> usize {
        WANTED.saturating_sub(self.current.len() + self.in_time(now).count())
    }

    /// Whether there is an answer that is up to date.
    pub fn has_answer(&self) -> bool {
        !self.current.is_empty()
    }

    /// Whether nobody has such an answer, or can be expected to give one in time: then nodes are of use that may not
    /// be of the cluster.
    pub fn needs_last_resort(&self, now: Instant) -> bool {
        !self.has_answer() && self.in_time(now).next().is_none()
    }

    /// A node is being asked.
    pub fn asked(&mut self, question: u32, now: Instant) {
        self.open.push((question, now));
    }

    /// A question is over: with an answer, or without one.
    pub fn ended(&mut self, question: u32, answer: Option<Answer>) {
        self.open.retain(|(open, _)| *open != question);
        match answer {
            Some(answer) if answer.is_outdated(self.adopted) => self.keep_outdated(answer),
            answer => self.current.extend(answer),
        }
    }

    fn keep_outdated(&mut self, answer: Answer) {
        self.outdated.push(answer);
        if self.outdated.len() > OUTDATED_KEPT {
            let rank = |(_, answer): &(usize, &Answer)| (answer.info.health, answer.info.epoch);
            let worst = self.outdated.iter().enumerate().min_by_key(rank);
            let worst = worst.map(|(index, _)| index);
            worst.map(|index| self.outdated.remove(index));
        }
    }

    /// What to do now. `nobody_left`: all nodes have been asked.
    pub fn decide(&self, now: Instant, nobody_left: bool) -> Decision<'_> {
        let current: Vec<&Answer> = self.current.iter().collect();
        let enough = match &*current {
            [one, other] => one.agrees_with(other),
            all => all.len() >= WANTED,
        };
        let all_are_late = nobody_left && self.in_time(now).next().is_none();
        if !enough && !all_are_late {
            return Decision::Wait;
        }
        let up_to_date = best(&current);
        // Who is late may be up to date, too, and take commands.
        let takes_commands = up_to_date.is_some_and(|best| best.info.health != Health::Down);
        if enough || takes_commands || (up_to_date.is_some() && !self.open.is_empty()) {
            return up_to_date.map_or(Decision::Wait, Decision::Adopt);
        }
        if !self.open.is_empty() {
            return Decision::Wait;
        }
        let all: Vec<&Answer> = self.current.iter().chain(&self.outdated).collect();
        best(&all).map_or(Decision::Nothing, Decision::Adopt)
    }

    /// When to decide again, if nothing comes before.
    pub fn decide_again_at(&self, now: Instant) -> Option<Instant> {
        self.in_time(now).map(|since| since + GRACE).min()
    }

    /// Since when those questions are asked whose answers are not late.
    fn in_time(&self, now: Instant) -> impl Iterator<Item = Instant> {
        let since = self.open.iter().map(|(_, since)| *since);
        since.filter(move |since| now < *since + GRACE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::tests::told;
    use super::*;

    const LAST: u16 = 16383;

    fn up(epoch: u64, primaries: &[u16]) -> Answer {
        told(Health::Up, epoch, primaries, &[], LAST)
    }

    fn down(epoch: u64, primaries: &[u16]) -> Answer {
        told(Health::Down, epoch, primaries, &[], LAST)
    }

    /// An inquiry among nodes with these numbers, which are asked in this order.
    struct World {
        inquiry: Inquiry,
        left: Vec<u32>,
        asked: Vec<u32>,
        now: Instant,
    }

    impl World {
        fn new(adopted: Option<u64>, nodes: u32) -> Self {
            let mut world = Self {
                inquiry: Inquiry::new(adopted),
                left: (0..nodes).rev().collect(),
                asked: Vec::new(),
                now: Instant::now(),
            };
            world.ask();
            world
        }

        fn ask(&mut self) {
            for _ in 0..self.inquiry.wanted(self.now) {
                if let Some(node) = self.left.pop() {
                    self.inquiry.asked(node, self.now);
                    self.asked.push(node);
                }
            }
        }

        /// Questions are over, one after the other: what becomes of it after the last one.
        fn hear(&mut self, ended: impl IntoIterator<Item = (u32, Option<Answer>)>) -> Decision<'_> {
            for (node, answer) in ended {
                assert!(self.asked.contains(&node), "{node} was not asked");
                assert!(self.decide() == Decision::Wait, "{node} was not needed");
                self.inquiry.ended(node, answer);
                self.ask();
            }
            self.decide()
        }

        fn decide(&self) -> Decision<'_> {
            self.inquiry.decide(self.now, self.left.is_empty())
        }

        fn pass(&mut self, time: Duration) -> Decision<'_> {
            self.now += time;
            self.ask();
            self.decide()
        }
    }

    fn adopt(decision: Decision<'_>, wanted: &Answer) {
        let Decision::Adopt(answer) = decision else {
            panic!("there is an answer to adopt");
        };
        assert_eq!(answer.info, wanted.info);
        assert_eq!(answer.topology.shards(), wanted.topology.shards());
    }

    #[test]
    fn two_that_agree_are_enough() {
        let mut world = World::new(None, 100);
        assert_eq!(world.asked, [0, 1, 2]);
        assert!(world.hear([(1, Some(up(7, &[1, 2])))]) == Decision::Wait);
        adopt(world.hear([(0, Some(up(7, &[1, 2])))]), &up(7, &[1, 2]));
        assert_eq!(world.asked, [0, 1, 2]);
    }

    #[test]
    fn two_that_disagree_or_take_no_commands_wait_for_a_third_one() {
        for (one, other) in [
            (up(7, &[1, 2]), up(7, &[1, 3])),
            (down(7, &[1, 2]), down(7, &[1, 2])),
        ] {
            let mut world = World::new(None, 100);
            assert_eq!(
                world.hear([(0, Some(one)), (2, Some(other))]),
                Decision::Wait
            );
            adopt(world.hear([(1, Some(up(7, &[1, 3])))]), &up(7, &[1, 3]));
            assert_eq!(world.asked, [0, 1, 2]);
        }
    }

    #[test]
    fn slots_that_nobody_serves_are_no_reason_to_ask_more_nodes() {
        let part = || told(Health::Down, 7, &[1, 2], &[], LAST - 1);
        let mut world = World::new(None, 100);
        adopt(
            world.hear([0, 1, 2].map(|node| (node, Some(part())))),
            &part(),
        );
        assert_eq!(world.asked, [0, 1, 2]);
    }

    #[test]
    fn a_node_that_fails_is_replaced_until_none_is_left() {
        let mut world = World::new(None, 5);
        assert!(world.hear([(0, None), (1, None)]) == Decision::Wait);
        assert_eq!(world.asked, [0, 1, 2, 3, 4]);
        assert!(world.hear([(2, None), (3, None)]) == Decision::Wait);
        adopt(world.hear([(4, Some(down(7, &[1])))]), &down(7, &[1]));
        let mut world = World::new(None, 2);
        assert!(world.hear([(0, None), (1, None)]) == Decision::Nothing);
        assert!(World::new(None, 0).decide() == Decision::Nothing);
    }

    #[test]
    fn a_node_that_hangs_costs_a_grace_and_may_still_answer() {
        let mut world = World::new(None, 4);
        let two = [(0, Some(down(7, &[1]))), (1, Some(down(7, &[2])))];
        assert!(world.hear(two) == Decision::Wait);
        assert_eq!(
            world.inquiry.decide_again_at(world.now),
            Some(world.now + GRACE)
        );
        assert!(world.pass(GRACE - Duration::from_nanos(1)) == Decision::Wait);
        assert_eq!(world.asked, [0, 1, 2]);
        assert!(world.pass(Duration::from_nanos(1)) == Decision::Wait);
        assert_eq!(world.asked, [0, 1, 2, 3], "another one is asked");
        adopt(world.hear([(2, Some(down(7, &[2])))]), &down(7, &[2]));
    }

    #[test]
    fn when_all_that_are_left_hang_what_there_is_is_taken() {
        let mut world = World::new(Some(7), 3);
        assert!(world.hear([(0, Some(down(7, &[1])))]) == Decision::Wait);
        adopt(world.pass(GRACE), &down(7, &[1]));
        assert_eq!(world.inquiry.decide_again_at(world.now), None);
        // But nothing is not taken, nor what is outdated: somebody may still answer.
        for outdated in [None, Some(up(6, &[1]))] {
            let mut world = World::new(Some(7), 3);
            assert!(world.hear([(0, outdated)]) == Decision::Wait);
            assert!(world.pass(100 * GRACE) == Decision::Wait);
            adopt(world.hear([(1, Some(down(7, &[2])))]), &down(7, &[2]));
        }
    }

    #[test]
    fn nodes_that_hang_are_replaced_again_and_again() {
        let mut world = World::new(None, 100);
        for asked in [6, 9, 12] {
            assert!(world.pass(GRACE) == Decision::Wait);
            assert_eq!(world.asked.len(), asked);
        }
    }

    #[test]
    fn the_client_does_not_go_back_while_anybody_is_up_to_date() {
        // It happens to ask the nodes first that are cut off, however many these are.
        let mut world = World::new(Some(8), 100);
        let cut_off = (0..50).map(|node| (node, Some(up(7, &[1, 2]))));
        assert!(world.hear(cut_off) == Decision::Wait);
        assert_eq!(world.asked.len(), 53, "three at once");
        let others = [50, 51].map(|node| (node, Some(up(8, &[3, 2]))));
        adopt(world.hear(others), &up(8, &[3, 2]));
        // One is enough.
        let mut world = World::new(Some(8), 3);
        let answers = [up(7, &[1, 2]), up(7, &[1, 2]), up(8, &[3, 2])];
        adopt(world.hear((0..).zip(answers.map(Some))), &up(8, &[3, 2]));
        // That nobody takes commands is no reason.
        let mut world = World::new(Some(8), 4);
        let answers = [
            up(7, &[1, 2]),
            down(8, &[3, 2]),
            down(8, &[3, 2]),
            down(8, &[3, 2]),
        ];
        adopt(world.hear((0..).zip(answers.map(Some))), &down(8, &[3, 2]));
    }

    #[test]
    fn a_cluster_that_was_made_anew_is_followed() {
        let mut world = World::new(Some(50), 20);
        for node in 0..19 {
            assert!(world.hear([(node, Some(up(6, &[1, 2])))]) == Decision::Wait);
        }
        assert!(world.inquiry.outdated.len() <= OUTDATED_KEPT);
        adopt(world.hear([(19, Some(up(6, &[1, 2])))]), &up(6, &[1, 2]));
    }

    #[test]
    fn a_node_that_is_left_of_an_old_cluster_and_takes_no_commands_holds_up_nothing() {
        let mut world = World::new(Some(50), 20);
        // Those that take commands are among the outdated ones that it keeps.
        let old = Some(down(50, &[4]));
        let lost = (1..19).map(|node| (node, Some(down(6, &[3]))));
        let new = (19, Some(up(6, &[1, 2])));
        assert!(world.hear([(0, old)]) == Decision::Wait);
        assert!(world.hear(lost) == Decision::Wait);
        adopt(world.hear([new]), &up(6, &[1, 2]));
        let mut world = World::new(Some(50), 20);
        let new = (0, Some(up(6, &[1, 2])));
        let lost = (1..19).map(|node| (node, Some(down(6, &[3]))));
        let old = (19, Some(down(50, &[4])));
        assert!(world.hear([new]) == Decision::Wait);
        assert!(world.hear(lost) == Decision::Wait);
        adopt(world.hear([old]), &up(6, &[1, 2]));
    }

    #[test]
    fn seeds_are_a_last_resort() {
        let mut world = World::new(Some(7), 2);
        let needs = |world: &World| world.inquiry.needs_last_resort(world.now);
        assert!(!needs(&world), "both may answer");
        world.hear([(0, None)]);
        assert!(!needs(&world), "one may answer");
        world.pass(GRACE);
        assert!(needs(&world));
        world.hear([(1, Some(up(6, &[1])))]);
        assert!(needs(&world), "it is outdated");
        let mut world = World::new(Some(7), 2);
        world.hear([(0, Some(up(7, &[1]))), (1, None)]);
        assert!(!needs(&world), "there is an answer");
    }

    #[test]
    fn nodes_whose_epoch_is_unknown_are_up_to_date() {
        let silent = || told(Health::Unknown, None, &[1, 2], &[], LAST);
        let mut world = World::new(Some(8), 100);
        adopt(
            world.hear([0, 1, 2].map(|node| (node, Some(silent())))),
            &silent(),
        );
    }
}
