//! A wire between loopback and itself that takes time and loses packets, where the kernel has no `netem`.
//!
//! What leaves by `lo` is led to a TUN device (tc-mirred(8)), from which two threads carry it back: one takes packets and decides what becomes
//! of them, the other gives each to the kernel when it is due, as if it had arrived by `lo`. So addresses are as they
//! were, and all connections of the namespace take this way, in both directions.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_meter::random::SplitMix64;
use tun_rs::{DeviceBuilder, SyncDevice};

use super::super::fault::Share;
use super::run;

/// The device.
pub(super) const NAME: &str = "wire";
/// The largest packet of IP.
const PACKET_MAX: usize = 65_535;
/// Bytes that are on their way, at most. What comes then is lost, as in front of any link that is full.
const ON_THE_WAY_MAX: usize = 64 << 20;
/// Packets that wait in the kernel until they are taken.
const QUEUE: &str = "4096";

/// Decides what becomes of packets.
struct Fate {
    delay: Duration,
    loss: Share,
    random: SplitMix64,
}

/// A packet, and when it arrives.
struct Packet {
    due: Instant,
    bytes: Box<[u8]>,
}

impl Fate {
    /// When a packet arrives that left at `now`, with so many bytes on the way before it; `None` if it does not.
    fn of(&mut self, now: Instant, on_the_way: usize) -> Option<Instant> {
        let is_lost = self.loss.takes(&mut self.random) || on_the_way > ON_THE_WAY_MAX;
        (!is_lost).then(|| now + self.delay)
    }
}

/// Leads `lo` over a wire.
pub(super) fn lay(delay: Duration, loss: Share) -> Result<()> {
    let device = DeviceBuilder::new().name(NAME).build_sync();
    let device = Arc::new(device.context("cannot make a network device (/dev/net/tun)")?);
    let fate = Fate {
        delay,
        loss,
        random: SplitMix64::new(1),
    };
    carry(&device, fate)?;
    // The kernel takes packets from here, although their addresses are its own.
    for (name, value) in [
        ("all/rp_filter", "0"),
        ("lo/rp_filter", "0"),
        ("lo/route_localnet", "1"),
        ("lo/accept_local", "1"),
    ] {
        let path = format!("/proc/sys/net/ipv4/conf/{name}");
        fs::write(&path, value).with_context(|| format!("cannot write {path}"))?;
    }
    run("ip", &["link", "set", NAME, "txqueuelen", QUEUE, "up"])?;
    lead("lo", "egress", NAME)?;
    lead(NAME, "ingress", "lo")
}

/// What goes this way on one device goes the same way on another.
fn lead(device: &str, way: &str, to: &str) -> Result<()> {
    run("tc", &["qdisc", "add", "dev", device, "clsact"])?;
    let filter = ["filter", "add", "dev", device, way, "protocol", "ip"];
    let all = ["u32", "match", "u32", "0", "0"];
    let action = ["action", "mirred", way, "redirect", "dev", to];
    run("tc", &[&filter[..], &all, &action].concat())?;
    Ok(())
}

/// Starts the threads that carry packets. They end with the process.
fn carry(device: &Arc<SyncDevice>, fate: Fate) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    let on_the_way = Arc::new(AtomicUsize::new(0));
    let (from, counter) = (Arc::clone(device), Arc::clone(&on_the_way));
    thread::Builder::new()
        .name("wire-in".into())
        .spawn(move || take(&from, fate, &sender, &counter))?;
    let to = Arc::clone(device);
    thread::Builder::new()
        .name("wire-out".into())
        .spawn(move || give(&to, &receiver, &on_the_way))?;
    Ok(())
}

fn take(device: &SyncDevice, mut fate: Fate, sender: &Sender<Packet>, on_the_way: &AtomicUsize) {
    let mut buffer = vec![0; PACKET_MAX];
    while let Ok(len) = device.recv(&mut buffer) {
        let Some(due) = fate.of(Instant::now(), on_the_way.load(Relaxed)) else {
            continue;
        };
        let bytes = Box::from(&buffer[..len]);
        on_the_way.fetch_add(len, Relaxed);
        if sender.send(Packet { due, bytes }).is_err() {
            return;
        }
    }
}

fn give(device: &SyncDevice, receiver: &Receiver<Packet>, on_the_way: &AtomicUsize) {
    while let Ok(packet) = receiver.recv() {
        thread::sleep(packet.due.saturating_duration_since(Instant::now()));
        on_the_way.fetch_sub(packet.bytes.len(), Relaxed);
        // What the kernel does not take is lost.
        let _taken = device.send(&packet.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(loss: &str) -> Fate {
        Fate {
            delay: Duration::from_millis(2),
            loss: loss.parse().expect("a share"),
            random: SplitMix64::new(7),
        }
    }

    #[test]
    fn packets_arrive_late_and_as_many_are_lost_as_should_be() {
        let now = Instant::now();
        let mut fate = fate("1");
        let arrived: Vec<Instant> = (0..100_000).filter_map(|_| fate.of(now, 0)).collect();
        assert!(arrived.iter().all(|it| *it == now + fate.delay));
        let lost = 100_000 - arrived.len();
        assert!((800..1200).contains(&lost), "{lost}");
    }

    #[test]
    fn a_wire_that_is_full_takes_nothing() {
        let now = Instant::now();
        let mut fate = fate("0.001");
        assert!(fate.of(now, ON_THE_WAY_MAX).is_some());
        assert!(fate.of(now, ON_THE_WAY_MAX + 1).is_none());
    }
}
