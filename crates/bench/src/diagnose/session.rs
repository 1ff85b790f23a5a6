//! Message sessions that are looked at, with faults on purpose: what `embar diagnose session` runs.
//!
//! Read `messages` (what is sent), [`inject`] (the faults), [`plan`] (what is run), `load` (server, client and threads that send), [`run`] (all of it), `observe`
//! (from what was seen to what a diagnosis looks at) and [`report`] (what is printed). [`attach`] looks at sessions
//! that others use.

pub mod attach;
mod handlers;
pub mod inject;
mod load;
mod messages;
mod observe;
pub mod plan;
pub mod report;
pub mod run;
mod tls;
