//! What is measured by turns for one path and one size of batches, and which of it is compared with what.

use super::plan::{Direction, Path};
use crate::wall::drive::Wall;

/// Sizes of batches for which we have an aim.
const LARGE_BATCH_BYTES: u32 = 2 << 20;
const SMALL_BATCH_BYTES: u32 = 16 << 10;

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// What the machine allows.
    Wall(Wall),
    /// The log.
    Ours {
        /// Order level of the topic.
        order: u32,
        /// Whether the bench verifies each message that it reads, beside the subscriber, which checks each batch.
        verified: bool,
    },
}

/// A row of the report: `changed` divided by `baseline`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// What it is compared with.
    pub wall: &'static str,
    /// Order level of ours.
    pub order: u32,
    /// Place of the wall among the configurations.
    pub baseline: usize,
    /// Place of ours among them; `None` where only walls are measured.
    pub changed: Option<usize>,
    /// The least ratio that we aim at.
    pub target: Option<f64>,
}

/// What is measured of `path`, the walls first.
pub fn configs(path: Path, orders: &[u32], walls_only: bool) -> Vec<Config> {
    let walls: &[Wall] = match path.direction() {
        Direction::Publish => &[Wall::PublishBare, Wall::PublishWorking],
        Direction::Read => &[Wall::ReadBare, Wall::ReadWorking, Wall::ReadVerified],
        Direction::E2e => &[Wall::RelayBare, Wall::RelayWorking],
    };
    let mut configs: Vec<Config> = walls.iter().copied().map(Config::Wall).collect();
    if walls_only {
        return configs;
    }
    for &order in orders {
        configs.push(Config::Ours {
            order,
            verified: true,
        });
        if path.direction() == Direction::Read {
            configs.push(Config::Ours {
                order,
                verified: false,
            });
        }
    }
    configs
}

/// The rows that these configurations give.
pub fn rows(batch_bytes: u32, configs: &[Config]) -> Vec<Row> {
    let place = |config: Config| configs.iter().position(|other| *other == config);
    let mut rows = Vec::new();
    for (baseline, config) in configs.iter().enumerate() {
        if let Config::Wall(wall) = config {
            let ours = configs
                .iter()
                .enumerate()
                .filter_map(|(place, config)| match config {
                    Config::Ours { order, verified } => {
                        (*verified == counts_verified(*wall)).then_some((place, *order))
                    }
                    Config::Wall(_) => None,
                });
            let row = |changed, order| Row {
                wall: name(*wall),
                order,
                baseline,
                changed,
                target: target(*wall, batch_bytes),
            };
            let before = rows.len();
            rows.extend(ours.map(|(place, order)| row(Some(place), order)));
            if rows.len() == before {
                rows.push(row(None, 0));
            }
        }
    }
    rows.sort_by_key(|row| row.order);
    let ours = |order, verified| Config::Ours { order, verified };
    for order in [0, 1, 2, 5] {
        let verified = place(ours(order, true));
        if let Some(baseline) = place(ours(order, false)) {
            rows.push(Row {
                wall: WITHOUT_CHECK,
                order,
                baseline,
                changed: verified,
                target: None,
            });
        }
        if let (Some(baseline), Some(_), true) = (place(ours(0, true)), verified, order > 0) {
            rows.push(Row {
                wall: ORDER_0,
                order,
                baseline,
                changed: verified,
                target: (order == 5).then_some(0.95),
            });
        }
    }
    rows
}

/// A row with this wall compares order levels.
pub const ORDER_0: &str = "order 0";
/// A row with this wall says what the bench's own check of each message costs.
pub const WITHOUT_CHECK: &str = "ours unverified";

fn name(wall: Wall) -> &'static str {
    match wall {
        Wall::PublishBare | Wall::ReadBare => "bare",
        Wall::PublishWorking | Wall::ReadWorking => "working",
        Wall::ReadVerified => "working, verified",
        Wall::RelayBare => "bare relay",
        Wall::RelayWorking => "working relay",
    }
}

/// Whether the wall is for ours with the bench's own check of each message: the bare one is what can be had at all, and
/// the verified one does the same.
fn counts_verified(wall: Wall) -> bool {
    wall != Wall::ReadWorking
}

/// The least ratio that we aim at.
fn target(wall: Wall, batch_bytes: u32) -> Option<f64> {
    match (wall, batch_bytes) {
        (Wall::PublishWorking, LARGE_BATCH_BYTES) => Some(0.95),
        (Wall::PublishBare, LARGE_BATCH_BYTES) => Some(0.85),
        (Wall::PublishWorking, SMALL_BATCH_BYTES) => Some(0.8),
        (
            Wall::ReadWorking | Wall::ReadVerified | Wall::RelayWorking,
            LARGE_BATCH_BYTES | SMALL_BATCH_BYTES,
        ) => Some(0.95),
        (Wall::ReadBare, LARGE_BATCH_BYTES | SMALL_BATCH_BYTES) => Some(0.75),
        (Wall::RelayBare, LARGE_BATCH_BYTES | SMALL_BATCH_BYTES) => Some(0.9),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishing_has_both_walls_at_each_order_and_orders_side_by_side() {
        let configs = configs(Path::PublishTcp, &[0, 5], false);
        let rows = rows(LARGE_BATCH_BYTES, &configs);
        let kinds: Vec<_> = rows
            .iter()
            .map(|row| (row.wall, row.order, row.target))
            .collect();
        assert_eq!(
            kinds,
            [
                ("bare", 0, Some(0.85)),
                ("working", 0, Some(0.95)),
                ("bare", 5, Some(0.85)),
                ("working", 5, Some(0.95)),
                ("order 0", 5, Some(0.95)),
            ]
        );
        for row in rows {
            let ours = configs[row.changed.expect("measured")];
            assert!(matches!(ours, Config::Ours { order, .. } if order == row.order));
        }
    }

    #[test]
    fn a_wall_is_compared_with_what_does_the_same_work() {
        let configs = configs(Path::ReadTcp, &[0], false);
        let rows = rows(SMALL_BATCH_BYTES, &configs);
        let verified = |wall: &str| {
            let row = rows.iter().find(|row| row.wall == wall).expect(wall);
            match configs[row.changed.expect("measured")] {
                Config::Ours { verified, .. } => verified,
                Config::Wall(_) => panic!("a wall is not ours"),
            }
        };
        assert!(verified("bare") && verified("working, verified") && verified(WITHOUT_CHECK));
        assert!(!verified("working"));
    }

    #[test]
    fn walls_alone_have_a_row_each() {
        for path in Path::ALL {
            let configs = configs(path, &[0, 5], true);
            let rows = rows(LARGE_BATCH_BYTES, &configs);
            assert_eq!(rows.len(), configs.len());
            assert!(rows.iter().all(|row| row.changed.is_none()));
        }
    }

    #[test]
    fn other_sizes_have_no_aim_beside_a_wall() {
        let configs = configs(Path::PublishTcp, &[0], false);
        let rows = rows(1 << 20, &configs);
        assert!(rows.iter().all(|row| row.target.is_none()));
    }
}
