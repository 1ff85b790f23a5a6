//! Keeps what files say that cannot be out of a diagnosis.

use crate::finding::Finding;

/// Whether all numbers of a finding can be. Where one cannot, a number of the file that it comes from cannot either, so the
/// rule did not hold.
pub(crate) fn is_sound(finding: &Finding) -> bool {
    let can_be = |number: f64| number.is_finite() && number >= 0.0;
    can_be(finding.gain_at_most)
        && (0.0..=1.0).contains(&finding.confidence)
        && finding.evidence.iter().all(|it| can_be(it.value))
}
