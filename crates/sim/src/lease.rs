//! What is asked of a sequencer at each of its steps, however its time passes.

use embar_order::Figures;

use crate::violation::{Check, Invariant, ensure};

/// Looks at what came before a lease ends, at least.
const LOOKS_PER_LEASE: u32 = 4;

/// Watches one sequencer.
#[derive(Debug, Default)]
pub struct Patience {
    /// Steps in a row after which batches waited for others.
    looks: u32,
}

impl Patience {
    /// A lease ends only after batches were looked for again and again. And one session alone never
    /// takes more than half of the room, of `held_max` places, for those that wait.
    pub fn judge(&mut self, before: Figures, after: Figures, held_max: u32) -> Check {
        let looks = std::mem::take(&mut self.looks);
        ensure(
            Invariant::I5,
            after.gaps == before.gaps || looks >= LOOKS_PER_LEASE,
            || format!("a session was fenced after {looks} looks"),
        )?;
        if after.held > 0 {
            self.looks = looks + 1;
        }
        let alone = after.sessions == 1 && before.sessions == 1;
        let half = 2 * after.held <= held_max + 1;
        ensure(Invariant::I9, !alone || half, || {
            format!("one session holds {} batches of {held_max}", after.held)
        })
    }
}
