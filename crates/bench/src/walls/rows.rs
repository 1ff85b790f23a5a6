//! What is measured by turns for one path and one size of batches, and which of it is compared with what.

use super::plan::{Carrier, Case, Cluster, Direction, Path, SMALL_MESSAGE_BYTES};
use crate::reader::Reader;
use crate::wall::drive::Wall;
use crate::wall::shm::drive::ShmWall;
use crate::wall::shm::ping::Ping;

/// Sizes of batches for which we have an aim.
const LARGE_BATCH_BYTES: u32 = 2 << 20;
const SMALL_BATCH_BYTES: u32 = 16 << 10;

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// What the machine allows over sockets.
    Wall(Wall),
    /// What it allows in shared memory.
    Shm(ShmWall),
    /// How fast two processors answer each other.
    Ping(Ping),
    /// The log.
    Ours {
        /// Order level of the topic.
        order: u32,
        /// What becomes of each message that is read.
        reader: Reader,
        /// On what it runs.
        cluster: Cluster,
    },
    /// A publisher by TCP beside another client.
    Beside {
        /// Order level of both topics.
        order: u32,
        /// Whether the other one goes through shared memory, and not by TCP.
        local: bool,
    },
}

/// A row of the report: `changed` divided by `baseline`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// What it is compared with.
    pub wall: &'static str,
    /// Order level of ours.
    pub order: u32,
    /// What becomes of each message that is read of ours.
    pub reader: Reader,
    /// On what ours runs.
    pub cluster: Cluster,
    /// Place of the wall among the configurations.
    pub baseline: usize,
    /// Place of ours among them; `None` where only walls are measured.
    pub changed: Option<usize>,
    /// What we aim at.
    pub aim: Aim,
}

/// What we aim at: at least so much, or at most where figures are times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Aim {
    /// Ours divided by the wall.
    pub ratio: Option<f64>,
    /// Ours alone: GB (10^9 bytes) of message values per second, or nanoseconds.
    pub ours: Option<f64>,
}

impl Config {
    /// Whether it is not the log.
    fn is_wall(self) -> bool {
        !matches!(self, Self::Ours { .. } | Self::Beside { .. })
    }
}

/// What is measured of `path`, the walls first.
pub fn configs(path: Path, orders: &[u32], walls_only: bool) -> Vec<Config> {
    let mut configs = walls(path);
    if walls_only {
        return configs;
    }
    for &order in orders {
        if path.direction() == Direction::Beside {
            configs.extend([false, true].map(|local| Config::Beside { order, local }));
            continue;
        }
        for &cluster in path.clusters() {
            let ours = |reader: &Reader| Config::Ours {
                order,
                reader: *reader,
                cluster,
            };
            configs.extend(readers(path).iter().map(ours));
        }
    }
    configs
}

/// Who reads, where anybody does.
fn readers(path: Path) -> &'static [Reader] {
    match (path.direction(), path.carrier()) {
        (Direction::Read, Carrier::Shm) => &[Reader::Verifies, Reader::Counts, Reader::Touches],
        (Direction::Read, Carrier::Sockets(_)) => &[Reader::Verifies, Reader::Counts],
        (Direction::E2e, Carrier::Shm) => &[Reader::Verifies, Reader::Touches],
        _ => &[Reader::Verifies],
    }
}

fn walls(path: Path) -> Vec<Config> {
    let sockets = |walls: &[Wall]| walls.iter().copied().map(Config::Wall).collect();
    let shm = |walls: &[ShmWall]| walls.iter().copied().map(Config::Shm).collect();
    match (path.direction(), path.carrier()) {
        (Direction::Publish, Carrier::Sockets(_)) => {
            sockets(&[Wall::PublishBare, Wall::PublishWorking])
        }
        (Direction::Read, Carrier::Sockets(_)) => {
            sockets(&[Wall::ReadBare, Wall::ReadWorking, Wall::ReadVerified])
        }
        (Direction::E2e, Carrier::Sockets(_)) => sockets(&[Wall::RelayBare, Wall::RelayWorking]),
        (Direction::Publish, Carrier::Shm) => shm(&[
            ShmWall::PublishBare,
            ShmWall::PublishStreamed,
            ShmWall::PublishInPlace,
        ]),
        (Direction::Read, Carrier::Shm) => shm(&[ShmWall::Pass]),
        (Direction::E2e, Carrier::Shm) => shm(&[ShmWall::PublishFollowed]),
        (Direction::Ack, _) => vec![Config::Ping(Ping::HandOver)],
        (Direction::Delivery, _) => vec![Config::Ping(Ping::Line)],
        (Direction::Beside, _) => Vec::new(),
    }
}

/// The rows that these configurations give.
pub fn rows(case: Case, configs: &[Config]) -> Vec<Row> {
    let place = |config: Config| configs.iter().position(|other| *other == config);
    let mut rows = Vec::new();
    for (baseline, config) in configs.iter().enumerate().filter(|it| it.1.is_wall()) {
        let ours = configs
            .iter()
            .enumerate()
            .filter_map(|(place, other)| match other {
                Config::Ours {
                    order,
                    reader,
                    cluster,
                } => (*reader == reader_beside(*config))
                    .then_some((place, *order, *reader, *cluster)),
                _ => None,
            });
        let row = |changed, order, reader, cluster| Row {
            wall: name(*config),
            order,
            reader,
            cluster,
            baseline,
            changed,
            aim: match case.path.is_timed() && cluster != Cluster::Spinning {
                // The aims are of those that spin.
                true => Aim::default(),
                false => aim(*config, case, order),
            },
        };
        let before = rows.len();
        rows.extend(
            ours.map(|(place, order, reader, cluster)| row(Some(place), order, reader, cluster)),
        );
        if rows.len() == before {
            rows.push(row(None, 0, Reader::Verifies, Cluster::Several));
        }
    }
    rows.sort_by_key(|row| row.order);
    let ours = |order, reader, cluster| Config::Ours {
        order,
        reader,
        cluster,
    };
    let kinds = [0, 1, 2, 5].into_iter().flat_map(|order| {
        let readers = [Reader::Verifies, Reader::Touches];
        let clusters = move |reader| Cluster::ALL.map(|cluster| (order, reader, cluster));
        readers.into_iter().flat_map(clusters)
    });
    for (order, reader, cluster) in kinds {
        let changed = place(ours(order, reader, cluster));
        let counts = place(ours(order, Reader::Counts, cluster));
        if let Some(baseline) = counts.filter(|_| reader == Reader::Verifies) {
            rows.push(Row {
                wall: WITHOUT_CHECK,
                order,
                reader,
                cluster,
                baseline,
                changed,
                aim: Aim::default(),
            });
        }
        let order_0 = place(ours(0, reader, cluster));
        if let (Some(baseline), Some(_), true) = (order_0, changed, order > 0) {
            let ratio = match (case.path.is_timed(), cluster) {
                (false, _) => Some(0.95),
                (true, Cluster::Spinning) => Some(2.0),
                (true, _) => None,
            };
            rows.push(Row {
                wall: ORDER_0,
                order,
                reader,
                cluster,
                baseline,
                changed,
                aim: Aim {
                    ratio: ratio.filter(|_| order == 5),
                    ours: None,
                },
            });
        }
    }
    for order in [0, 1, 2, 5] {
        let beside = |local| place(Config::Beside { order, local });
        if let (Some(baseline), Some(changed)) = (beside(false), beside(true)) {
            rows.push(Row {
                wall: BESIDE_TCP,
                order,
                reader: Reader::Verifies,
                cluster: Cluster::Several,
                baseline,
                changed: Some(changed),
                aim: Aim {
                    ratio: Some(1.0),
                    ours: None,
                },
            });
        }
    }
    rows
}

/// A row with this wall compares a client beside one through shared memory with the same beside one by TCP.
pub const BESIDE_TCP: &str = "beside TCP";
/// A row with this wall compares order levels.
pub const ORDER_0: &str = "order 0";
/// A row with this wall says what the bench's own check of each message costs.
pub const WITHOUT_CHECK: &str = "ours unverified";

fn name(wall: Config) -> &'static str {
    match wall {
        Config::Wall(wall) => match wall {
            Wall::PublishBare | Wall::ReadBare => "bare",
            Wall::PublishWorking | Wall::ReadWorking => "working",
            Wall::ReadVerified => "working, verified",
            Wall::RelayBare => "bare relay",
            Wall::RelayWorking => "working relay",
        },
        Config::Shm(wall) => match wall {
            ShmWall::PublishBare => "bare",
            ShmWall::PublishStreamed => "bare, streamed",
            ShmWall::PublishInPlace => "in place",
            ShmWall::PublishFollowed => "bare, followed",
            ShmWall::Pass => "plain pass",
        },
        Config::Ping(Ping::Line) => "ping",
        Config::Ping(Ping::HandOver) => "hand-over",
        Config::Ours { .. } | Config::Beside { .. } => "ours",
    }
}

/// What becomes of each message of ours beside a wall: what the wall does, or, beside one of sockets alone, all that is done.
fn reader_beside(wall: Config) -> Reader {
    match wall {
        Config::Wall(Wall::ReadWorking) => Reader::Counts,
        Config::Shm(ShmWall::Pass | ShmWall::PublishFollowed) => Reader::Touches,
        _ => Reader::Verifies,
    }
}

fn aim(wall: Config, case: Case, order: u32) -> Aim {
    let ratio = |ratio| Aim {
        ratio: Some(ratio),
        ours: None,
    };
    match wall {
        Config::Wall(wall) => Aim {
            ratio: target(wall, case.batch_bytes),
            ours: None,
        },
        // Beside these walls the aims are of order 0; another order is compared with it.
        _ if order > 0 => Aim::default(),
        Config::Shm(ShmWall::PublishBare | ShmWall::PublishInPlace) => match case.message_bytes {
            1024 => Aim {
                ratio: Some(0.85),
                ours: Some(11.0),
            },
            SMALL_MESSAGE_BYTES => Aim {
                ratio: Some(0.7),
                // 60 million messages.
                ours: Some(60e6 * SMALL_MESSAGE_BYTES as f64 / 1e9),
            },
            _ => Aim::default(),
        },
        Config::Shm(ShmWall::Pass) => ratio(0.8),
        Config::Ping(Ping::Line) => ratio(2.0),
        Config::Ping(Ping::HandOver) => Aim {
            ratio: None,
            ours: Some(3000.0),
        },
        Config::Shm(ShmWall::PublishStreamed | ShmWall::PublishFollowed)
        | Config::Ours { .. }
        | Config::Beside { .. } => Aim::default(),
    }
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

    fn case(path: Path, batch_bytes: u32) -> Case {
        Case {
            path,
            batch_bytes,
            message_bytes: 1024,
        }
    }

    #[test]
    fn publishing_has_both_walls_at_each_order_and_orders_side_by_side() {
        let configs = configs(Path::PublishTcp, &[0, 5], false);
        let rows = rows(case(Path::PublishTcp, LARGE_BATCH_BYTES), &configs);
        let kinds: Vec<_> = rows
            .iter()
            .map(|row| (row.wall, row.order, row.aim.ratio))
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
        let rows = rows(case(Path::ReadTcp, SMALL_BATCH_BYTES), &configs);
        let reader = |rows: &[Row], configs: &[Config], wall: &str| {
            let row = rows.iter().find(|row| row.wall == wall).expect(wall);
            match configs[row.changed.expect("measured")] {
                Config::Ours { reader, .. } => {
                    assert_eq!(reader, row.reader, "{wall}");
                    reader
                }
                _ => panic!("a wall is not ours"),
            }
        };
        for wall in ["bare", "working, verified", WITHOUT_CHECK] {
            assert_eq!(reader(&rows, &configs, wall), Reader::Verifies, "{wall}");
        }
        assert_eq!(reader(&rows, &configs, "working"), Reader::Counts);
        for (path, wall) in [
            (Path::ReadShm, "plain pass"),
            (Path::E2eShm, "bare, followed"),
        ] {
            let configs = super::configs(path, &[0], false);
            let rows = super::rows(case(path, 256 << 10), &configs);
            assert_eq!(reader(&rows, &configs, wall), Reader::Touches, "{wall}");
        }
    }

    #[test]
    fn walls_alone_have_a_row_each() {
        for path in Path::ALL {
            let configs = configs(path, &[0, 5], true);
            let rows = rows(case(path, LARGE_BATCH_BYTES), &configs);
            assert_eq!(rows.len(), configs.len());
            assert!(rows.iter().all(|row| row.changed.is_none()));
        }
    }

    #[test]
    fn a_client_beside_a_local_one_is_compared_with_one_beside_a_remote_one() {
        let configs = configs(Path::BesideTcp, &[0, 5], false);
        let rows = rows(case(Path::BesideTcp, LARGE_BATCH_BYTES), &configs);
        let kinds: Vec<_> = rows.iter().map(|row| (row.wall, row.order)).collect();
        assert_eq!(kinds, [(BESIDE_TCP, 0), (BESIDE_TCP, 5)]);
        for row in rows {
            let order = row.order;
            let local = |local| Config::Beside { order, local };
            let changed = row.changed.expect("measured");
            assert_eq!(
                (configs[row.baseline], configs[changed]),
                (local(false), local(true))
            );
        }
    }

    #[test]
    fn other_sizes_have_no_aim_beside_a_wall() {
        let configs = configs(Path::PublishTcp, &[0], false);
        let rows = rows(case(Path::PublishTcp, 1 << 20), &configs);
        assert!(rows.iter().all(|row| row.aim == Aim::default()));
    }
    #[test]
    fn aims_in_shared_memory_are_of_order_0_and_of_two_sizes_of_messages() {
        let ours = |order| Config::Ours {
            order,
            reader: Reader::Verifies,
            cluster: Cluster::Several,
        };
        let configs = [Config::Shm(ShmWall::PublishBare), ours(0), ours(5)];
        let aims = |message_bytes| -> Vec<Aim> {
            let case = Case {
                message_bytes,
                ..case(Path::PublishShm, 256 << 10)
            };
            rows(case, &configs).iter().map(|row| row.aim).collect()
        };
        let aim = |ratio, ours| Aim {
            ratio: Some(ratio),
            ours,
        };
        let of_order_5 = [Aim::default(), aim(0.95, None)];
        for (message_bytes, ratio, gb_per_s) in [(1024, 0.85, 11.0), (64, 0.7, 3.84)] {
            let aims = aims(message_bytes);
            assert_eq!(aims[0], aim(ratio, Some(gb_per_s)));
            assert_eq!(aims[1..], of_order_5);
        }
    }

    #[test]
    fn aims_of_times_are_of_those_that_spin() {
        let configs = configs(Path::AckShm, &[0, 5], false);
        let rows = rows(case(Path::AckShm, 256 << 10), &configs);
        let all: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.wall,
                    row.order,
                    row.cluster == Cluster::Spinning,
                    row.aim.ratio,
                    row.aim.ours,
                )
            })
            .collect();
        assert_eq!(
            all,
            [
                ("hand-over", 0, false, None, None),
                ("hand-over", 0, true, None, Some(3000.0)),
                ("hand-over", 5, false, None, None),
                ("hand-over", 5, true, None, None),
                (ORDER_0, 5, false, None, None),
                (ORDER_0, 5, true, Some(2.0), None),
            ]
        );
        for row in rows {
            let ours = configs[row.changed.expect("measured")];
            assert!(matches!(ours, Config::Ours { cluster, .. } if cluster == row.cluster));
        }
    }
}
