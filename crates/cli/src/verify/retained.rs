//! How much of the topic can be read, looked at again and again while the log is full.

use serde::Serialize;

/// What was seen since older messages had to make room for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Retained {
    /// Looks in all.
    pub looks: u64,
    /// Bytes of messages, with their headers, at the look that found least.
    pub least_bytes: u64,
    /// And at the one that found most.
    pub most_bytes: u64,
    /// The least over the most.
    pub least_share: f64,
}

impl Retained {
    /// A look at a log in which nobody can read the first `gone` messages, and somebody saw `messages` of `bytes` each
    /// behind them. Before anything is gone it is not full, and says nothing.
    pub fn look(&mut self, gone: u64, messages: u64, bytes: u64) {
        if gone == 0 {
            return;
        }
        let held = messages.saturating_mul(bytes);
        self.least_bytes = match self.looks {
            0 => held,
            _ => self.least_bytes.min(held),
        };
        self.most_bytes = self.most_bytes.max(held);
        self.least_share = self.least_bytes as f64 / self.most_bytes.max(1) as f64;
        self.looks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_log_is_looked_at() {
        let mut retained = Retained::default();
        retained.look(0, 3, 100);
        assert_eq!(retained, Retained::default());
        for messages in [50, 20, 60] {
            retained.look(1, messages, 100);
        }
        let seen = (retained.looks, retained.least_bytes, retained.most_bytes);
        assert_eq!(seen, (3, 2000, 6000));
        assert!((retained.least_share - 1.0 / 3.0).abs() < 1e-9);
    }
}
