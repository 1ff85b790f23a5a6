//! What a page is made of.

use crate::picture::Picture;
use crate::table::Table;

/// What one command found.
#[derive(Debug)]
pub struct Section {
    /// What it is of, as a heading.
    pub(crate) title: String,
    /// The one thing that it says.
    pub(crate) says: String,
    /// The name of the file that it is from.
    pub(crate) file: String,
    /// Where, when and by which command.
    pub(crate) origin: Vec<Fact>,
    pub(crate) blocks: Vec<Block>,
}

impl Section {
    /// The one thing that it says: `3,748 MiB/s, median of 6 trials`.
    pub fn says(&self) -> &str {
        &self.says
    }
}

/// A part of a section.
#[derive(Debug)]
pub(crate) enum Block {
    Heading(String),
    Text(String),
    Facts(Vec<Fact>),
    /// Facts that few look for, behind their name.
    More(String, Vec<Fact>),
    Picture(Box<Picture>),
    Table(Table),
    Findings(Vec<Found>),
}

/// A name and what it has.
#[derive(Debug)]
pub(crate) struct Fact {
    pub name: String,
    pub value: String,
    /// Whether it is what somebody typed.
    pub is_code: bool,
}

impl Fact {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            is_code: false,
        }
    }

    pub fn code(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            is_code: true,
            ..Self::new(name, value)
        }
    }
}

/// A finding of a diagnosis.
#[derive(Debug)]
pub(crate) struct Found {
    pub cause: String,
    pub sentence: String,
    pub part: String,
    /// Confidence and gain; `None` for what is no fault.
    pub weight: Option<Weight>,
    pub evidence: Table,
    pub remedy: String,
    /// The option that applies it.
    pub change: Option<String>,
    /// What came of trying it.
    pub tried: Option<String>,
    /// Whether its own remedy refuted it.
    pub is_withdrawn: bool,
}

/// How much a finding weighs, in words.
#[derive(Debug)]
pub(crate) struct Weight {
    pub confidence: String,
    pub gain: String,
}
