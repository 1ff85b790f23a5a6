//! What a sentinel says of a primary, its replicas and the other sentinels. See
//! <https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/#sentinel-api>.

use crate::endpoint::Endpoint;
use crate::engine::answers::Answer;
use crate::engine::cluster_info::{ClusterInfo, Health};
use crate::engine::question::{NoAnswer, cut};
use crate::error::Error;
use crate::resp::{View, encode_all};
use crate::topology::{Topology, fields};

/// How many replies the question has.
pub const REPLIES: u32 = 5;

/// What a sentinel says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelReport {
    /// Names the sentinel, at whichever address it was asked.
    pub id: Option<String>,
    pub primary: Endpoint,
    /// Those that the sentinel does not call down.
    pub replicas: Vec<Endpoint>,
    /// The other sentinels.
    pub others: Vec<OtherSentinel>,
    /// Grows with each failover, so that a sentinel that is cut off falls behind.
    pub epoch: Option<u64>,
    /// Whether it reaches most sentinels.
    pub health: Health,
}

/// Another sentinel, as one knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherSentinel {
    pub endpoint: Endpoint,
    pub id: Option<String>,
}

/// The question about the primary of this name.
///
/// The address comes from `GET-MASTER-ADDR-BY-NAME`, which tells the new primary in the midst of a failover, as soon as
/// that has taken over; `MASTER` tells it at the end, but has the epoch. All commands come in one write, and so from one
/// moment.
pub fn question(master_name: &str) -> Vec<u8> {
    let about = |command| ["SENTINEL", command, master_name];
    let mut bytes = encode_all(&[["SENTINEL", "MYID"]]);
    bytes.extend(encode_all(&[
        about("GET-MASTER-ADDR-BY-NAME"),
        about("MASTER"),
        about("REPLICAS"),
        about("SENTINELS"),
    ]));
    bytes
}

impl SentinelReport {
    /// Reads the replies of the sentinel `asked`. A user may be allowed to ask for the address alone.
    ///
    /// # Errors
    /// When it does not know the primary, or refuses to tell.
    pub fn read(reply: &[u8], asked: &Endpoint, master_name: &str) -> Result<Self, NoAnswer> {
        let [id, address, master, replicas, others] = cut(reply)?;
        let primary = match address {
            View::Array(mut address) => {
                let (host, port) = (address.next().and_then(text), address.next().and_then(text));
                let port = port.and_then(|port| port.parse().ok());
                let known = host.zip(port);
                known.and_then(|(host, port)| Endpoint::announced(host, port, asked))
            }
            View::Null => return Err(NoAnswer::Refused(unknown_name(master_name))),
            View::Error(error) => return Err(NoAnswer::error(error.into())),
            _ => None,
        };
        let primary = primary.ok_or_else(|| {
            NoAnswer::Failed("it answers with something that is no address".to_owned())
        })?;
        let others = Instance::read_all(others, asked);
        let reached = others.iter().flatten().filter(|other| !other.is_away());
        let health = match &others {
            None => Health::Unknown,
            // Itself and those that it reaches, of all.
            Some(others) => match (reached.count() + 1) * 2 > others.len() + 1 {
                true => Health::Up,
                false => Health::Down,
            },
        };
        let replicas = Instance::read_all(replicas, asked).unwrap_or_default();
        Ok(Self {
            id: text(id).map(str::to_owned),
            primary,
            replicas: replicas
                .into_iter()
                .filter(|replica| !replica.is_down())
                .map(|replica| replica.endpoint)
                .collect(),
            others: others
                .unwrap_or_default()
                .into_iter()
                .map(|Instance { endpoint, id, .. }| OtherSentinel { endpoint, id })
                .collect(),
            epoch: epoch(master),
            health,
        })
    }

    /// To compare it with what others say.
    pub fn answer(&self) -> Answer {
        let (primary, replicas) = (self.primary.clone(), self.replicas.clone());
        Answer {
            topology: Topology::of_one_shard(primary, replicas),
            info: ClusterInfo {
                health: self.health,
                epoch: self.epoch,
            },
        }
    }
}

fn unknown_name(master_name: &str) -> Error {
    Error::Config(format!(
        "the sentinels know no master '{master_name}'; name one that they list (SENTINEL MASTERS), as #name at the end of the URL or as master_name"
    ))
}

fn text(view: View<'_>) -> Option<&str> {
    match view {
        View::Bulk(text) | View::Simple(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

fn epoch(master: View<'_>) -> Option<u64> {
    let mut fields = fields(master).ok()?;
    let (_, epoch) = fields.find(|(name, _)| *name == b"config-epoch")?;
    text(epoch)?.parse().ok()
}

/// A replica or a sentinel, as a sentinel knows it.
struct Instance {
    endpoint: Endpoint,
    id: Option<String>,
    flags: Vec<String>,
}

impl Instance {
    /// Reads a list of them; `None` if the sentinel does not tell. Leaves out what has no address.
    fn read_all(list: View<'_>, asked: &Endpoint) -> Option<Vec<Self>> {
        match list {
            View::Array(all) => Some(all.filter_map(|one| Self::read(one, asked)).collect()),
            _ => None,
        }
    }

    fn read(view: View<'_>, asked: &Endpoint) -> Option<Self> {
        let (mut host, mut port, mut id, mut flags) = (None, None, None, "");
        for (name, value) in fields(view).ok()? {
            match name {
                b"ip" => host = text(value),
                b"port" => port = text(value),
                b"runid" => id = text(value).filter(|id| !id.is_empty()),
                b"flags" => flags = text(value).unwrap_or_default(),
                _ => {}
            }
        }
        Some(Self {
            endpoint: Endpoint::announced(host?, port?.parse().ok()?, asked)?,
            id: id.map(str::to_owned),
            flags: flags.split(',').map(str::to_owned).collect(),
        })
    }

    fn is_down(&self) -> bool {
        self.has("s_down") || self.has("o_down")
    }

    /// Whether the sentinel does not reach it at the moment.
    fn is_away(&self) -> bool {
        self.is_down() || self.has("disconnected")
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    fn array(elements: &[String]) -> String {
        format!("*{}\r\n{}", elements.len(), elements.concat())
    }

    /// Names and values as RESP2 has them, or RESP3.
    fn map(pairs: &[(&str, &str)], resp3: bool) -> String {
        let all: String = pairs
            .iter()
            .map(|(name, value)| bulk(name) + &bulk(value))
            .collect();
        match resp3 {
            true => format!("%{}\r\n{all}", pairs.len()),
            false => format!("*{}\r\n{all}", 2 * pairs.len()),
        }
    }

    fn instance(port: &str, flags: &str, resp3: bool) -> String {
        let id = format!("id{port}");
        let fields = [
            ("name", "x"),
            ("ip", "h"),
            ("port", port),
            ("runid", &id),
            ("flags", flags),
        ];
        map(&fields, resp3)
    }

    const REFUSED: &str = "-NOPERM this user may not\r\n";

    fn read(replies: [String; 5]) -> Result<SentinelReport, NoAnswer> {
        let asked = Endpoint::tcp("asked", 1);
        SentinelReport::read(replies.concat().as_bytes(), &asked, "mymaster")
    }

    fn replies(resp3: bool) -> [String; 5] {
        [
            bulk("id1"),
            array(&[bulk("10.0.0.1"), bulk("6379")]),
            map(&[("name", "mymaster"), ("config-epoch", "7")], resp3),
            array(&[
                instance("2", "slave", resp3),
                instance("3", "s_down,slave,disconnected", resp3),
                instance("4", "slave,disconnected", resp3),
            ]),
            array(&[
                instance("11", "sentinel", resp3),
                instance("12", "s_down,sentinel", resp3),
            ]),
        ]
    }

    #[test]
    fn everything_is_read_in_both_protocols() {
        let endpoint = |port| Endpoint::tcp("h", port);
        let other = |port: u16| OtherSentinel {
            endpoint: endpoint(port),
            id: Some(format!("id{port}")),
        };
        let wanted = SentinelReport {
            id: Some("id1".to_owned()),
            primary: Endpoint::tcp("10.0.0.1", 6379),
            replicas: vec![endpoint(2), endpoint(4)],
            others: vec![other(11), other(12)],
            epoch: Some(7),
            health: Health::Up,
        };
        for resp3 in [false, true] {
            assert_eq!(read(replies(resp3)).expect("it tells"), wanted);
        }
        let answer = wanted.answer();
        assert_eq!(answer.topology.shards()[0].primary, wanted.primary);
        assert_eq!(answer.topology.uncovered(), 0);
        assert_eq!(
            (answer.info.health, answer.info.epoch),
            (Health::Up, Some(7))
        );
    }

    #[test]
    fn a_sentinel_that_reaches_half_of_all_at_most_may_be_cut_off() {
        let health = |others: &[&str]| {
            let mut replies = replies(true);
            let others = others.iter().map(|flags| instance("11", flags, true));
            replies[4] = array(&others.collect::<Vec<_>>());
            read(replies).expect("it tells").health
        };
        assert_eq!(health(&[]), Health::Up);
        assert_eq!(health(&["sentinel"]), Health::Up);
        assert_eq!(health(&["sentinel,disconnected"]), Health::Down);
        assert_eq!(health(&["sentinel", "s_down,sentinel"]), Health::Up);
        assert_eq!(
            health(&["s_down,sentinel", "s_down,sentinel,disconnected"]),
            Health::Down
        );
        let [up, down] = ["sentinel", "s_down,sentinel"];
        assert_eq!(health(&[up, down, down]), Health::Down, "two of four");
    }

    #[test]
    fn the_address_alone_is_enough() {
        let mut replies = replies(true);
        for other in [0, 2, 3, 4] {
            REFUSED.clone_into(&mut replies[other]);
        }
        let report = read(replies).expect("it tells");
        assert_eq!(report.primary, Endpoint::tcp("10.0.0.1", 6379));
        assert_eq!(
            (report.id, report.epoch, report.health),
            (None, None, Health::Unknown)
        );
        assert!(report.replicas.is_empty() && report.others.is_empty());
    }

    #[test]
    fn a_name_that_it_does_not_know_is_named() {
        for null in ["*-1\r\n", "_\r\n"] {
            let mut replies = replies(true);
            null.clone_into(&mut replies[1]);
            let error = read(replies).expect_err("it knows none");
            let NoAnswer::Refused(Error::Config(why)) = error else {
                panic!("{error:?}");
            };
            assert!(why.contains("'mymaster'"), "{why}");
        }
    }

    #[test]
    fn what_is_no_answer_of_a_sentinel_is_none() {
        for (address, refused) in [
            (REFUSED, true),
            ("-ERR unknown command 'SENTINEL'\r\n", true),
            ("-LOADING not yet\r\n", false),
            ("*1\r\n$1\r\nh\r\n", false),
            ("*2\r\n$1\r\nh\r\n$1\r\nx\r\n", false),
            ("+OK\r\n", false),
        ] {
            let mut replies = replies(true);
            address.clone_into(&mut replies[1]);
            let error = read(replies).expect_err("it does not tell");
            assert_eq!(matches!(error, NoAnswer::Refused(_)), refused, "{error:?}");
        }
    }

    #[test]
    fn the_question_has_five_commands() {
        let question = question("m");
        let mut rest = question.as_slice();
        let mut count = 0;
        while let Ok((_, len)) = crate::resp::parse(rest) {
            rest = &rest[len..];
            count += 1;
        }
        assert!(rest.is_empty() && count == REPLIES);
        assert!(question.ends_with(b"$9\r\nSENTINELS\r\n$1\r\nm\r\n"));
    }
}
