//! What the client says first on a connection: who it is, which protocol, database and name it wants.

use std::sync::Arc;

use crate::config::{Config, ProtocolVersion, Tracking};
use crate::credentials::Credentials;
use crate::resp::encode_all;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Commands of callers.
    Commands {
        /// The node may be a replica, and is to answer reads.
        read_replica: bool,
        /// The node is to report changes of what is read, if the configuration has a cache.
        tracks: bool,
    },
    /// Subscriptions: every frame behind the greeting is a push.
    Subscriptions,
}

/// A command of the greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    words: Vec<Vec<u8>>,
    /// A server that refuses it is of use all the same.
    pub is_optional: bool,
}

impl Step {
    fn needed(words: &[&[u8]]) -> Self {
        Self {
            words: words.iter().map(|word| word.to_vec()).collect(),
            is_optional: false,
        }
    }

    /// Has the server report changes of what is read.
    pub fn tracking(tracking: &Tracking) -> Self {
        Self {
            words: tracking.words(),
            is_optional: true,
        }
    }

    fn optional(words: &[&[u8]]) -> Self {
        Self {
            is_optional: true,
            ..Self::needed(words)
        }
    }
}

/// The greeting, and the one for a server that does not know RESP3.
pub(super) fn greetings(
    config: &Config,
    credentials: Option<&Arc<Credentials>>,
    purpose: Purpose,
) -> (Vec<Step>, Option<Vec<Step>>) {
    let name = config.client_name.as_deref().map(str::as_bytes);
    // Behind the words of either version.
    let mut both = Vec::new();
    if config.database != 0 {
        let database = config.database.to_string();
        both.push(Step::needed(&[b"SELECT", database.as_bytes()]));
    }
    let reads_replica = matches!(
        purpose,
        Purpose::Commands {
            read_replica: true,
            ..
        }
    );
    if reads_replica {
        both.push(Step::needed(&[b"READONLY"]));
    }
    let library = [
        (b"LIB-NAME".as_slice(), &config.lib_name),
        (b"LIB-VER", &config.lib_version),
    ];
    for (what, value) in library {
        if let Some(value) = value {
            let words = [b"CLIENT".as_slice(), b"SETINFO", what, value.as_bytes()];
            // Servers before 7.2 do not know it, and a user may be forbidden it.
            both.push(Step::optional(&words));
        }
    }
    let mut resp2 = Vec::new();
    if let Some(credentials) = credentials {
        resp2.push(Step::needed(&auth(credentials)));
    }
    if let Some(name) = name {
        resp2.push(Step::needed(&[b"CLIENT", b"SETNAME", name]));
    }
    resp2.extend(both.iter().cloned());
    let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
    if let Some(credentials) = credentials {
        let user = credentials.username.as_deref().unwrap_or("default");
        let password = credentials.password.reveal();
        hello.extend([b"AUTH".as_slice(), user.as_bytes(), password.as_bytes()]);
    }
    if let Some(name) = name {
        hello.extend([b"SETNAME".as_slice(), name]);
    }
    let mut resp3 = vec![Step::needed(&hello)];
    resp3.append(&mut both);
    match config.protocol {
        ProtocolVersion::Resp2 => (resp2, None),
        ProtocolVersion::Resp3 => (resp3, Some(resp2)),
    }
}

fn auth(credentials: &Credentials) -> Vec<&[u8]> {
    let password = credentials.password.reveal().as_bytes();
    match &credentials.username {
        Some(user) => vec![b"AUTH", user.as_bytes(), password],
        None => vec![b"AUTH", password],
    }
}

/// `AUTH`, encoded.
pub(crate) fn encoded_auth(credentials: &Credentials) -> Vec<u8> {
    encoded(&[Step::needed(&auth(credentials))])
}

/// The commands, one behind the other.
pub(super) fn encoded(steps: &[Step]) -> Vec<u8> {
    let commands: Vec<_> = steps.iter().map(|step| &step.words).collect();
    encode_all(&commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(steps: &[Step]) -> Vec<String> {
        let line = |step: &Step| String::from_utf8_lossy(&step.words.join(&b' ')).into_owned();
        steps.iter().map(line).collect()
    }

    #[test]
    fn both_versions_say_the_same() {
        let config = Config {
            database: 2,
            client_name: Some("shop".to_owned()),
            lib_name: Some("lib".to_owned()),
            lib_version: None,
            ..Config::default()
        };
        let credentials = Arc::new(Credentials::new(Some("me"), "word"));
        let purpose = Purpose::Commands {
            read_replica: true,
            tracks: false,
        };
        let (first, fallback) = greetings(&config, Some(&credentials), purpose);
        let rest = ["SELECT 2", "READONLY", "CLIENT SETINFO LIB-NAME lib"];
        let hello = ["HELLO 3 AUTH me word SETNAME shop"];
        assert_eq!(lines(&first), [&hello[..], &rest].concat());
        let old = ["AUTH me word", "CLIENT SETNAME shop"];
        let fallback = fallback.expect("there is one");
        assert_eq!(lines(&fallback), [&old[..], &rest].concat());
        let optional: Vec<_> = first.iter().map(|step| step.is_optional).collect();
        assert_eq!(optional, [false, false, false, true]);
    }

    #[test]
    fn what_is_not_wanted_is_not_sent() {
        let config = Config {
            lib_name: None,
            lib_version: None,
            ..Config::default()
        };
        let (first, fallback) = greetings(&config, None, Purpose::Subscriptions);
        assert_eq!(lines(&first), ["HELLO 3"]);
        assert_eq!(fallback, Some(Vec::new()));
    }

    #[test]
    fn without_a_user_it_is_the_default_one() {
        let auth = encoded_auth(&Credentials::new(None::<&str>, "word"));
        assert_eq!(auth, b"*2\r\n$4\r\nAUTH\r\n$4\r\nword\r\n");
    }
}
