//! The runtime on real sockets.

#[cfg(feature = "admin")]
mod admin;
mod admission;
mod adopting;
mod bodies;
mod broadcast;
mod budget;
mod carried;
mod crowd;
mod ending;
mod fairness;
mod flow;
mod gathering;
mod hand_overs;
#[path = "../common/hello.rs"]
mod hello;
#[path = "../common/lane_frames.rs"]
mod lane_frames;
mod lanes;
mod leaving;
mod life;
mod listeners;
mod many;
mod messages;
mod priorities;
mod proxies;
mod rates;
mod redirects;
mod refusing;
mod spans;
mod spinning;
mod status;
mod streams;
#[path = "../common/sums.rs"]
mod sums;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod waking;
mod workers;
