//! What cluster to start, and the arguments of its processes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::settings::BrokerSettings;
use crate::size::show_duration;

/// A cluster to be started.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program; its `broker` command is run.
    pub exe: PathBuf,
    /// Brokers, the head included; at least 1.
    pub brokers: u16,
    /// Address of the head. The others follow on the next ports, or take any free one if its port is 0.
    pub listen: SocketAddr,
    /// Directory of the region.
    pub region: PathBuf,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Discard what is in a region that was left.
    pub fresh: bool,
    /// Remove the region at the end.
    pub temporary: bool,
    /// Where logs go.
    pub log_dir: PathBuf,
    /// How long brokers may drain.
    pub grace: Duration,
    /// Settings of every broker.
    pub settings: BrokerSettings,
}

/// This program.
pub fn own_exe() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    // After it was replaced by a newer build only the link leads to the file that is running.
    Ok(if exe.exists() {
        exe
    } else {
        PathBuf::from("/proc/self/exe")
    })
}

impl Plan {
    /// Arguments of the head.
    pub fn head_args(&self) -> Vec<String> {
        let mut args = self.common("--head".into(), self.listen);
        args.push(format!("--region={}", self.region.display()));
        args.push(format!("--region-size={}", self.region_bytes));
        args.push(format!("--brokers={}", self.brokers));
        if self.fresh {
            args.push("--fresh".into());
        }
        if self.temporary {
            args.push("--temporary".into());
        }
        args
    }

    /// Arguments of the data broker of row `id`, for the first time or at the address it had before.
    pub fn follower_args(
        &self,
        head: SocketAddr,
        id: u16,
        before: Option<SocketAddr>,
    ) -> Vec<String> {
        let listen = before.unwrap_or_else(|| self.follower_address(id));
        let mut args = self.common(format!("--follower={head}"), listen);
        args.push(format!("--id={id}"));
        args
    }

    fn follower_address(&self, id: u16) -> SocketAddr {
        let mut address = self.listen;
        address.set_port(match address.port() {
            0 => 0,
            port => port.saturating_add(id),
        });
        address
    }

    fn common(&self, role: String, listen: SocketAddr) -> Vec<String> {
        let mut args = vec!["broker".to_owned(), role, "--exit-with-parent".to_owned()];
        args.push(format!("--listen={listen}"));
        args.push(format!("--grace={}", show_duration(self.grace)));
        args.extend(self.settings.to_args());
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

    fn plan(port: u16) -> Plan {
        Plan {
            exe: "/bin/embar".into(),
            brokers: 3,
            listen: SocketAddr::from(([127, 0, 0, 1], port)),
            region: "/dev/shm/r".into(),
            region_bytes: 1 << 26,
            fresh: true,
            temporary: false,
            log_dir: "/tmp/logs".into(),
            grace: Duration::from_secs(1),
            settings: BrokerSettings {
                no_metering: true,
                ..BrokerSettings::default()
            },
        }
    }

    #[test]
    fn data_brokers_listen_on_the_next_ports() {
        let head = SocketAddr::from(([127, 0, 0, 1], 9400));
        let listen = |plan: Plan, before| {
            let args = plan.follower_args(head, 2, before);
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
        let args = plan(0).head_args();
        for expected in [
            "--head",
            "--region=/dev/shm/r",
            "--region-size=67108864",
            "--brokers=3",
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
}
