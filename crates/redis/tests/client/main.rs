//! The client against real servers, alone and as clusters, while they work and while they fail.

mod basics;
mod cluster;
mod dedicated;
mod faults;
mod pipelines;
mod pubsub;
mod support;
