//! What sequencers, brokers and publishers rely on in the core.

mod agreement;
mod bounds;
mod clocks;
mod crowd;
mod following;
mod giving_up;
mod hostile;
mod model;
mod opening;
mod rebuilding;
mod support;
mod unordered;
