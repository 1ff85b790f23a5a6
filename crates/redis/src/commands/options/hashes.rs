//! Options of commands for hashes.

use super::general::Expiry;
use crate::cmd::Cmd;

/// Options of `HSETEX`.
#[derive(Debug, Clone, Copy, Default)]
pub struct HSetExOptions {
    expiry: Option<Expiry>,
    keep_ttl: bool,
    condition: Option<&'static str>,
}

impl HSetExOptions {
    /// No options: the fields expire no more.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `EX`, `PX`, `EXAT`, `PXAT`: when they expire.
    #[must_use]
    pub fn expiry(mut self, expiry: Expiry) -> Self {
        self.expiry = Some(expiry);
        self
    }

    /// `KEEPTTL`: they expire when they would have.
    #[must_use]
    pub fn keep_ttl(mut self) -> Self {
        self.keep_ttl = true;
        self
    }

    /// `FNX`: only if there is none of them.
    #[must_use]
    pub fn if_absent(mut self) -> Self {
        self.condition = Some("FNX");
        self
    }

    /// `FXX`: only if there are all of them.
    #[must_use]
    pub fn if_present(mut self) -> Self {
        self.condition = Some("FXX");
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = self.condition.into_iter().fold(cmd, Cmd::arg);
        let cmd = cmd.word_if(self.keep_ttl, "KEEPTTL");
        self.expiry
            .into_iter()
            .fold(cmd, |cmd, expiry| expiry.add(cmd))
    }
}
