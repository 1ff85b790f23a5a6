//! `bench scale`: what publishing costs as one thing grows: brokers, connections, topics, messages, batches, publishers.
//!
//! Read [`plan`] (curves and their points), [`load`] (what runs at a point), [`measure`] (all points), [`cliffs`] (where
//! the cost jumps) and [`report`].

pub mod cliffs;
pub mod load;
pub mod measure;
pub mod plan;
pub mod report;
