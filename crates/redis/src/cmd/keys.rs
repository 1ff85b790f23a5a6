//! The keys of a command: where they are among its words.

use super::words::{Words, is};

/// Where the keys are among the words of a command; its name is word 0.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keys {
    /// It has no keys.
    None,
    /// From word `first` to `last`, which counts from the end if it is negative, each `step`-th.
    Range {
        first: usize,
        last: isize,
        step: usize,
    },
    /// As many as this word says, after it.
    Counted(usize),
    /// As many as this word says, after it, each with a value behind it.
    CountedPairs(usize),
    /// Word 1, and as many as word 2 says, after it.
    Stored,
    /// The first half of what follows `STREAMS`, which is this word or a later one.
    Streams(usize),
    /// Word 1, and what follows `STORE`.
    Sort,
    /// Word 1, and what follows `STORE` or `STOREDIST` from this word on.
    Radius(usize),
    /// Word 3; if that is empty, all that follow `KEYS`.
    Migrate,
}

impl Keys {
    /// Calls `see` with each key. A malformed command has fewer keys than it should; the server will
    /// say what is wrong.
    pub fn each<'a>(self, words: &Words<'a>, mut see: impl FnMut(&'a [u8])) {
        match self {
            Self::None => {}
            Self::Range { first, last, step } => {
                let last = match usize::try_from(last) {
                    Ok(last) => last,
                    Err(_) => words.count().saturating_sub(last.unsigned_abs()),
                };
                let most = (last + 1).saturating_sub(first);
                words.from(first).take(most).step_by(step).for_each(see);
            }
            Self::Counted(at) => counted(words, at).for_each(see),
            Self::CountedPairs(at) => {
                let keys = words.from(at + 1).step_by(2);
                keys.take(count_at(words, at)).for_each(see);
            }
            Self::Stored => words.from(1).take(1).chain(counted(words, 2)).for_each(see),
            Self::Streams(least) => {
                let after = words
                    .from(least)
                    .skip_while(|word| !is(word, "STREAMS"))
                    .skip(1);
                let half = after.clone().count() / 2;
                after.take(half).for_each(see);
            }
            Self::Sort => {
                words.from(1).take(1).for_each(&mut see);
                after_last(words.from(2), &["STORE"])
                    .into_iter()
                    .for_each(see);
            }
            Self::Radius(options) => {
                words.from(1).take(1).for_each(&mut see);
                let store = after_last(words.from(options), &["STORE", "STOREDIST"]);
                store.into_iter().for_each(see);
            }
            Self::Migrate => match words.from(3).next() {
                Some(b"") => {
                    let after = words.from(6).skip_while(|word| !is(word, "KEYS"));
                    after.skip(1).for_each(see);
                }
                key => key.into_iter().for_each(see),
            },
        }
    }
}

/// The words behind word `at`, as many as that word says.
fn counted<'a>(words: &Words<'a>, at: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    words.from(at + 1).take(count_at(words, at))
}

/// The number that word `at` is.
fn count_at(words: &Words<'_>, at: usize) -> usize {
    let count = words
        .from(at)
        .next()
        .and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
    count.unwrap_or(0)
}

/// The word behind the last of these options.
fn after_last<'a>(mut words: impl Iterator<Item = &'a [u8]>, options: &[&str]) -> Option<&'a [u8]> {
    let mut found = None;
    while let Some(word) = words.next() {
        if options.iter().any(|option| is(word, option)) {
            found = words.next();
        }
    }
    found
}
