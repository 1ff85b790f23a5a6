//! Writes the settings of a broker as arguments of the program's `broker` command.
//!
//! With them the supervisor tells the processes that it starts what to do. The crate that has the command tests that it
//! reads them back.

use std::fmt::Display;

use embar_broker::BrokerConfig;
use embar_console::size::show_duration;

/// The settings of `config` that differ from the default ones. The address is not among them.
pub fn of_broker(config: &BrokerConfig) -> Vec<String> {
    let plain = BrokerConfig::default();
    let mut arguments = Arguments(Vec::new());
    arguments.flag("insecure-listen", config.insecure_listen);
    arguments.flag("no-unix-socket", !config.unix_socket);
    arguments.flag("no-shared-memory", !config.shared_memory);
    arguments.flag("no-prefault", !config.prefault);
    arguments.flag("no-metering", !config.metering);
    for dir in &config.data {
        arguments.option("data", Some(dir.display()));
    }
    arguments.flag("same-device-is-fine", config.same_device_is_fine);
    arguments.option("disk-size", config.disk_size);
    arguments.option("disk-age", config.disk_age.map(show_duration));
    let mut number = |name, value, plain| arguments.value(name, value, plain, u64::to_string);
    number("scrub-rate", config.scrub_rate, plain.scrub_rate);
    number(
        "network-threads",
        config.network_threads.into(),
        plain.network_threads.into(),
    );
    number(
        "max-batch-bytes",
        config.max_batch_bytes.into(),
        plain.max_batch_bytes.into(),
    );
    number(
        "high-watermark",
        config.high_watermark_percent.into(),
        plain.high_watermark_percent.into(),
    );
    number(
        "low-watermark",
        config.low_watermark_percent.into(),
        plain.low_watermark_percent.into(),
    );
    number(
        "max-connections",
        config.max_connections as u64,
        plain.max_connections as u64,
    );
    number(
        "session-window",
        config.session_window.into(),
        plain.session_window.into(),
    );
    number(
        "held-batches",
        config.held_batches.into(),
        plain.held_batches.into(),
    );
    arguments.option("recv-buffer", config.recv_buffer_bytes);
    arguments.option("send-buffer", config.send_buffer_bytes);
    arguments.value("receive", config.receive, plain.receive, |path| {
        path.to_string()
    });
    let times = [
        (
            "backpressure-timeout",
            config.backpressure_timeout,
            plain.backpressure_timeout,
        ),
        ("frame-timeout", config.frame_timeout, plain.frame_timeout),
        ("hello-timeout", config.hello_timeout, plain.hello_timeout),
        ("idle-timeout", config.idle_timeout, plain.idle_timeout),
        ("keep-alive", config.keep_alive, plain.keep_alive),
        ("spin", config.spin, plain.spin),
        (
            "profile-interval",
            config.profile_interval,
            plain.profile_interval,
        ),
        (
            "sequencer-lease",
            config.sequencer_lease,
            plain.sequencer_lease,
        ),
        ("gap-lease", config.gap_lease, plain.gap_lease),
        ("session-idle", config.session_idle, plain.session_idle),
    ];
    for (name, value, plain) in times {
        arguments.value(name, value, plain, |time| show_duration(*time));
    }
    arguments.0
}

struct Arguments(Vec<String>);

impl Arguments {
    fn flag(&mut self, name: &str, is_set: bool) {
        if is_set {
            self.0.push(format!("--{name}"));
        }
    }

    fn option(&mut self, name: &str, value: Option<impl Display>) {
        self.0
            .extend(value.map(|value| format!("--{name}={value}")));
    }

    fn value<T: PartialEq>(&mut self, name: &str, value: T, plain: T, show: impl Fn(&T) -> String) {
        let given = (value != plain).then(|| show(&value));
        self.option(name, given);
    }
}
