//! `bench … --compare`: any setting of any bench, several values of it by turns.
//!
//! Each trial is a process of its own that runs the bench once, so nothing of one trial is left in the next, and whatever
//! the bench can be told can be compared. Read [`setting`] (what is compared), [`subject`] (what a bench says of itself),
//! [`measure`] and [`report`].

pub mod measure;
pub mod report;
pub mod setting;
pub mod subject;
