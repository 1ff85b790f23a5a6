//! What `embar bench … --compare` gave, as far as order levels go.

use serde::{Deserialize, Serialize};

use super::Interval;

/// `embar bench publish --compare`
#[derive(Serialize, Deserialize)]
pub struct Compared {
    pub configurations: Vec<Configuration>,
    pub comparisons: Vec<Comparison>,
}

#[derive(Serialize, Deserialize)]
pub struct Configuration {
    pub name: String,
    pub median: f64,
}

/// `changed` divided by `baseline`.
#[derive(Serialize, Deserialize)]
pub struct Comparison {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    pub baseline: String,
    pub changed: String,
    pub ratio: Interval,
}

impl Compared {
    /// The rates of the order levels that were compared, MiB/s.
    pub fn rates(&self) -> impl Iterator<Item = (u8, f64)> {
        self.configurations.iter().filter_map(|it| {
            let order = it.name.strip_prefix("order ")?.parse().ok()?;
            Some((order, it.median))
        })
    }

    /// The rate at `order` divided by that of order 0.
    pub fn to_order_0(&self, order: u8) -> Option<Interval> {
        let changed = format!("order {order}");
        let mut comparisons = self.comparisons.iter();
        let found = comparisons.find(|one| one.baseline == "order 0" && one.changed == changed)?;
        Some(found.ratio)
    }
}
