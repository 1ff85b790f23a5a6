//! Clusters of a few slots, of which a scan sees what the tests say.

use super::*;
use crate::endpoint::Endpoint;

fn peer(id: &str) -> Peer {
    Peer {
        id: id.to_owned(),
        addresses: vec![Endpoint::tcp(id, 7000)],
    }
}

fn set(slots: &[u16]) -> SlotSet {
    let mut set = SlotSet::empty();
    slots.iter().for_each(|slot| set.insert(*slot));
    set
}

/// A node with these slots.
fn node(id: &str, owned: &[u16]) -> NodeView {
    NodeView {
        id: id.to_owned(),
        owned: set(owned),
        migrating: BTreeMap::new(),
        importing: BTreeMap::new(),
        nodes: 2,
    }
}

fn giving(mut node: NodeView, slot: u16, to: &str) -> NodeView {
    node.migrating.insert(slot, peer(to));
    node
}

fn taking(mut node: NodeView, slot: u16, from: &str) -> NodeView {
    node.importing.insert(slot, from.to_owned());
    node
}

fn target(passes: &mut Passes) -> Target {
    passes.next(|_| true).expect("something is left").0
}

fn left(passes: &Passes) -> Vec<u16> {
    passes.left.from(0).collect()
}

#[test]
fn each_node_is_scanned_once_while_nothing_moves() {
    let mut passes = Passes::new(set(&[1, 2, 3]));
    assert_eq!(passes.next(|_| true), Some((Target::Owner(1), 0)));
    assert_eq!(passes.answered(&node("a", &[1, 3]), 7), Progress::Step);
    assert_eq!(passes.next(|_| true), Some((Target::Owner(1), 7)));
    assert!(passes.wants(3), "the pass is not over");
    assert_eq!(passes.answered(&node("a", &[1, 3]), 0), Progress::Done);
    assert_eq!(left(&passes), [2]);
    assert_eq!(passes.next(|_| true), Some((Target::Owner(2), 0)));
    assert_eq!(passes.answered(&node("b", &[2]), 0), Progress::Done);
    assert!(passes.is_over());
}

#[test]
fn a_slot_that_comes_or_goes_in_a_pass_is_scanned_again() {
    let steps = [&[1, 2][..], &[1, 3], &[1, 2, 3]];
    let mut passes = Passes::new(set(&[1, 2, 3]));
    target(&mut passes);
    for (owned, cursor) in steps.iter().zip([5, 6, 0]) {
        passes.answered(&node("a", owned), cursor);
    }
    // Slot 2 was away at one step, and slot 3 came.
    assert_eq!(left(&passes), [2, 3]);
}

#[test]
fn a_slot_that_moves_from_a_node_not_yet_scanned_to_one_that_was_is_left() {
    let mut passes = Passes::new(set(&[1, 2]));
    target(&mut passes);
    passes.answered(&node("a", &[1]), 0);
    // It has moved before the pass of its former node, which has others.
    assert_eq!(target(&mut passes), Target::Owner(2));
    assert_eq!(passes.answered(&node("b", &[]), 9), Progress::Vain);
    assert_eq!(target(&mut passes), Target::Owner(2));
    assert_eq!(passes.answered(&node("a", &[1, 2]), 0), Progress::Done);
    assert!(passes.is_over());
}

#[test]
fn of_a_slot_on_its_way_both_nodes_are_scanned_one_after_the_other() {
    let mut passes = Passes::new(set(&[1, 2]));
    target(&mut passes);
    // The move begins within the pass.
    assert_eq!(passes.answered(&node("a", &[1, 2]), 5), Progress::Step);
    let halfway = giving(node("a", &[1, 2]), 2, "b");
    assert_eq!(passes.answered(&halfway, 0), Progress::Done);
    assert_eq!(left(&passes), [2]);
    assert_eq!(target(&mut passes), Target::Importer(2, peer("b")));
    // And ends within the other one.
    assert_eq!(
        passes.answered(&taking(node("b", &[]), 2, "a"), 5),
        Progress::Step
    );
    assert_eq!(passes.answered(&node("b", &[2]), 0), Progress::Done);
    assert!(passes.is_over());
}

#[test]
fn the_node_that_takes_a_slot_over_has_all_of_it_only_after_the_other_was_scanned() {
    let mut passes = Passes::new(set(&[1, 2]));
    target(&mut passes);
    let importing = taking(node("b", &[1]), 2, "a");
    assert_eq!(passes.answered(&importing, 0), Progress::Done);
    assert_eq!(left(&passes), [2]);
    assert_eq!(target(&mut passes), Target::Owner(2));
}

#[test]
fn a_move_that_changes_its_mind_counts_for_nothing() {
    for second in [giving(node("a", &[1, 2]), 2, "c"), node("a", &[1])] {
        let mut passes = Passes::new(set(&[1, 2]));
        target(&mut passes);
        passes.answered(&giving(node("a", &[1, 2]), 2, "b"), 5);
        passes.answered(&second, 0);
        assert_eq!(left(&passes), [2]);
        assert_eq!(target(&mut passes), Target::Owner(2), "from the beginning");
    }
    // The other node does not take it any more.
    let mut passes = Passes::new(set(&[2]));
    target(&mut passes);
    passes.answered(&giving(node("a", &[2]), 2, "b"), 0);
    assert_eq!(target(&mut passes), Target::Importer(2, peer("b")));
    assert_eq!(passes.answered(&node("b", &[]), 3), Progress::Vain);
    assert_eq!(target(&mut passes), Target::Owner(2));
}

#[test]
fn a_slot_that_moves_on_at_once_is_followed() {
    let mut passes = Passes::new(set(&[2]));
    target(&mut passes);
    passes.answered(&giving(node("a", &[2]), 2, "b"), 0);
    target(&mut passes);
    assert_eq!(
        passes.answered(&taking(node("b", &[]), 2, "a"), 5),
        Progress::Step
    );
    passes.answered(&giving(node("b", &[2]), 2, "c"), 0);
    assert_eq!(target(&mut passes), Target::Importer(2, peer("c")));
    assert_eq!(
        passes.answered(&taking(node("c", &[]), 2, "b"), 0),
        Progress::Done
    );
    assert!(passes.is_over());
}

#[test]
fn a_cursor_goes_to_no_other_node_or_process() {
    let mut passes = Passes::new(set(&[1]));
    target(&mut passes);
    passes.answered(&node("a", &[1]), 5);
    assert!(passes.has_begun());
    // Its replica has taken over: what it says of a foreign cursor counts for nothing.
    assert_eq!(passes.answered(&node("r", &[1]), 0), Progress::Vain);
    assert_eq!(passes.next(|_| true), Some((Target::Owner(1), 0)));
    assert_eq!(passes.answered(&node("r", &[1]), 5), Progress::Step);
    assert_eq!(passes.restart(), Progress::Vain);
    assert!(!passes.has_begun());
    assert_eq!(passes.next(|_| true), Some((Target::Owner(1), 0)));
    assert_eq!(passes.answered(&node("r", &[1]), 0), Progress::Done);
    assert!(passes.is_over());
}

#[test]
fn a_slot_that_never_rests_ends_in_an_error_and_others_are_found() {
    let mut passes = Passes::new(set(&[1, 2]));
    target(&mut passes);
    passes.answered(&node("a", &[1, 2]), 5);
    assert_eq!(passes.answered(&node("a", &[1]), 0), Progress::Done);
    for turn in 0..MAX_VAIN {
        assert!(!passes.give_up(), "{turn}");
        target(&mut passes);
        assert_eq!(passes.answered(&node("b", &[]), 5), Progress::Vain);
    }
    assert!(passes.give_up());
    assert!(!passes.give_up(), "the caller may go on");
    assert_eq!(left(&passes), [2]);
}

#[test]
fn slots_that_have_no_node_are_passed_over() {
    let mut passes = Passes::new(set(&[1, 2]));
    let known = |slot| slot == 2;
    assert_eq!(passes.next(known), Some((Target::Owner(2), 0)));
    passes.answered(&node("a", &[2]), 0);
    assert_eq!(passes.next(known), None);
    assert_eq!(passes.slots_left(), 1);
    passes.end();
    assert!(passes.is_over());
}

#[test]
fn a_node_of_no_use_is_left_for_the_next_one() {
    let mut passes = Passes::new(set(&[1, 2]));
    assert_eq!(target(&mut passes), Target::Owner(1));
    assert_eq!(passes.abandon(), Progress::Vain);
    assert_eq!(target(&mut passes), Target::Owner(2));
    passes.abandon();
    assert_eq!(target(&mut passes), Target::Owner(1));
}
