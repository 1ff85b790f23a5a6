//! News: who changes something names the chain.

use std::sync::Arc;

use embar_fabric::layout::TableId;
use embar_fabric::news::News;
use embar_fabric::{NewsLine, NewsReader, Region};
use embar_memory::Memory;

use crate::common::{Cluster, small};
use crate::setup::Setup;

/// The chains that are named; `None` when it may be any.
fn take<M: Memory>(reader: &mut NewsReader<M>) -> Option<Vec<u32>> {
    let mut chains = Vec::new();
    reader.take(&mut chains).then_some(chains)
}

pub fn news_name_what_has_changed<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut early = there.news(News::Order(0));
    assert_eq!(take(&mut early), None, "who comes new looks at everything");
    assert_eq!(take(&mut early), Some(Vec::new()));
    let mut writer = here.order_news_writer(&here.claim_unlocked(0));
    assert_eq!(take(&mut early), None, "so do all readers for a new writer");
    let mut late = there.news(News::Order(0));
    assert_eq!(take(&mut late), None);
    for n in 0..20 {
        writer.announce(&[]);
        assert_eq!(take(&mut early), Some(Vec::new()));
        writer.announce(&[n, n + 1]);
        for reader in [&mut early, &mut late] {
            assert_eq!(take(reader), Some(vec![n, n + 1]));
            assert_eq!(take(reader), Some(Vec::new()));
        }
    }
    // As many as the ring's two lines name are named one by one, more are not.
    let most: Vec<u32> = (0..2 * NewsLine::NAMES as u32).collect();
    writer.announce(&most);
    assert_eq!(take(&mut early), Some(most.clone()));
    writer.announce(&[1]);
    assert_eq!(take(&mut early), Some(vec![1]));
    assert_eq!(take(&mut late), None, "it was overtaken");
    writer.announce(&[2]);
    assert_eq!(take(&mut late), Some(vec![2]));
    let other = here.order_news_writer(&here.claim_unlocked(0));
    drop(other);
    assert_eq!(take(&mut late), None, "a successor may know of more");
}

pub fn who_changes_something_tells<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let head = here.claim_unlocked(0);
    let mut records = here.topic_record_writer(&head);
    let mut news = there.news(News::TopicRecords);
    assert_eq!(take(&mut news), None);
    records.store(3, b"topic").expect("it fits");
    assert_eq!(take(&mut news), Some(vec![3]));

    let broker = here.claim_unlocked(1);
    let windows = here.window_news_writer(&broker);
    let mut window = here.window_writer(&broker, 2).announcing_to(&windows);
    let mut silent = here.window_writer(&broker, 1);
    let mut news = there.news(News::Windows(1));
    assert_eq!(take(&mut news), None);
    window.reset(70, 0, 10);
    assert_eq!(take(&mut news), Some(vec![70]));
    window.raise_next(20);
    silent.reset(71, 0, 10);
    silent.raise_first(4);
    assert_eq!(take(&mut news), Some(Vec::new()));
    window.raise_first(4);
    assert_eq!(take(&mut news), Some(vec![70]));
    assert_eq!(
        there.window(1, 2).found().map(|window| window.first),
        Some(4)
    );
}

/// Where a line was counted and is not there, no reader believes that nothing has changed.
#[test]
fn a_line_that_is_missing_is_not_passed_over() {
    let cluster = Cluster::seeded(&small(), 7);
    let host = |seed| {
        let payload_files = cluster.payload_files.iter();
        let payload_files = payload_files
            .map(|payload_file| Arc::new(payload_file.host(seed)))
            .collect();
        let control = Arc::new(cluster.control.host(seed));
        let region = Region::from_parts(Arc::clone(&control), payload_files).expect("formatted");
        (region, control)
    };
    let ((here, memory), (there, _)) = (host(1), host(2));
    let mut writer = here.given_up_writer(&here.claim_unlocked(0));
    let mut reader = there.news(News::GivenUp(0));
    assert_eq!(take(&mut reader), None);
    writer.announce(&[1]);
    let table = here.layout().tables()[TableId::NewsLines as usize];
    memory.write(table.offset, &vec![0; table.bytes() as usize]);
    memory.write_back(table.offset, table.bytes());
    memory.fence();
    assert_eq!(take(&mut reader), None);
    writer.announce(&[2]);
    assert_eq!(take(&mut reader), Some(vec![2]));
}
