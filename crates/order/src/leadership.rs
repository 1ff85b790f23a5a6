//! Which candidate leads, that is sequences, as the candidates' rows show it.
//!
//! *Read, then look.* What a reader found in the area of a term counts only if afterwards no row shows a higher
//! epoch. A successor raises its epoch before it reads what was left. So whatever counted for a reader was in
//! memory before the raise, and the successor has it. A reader forgets what does not count, and reads it again
//! from the successor.
//!
//! *Never back.* Where memory is damaged, a row may be lost, and the highest epoch with it. Brokers record for
//! which epoch they began their lanes. No process that has seen an epoch adopts a lower one, and a candidate
//! raises its epoch above all that any process has seen.

use embar_fabric::{Region, SequencerRow, SequencerState};
use embar_memory::Memory;

/// The leadership of one sequencer, from the raise of its epoch to the raise of a higher one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Its number; each is higher than all before.
    pub epoch: u32,
    /// The area in which its sequencer writes.
    pub area: u16,
}

/// What the rows of all candidates say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leadership {
    /// The highest epoch that a candidate has raised; 0 when none has.
    pub highest: u32,
    /// How many epochs were raised one after the other. The epoch of a round is the round times the number of
    /// areas, plus the area of its candidate, so that no two candidates ever raise the same.
    pub rounds: u32,
    /// The term of the highest epoch; none while its candidate still reads what was left.
    pub term: Option<Term>,
}

impl Leadership {
    /// Looks at all rows.
    pub fn observe<M: Memory>(region: &Region<M>) -> Self {
        let rows = rows(region).max_by_key(|(_, row)| row.epoch);
        rows.map_or_else(Self::default, |(area, row)| Self {
            highest: row.epoch,
            rounds: row.epoch / u32::from(region.geometry().areas()),
            term: is_active(&row).then_some(Term {
                epoch: row.epoch,
                area,
            }),
        })
    }
}

impl Term {
    /// Whether no candidate has raised a higher epoch: what was read before this call counts.
    pub fn lasts<M: Memory>(self, region: &Region<M>) -> bool {
        rows(region).all(|(_, row)| row.epoch <= self.epoch)
    }
}

pub(crate) fn is_active(row: &SequencerRow) -> bool {
    SequencerState::from_number(row.state) == Some(SequencerState::Active)
}

/// The rows that were ever written and can be read, by area.
pub(crate) fn rows<M: Memory>(region: &Region<M>) -> impl Iterator<Item = (u16, SequencerRow)> {
    let areas = 0..region.geometry().areas();
    areas.filter_map(|area| Some((area, region.sequencer_row(area).found()?)))
}

/// Whether some candidate's row cannot be read: it may have raised any epoch.
pub(crate) fn is_damaged<M: Memory>(region: &Region<M>) -> bool {
    (0..region.geometry().areas()).any(|area| region.sequencer_row(area).is_damaged())
}

/// The highest epoch that a broker has begun its lanes for, or says that it has seen. It was active,
/// whatever its candidate's row still shows. A region's epochs name their area: see [`area_of`].
pub(crate) fn adopted<M: Memory>(region: &Region<M>) -> u32 {
    let geometry = region.geometry();
    let lanes = geometry
        .data_rows()
        .flat_map(|row| (0..geometry.lanes).map(move |lane| (row, lane)));
    let begun = lanes.filter_map(|(row, lane)| Some(region.lane_start(row, lane).found()?.epoch));
    let seen = (0..geometry.brokers).filter_map(|row| {
        let seen = region.control_row(row).found()?.epoch_seen;
        u32::try_from(seen).ok()
    });
    begun.chain(seen).max().unwrap_or(0)
}

/// The area of the candidate that raised an epoch.
pub(crate) fn area_of<M: Memory>(region: &Region<M>, epoch: u32) -> u16 {
    (epoch % u32::from(region.geometry().areas())) as u16
}
