//! The error for a plan that cannot be run: which settings must change, and why.

/// A plan that cannot be run: which of its settings must change, and why.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct BadSetting {
    /// Any of these may be changed; they are fields of the plan.
    pub settings: &'static [&'static str],
    /// What is wrong with them.
    pub why: String,
}

impl BadSetting {
    /// `settings` cannot be used as they are, because of `why`.
    pub fn new(settings: &'static [&'static str], why: impl Into<String>) -> Self {
        Self {
            settings,
            why: why.into(),
        }
    }
}
