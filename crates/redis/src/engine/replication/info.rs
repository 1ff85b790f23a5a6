//! What a server says of its replication. See <https://redis.io/docs/latest/commands/info/>.
//!
//! `INFO` tells the role as `ROLE` does, and more: the *history* that the server's data have. A primary and its replicas
//! have the same one, whatever addresses they have. A replica that takes over begins a new one, and remembers whose it
//! continues.

use crate::endpoint::Endpoint;
use crate::engine::question::{NoAnswer, cut};
use crate::resp::View;

/// `INFO server` and `INFO replication`: servers before 7.0 take only one section at a time.
pub const QUESTION: &[u8] =
    b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n";

/// How many replies that has.
pub const REPLIES: u32 = 2;

/// Stands for "no history".
const NO_HISTORY: &str = "0000000000000000000000000000000000000000";

/// What a server says of its replication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationInfo {
    pub role: Role,
    /// Names the process, at whichever address it was asked.
    pub run_id: Option<String>,
    /// Names what its data have gone through.
    pub history: Option<String>,
    /// The history that it continues, as it took over from another primary.
    pub continued: Option<String>,
    /// How much of the history it has, bytes.
    pub offset: u64,
}

/// What a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Primary {
        /// The connected replicas, as they told it their addresses.
        replicas: Vec<Endpoint>,
    },
    /// It copies another server.
    Replica {
        /// That server.
        of: Option<Endpoint>,
        /// It has all data, and what is written there comes to it.
        is_linked: bool,
    },
}

impl ReplicationInfo {
    pub fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary { .. })
    }

    /// The servers that it names.
    pub fn names(&self) -> impl Iterator<Item = &Endpoint> {
        let (replicas, primary) = match &self.role {
            Role::Primary { replicas } => (replicas.as_slice(), None),
            Role::Replica { of, .. } => ([].as_slice(), of.as_ref()),
        };
        replicas.iter().chain(primary)
    }

    /// Reads the replies to [`QUESTION`] of the server `asked`.
    ///
    /// # Errors
    /// When it refuses to tell, or tells no role.
    pub fn read(reply: &[u8], asked: &Endpoint) -> Result<Self, NoAnswer> {
        let [server, replication] = cut(reply)?;
        if let View::Error(error) = replication {
            return Err(NoAnswer::error(error.into()));
        }
        let (server, replication) = (text(server), text(replication));
        let find = |text: &str, name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(known, _)| *known == name);
            found.map(|(_, value)| value.trim_end().to_owned())
        };
        let value = |name| find(&replication, name);
        let role = match value("role").as_deref() {
            Some("master") => Role::Primary {
                replicas: replicas(&replication, asked),
            },
            Some("slave") => Role::Replica {
                of: value("master_host").and_then(|host| {
                    let port = value("master_port")?.parse().ok()?;
                    Endpoint::announced(&host, port, asked)
                }),
                is_linked: value("master_link_status").as_deref() == Some("up"),
            },
            _ => {
                let why = "INFO tells no role, neither master nor slave";
                return Err(NoAnswer::Failed(why.to_owned()));
            }
        };
        let history = |name| value(name).filter(|id| id != NO_HISTORY && !id.is_empty());
        Ok(Self {
            role,
            run_id: find(&server, "run_id").filter(|id| !id.is_empty()),
            history: history("master_replid"),
            continued: history("master_replid2"),
            offset: value("master_repl_offset")
                .and_then(|offset| offset.parse().ok())
                .unwrap_or(0),
        })
    }
}

fn text(view: View<'_>) -> String {
    match view {
        View::Bulk(text) | View::Simple(text) | View::Verbatim { text, .. } => {
            String::from_utf8_lossy(text).into_owned()
        }
        _ => String::new(),
    }
}

/// Reads lines such as `slave0:ip=127.0.0.1,port=6380,state=online,offset=14,lag=1`.
fn replicas(text: &str, asked: &Endpoint) -> Vec<Endpoint> {
    let read = |line: &str| {
        let (name, fields) = line.trim_end().split_once(':')?;
        name.strip_prefix("slave")?.parse::<u32>().ok()?;
        let field = |wanted| {
            let mut fields = fields.split(',').filter_map(|field| field.split_once('='));
            fields.find_map(|(name, value)| (name == wanted).then_some(value))
        };
        Endpoint::announced(field("ip")?, field("port")?.parse().ok()?, asked)
    };
    text.lines().filter_map(read).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// As Redis 7.0.15 answers, shortened.
    const SERVER: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:e1\r\ntcp_port:6379\r\n";
    const PRIMARY: &str = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\n\
        slave0:ip=127.0.0.1,port=6380,state=online,offset=14,lag=1\r\n\
        slave1:ip=::1,port=6381,state=wait_bgsave,offset=0,lag=0\r\nmaster_failover_state:no-failover\r\n\
        master_replid:aa\r\nmaster_replid2:0000000000000000000000000000000000000000\r\n\
        master_repl_offset:14\r\nsecond_repl_offset:-1\r\n";
    const REPLICA: &str = "# Replication\r\nrole:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\n\
        master_link_status:up\r\nslave_read_repl_offset:14\r\nconnected_slaves:0\r\n\
        master_replid:bb\r\nmaster_replid2:aa\r\nmaster_repl_offset:15\r\n";

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    fn read(server: &str, replication: &str) -> Result<ReplicationInfo, NoAnswer> {
        let reply = server.to_owned() + replication;
        ReplicationInfo::read(reply.as_bytes(), &Endpoint::tcp("asked", 1))
    }

    #[test]
    fn a_primary_names_its_replicas() {
        let info = read(&bulk(SERVER), &bulk(PRIMARY)).expect("it tells");
        let replicas = vec![Endpoint::tcp("127.0.0.1", 6380), Endpoint::tcp("::1", 6381)];
        assert_eq!(
            info.names().collect::<Vec<_>>(),
            replicas.iter().collect::<Vec<_>>()
        );
        let wanted = ReplicationInfo {
            role: Role::Primary { replicas },
            run_id: Some("e1".to_owned()),
            history: Some("aa".to_owned()),
            continued: None,
            offset: 14,
        };
        assert_eq!(info, wanted);
        let verbatim = |text: &str| format!("={}\r\ntxt:{text}\r\n", text.len() + 4);
        let info = read(&verbatim(SERVER), &verbatim(PRIMARY)).expect("it tells");
        assert_eq!(info, wanted);
    }

    #[test]
    fn a_replica_names_its_primary_and_says_whether_it_has_all_data() {
        let info = read(&bulk(SERVER), &bulk(REPLICA)).expect("it tells");
        let of = Some(Endpoint::tcp("10.0.0.1", 6379));
        assert_eq!(
            info.names().collect::<Vec<_>>(),
            of.iter().collect::<Vec<_>>()
        );
        assert_eq!(
            info.role,
            Role::Replica {
                of,
                is_linked: true
            }
        );
        assert_eq!(info.continued.as_deref(), Some("aa"));
        let down = REPLICA.replace("status:up", "status:down");
        let info = read(&bulk(SERVER), &bulk(&down)).expect("it tells");
        assert!(matches!(
            info.role,
            Role::Replica {
                is_linked: false,
                ..
            }
        ));
    }

    #[test]
    fn what_a_server_may_not_tell_or_does_not_know_is_not_needed() {
        const REFUSED: &str = "-NOPERM this user may not\r\n";
        let info = read(REFUSED, &bulk("role:master\r\n")).expect("it tells");
        assert_eq!((info.run_id, info.history, info.offset), (None, None, 0));
        let error = read(&bulk(SERVER), REFUSED).expect_err("it refuses");
        assert!(matches!(error, NoAnswer::Refused(_)), "{error:?}");
        for odd in [
            bulk("role:sentinel\r\n"),
            "$-1\r\n".to_owned(),
            "-LOADING not yet\r\n".to_owned(),
            "+\r".to_owned(),
        ] {
            let error = read(&bulk(SERVER), &odd).expect_err("it does not tell");
            assert!(matches!(error, NoAnswer::Failed(_)), "{error:?}");
        }
    }
}
