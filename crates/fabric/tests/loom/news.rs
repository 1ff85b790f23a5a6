//! News, and the changes that they name.

use embar_fabric::layout::TableId;
use embar_fabric::news::News;
use embar_fabric::{NewsReader, Region};

use crate::memory::{Modelled, entry, explore_region_within, row, spawn_roomy, words};

const CHAIN: u32 = 7;
/// Rows of [`News`] before those of row 1: that of topic records, and row 0.
const OF_ROW_1: u64 = 2;

/// Whether a look at the news leads to a look at the chain.
fn looks(news: &mut NewsReader<Modelled>) -> bool {
    let mut chains = Vec::new();
    !news.take(&mut chains) || chains.contains(&CHAIN)
}

/// A reader that looks only where the news say so has in the end what was stored last.
#[test]
fn a_change_that_news_name_is_found() {
    explore_region_within(
        1,
        |layout| {
            let window = row(entry(layout, TableId::Windows, 1), &[1]);
            let count = row(entry(layout, TableId::NewsCounts, OF_ROW_1), &[0]);
            // The first line of a writer in a fresh region of two lines is number 3.
            let line = entry(layout, TableId::NewsLines, OF_ROW_1 * 2 + 1);
            window.chain(count).chain(words(line, &[0, 6, 7]))
        },
        |region| listens(&region),
    );
}

fn listens(region: &Region<Modelled>) {
    let claim = region.claim_unlocked(1);
    let announced = region.window_news_writer(&claim);
    let mut window = region.window_writer(&claim, 0).announcing_to(&announced);
    window.reset(CHAIN, 0, 9);
    let mut news = region.news(News::Windows(1));
    assert!(looks(&mut news), "it is new here");
    let first = || region.window(1, 0).found().map_or(0, |window| window.first);
    let mut known = first();
    let thread = spawn_roomy(move || window.raise_first(5));
    if looks(&mut news) {
        known = first();
    }
    thread.join().unwrap();
    if looks(&mut news) {
        known = first();
    }
    assert_eq!(known, 5, "no line named it");
}
