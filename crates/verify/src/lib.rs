//! Verifying a topic's promises while processes are killed and stopped.
//!
//! Read [`plan`] (what is run), [`stamp`] (messages that say who sent them), then the checks, which know neither time nor
//! processes: [`violation`], [`ranges`], [`truth`] (all readers see the same), [`trail`] (one reader's way), [`ledger`]
//! (what was acknowledged is where it was said to be), [`room`] (what must still be there), [`checker`] (all together).
//! Around them: [`record`] and [`publisher`] (the publishing processes), [`books`] (what all threads share), [`crowd`] (the
//! publishers' parent) and [`listener`] (what they tell it), [`readers`] and their [`patience`], [`echo`] (what was just
//! acknowledged is there), [`neighbour`] (topics that come and go), [`faults`] and [`gaps`], [`brokers`] (whom faults hit,
//! and who comes back), [`retained`] (how full a full log is), [`run`] (a whole run), [`report`].
//! [`sessions`] is a check of its own, with processes of [`victims`], and so is [`claims`], with each [`claimant`]. All end
//! with [`findings`].

#![forbid(unsafe_code)]

pub mod books;
pub mod brokers;
pub mod checker;
pub mod claimant;
pub mod claims;
pub mod crowd;
pub mod echo;
pub mod faults;
pub mod findings;
pub mod gaps;
pub mod ledger;
pub mod listener;
pub mod log_client_error;
pub mod neighbour;
pub mod patience;
pub mod plan;
pub mod publisher;
pub mod ranges;
pub mod readers;
pub mod record;
pub mod report;
pub mod retained;
pub mod room;
pub mod run;
pub mod sessions;
pub mod stamp;
pub mod trail;
pub mod truth;
pub mod victims;
pub mod violation;
