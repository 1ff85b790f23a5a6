//! Results of the commands of `embar` as one HTML page that needs nothing else: no network, no script, no font.
//!
//! [`read`] turns the JSON that a command prints with `--json` into a [`Section`], and [`Report::to_html`] sections into a page.
//! Neither reads a file or a clock, so the same input gives the same page.
//!
//! What comes in may be anything. It gives an [`Error`] that says what is wrong with it, or a page in which all of its texts are
//! escaped; what the page may load is forbidden by its own policy besides.
//!
//! Read the files in this order:
//!
//! 1. `input`: from bytes to objects, within bounds.
//! 2. `parse`: what each object is of, by its fields, and what is in it; a file for each kind.
//! 3. `section`, `picture`, `table`: what a page is made of. A picture is made together with the table of its figures.
//! 4. `svg`, `html`: how that is drawn and written.

#![forbid(unsafe_code)]

use std::collections::HashMap;

mod error;
mod html;
mod input;
mod limits;
mod parse;
mod picture;
pub mod secrets;
mod section;
mod svg;
mod table;
mod words;

pub use error::Error;
pub use limits::{BYTES_MAX, UNDERSTOOD};
pub use section::Section;

/// What a file says: a section for each object in it, in their order. `name` is what errors call the file.
///
/// # Errors
/// If it is no JSON, is larger than [`BYTES_MAX`], holds what none of [`UNDERSTOOD`] prints, or a field of it has another type
/// than theirs.
pub fn read(name: &str, bytes: &[u8]) -> Result<Vec<Section>, Error> {
    let objects = input::objects(name, bytes)?;
    objects.iter().map(|it| parse::section(name, it)).collect()
}

/// A page.
#[derive(Debug)]
pub struct Report {
    /// Its title; without one it is that of its only section, or says how many there are.
    pub title: Option<String>,
    /// When it is made, in words.
    pub made: Option<String>,
    /// What it shows.
    pub sections: Vec<Section>,
}

impl Report {
    /// The title of each section. Of several with the same one, each has the name of its file besides, and where that does not
    /// tell them apart, a number.
    pub fn titles(&self) -> Vec<String> {
        let mut titles: Vec<String> = self.sections.iter().map(|it| it.title.clone()).collect();
        append_to_repeated(&mut titles, |at, _| format!(": {}", self.sections[at].file));
        append_to_repeated(&mut titles, |_, number| format!(", {number}"));
        titles
    }

    /// The page, as a file in UTF-8.
    pub fn to_html(&self) -> String {
        html::page(self)
    }
}

/// Appends to each title that is there more than once what `more` says of its place, and of which of them it is.
fn append_to_repeated(titles: &mut [String], more: impl Fn(usize, usize) -> String) {
    let mut times: HashMap<String, usize> = HashMap::new();
    let mut count = |title: &String| {
        let count = times.entry(title.clone()).or_insert(0);
        *count += 1;
        *count
    };
    let numbers: Vec<usize> = titles.iter().map(&mut count).collect();
    for (at, (title, number)) in titles.iter_mut().zip(numbers).enumerate() {
        if times[title.as_str()] > 1 {
            title.push_str(&more(at, number));
        }
    }
}
