//! Loads that are looked at, with faults on purpose, and remedies that are tried: what `embar diagnose` runs.
//!
//! Read [`plan`] (what is run), [`inject`] (the faults, and [`fault`]: how they are written), [`load`] (the threads), [`run`] (all of it on a cluster), [`observe`] (from
//! readings to what a diagnosis looks at), [`verify`] (remedies), [`matrix`] (how often
//! the right cause is named), [`report`] (what is printed). [`redis`] does all of that for callers of Redis, and [`session`] for message
//! sessions.

pub mod attach;
pub mod costs;
pub mod fault;
pub mod hog;
pub mod inject;
pub mod load;
pub mod matrix;
pub mod network;
pub mod observe;
pub mod over_time;
pub mod pace;
pub mod plan;
pub mod quota;
pub mod redis;
pub mod report;
pub mod run;
pub mod sampling;
pub mod session;
pub mod stalls;
pub mod verify;
