//! Settings of a broker as options of `broker` and `up`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_broker::{BrokerConfig, ReceivePath};
use embar_console::size::{Size, parse_age, parse_duration};

use crate::exit;

/// Options that every broker of a cluster gets alike. The defaults are those of the library.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Broker settings")]
pub struct BrokerSettings {
    /// Listen where other machines can connect. There is no authentication: only on a network you trust
    #[arg(long)]
    pub insecure_listen: bool,
    /// Do not listen on a Unix socket (sockets/ID in the region's directory) for clients on this machine, too
    #[arg(long)]
    pub no_unix_socket: bool,
    /// Do not offer clients on this machine connections by shared memory (sockets/ID.shm), too
    #[arg(long)]
    pub no_shared_memory: bool,
    /// Threads that receive and send, 1 to 8
    #[arg(long, value_name = "N")]
    pub network_threads: Option<u16>,
    /// Largest batch, and so the largest message, with its headers
    #[arg(long, value_name = "SIZE")]
    pub max_batch_bytes: Option<Size>,
    /// Percent of the log's size that batches on their way in may hold, in it and beside it, before publishers are paused
    #[arg(long, value_name = "PERCENT")]
    pub high_watermark: Option<u8>,
    /// Percent below which paused publishers go on
    #[arg(long, value_name = "PERCENT")]
    pub low_watermark: Option<u8>,
    /// How long a broker holds a publisher back before it says so and closes the connection
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub backpressure_timeout: Option<Duration>,
    /// How long one frame may take from its first to its last byte
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub frame_timeout: Option<Duration>,
    /// How long a new connection may take to say hello
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub hello_timeout: Option<Duration>,
    /// How long a peer may be silent before it is taken for dead, at least 1s; 0s: for ever
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub idle_timeout: Option<Duration>,
    /// After how long without sending anything a heartbeat is sent, at the latest; 0s: never
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub keep_alive: Option<Duration>,
    /// Connections at once. One host gets half at most, but for this machine: allow twice as many as clients
    /// make that share an address
    #[arg(long, value_name = "N")]
    pub max_connections: Option<usize>,
    /// SO_RCVBUF of publishers' sockets; without it the kernel tunes it
    #[arg(long, value_name = "SIZE")]
    pub recv_buffer: Option<Size>,
    /// SO_SNDBUF of subscribers' sockets; without it the kernel tunes that of other machines
    #[arg(long, value_name = "SIZE")]
    pub send_buffer: Option<Size>,
    /// How payloads are received: direct, staging, blocking or uring. A broker tries at its start whether this machine
    /// allows it. If not, it receives as with direct, and its log says why; its `ready` line says what is in use
    #[arg(long, value_name = "PATH")]
    pub receive: Option<ReceivePath>,
    /// How long a network thread looks for what comes before it sleeps, at the price of a busy core; 0s: not at all. For
    /// `--receive` direct and staging
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub spin: Option<Duration>,
    /// Do not touch the log's memory before it is needed: start at once, and wait for each page when it is first written
    #[arg(long)]
    pub no_prefault: bool,
    /// Do not time the stages of the pipeline
    #[arg(long)]
    pub no_metering: bool,
    /// How often the profile goes to the log while there is traffic
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub profile_interval: Option<Duration>,
    /// A directory for the log on a disk; once for each disk, at most 8 times, in any order. All processes of a cluster
    /// have the same. The head makes those that are not there, in directories that are
    #[arg(long, value_name = "DIR")]
    pub data: Vec<PathBuf>,
    /// Take directories on one device, although all are lost when it fails: for tests
    #[arg(long, requires = "data")]
    pub same_device_is_fine: bool,
    /// Most bytes of each disk that the log takes: then its oldest segments go, whatever topics are to retain. Without it
    /// publishers wait when a disk is full
    #[arg(long, value_name = "SIZE", requires = "data")]
    pub disk_size: Option<Size>,
    /// Bytes of each disk that are read in a second to find damage and put it back from another disk; 0: none
    #[arg(long, value_name = "SIZE", requires = "data")]
    pub scrub_rate: Option<Size>,
    /// How long each disk keeps a batch at most: then the segment goes that has it, whatever its topic is to retain. As `7d` or `12h`
    #[arg(long, value_name = "TIME", requires = "data", value_parser = parse_age)]
    pub disk_age: Option<Duration>,
    /// How long the active sequencer may stand still before a standby takes over
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub sequencer_lease: Option<Duration>,
    /// How long the batches of a publisher wait for a missing one before its session's epoch ends
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub gap_lease: Option<Duration>,
    /// Batches that a publisher may be ahead of its first missing one
    #[arg(long, value_name = "N")]
    pub session_window: Option<u32>,
    /// Batches of all publishers together that may wait for a missing one
    #[arg(long, value_name = "N")]
    pub held_batches: Option<u32>,
    /// How long a publisher without a connection must be silent before a new one may have its place
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub session_idle: Option<Duration>,
}

impl BrokerSettings {
    /// The library's form of it.
    pub fn to_config(&self, listen: SocketAddr) -> Result<BrokerConfig> {
        let mut config = BrokerConfig {
            listen,
            insecure_listen: self.insecure_listen,
            unix_socket: !self.no_unix_socket,
            shared_memory: !self.no_shared_memory,
            prefault: !self.no_prefault,
            metering: !self.no_metering,
            data: self.data.clone(),
            same_device_is_fine: self.same_device_is_fine,
            disk_size: self.disk_size.map(|size| size.0),
            disk_age: self.disk_age,
            ..BrokerConfig::default()
        };
        set(&mut config.scrub_rate, self.scrub_rate.map(|size| size.0));
        set(&mut config.receive, self.receive);
        set(&mut config.network_threads, self.network_threads);
        set(&mut config.high_watermark_percent, self.high_watermark);
        set(&mut config.low_watermark_percent, self.low_watermark);
        set(&mut config.backpressure_timeout, self.backpressure_timeout);
        set(&mut config.frame_timeout, self.frame_timeout);
        set(&mut config.hello_timeout, self.hello_timeout);
        set(&mut config.idle_timeout, self.idle_timeout);
        set(&mut config.keep_alive, self.keep_alive);
        set(&mut config.spin, self.spin);
        set(&mut config.max_connections, self.max_connections);
        set(&mut config.profile_interval, self.profile_interval);
        set(&mut config.sequencer_lease, self.sequencer_lease);
        set(&mut config.gap_lease, self.gap_lease);
        set(&mut config.session_window, self.session_window);
        set(&mut config.held_batches, self.held_batches);
        set(&mut config.session_idle, self.session_idle);
        if let Some(size) = self.max_batch_bytes {
            config.max_batch_bytes = exit::to_u32(size, "--max-batch-bytes")?;
        }
        if let Some(size) = self.recv_buffer {
            config.recv_buffer_bytes = Some(exit::to_u32(size, "--recv-buffer")?);
        }
        if let Some(size) = self.send_buffer {
            config.send_buffer_bytes = Some(exit::to_u32(size, "--send-buffer")?);
        }
        config
            .validate()
            .map_err(|error| exit::usage(error.to_string()))?;
        Ok(config)
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use embar_supervise::arguments;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: BrokerSettings,
    }

    fn parse(args: &[String]) -> BrokerSettings {
        Line::try_parse_from(std::iter::once("x".to_owned()).chain(args.iter().cloned()))
            .expect("options")
            .settings
    }

    fn all() -> BrokerSettings {
        BrokerSettings {
            insecure_listen: true,
            no_unix_socket: true,
            no_shared_memory: true,
            network_threads: Some(2),
            max_batch_bytes: Some(Size(1 << 20)),
            high_watermark: Some(60),
            low_watermark: Some(40),
            backpressure_timeout: Some(Duration::from_millis(1500)),
            frame_timeout: Some(Duration::from_secs(3)),
            hello_timeout: Some(Duration::from_micros(7)),
            idle_timeout: Some(Duration::from_secs(20)),
            keep_alive: Some(Duration::ZERO),
            spin: Some(Duration::from_micros(50)),
            max_connections: Some(9),
            recv_buffer: Some(Size(1 << 16)),
            send_buffer: Some(Size(1 << 17)),
            receive: Some(ReceivePath::Uring),
            no_prefault: true,
            no_metering: true,
            profile_interval: Some(Duration::from_secs(60)),
            data: vec!["/mnt/a".into(), "/mnt/b".into()],
            same_device_is_fine: true,
            disk_size: Some(Size(1 << 30)),
            scrub_rate: Some(Size(1 << 20)),
            disk_age: Some(Duration::from_secs(60)),
            sequencer_lease: Some(Duration::from_millis(300)),
            gap_lease: Some(Duration::from_secs(2)),
            session_window: Some(64),
            held_batches: Some(1 << 10),
            session_idle: Some(Duration::from_secs(30)),
        }
    }

    #[test]
    fn children_get_exactly_the_settings_of_their_parent() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = |settings: &BrokerSettings| settings.to_config(listen).expect("valid");
        let (asked, plain) = (config(&all()), config(&BrokerSettings::default()));
        assert_eq!(config(&parse(&arguments::of_broker(&asked))), asked);
        assert_eq!(arguments::of_broker(&plain), [""; 0]);
    }

    #[test]
    fn every_setting_reaches_the_broker() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = all().to_config(listen).expect("valid");
        let plain = BrokerSettings::default().to_config(listen).expect("valid");
        assert_eq!(
            plain,
            BrokerConfig {
                listen,
                ..BrokerConfig::default()
            }
        );
        assert_eq!(
            config,
            BrokerConfig {
                listen,
                insecure_listen: true,
                unix_socket: false,
                shared_memory: false,
                network_threads: 2,
                max_batch_bytes: 1 << 20,
                high_watermark_percent: 60,
                low_watermark_percent: 40,
                backpressure_timeout: Duration::from_millis(1500),
                frame_timeout: Duration::from_secs(3),
                hello_timeout: Duration::from_micros(7),
                idle_timeout: Duration::from_secs(20),
                keep_alive: Duration::ZERO,
                spin: Duration::from_micros(50),
                max_connections: 9,
                recv_buffer_bytes: Some(1 << 16),
                send_buffer_bytes: Some(1 << 17),
                receive: ReceivePath::Uring,
                prefault: false,
                metering: false,
                profile_interval: Duration::from_secs(60),
                data: vec!["/mnt/a".into(), "/mnt/b".into()],
                same_device_is_fine: true,
                disk_size: Some(1 << 30),
                scrub_rate: 1 << 20,
                disk_age: Some(Duration::from_secs(60)),
                sequencer_lease: Duration::from_millis(300),
                gap_lease: Duration::from_secs(2),
                session_window: 64,
                held_batches: 1 << 10,
                session_idle: Duration::from_secs(30),
            }
        );
    }

    #[test]
    fn settings_that_contradict_each_other_are_a_matter_of_usage() {
        let settings = BrokerSettings {
            high_watermark: Some(10),
            ..BrokerSettings::default()
        };
        let error = settings
            .to_config(SocketAddr::from(([127, 0, 0, 1], 0)))
            .expect_err("refused");
        assert_eq!(exit::code(&error), exit::USAGE);
        let error = BrokerSettings::default()
            .to_config(SocketAddr::from(([0, 0, 0, 0], 0)))
            .expect_err("refused");
        assert!(error.to_string().contains("--insecure-listen"));
    }
}
