//! What is kept of `embar diagnose --matrix`, with and without `--verify`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often each fault was named.
#[derive(Serialize, Deserialize)]
pub struct DiagnoseMatrix {
    pub runs: u64,
    pub rows: Vec<MatrixRow>,
}

/// What was named for one fault.
#[derive(Serialize, Deserialize)]
pub struct MatrixRow {
    pub injected: String,
    pub options: String,
    pub expected: Vec<String>,
    pub first: BTreeMap<String, u64>,
    pub right: u64,
    pub among_three: u64,
    pub bytes_per_s: f64,
    pub gain_at_most: Option<f64>,
    pub gained: Option<f64>,
    /// What came of the remedies that were tried.
    pub outcomes: BTreeMap<String, u64>,
    pub as_predicted: u64,
}
