//! What a page fault, a system call and a received byte cost on this machine: measured, because virtual machines differ tenfold.

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Instant;

/// Memory that is touched; more than what an allocator keeps at hand.
const TOUCHED: usize = 4 << 20;
/// The kernel maps this much at a time.
const PAGE: usize = 4096;
/// Bytes that a socket's buffers hold, so that nobody waits.
const RECEIVED: usize = 48 << 10;
/// Calls that are timed.
const CALLS: u32 = 400;
/// The least of several tries is what nobody disturbed.
const TRIES: usize = 5;

/// Seconds for the first touch of a page of private memory; `None` if the kernel maps more than a page at once. Measured once.
pub fn fault_s() -> Option<f64> {
    static COST: OnceLock<Option<f64>> = OnceLock::new();
    *COST.get_or_init(measure_fault)
}

/// Seconds for a system call that moves one byte. Measured once.
pub fn syscall_s() -> Option<f64> {
    static COST: OnceLock<Option<f64>> = OnceLock::new();
    *COST.get_or_init(measure_syscall)
}

/// Seconds for a byte that a socket receives, many at a time. Measured once, by a Unix socket: loopback may be slow on purpose.
pub fn receive_byte_s() -> Option<f64> {
    static COST: OnceLock<Option<f64>> = OnceLock::new();
    *COST.get_or_init(measure_receive)
}

fn measure_receive() -> Option<f64> {
    let (sender, receiver) = UnixStream::pair().ok()?;
    measure_receive_by(sender, receiver)
}

/// `None` if the buffers between these two hold less (net.core.wmem_default): whoever waited for room would wait for ever.
fn measure_receive_by(mut sender: UnixStream, mut receiver: UnixStream) -> Option<f64> {
    sender.set_nonblocking(true).ok()?;
    let mut bytes = vec![1; RECEIVED];
    least(|| {
        sender.write_all(&bytes).ok()?;
        let started = Instant::now();
        receiver.read_exact(&mut bytes).ok()?;
        Some(started.elapsed().as_secs_f64() / RECEIVED as f64)
    })
}

fn measure_fault() -> Option<f64> {
    let page = || {
        let mut memory = vec![0_u8; TOUCHED];
        let before = faults()?;
        let started = Instant::now();
        memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        let elapsed = started.elapsed().as_secs_f64();
        black_box(&memory);
        let faults = faults()?.saturating_sub(before);
        // A few more or less are the allocator's; a large page in between is many at once.
        (faults as usize >= TOUCHED / PAGE * 9 / 10).then(|| elapsed / faults as f64)
    };
    least(page)
}

fn measure_syscall() -> Option<f64> {
    let mut zero = File::open("/dev/zero").ok()?;
    let mut byte = [0];
    least(|| {
        let started = Instant::now();
        for _ in 0..CALLS {
            zero.read_exact(&mut byte).ok()?;
        }
        Some(started.elapsed().as_secs_f64() / f64::from(CALLS))
    })
}

fn least(mut once: impl FnMut() -> Option<f64>) -> Option<f64> {
    (0..TRIES).filter_map(|_| once()).min_by(f64::total_cmp)
}

fn faults() -> Option<u64> {
    let reading = embar_readings::process::ProcessReading::of_self().ok()?;
    Some(reading.minor_faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_a_time() {
        // How long is a matter of who else is on the machine.
        for cost in [receive_byte_s(), syscall_s()] {
            let cost = cost.expect("it can be measured anywhere");
            assert!(cost.is_finite() && cost > 0.0, "{cost}");
        }
        if let Some(fault) = fault_s() {
            assert!(fault.is_finite() && fault > 0.0, "{fault}");
        }
        assert_eq!(receive_byte_s(), receive_byte_s(), "it is measured once");
    }

    #[test]
    fn buffers_that_hold_less_are_not_waited_for() {
        let (sender, receiver) = UnixStream::pair().expect("a pair of sockets");
        rustix::net::sockopt::set_socket_send_buffer_size(&sender, 4096).expect("it may be small");
        assert_eq!(measure_receive_by(sender, receiver), None);
    }
}
