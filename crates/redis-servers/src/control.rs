//! A minimal Redis client: one command at a time over a server's Unix socket.
//!
//! Tests use it to set up and look at servers, so that this does not depend on the client that they test. It speaks
//! RESP2 (<https://redis.io/docs/latest/develop/reference/protocol-spec/>), with which every connection begins.

use crate::error::CommandError;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a command may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest string that it takes, bytes: tests set up little data.
const STRING_BYTES_MAX: usize = 64 << 20;

/// The deepest nesting of a reply: `CLUSTER SHARDS` has five levels.
const DEPTH_MAX: usize = 16;

/// A reply that is not an error.
#[derive(Debug, PartialEq)]
pub enum Reply {
    /// No value.
    Nil,
    /// A simple or bulk string.
    Bytes(Vec<u8>),
    /// A number.
    Integer(i64),
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// The reply as `redis-cli` prints it to a file: one line for each element, and nothing for nil.
    pub fn text(&self) -> String {
        match self {
            Self::Nil => String::new(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Integer(number) => number.to_string(),
            Self::Array(elements) => {
                let lines: Vec<_> = elements.iter().map(Reply::text).collect();
                lines.join("\n")
            }
        }
    }
}

/// One connection to one server.
pub struct Control {
    stream: BufReader<UnixStream>,
}

impl Control {
    /// Connects, and authenticates if there is a password.
    pub fn connect(path: &Path, password: Option<&str>) -> Result<Self, CommandError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut control = Self {
            stream: BufReader::new(stream),
        };
        if let Some(password) = password {
            control.call(&[b"AUTH".as_slice(), password.as_bytes()])?;
        }
        Ok(control)
    }

    /// Sends a command and reads its reply; an error reply is [`CommandError::Server`].
    pub fn call(&mut self, arguments: &[impl AsRef<[u8]>]) -> Result<Reply, CommandError> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            let argument = argument.as_ref();
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        read_reply(&mut self.stream, DEPTH_MAX)
    }
}

fn read_reply(stream: &mut impl BufRead, depth: usize) -> Result<Reply, CommandError> {
    let mut line = String::new();
    // An error repeats what this end sent, so that bounds the line.
    if stream.read_line(&mut line)? == 0 {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    let line = line.trim_end_matches(['\r', '\n']);
    let malformed = || CommandError::Malformed(format!("{line:?}"));
    let kind = line.chars().next().ok_or_else(malformed)?;
    let rest = line.get(1..).ok_or_else(malformed)?;
    let number = || rest.parse::<i64>().map_err(|_| malformed());
    match kind {
        '+' => Ok(Reply::Bytes(rest.as_bytes().to_vec())),
        '-' => Err(CommandError::Server(rest.to_owned())),
        ':' => Ok(Reply::Integer(number()?)),
        '$' | '*' if number()? < 0 => Ok(Reply::Nil),
        '$' => {
            let length = usize::try_from(number()?).map_err(|_| malformed())?;
            if length > STRING_BYTES_MAX {
                return Err(malformed());
            }
            let mut bytes = vec![0; length + 2];
            stream.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(Reply::Bytes(bytes))
        }
        '*' if depth > 0 => {
            let elements = (0..number()?).map(|_| read_element(stream, depth - 1));
            Ok(Reply::Array(elements.collect::<Result<_, _>>()?))
        }
        _ => Err(malformed()),
    }
}

/// Reads an element of an array. An error there (of EXEC, say) is an element, of which this keeps the text.
fn read_element(stream: &mut impl BufRead, depth: usize) -> Result<Reply, CommandError> {
    match read_reply(stream, depth) {
        Err(CommandError::Server(text)) => Ok(Reply::Bytes(text.into_bytes())),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{DEPTH_MAX, Reply, read_reply};
    use crate::error::CommandError;

    fn read(mut bytes: &[u8]) -> Result<Reply, CommandError> {
        read_reply(&mut bytes, DEPTH_MAX)
    }

    #[test]
    fn replies_of_every_kind_are_read() {
        let bytes = b"*5\r\n+a\r\n$3\r\nb\r\n\r\n:-7\r\n$-1\r\n*2\r\n-ERR c\r\n:1\r\n";
        let text = read(bytes).unwrap().text();
        assert_eq!(text, "a\nb\r\n\n-7\n\nERR c\n1");
        assert!(
            matches!(read(b"-ERR no\r\n"), Err(CommandError::Server(text)) if text == "ERR no")
        );
    }

    #[test]
    fn anything_else_is_an_error() {
        for bytes in [
            b"?\r\n".as_slice(),
            b"\r\n",
            b"$x\r\n",
            b"$99999999999\r\n",
            "\u{e9}1\r\n".as_bytes(),
        ] {
            let result = read(bytes);
            assert!(
                matches!(result, Err(CommandError::Malformed(_))),
                "{result:?}"
            );
        }
        let deep = read("*1\r\n".repeat(DEPTH_MAX + 2).as_bytes());
        assert!(matches!(deep, Err(CommandError::Malformed(_))), "{deep:?}");
        assert!(matches!(read(b"$5\r\nab"), Err(CommandError::Io(_))));
        assert!(matches!(read(b""), Err(CommandError::Io(_))));
    }
}
