//! Callers of Redis that are looked at, with faults on purpose, and servers that others use: what `embar diagnose redis` runs.
//!
//! Read [`plan`] (what is run), [`inject`] (the faults), `servers` (those of our own), `info` and `asking` (what servers say
//! of themselves), `watching` (what our client counts meanwhile), `looking` (all of these for a span), [`run`] (all of it), `observe` (from what was seen to
//! what a diagnosis looks at) and [`report`] (what is printed).

mod asking;
mod info;
pub mod inject;
mod looking;
mod observe;
pub mod plan;
pub mod report;
pub mod run;
mod servers;
mod watching;
