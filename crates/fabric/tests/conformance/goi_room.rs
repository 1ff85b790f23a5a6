//! The order index: pages are given back, and used again.

use embar_fabric::{Geometry, GoiFull, GoiRoot};

use crate::common::small;
use crate::follow::Follower;
use crate::goi::{PER_PAGE, append, bases, begin, follow, record};
use crate::setup::Setup;

/// Two topics on eight pages.
fn few() -> Geometry {
    Geometry {
        topics: 2,
        goi_pages: 8,
        ..small()
    }
}

pub fn a_full_index_names_what_to_give_up<S: Setup>() {
    let setup = S::new(&few());
    let (here, there) = (setup.host(), setup.host());
    let head = here.claim_unlocked(0);
    let mut goi = here.goi_writer(&head, 1);
    assert_eq!((goi.space(), goi.largest()), ((8, 8), None));
    begin(&mut goi, (&here, &head), 0, 0, None);
    begin(&mut goi, (&here, &head), 1, 0, None);
    append(&mut goi, 1, 0, PER_PAGE);
    assert_eq!(goi.largest(), Some((1, 2 * PER_PAGE)), "there is no other");
    let end = append(&mut goi, 0, 0, 7 * PER_PAGE);
    assert_eq!(goi.space(), (0, 8));
    for _ in 0..2 {
        assert_eq!(goi.append(0, &record(end)), Err(GoiFull));
        assert_eq!(goi.append(1, &record(2 * PER_PAGE)), Err(GoiFull));
    }
    assert_eq!(goi.largest(), Some((0, 2 * PER_PAGE)));
    goi.release_before(0, 2 * PER_PAGE - 1, |_| panic!("one record holds the page"));
    assert_eq!(goi.space(), (0, 8));
    goi.release_before(0, 2 * PER_PAGE, |_| {});
    assert_eq!(
        (goi.space(), goi.largest()),
        ((1, 8), Some((0, 4 * PER_PAGE)))
    );
    append(&mut goi, 1, 2 * PER_PAGE, 1);
    let mut first = Follower::new(&there, 0, 0);
    assert_eq!(follow(&mut first), bases(2 * PER_PAGE, 6 * PER_PAGE));
    let mut second = Follower::new(&there, 0, 1);
    assert_eq!(
        follow(&mut second),
        bases(0, PER_PAGE + 1),
        "refusals left no trace"
    );
}

pub fn given_up_records_are_named_once<S: Setup>() {
    let setup = S::new(&few());
    let (here, there) = (setup.host(), setup.host());
    let head = here.claim_unlocked(0);
    let mut goi = here.goi_writer(&head, 1);
    begin(&mut goi, (&here, &head), 0, 0, None);
    let mut left = Vec::new();
    let mut end = 0;
    for _ in 0..30 {
        end = append(&mut goi, 0, end, 40);
        let first = end.saturating_sub(150);
        goi.raise_first(0, first);
        goi.release_before(0, first, |gone| {
            assert_eq!(*gone, record(gone.base));
            left.push(gone.base);
        });
        let kept = follow(&mut Follower::new(&there, 0, 0));
        assert!(kept[0] <= first && first - kept[0] < 2 * PER_PAGE);
        let all: Vec<u64> = left.iter().chain(&kept).copied().collect();
        assert_eq!(all, bases(0, end / 2), "all of them are here or were named");
    }
    goi.release_before(0, end, |gone| left.push(gone.base));
    assert_eq!(left, bases(0, end / 2));
    assert_eq!((goi.space(), goi.largest()), ((8, 8), None));
    let root = there.goi_root(0, 0).found().expect("begun");
    let (start, first) = (root.start, root.first);
    assert_eq!((start, first, root.head), (end, end, 0), "as if it began");
    append(&mut goi, 0, end, 3);
    let kept = follow(&mut Follower::new(&there, 0, 0));
    assert_eq!(kept, bases(end, 3), "it goes on");
    goi.release_before(9, u64::MAX, |_| panic!("there is no such chain"));
}

pub fn older_epochs_keep_their_pages<S: Setup>() {
    let setup = S::new(&few());
    let there = setup.host();
    let first = setup.host();
    let head = first.claim_unlocked(0);
    let mut goi = first.goi_writer(&head, 1);
    begin(&mut goi, (&first, &head), 0, 0, None);
    let end = append(&mut goi, 0, 0, 2 * PER_PAGE + 5);
    let mut old = Follower::new(&there, 0, 0);
    drop(goi);

    let second = setup.host();
    let head = second.claim_unlocked(0);
    let mut goi = second.goi_writer(&head, 3);
    assert_eq!((goi.space(), goi.has(0)), ((5, 8), false));
    assert_eq!(follow(&mut old), bases(0, 2 * PER_PAGE + 5));
    assert_eq!(goi.largest(), Some((0, 2 * PER_PAGE)));
    begin(&mut goi, (&second, &head), 0, end, None);
    append(&mut goi, 0, end, 1);
    assert_eq!(goi.space(), (4, 8));
    goi.release_before(1, u64::MAX, |_| {});
    goi.release_before(0, 2 * PER_PAGE - 1, |_| {});
    assert_eq!(goi.space(), (4, 8), "they may be read");
    goi.release_before(0, 2 * PER_PAGE, |_| {});
    assert_eq!(goi.largest(), Some((0, 4 * PER_PAGE)));
    goi.release_before(0, end, |_| {});
    assert_eq!((goi.space(), goi.largest()), ((7, 8), Some((0, end + 2))));
    let mut new = Follower::new(&there, 0, 0);
    assert_eq!(follow(&mut new), [end], "the epoch's own stays");
}

pub fn older_pages_are_kept_only_as_far_as_they_count<S: Setup>() {
    let setup = S::new(&few());
    let first = setup.host();
    let head = first.claim_unlocked(0);
    let mut goi = first.goi_writer(&head, 1);
    begin(&mut goi, (&first, &head), 0, 0, None);
    begin(&mut goi, (&first, &head), 1, 0, None);
    append(&mut goi, 0, 0, 2 * PER_PAGE + 5);
    append(&mut goi, 1, 0, 3);
    let root = first.goi_root(0, 0).found().expect("begun");
    let pages = first.goi_reader(0);
    let whole = root.head - 1;
    let (generation, _) = pages.page(whole).found().expect("in use");
    let cut = pages.link(whole, generation).found().expect("linked");
    drop(goi);

    // Another candidate cut the order ten records into the second page, and went on in its own area.
    let until = 2 * PER_PAGE + 20;
    let second = setup.host();
    let head = second.claim_unlocked(0);
    let mut goi = second.goi_writer(&head, 3);
    begin(&mut goi, (&second, &head), 0, 8 * PER_PAGE, None);
    assert_eq!(
        goi.largest(),
        Some((0, 2 * PER_PAGE)),
        "and not the quiet chain, whose positions are lower"
    );
    goi.clip_old(0, &[(whole, 7 * PER_PAGE), (cut, until)]);
    assert_eq!(goi.space(), (4, 8));
    assert_eq!(
        goi.largest(),
        Some((0, 0)),
        "the third was never part of the order"
    );
    for (first, free) in [
        (0, 5),
        (2 * PER_PAGE - 1, 5),
        (2 * PER_PAGE, 6),
        (until - 1, 6),
        (until, 7),
        (u64::MAX, 7),
    ] {
        goi.release_before(0, first, |_| panic!("none of them is of this epoch"));
        assert_eq!(goi.space(), (free, 8), "below {first}");
    }
    assert_eq!(
        goi.largest(),
        Some((1, 6)),
        "what another chain has is last"
    );
}

pub fn chains_that_are_gone_leave_nothing<S: Setup>() {
    let setup = S::new(&few());
    let there = setup.host();
    for epoch in 1..4 {
        let here = setup.host();
        let head = here.claim_unlocked(0);
        let mut goi = here.goi_writer(&head, epoch);
        if epoch > 1 {
            assert_eq!(goi.space(), (7, 8), "chain 1 left a page");
            assert!(goi.chains().eq([1]) && goi.holds(1) && !goi.has(1));
            goi.drop_chain(1);
            assert_eq!((goi.space(), goi.largest()), ((8, 8), None));
        }
        begin(&mut goi, (&here, &head), 0, 0, None);
        begin(&mut goi, (&here, &head), 1, 0, None);
        append(&mut goi, 0, 0, 2 * PER_PAGE);
        append(&mut goi, 1, 0, 3);
        assert_eq!(goi.space(), (5, 8));
        goi.drop_chain(0);
        assert_eq!((goi.has(0), goi.has(1)), (false, true));
        assert_eq!(goi.space(), (7, 8));
        assert_eq!(there.goi_root(0, 0).found(), Some(GoiRoot::default()));
        assert_eq!(follow(&mut Follower::new(&there, 0, 0)), []);
        assert_eq!(follow(&mut Follower::new(&there, 0, 1)), bases(0, 3));
    }
}

pub fn a_used_page_shows_nothing_of_its_past<S: Setup>() {
    let setup = S::new(&few());
    let (here, there) = (setup.host(), setup.host());
    let head = here.claim_unlocked(0);
    let mut goi = here.goi_writer(&head, 1);
    begin(&mut goi, (&here, &head), 0, 0, None);
    append(&mut goi, 0, 0, PER_PAGE + 1);
    let reader = there.goi_reader(0);
    let page = there.goi_root(0, 0).found().expect("begun").head - 1;
    let (before, _) = reader.page(page).found().expect("in use");
    let next = reader.link(page, before).found().expect("linked");
    goi.release_before(0, 2 * PER_PAGE, |_| {});
    let (released, header) = reader.page(page).found().expect("released");
    assert_eq!((released > before, header.in_use), (true, 0));
    assert_eq!(
        (
            reader.record(page, released, 0).found(),
            reader.link(page, released).found()
        ),
        (None, None)
    );
    // A reader that is in it may go on, as long as it is not used again.
    assert_eq!(reader.record(page, before, 5).found(), Some(record(10)));
    begin(&mut goi, (&here, &head), 1, 0, None);
    append(&mut goi, 1, 0, 1);
    let (used, header) = reader.page(page).found().expect("in use again");
    assert_eq!((header.chain, header.in_use), (1, 1));
    assert_eq!(reader.record(page, before, 0).found(), None);
    assert_eq!(
        reader.record(page, used, 1).found(),
        None,
        "an older record"
    );
    assert_eq!(reader.link(page, before).found(), Some(next));
    assert_eq!(reader.link(page, used).found(), None, "an older link");
    assert_eq!(reader.page(8).found(), None, "there is no such page");
}
