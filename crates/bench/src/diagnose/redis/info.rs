//! Reads what a server says of itself: `INFO`, and `SLOWLOG GET`. Servers may be old, proxies, or hostile: what is missing
//! or makes no sense is `None`, and what is kept of the rest is bounded.

use std::collections::BTreeMap;

use embar_diagnose::redis::observed::{CommandUse, Server, SlowCommand};
use embar_redis::resp::Value;

/// Kinds of commands that are kept, at most; Redis 7 knows fewer than 400, subcommands included.
const COMMANDS_MAX: usize = 1024;
/// Characters of a name that are kept.
const NAME_MAX: usize = 64;
/// Entries of the slow log that are looked at, at most.
const SLOW_MAX: usize = 1024;

/// What `INFO` said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Info {
    /// `run_id`: another one is another process.
    pub run_id: Option<String>,
    /// `cluster_enabled`.
    pub is_cluster: bool,
    /// `total_commands_processed`.
    commands: Option<u64>,
    /// `total_net_output_bytes`.
    sent_bytes: Option<u64>,
    /// `total_net_input_bytes`.
    received_bytes: Option<u64>,
    /// `used_cpu_user_main_thread` and `used_cpu_sys_main_thread`, seconds.
    main_thread_s: Option<f64>,
    /// `connected_clients`.
    clients: Option<u64>,
    /// Calls and microseconds of each command (`cmdstat_...`).
    by_command: Option<BTreeMap<String, (u64, u64)>>,
}

impl Info {
    /// Reads the text of `INFO`.
    pub fn parse(text: &str) -> Self {
        let mut info = Self::default();
        let mut main = [None, None];
        for line in text.lines() {
            let Some((name, value)) = line.trim_end().split_once(':') else {
                continue;
            };
            let number = || value.parse::<u64>().ok();
            let seconds = || value.parse::<f64>().ok().filter(|it| it.is_finite());
            match name {
                "run_id" => info.run_id = Some(clipped(value)),
                "cluster_enabled" => info.is_cluster = value == "1",
                "total_commands_processed" => info.commands = number(),
                "total_net_output_bytes" => info.sent_bytes = number(),
                "total_net_input_bytes" => info.received_bytes = number(),
                "used_cpu_user_main_thread" => main[0] = seconds(),
                "used_cpu_sys_main_thread" => main[1] = seconds(),
                "connected_clients" => info.clients = number(),
                _ => info.command(name, value),
            }
        }
        info.main_thread_s = main[0].zip(main[1]).map(|(user, system)| user + system);
        info
    }

    /// `cmdstat_get:calls=3,usec=12,usec_per_call=4.00,rejected_calls=0,failed_calls=0`
    fn command(&mut self, name: &str, value: &str) {
        let Some(name) = name.strip_prefix("cmdstat_") else {
            return;
        };
        let field = |wanted: &str| {
            let mut fields = value.split(',').filter_map(|it| it.split_once('='));
            let (_, number) = fields.find(|(name, _)| *name == wanted)?;
            number.parse::<u64>().ok()
        };
        let kinds = self.by_command.get_or_insert_default();
        if let Some(both) = field("calls").zip(field("usec"))
            && kinds.len() < COMMANDS_MAX
        {
            kinds.insert(clipped(name).to_lowercase(), both);
        }
    }

    /// What the server did since an earlier look; nothing of a server that was started anew meanwhile.
    pub fn since(&self, earlier: &Self) -> Option<Server> {
        if self.run_id != earlier.run_id {
            return None;
        }
        // A counter that went back was set to zero (`CONFIG RESETSTAT`): nobody knows what it counted before.
        let more = |of: fn(&Self) -> Option<u64>| of(self)?.checked_sub(of(earlier)?);
        let kinds = self.by_command.as_ref().map(|kinds| {
            let before = |name: &String| {
                let before = earlier.by_command.as_ref().and_then(|it| it.get(name));
                before.copied().unwrap_or_default()
            };
            let moved = kinds.iter().filter_map(|(name, (calls, us))| {
                let (calls_before, us_before) = before(name);
                let (calls, us) = (calls.checked_sub(calls_before)?, us.checked_sub(us_before)?);
                (calls > 0).then(|| CommandUse {
                    name: name.clone(),
                    calls,
                    seconds: us as f64 / 1e6,
                })
            });
            moved.collect()
        });
        let main = self.main_thread_s.zip(earlier.main_thread_s);
        Some(Server {
            commands: more(|it| it.commands),
            sent_bytes: more(|it| it.sent_bytes),
            received_bytes: more(|it| it.received_bytes),
            main_thread_s: main.map(|(now, then)| (now - then).max(0.0)),
            clients: self.clients,
            by_command: kinds,
            slow: None,
        })
    }

    /// What a diagnosis wants, and it does not say.
    pub fn lacks(&self) -> Vec<&'static str> {
        let wanted = [
            ("total_commands_processed", self.commands.is_none()),
            ("total_net_output_bytes", self.sent_bytes.is_none()),
            ("used_cpu_user_main_thread", self.main_thread_s.is_none()),
            ("cmdstat_*", self.by_command.is_none()),
        ];
        let lacking = wanted.into_iter().filter(|(_, lacks)| *lacks);
        lacking.map(|(name, _)| name).collect()
    }
}

/// An entry of the slow log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowEntry {
    /// Its number; later ones have larger numbers.
    pub id: i64,
    /// How long it took, microseconds.
    pub us: u64,
    /// The command, in small letters.
    pub name: String,
}

/// Reads the reply of `SLOWLOG GET`. `None` if it is none.
pub fn slow_log(reply: &Value) -> Option<Vec<SlowEntry>> {
    let Value::Array(entries) = reply else {
        return None;
    };
    let entry = |value: &Value| {
        let Value::Array(fields) = value else {
            return None;
        };
        let number = |at: usize| match fields.get(at) {
            Some(Value::Integer(number)) => Some(*number),
            _ => None,
        };
        let Some(Value::Array(words)) = fields.get(3) else {
            return None;
        };
        let name = match words.first()? {
            Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::Simple(text) => text.clone(),
            _ => return None,
        };
        Some(SlowEntry {
            id: number(0)?,
            us: u64::try_from(number(2)?).ok()?,
            name: clipped(&name).to_lowercase(),
        })
    };
    Some(entries.iter().take(SLOW_MAX).filter_map(entry).collect())
}

/// What came after the entry with this number, by command.
pub fn slow_since(entries: &[SlowEntry], last: Option<i64>) -> Vec<SlowCommand> {
    let mut kinds: BTreeMap<&str, SlowCommand> = BTreeMap::new();
    for entry in entries
        .iter()
        .filter(|it| last.is_none_or(|last| it.id > last))
    {
        let seconds = entry.us as f64 / 1e6;
        let kind = kinds.entry(&entry.name).or_default();
        kind.count += 1;
        kind.seconds += seconds;
        kind.longest_s = kind.longest_s.max(seconds);
    }
    let named = kinds.into_iter().map(|(name, kind)| SlowCommand {
        name: name.to_owned(),
        ..kind
    });
    named.collect()
}

/// The beginning of a text.
fn clipped(text: &str) -> String {
    text.chars().take(NAME_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n\r\n# Clients\r\nconnected_clients:3\r\n\
        # Stats\r\ntotal_commands_processed:1000\r\ntotal_net_input_bytes:5000\r\ntotal_net_output_bytes:9000\r\n\
        # CPU\r\nused_cpu_sys_main_thread:1.5\r\nused_cpu_user_main_thread:2.0\r\n\
        # Commandstats\r\ncmdstat_get:calls=900,usec=1800,usec_per_call=2.00,rejected_calls=0,failed_calls=0\r\n\
        # Cluster\r\ncluster_enabled:1\r\n";
    const AFTER: &str = "run_id:abc\r\nconnected_clients:5\r\ntotal_commands_processed:3000\r\n\
        total_net_input_bytes:6000\r\ntotal_net_output_bytes:19000\r\nused_cpu_sys_main_thread:2.0\r\n\
        used_cpu_user_main_thread:3.0\r\ncmdstat_get:calls=1900,usec=4800,usec_per_call=2.5\r\n\
        cmdstat_config|get:calls=2,usec=100,usec_per_call=50\r\ncluster_enabled:1\r\n";

    #[test]
    fn two_looks_say_what_a_server_did_between_them() {
        let (before, after) = (Info::parse(BEFORE), Info::parse(AFTER));
        assert!(before.is_cluster && before.lacks().is_empty());
        let server = after.since(&before).expect("one process");
        assert_eq!((server.commands, server.clients), (Some(2000), Some(5)));
        assert_eq!(server.sent_bytes, Some(10_000));
        assert_eq!(server.received_bytes, Some(1000));
        assert_eq!(server.main_thread_s, Some(1.5));
        let kinds = server.by_command.expect("it says");
        let names: Vec<_> = kinds
            .iter()
            .map(|it| (it.name.as_str(), it.calls))
            .collect();
        assert_eq!(names, [("config|get", 2), ("get", 1000)]);
        assert!((kinds[1].seconds - 0.003).abs() < 1e-9);
    }

    #[test]
    fn a_server_that_was_started_anew_or_counts_anew_says_nothing_wrong() {
        let (before, after) = (Info::parse(BEFORE), Info::parse(AFTER));
        let other = Info::parse(&AFTER.replace("run_id:abc", "run_id:abd"));
        assert_eq!(other.since(&before), None);
        // `CONFIG RESETSTAT` between the looks.
        let server = before.since(&after).expect("one process");
        assert_eq!((server.commands, server.sent_bytes), (None, None));
        assert_eq!(server.by_command, Some(Vec::new()));
        assert_eq!(server.main_thread_s, Some(0.0));
    }

    #[test]
    fn hostile_texts_are_read_as_far_as_they_make_sense() {
        for text in [
            "",
            ":",
            "::::",
            "run_id",
            "total_commands_processed:-1",
            "total_commands_processed:99999999999999999999999",
            "used_cpu_user_main_thread:NaN\nused_cpu_sys_main_thread:inf",
            "cmdstat_",
            "cmdstat_:=,=,=",
            "cmdstat_get:calls=x,usec=1",
            "cmdstat_get:usec=1",
            "\u{0}\u{fffd}:\u{0}",
        ] {
            let info = Info::parse(text);
            assert_eq!(info.commands, None, "{text:?}");
            assert_eq!(info.main_thread_s, None, "{text:?}");
            assert!(info.lacks().len() >= 3, "{text:?}");
            let server = info.since(&info).expect("one process");
            assert!(server.by_command.is_none_or(|it| it.is_empty()), "{text:?}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let many: String = (0..50_000)
            .map(|it| format!("cmdstat_{it}:calls=1,usec=1\n"))
            .collect();
        let kinds = Info::parse(&many).by_command.expect("some");
        assert_eq!(kinds.len(), COMMANDS_MAX);
        let long = format!(
            "run_id:{}\ncmdstat_{}:calls=1,usec=1",
            "a".repeat(1 << 20),
            "\u{e9}".repeat(1 << 20)
        );
        let info = Info::parse(&long);
        assert_eq!(info.run_id.expect("one").len(), NAME_MAX);
        let name = info
            .by_command
            .expect("one")
            .into_keys()
            .next()
            .expect("one");
        assert_eq!(name.chars().count(), NAME_MAX);
    }

    fn entry(id: i64, us: i64, name: &str) -> Value {
        let bulk = |text: &str| Value::Bulk(text.as_bytes().to_vec());
        Value::Array(vec![
            Value::Integer(id),
            Value::Integer(1_700_000_000),
            Value::Integer(us),
            Value::Array(vec![bulk(name), bulk("0.1")]),
            bulk("127.0.0.1:1"),
            bulk(""),
        ])
    }

    #[test]
    fn new_entries_of_the_slow_log_are_summed_up_by_command() {
        let reply = Value::Array(vec![
            entry(9, 30_000, "KEYS"),
            entry(8, 10_000, "keys"),
            entry(7, 20_000, "EVAL"),
            entry(6, 99_000, "KEYS"),
        ]);
        let entries = slow_log(&reply).expect("a slow log");
        let slow = slow_since(&entries, Some(6));
        let seen: Vec<_> = slow.iter().map(|it| (it.name.as_str(), it.count)).collect();
        assert_eq!(seen, [("eval", 1), ("keys", 2)]);
        assert!((slow[1].seconds - 0.04).abs() < 1e-9 && (slow[1].longest_s - 0.03).abs() < 1e-9);
        assert_eq!(slow_since(&entries, None).len(), 2);
        assert!(slow_since(&entries, Some(9)).is_empty());
    }

    #[test]
    fn odd_replies_are_no_slow_log() {
        assert_eq!(slow_log(&Value::Null), None);
        assert_eq!(slow_log(&Value::Simple("OK".into())), None);
        let odd = Value::Array(vec![
            Value::Null,
            Value::Array(Vec::new()),
            Value::Array(vec![Value::Integer(1); 4]),
            entry(1, -5, "KEYS"),
            Value::Array(vec![
                Value::Integer(1),
                Value::Integer(1),
                Value::Integer(1),
                Value::Array(Vec::new()),
            ]),
        ]);
        assert_eq!(slow_log(&odd), Some(Vec::new()));
    }
}
