//! How long threads stood still for want of a processor, memory, or a disk: pressure stall information (the kernel's
//! `accounting/psi.rst`), of the whole machine.

use std::fs;
use std::io;
use std::time::Duration;

/// Time since the machine started in which at least one thread stood still for want of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Of a processor.
    pub cpu: Duration,
    /// Of memory: it waited for pages to be freed, or to come back from swap.
    pub memory: Duration,
    /// Of a disk.
    pub io: Duration,
}

impl Pressure {
    /// Reads it.
    ///
    /// # Errors
    /// This kernel does not count it, or not as its documents say.
    pub fn read() -> io::Result<Self> {
        let of = |what: &str| {
            let path = format!("/proc/pressure/{what}");
            let text = fs::read_to_string(&path)?;
            some(&text).ok_or_else(|| io::Error::other(format!("{path} has no line of `some`")))
        };
        Ok(Self {
            cpu: of("cpu")?,
            memory: of("memory")?,
            io: of("io")?,
        })
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            memory: self.memory.saturating_sub(earlier.memory),
            io: self.io.saturating_sub(earlier.io),
        }
    }
}

/// The microseconds in which some thread stood still.
fn some(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut fields = line.split_ascii_whitespace();
    let total = fields.find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_some_threads_is_taken() {
        let text = "some avg10=1.15 avg60=11.37 avg300=7.35 total=2792743\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(some(text), Some(Duration::from_micros(2_792_743)));
        for text in ["", "full total=7", "some avg10=1", "some total=x"] {
            assert_eq!(some(text), None, "{text}");
        }
    }

    #[test]
    fn time_that_went_back_is_none() {
        let (one, two) = (Duration::from_secs(1), Duration::from_secs(2));
        let of = |cpu| Pressure {
            cpu,
            ..Pressure::default()
        };
        assert_eq!(of(two).since(&of(one)).cpu, one);
        assert_eq!(of(one).since(&of(two)).cpu, Duration::ZERO);
    }
}
