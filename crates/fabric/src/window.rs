//! Windows: which offsets of each topic may be read on one broker. That broker writes them, and any process reads them.
//!
//! Memory is used again by one rule. The broker raises `first` and writes it back *before* any memory below `first` may
//! be used again. So a reader that checks the window after it copied a batch knows whether the batch was still there.

use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use crate::news::SharedNews;
use crate::records::Window;
use crate::rows::RowWriter;

/// Writes the window row of one topic; the broker has the only one.
#[derive(Debug)]
pub struct WindowWriter<M> {
    row: RowWriter<M, Window>,
    window: Window,
    /// Whether this writer has stored it.
    is_stored: bool,
    news: Option<SharedNews<M>>,
}

impl<M: Memory> WindowWriter<M> {
    pub(crate) fn attach(
        row: RowWriter<M, Window>,
        found: Option<Window>,
        incarnation: u32,
    ) -> Self {
        let window = Window {
            incarnation,
            ..found.unwrap_or_default()
        };
        Self {
            row,
            window,
            is_stored: false,
            news: None,
        }
    }

    /// Names the chain in these news whenever its start was raised, for those who follow it elsewhere.
    #[must_use]
    pub fn announcing_to(mut self, news: &SharedNews<M>) -> Self {
        self.news = Some(news.clone());
        self
    }

    /// What was stored last, by this writer or its predecessor; zeros when nothing was.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Begins the window of another chain in this row.
    pub fn reset(&mut self, chain: u32, first: u64, next: u64) {
        self.recover(chain, first, next, 0);
    }

    /// Goes on with a chain that was found in this row. Messages below `lost` were lost to damage; 0
    /// when none were.
    pub fn recover(&mut self, chain: u32, first: u64, next: u64, lost: u64) {
        assert!(first <= next, "a window from {first} to {next}");
        self.window = Window {
            chain,
            first,
            next,
            lost,
            ..self.window
        };
        self.store();
        self.announce();
    }

    /// Raises the end: offsets below `next` may be read from now on.
    #[inline]
    pub fn raise_next(&mut self, next: u64) {
        assert!(
            next >= self.window.next,
            "offset {next} was readable already"
        );
        self.window.next = next;
        self.store();
    }

    /// Raises the start: when this returns, no reader will start below `first`, and one that
    /// reads there notices. Only then may the memory below be used again.
    pub fn raise_first(&mut self, first: u64) {
        assert!(
            (self.window.first..=self.window.next).contains(&first),
            "window {}..{} cannot start at {first}",
            self.window.first,
            self.window.next
        );
        self.window.first = first;
        self.store();
        self.announce();
    }

    fn store(&mut self) {
        self.row.store(&self.window);
        self.is_stored = true;
    }

    /// Stores the window again where memory has lost what this writer stored: whoever reads in this broker's memory
    /// looks at it, and it may be long until it changes. True if something was lost.
    pub fn restore(&mut self) -> bool {
        self.is_stored && self.row.restore(&self.window)
    }

    fn announce(&self) {
        if let Some(news) = self.news.as_ref().filter(|_| !injected(Canary::WindowNews)) {
            news.announce(&[self.window.chain]);
        }
    }
}
