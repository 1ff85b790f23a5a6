//! As much HTTP/1.1 as a scraper needs: one request per connection, without a body.
//!
//! Bounds: the request's head has at most [`HEAD_MAX`] bytes, nothing behind it is looked at, and
//! the whole connection ends by its deadline however slowly its bytes come.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use embar_transport::Stream;
use rustix::event::PollFlags;

use crate::runtime::stop::{Stop, Waited};

/// The empty line that ends the head of a request, behind the end of the line before.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";
/// Longest head of a request, in bytes.
const HEAD_MAX: usize = 8192;
/// Most headers of a request.
const HEADERS_MAX: usize = 128;
/// How long the peer may take to read an answer and close, once it is written.
const LINGER: Duration = Duration::from_millis(500);

/// What is asked.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    /// The token of `Authorization: Bearer`.
    pub(super) bearer: Option<&'a str>,
}

/// What is answered.
pub(super) struct Response {
    pub(super) status: &'static str,
    pub(super) kind: &'static str,
    pub(super) header: Option<&'static str>,
    pub(super) body: String,
}

impl Response {
    pub(super) fn text(status: &'static str, body: &str) -> Self {
        Self {
            status,
            kind: "text/plain; charset=utf-8",
            header: None,
            body: body.to_owned(),
        }
    }

    pub(super) fn with(mut self, header: &'static str) -> Self {
        self.header = Some(header);
        self
    }

    fn to_bytes(&self) -> Vec<u8> {
        let header = self.header.map(|line| format!("{line}\r\n"));
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Cache-Control: no-store\r\nConnection: close\r\n\r\n{}",
            self.status,
            self.kind,
            self.body.len(),
            header.unwrap_or_default(),
            self.body
        )
        .into_bytes()
    }
}

/// Answers one connection.
///
/// # Errors
/// When it breaks, is not done by `deadline`, or the process stops.
pub(super) fn serve(
    stream: Stream,
    stop: &Stop,
    deadline: Instant,
    answer: impl Fn(&Request<'_>) -> Response,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let mut connection = Connection {
        stream,
        stop,
        deadline,
    };
    let mut head = vec![0; HEAD_MAX];
    let response = match connection.read_head(&mut head)? {
        None => {
            let status = "431 Request Header Fields Too Large";
            Response::text(status, "the head of the request is too long\n")
        }
        Some(len) => match parse(&head[..len]) {
            Some(request) => answer(&request),
            None => Response::text("400 Bad Request", "this is not an HTTP/1.1 request\n"),
        },
    };
    connection.write_all(&response.to_bytes())?;
    connection.linger()
}

struct Connection<'a> {
    stream: Stream,
    stop: &'a Stop,
    deadline: Instant,
}

impl Connection<'_> {
    /// Reads until the empty line that ends the head; `None` if that does not come.
    fn read_head(&mut self, head: &mut [u8]) -> io::Result<Option<usize>> {
        let mut len = 0;
        while len < head.len() {
            let count = self.when(PollFlags::IN, |stream| stream.read(&mut head[len..]))?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The end may have begun with what came before.
            let from = len.saturating_sub(END_OF_HEAD.len() - 1);
            len += count;
            let mut windows = head[from..len].windows(END_OF_HEAD.len());
            if let Some(at) = windows.position(|window| window == END_OF_HEAD) {
                return Ok(Some(from + at + END_OF_HEAD.len()));
            }
        }
        Ok(None)
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.when(PollFlags::OUT, |stream| stream.write(bytes))?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Closing with unread bytes would destroy what was just written.
    fn linger(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        self.deadline = self.deadline.min(Instant::now() + LINGER);
        let mut rest = [0; 1024];
        while self.when(PollFlags::IN, |stream| stream.read(&mut rest))? > 0 {}
        Ok(())
    }

    /// Tries until it need not wait.
    fn when<T>(
        &mut self,
        interest: PollFlags,
        mut attempt: impl FnMut(&mut Stream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            // Also what never has to wait ends in time.
            if Instant::now() >= self.deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match attempt(&mut self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => return other,
            }
            match self
                .stop
                .wait(Some(&self.stream), interest, Some(self.deadline))?
            {
                Waited::Ready => {}
                Waited::TimedOut => return Err(io::ErrorKind::TimedOut.into()),
                Waited::Stopped => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
    }
}

/// The head of a request, with the empty line at its end.
fn parse(head: &[u8]) -> Option<Request<'_>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    if !request.parse(head).ok()?.is_complete() {
        return None;
    }
    let (method, target) = (request.method?, request.path?);
    let mut credentials = None;
    for header in &*request.headers {
        // A client that sends several is up to something: none of them counts.
        if header.name.eq_ignore_ascii_case("authorization")
            && credentials.replace(header.value).is_some()
        {
            return None;
        }
    }
    let bearer = credentials
        .and_then(|value| str::from_utf8(value).ok()?.trim().split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    Some(Request {
        method,
        target,
        bearer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_far_as_they_matter() {
        let text = b"GET /metrics?x HTTP/1.1\r\nHost: a\r\nauthorization: bearer abc\r\n\r\n";
        let request = parse(text).unwrap();
        assert_eq!((request.method, request.target), ("GET", "/metrics?x"));
        assert_eq!(request.bearer, Some("abc"));
        let request = parse(b"GET / HTTP/1.0\r\nAuthorization: Basic abc\r\n\r\n").unwrap();
        assert_eq!(request.bearer, None);
        for bad in [
            &b""[..],
            b"GET /",
            b"GET / HTTP/2",
            b"GET  / HTTP/1.1",
            b"GET / HTTP/1.1 x",
            b"GET /\x7f HTTP/1.1",
            b"GET /\xff HTTP/1.1",
            b"GET / HTTP/1.1\r\nno colon",
            b"GET / HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b",
        ] {
            let head = [bad, END_OF_HEAD].concat();
            assert!(parse(&head).is_none(), "{}", bad.escape_ascii());
        }
    }
}
