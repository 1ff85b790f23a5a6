//! What cluster to start, and the arguments of its processes.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use embar_broker::BrokerConfig;
use embar_console::size::show_duration;
use embar_fabric::geometry::ROWS_MAX;

use crate::arguments;

/// A cluster to be started.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// The program whose `broker` command is run.
    pub program: PathBuf,
    /// The head and the brokers that take data; at least 1.
    pub brokers: u16,
    /// Places for data brokers that join later; their rows come after those of the others.
    pub spares: u16,
    /// Brokers beside these that sequence when the head cannot; their rows come last.
    pub standbys: u16,
    /// Directory of the region.
    pub region: PathBuf,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Topics that there may be; without it, as many as go with the size.
    pub topics: Option<u16>,
    /// Discard what is in a region that was left.
    pub fresh: bool,
    /// Remove the region at the end.
    pub temporary: bool,
    /// Rows of brokers that are stopped on purpose. If their parent dies they hear nothing of it while they stand still, so
    /// the kernel kills them: when the thread ends that started the cluster.
    pub kill_with_parent: Vec<u16>,
    /// Where logs go.
    pub log_dir: PathBuf,
    /// How long brokers may drain.
    pub grace: Duration,
    /// Settings of every broker, and the address of the head. The others listen on the next ports, or on any free one if
    /// its port is 0.
    pub config: BrokerConfig,
}

/// Places for brokers that join where the user gives no number: one, if there is room for it.
pub fn default_spares(brokers: u16, standbys: u16) -> u16 {
    let room = ROWS_MAX.saturating_sub(brokers.saturating_add(standbys));
    u16::from(brokers > 1).min(room)
}

/// What a broker is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It owns the topics, and sequences first.
    Head,
    /// It takes data.
    Data,
    /// It sequences when the head cannot.
    Standby,
}

impl ClusterPlan {
    /// All rows.
    pub fn rows(&self) -> u16 {
        self.data_end().saturating_add(self.standbys)
    }

    /// The first row behind those of data brokers and spares.
    pub fn data_end(&self) -> u16 {
        self.brokers.saturating_add(self.spares)
    }

    /// Rows that no broker is started for, unless they hold data.
    pub fn spare_rows(&self) -> Range<u16> {
        self.brokers..self.data_end()
    }

    /// What the broker of row `id` is.
    pub fn role(&self, id: u16) -> Role {
        match id {
            0 => Role::Head,
            id if id < self.data_end() => Role::Data,
            _ => Role::Standby,
        }
    }

    /// Arguments of the head, for the first time or at the address it had before. Only the first time
    /// it may discard what is in the region.
    pub fn head_args(&self, before: Option<SocketAddr>) -> Vec<String> {
        let listen = before.unwrap_or(self.config.listen);
        let mut args = self.common("--head".into(), listen, 0);
        args.push(format!("--region={}", self.region.display()));
        args.push(format!("--region-size={}", self.region_bytes));
        args.extend(self.topics.map(|topics| format!("--topics={topics}")));
        args.push(format!("--brokers={}", self.brokers));
        args.push(format!("--spares={}", self.spares));
        args.push(format!("--standbys={}", self.standbys));
        if self.fresh && before.is_none() {
            args.push("--fresh".into());
        }
        if self.temporary {
            args.push("--temporary".into());
        }
        args
    }

    /// Arguments of the data broker or standby of row `id`, for the first time or at the address it
    /// had before. They name the region, so it starts even while the head is paused, or cannot start.
    pub fn member_args(
        &self,
        head: SocketAddr,
        id: u16,
        before: Option<SocketAddr>,
    ) -> Vec<String> {
        let listen = before.unwrap_or_else(|| self.member_address(id));
        let role = match self.role(id) {
            Role::Standby => format!("--standby={head}"),
            Role::Head | Role::Data => format!("--follower={head}"),
        };
        let mut args = self.common(role, listen, id);
        args.push(format!("--region={}", self.region.display()));
        args.push(format!("--id={id}"));
        args
    }

    fn member_address(&self, id: u16) -> SocketAddr {
        let mut address = self.config.listen;
        address.set_port(match address.port() {
            0 => 0,
            port => port.saturating_add(id),
        });
        address
    }

    fn common(&self, role: String, listen: SocketAddr, id: u16) -> Vec<String> {
        let mut args = vec!["broker".to_owned(), role, "--exit-with-parent".to_owned()];
        if self.kill_with_parent.contains(&id) {
            args.push("--kill-with-parent".into());
        }
        args.push(format!("--listen={listen}"));
        args.push(format!("--grace={}", show_duration(self.grace)));
        args.extend(arguments::of_broker(&self.config));
        args
    }

    /// Log of the broker of row `id`.
    pub fn log(&self, id: u16) -> PathBuf {
        self.log_dir.join(format!("broker-{id}.log"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(port: u16) -> ClusterPlan {
        ClusterPlan {
            program: "/bin/embar".into(),
            brokers: 3,
            spares: 0,
            standbys: 1,
            region: "/dev/shm/r".into(),
            region_bytes: 1 << 26,
            topics: Some(300),
            fresh: true,
            temporary: false,
            kill_with_parent: vec![2],
            log_dir: "/tmp/logs".into(),
            grace: Duration::from_secs(1),
            config: BrokerConfig {
                listen: SocketAddr::from(([127, 0, 0, 1], port)),
                metering: false,
                ..BrokerConfig::default()
            },
        }
    }

    #[test]
    fn data_brokers_listen_on_the_next_ports() {
        let head = SocketAddr::from(([127, 0, 0, 1], 9400));
        let listen = |plan: ClusterPlan, before| {
            let args = plan.member_args(head, 2, before);
            args.iter()
                .find_map(|arg| arg.strip_prefix("--listen="))
                .map(str::to_owned)
                .expect("an address")
        };
        assert_eq!(listen(plan(9400), None), "127.0.0.1:9402");
        assert_eq!(listen(plan(0), None), "127.0.0.1:0");
        let before = Some(SocketAddr::from(([127, 0, 0, 1], 33333)));
        assert_eq!(listen(plan(0), before), "127.0.0.1:33333");
    }

    #[test]
    fn settings_and_region_reach_the_brokers() {
        let args = plan(0).head_args(None);
        for expected in [
            "--head",
            "--region=/dev/shm/r",
            "--region-size=67108864",
            "--topics=300",
            "--brokers=3",
            "--standbys=1",
            "--fresh",
            "--no-metering",
        ] {
            assert!(
                args.iter().any(|arg| arg == expected),
                "{expected} in {args:?}"
            );
        }
        assert!(!args.iter().any(|arg| arg == "--temporary"));
    }

    #[test]
    fn only_brokers_that_are_stopped_on_purpose_are_killed_with_their_parent() {
        let (plan, head) = (plan(0), SocketAddr::from(([127, 0, 0, 1], 9400)));
        let is_killed = |args: Vec<String>| args.iter().any(|it| it == "--kill-with-parent");
        assert!(!is_killed(plan.head_args(None)));
        assert!(!is_killed(plan.member_args(head, 1, None)));
        assert!(is_killed(plan.member_args(head, 2, None)));
    }

    #[test]
    fn a_head_that_is_started_again_keeps_its_address_and_the_data() {
        let before = SocketAddr::from(([127, 0, 0, 1], 33333));
        let args = plan(0).head_args(Some(before));
        assert!(
            args.contains(&"--listen=127.0.0.1:33333".to_owned()),
            "{args:?}"
        );
        assert!(!args.iter().any(|arg| arg == "--fresh"), "{args:?}");
    }

    #[test]
    fn the_last_rows_stand_by() {
        let head = SocketAddr::from(([127, 0, 0, 1], 9400));
        let plan = plan(9400);
        let roles: Vec<Role> = (0..plan.rows()).map(|id| plan.role(id)).collect();
        assert_eq!(roles, [Role::Head, Role::Data, Role::Data, Role::Standby]);
        let args = plan.member_args(head, 3, None);
        for expected in [
            "--standby=127.0.0.1:9400",
            "--region=/dev/shm/r",
            "--id=3",
            "--listen=127.0.0.1:9403",
        ] {
            assert!(
                args.iter().any(|arg| arg == expected),
                "{expected} in {args:?}"
            );
        }
    }
}
