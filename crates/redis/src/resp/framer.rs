//! The framer: finds where replies end.

use embar_mux::{BadReply, FrameKind, Framing, Part};
use memchr::memchr;

use super::{
    scan::{self, Head, MAX_HEAD},
    view::MAX_DEPTH,
};

/// Limits of one reply. The client closes the connection of a server that exceeds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Bytes of a reply, its framing included. The framer refuses a longer string when its length
    /// comes, before its bytes do. By default 512 MiB, the longest string of Redis, and a MiB more.
    pub max_reply_bytes: usize,
    /// Aggregates within each other, by default 64. Never more than [`MAX_DEPTH`].
    pub max_depth: usize,
    /// Bytes of a line that has no length before it: of a simple string, an error, a number. By default
    /// 64 KiB.
    pub max_line_bytes: usize,
    /// Elements of one aggregate, by default 2^32 - 1, the most that Redis itself accepts. A pair
    /// of a map counts as two.
    pub max_elements: u64,
}

impl Default for ReplyLimits {
    fn default() -> Self {
        Self {
            max_reply_bytes: 513 << 20,
            max_depth: 64,
            max_line_bytes: 64 << 10,
            max_elements: u64::from(u32::MAX),
        }
    }
}

/// Finds the ends of replies and pushes of RESP2 and RESP3 in a stream that may be cut anywhere.
///
/// It looks at every byte once, skips the contents of strings, and keeps no bytes but those of a first
/// line that was cut. Attributes (`|`) are part of the reply that they precede.
#[derive(Debug)]
pub struct Framer {
    limits: ReplyLimits,
    /// The kind of the current frame.
    kind: FrameKind,
    /// Bytes of the frame that earlier calls took.
    before: usize,
    /// What the next byte belongs to.
    state: State,
    /// The place in the frame where attributes ended last: an element must follow there.
    attributes_end: usize,
    /// Aggregates that have begun, outermost first.
    open: Vec<Level>,
    /// The beginning of a first line that was cut.
    head: [u8; MAX_HEAD],
    head_len: usize,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// The first line of a type.
    Head,
    /// A line whose end is to come: bytes of it so far, and whether they end with CR.
    Line { taken: usize, cr: bool },
    /// A string: bytes to come, its CRLF included.
    Blob { left: usize },
}

#[derive(Debug, Clone, Copy)]
struct Level {
    what: Open,
    /// Elements to come; of an aggregate of unknown length, those that came.
    elements: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// An aggregate of known length.
    Counted,
    /// Attributes of known length: the element that they precede comes after them.
    Attributes,
    /// An aggregate up to a `.`.
    Streamed { pairs: bool, attributes: bool },
    /// A string in chunks.
    Chunks,
}

fn bad(what: &'static str) -> BadReply {
    BadReply { what }
}

const TOO_LONG: &str = "a reply is longer than the limit; see max_reply_bytes";
const LONG_LINE: &str = "a line of a reply is longer than the limit";

impl Framing for Framer {
    #[inline]
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply> {
        if self.before == 0 {
            self.attributes_end = 0;
            self.kind = match bytes.first() {
                Some(b'>') => FrameKind::Push,
                _ => FrameKind::Reply,
            };
        }
        let mut at = 0;
        while at < bytes.len() {
            let ended = match self.state {
                State::Head => self.head(bytes, &mut at)?,
                State::Line { taken, cr } => self.line(bytes, &mut at, taken, cr)?,
                State::Blob { left } => self.blob(bytes, &mut at, left)?,
            };
            if ended && self.element_ended(at)? {
                self.count(at)?;
                self.before = 0;
                return Ok(Part {
                    taken: at,
                    kind: self.kind,
                    complete: true,
                });
            }
        }
        self.before = self.count(at)?;
        Ok(Part {
            taken: at,
            kind: self.kind,
            complete: false,
        })
    }
}

impl Framer {
    /// A framer at the beginning of a stream.
    #[must_use]
    pub fn new(limits: ReplyLimits) -> Self {
        Self {
            limits: ReplyLimits {
                max_depth: limits.max_depth.min(MAX_DEPTH),
                ..limits
            },
            kind: FrameKind::Reply,
            before: 0,
            state: State::Head,
            attributes_end: 0,
            open: Vec::new(),
            head: [0; MAX_HEAD],
            head_len: 0,
        }
    }

    /// Takes a first line, or the part of it that is there. True when the element ends with it.
    #[inline]
    fn head(&mut self, bytes: &[u8], at: &mut usize) -> Result<bool, BadReply> {
        if self.head_len > 0 {
            return self.rest_of_head(bytes, at);
        }
        let rest = &bytes[*at..];
        let start = self.before + *at;
        match scan::head(rest).map_err(bad)? {
            Some((Head::Line, _)) => {
                self.check_place(rest[0], start)?;
                self.line(bytes, at, 0, false)
            }
            Some((head, taken)) => {
                *at += taken;
                self.begin(rest[0], head, start, *at)
            }
            None => {
                self.head[..rest.len()].copy_from_slice(rest);
                self.head_len = rest.len();
                *at = bytes.len();
                Ok(false)
            }
        }
    }

    /// Goes on with a first line that was cut.
    #[cold]
    fn rest_of_head(&mut self, bytes: &[u8], at: &mut usize) -> Result<bool, BadReply> {
        let start = self.before - self.head_len;
        loop {
            let Some(&byte) = bytes.get(*at) else {
                return Ok(false);
            };
            *at += 1;
            // The scan refuses bytes that are as long as the longest first line and are none.
            self.head[self.head_len] = byte;
            self.head_len += 1;
            let known = &self.head[..self.head_len];
            if let Some((head, _)) = scan::head(known).map_err(bad)? {
                self.head_len = 0;
                return self.begin(self.head[0], head, start, *at);
            }
        }
    }

    /// Begins the element that a first line announces. The line began at `start` of the frame and ends
    /// before `at`. True when the element ends with it.
    #[inline]
    fn begin(&mut self, kind: u8, head: Head, start: usize, at: usize) -> Result<bool, BadReply> {
        self.check_place(kind, start)?;
        match head {
            Head::Line => unreachable!("lines are never cut behind their first byte"),
            Head::Null => Ok(true),
            Head::Blob(bytes) => self.begin_blob(bytes, at),
            Head::StreamedBlob => self.push(Open::Chunks, 0),
            Head::Chunk(0) => {
                self.open.pop();
                Ok(true)
            }
            Head::Chunk(bytes) => self.begin_blob(bytes, at),
            Head::Many(Some(elements)) if elements > self.limits.max_elements => {
                Err(bad("an aggregate has more elements than the limit"))
            }
            Head::Many(Some(0)) if kind == b'|' => {
                self.attributes_end = self.before + at;
                Ok(false)
            }
            Head::Many(Some(0)) => Ok(true),
            Head::Many(Some(elements)) if kind == b'|' => self.push(Open::Attributes, elements),
            Head::Many(Some(elements)) => self.push(Open::Counted, elements),
            Head::Many(None) => {
                let attributes = kind == b'|';
                let pairs = attributes || kind == b'%';
                self.push(Open::Streamed { pairs, attributes }, 0)
            }
            Head::End if start > 0 && start == self.attributes_end => {
                Err(bad("attributes have no element behind them"))
            }
            Head::End => self.end_of_streamed(at),
        }
    }

    /// Checks that chunks come only within a string in chunks, and pushes only at the beginning of a
    /// frame.
    #[inline]
    fn check_place(&self, kind: u8, start: usize) -> Result<(), BadReply> {
        if start == 0 {
            return match kind {
                b';' => Err(bad(STRAY_CHUNK)),
                _ => Ok(()),
            };
        }
        let in_chunks = matches!(self.open.last(), Some(level) if level.what == Open::Chunks);
        match (in_chunks, kind == b';') {
            (true, false) => Err(bad("a string in chunks has something else in it")),
            (false, true) => Err(bad(STRAY_CHUNK)),
            _ if kind == b'>' => Err(bad("a push is within a reply")),
            _ => Ok(()),
        }
    }

    #[inline]
    fn begin_blob(&mut self, bytes: u64, at: usize) -> Result<bool, BadReply> {
        let left = usize::try_from(bytes + 2).map_err(|_| bad(TOO_LONG))?;
        self.count(at.checked_add(left).ok_or(bad(TOO_LONG))?)?;
        self.state = State::Blob { left };
        Ok(false)
    }

    fn push(&mut self, what: Open, elements: u64) -> Result<bool, BadReply> {
        if self.open.len() >= self.limits.max_depth {
            return Err(bad("aggregates are nested deeper than the limit"));
        }
        self.open.push(Level { what, elements });
        Ok(false)
    }

    /// Ends an aggregate of unknown length. True when an element ends with it: attributes are only the
    /// beginning of an element.
    fn end_of_streamed(&mut self, at: usize) -> Result<bool, BadReply> {
        match self.open.pop() {
            Some(Level {
                what: Open::Streamed { pairs, attributes },
                elements,
            }) => {
                if pairs && elements % 2 == 1 {
                    return Err(bad("a map ends between a key and its value"));
                }
                if attributes {
                    self.attributes_end = self.before + at;
                }
                Ok(!attributes)
            }
            _ => Err(bad(
                "an end is where no aggregate of unknown length is open",
            )),
        }
    }

    /// Takes a line up to its end, or the part of it that is there.
    #[inline]
    fn line(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        taken: usize,
        cr: bool,
    ) -> Result<bool, BadReply> {
        let rest = &bytes[*at..];
        let feed = memchr(b'\n', rest);
        let length = taken + feed.map_or(rest.len(), |feed| feed + 1);
        if length > self.limits.max_line_bytes {
            return Err(bad(LONG_LINE));
        }
        let Some(feed) = feed else {
            *at = bytes.len();
            self.state = State::Line {
                taken: length,
                cr: rest.last() == Some(&b'\r'),
            };
            return Ok(false);
        };
        let cr = match feed {
            0 => cr,
            feed => rest[feed - 1] == b'\r',
        };
        if !cr {
            return Err(bad(scan::BARE_FEED));
        }
        *at += feed + 1;
        self.state = State::Head;
        Ok(true)
    }

    /// Takes the part of a string that is there; its last two bytes are CRLF.
    #[inline]
    fn blob(&mut self, bytes: &[u8], at: &mut usize, left: usize) -> Result<bool, BadReply> {
        let rest = &bytes[*at..];
        if rest.len() >= left && left >= 2 {
            if rest[left - 2..left] != *b"\r\n" {
                return Err(bad(scan::NO_CRLF));
            }
            *at += left;
            self.state = State::Head;
            return Ok(true);
        }
        self.part_of_blob(rest, at, left)
    }

    #[cold]
    fn part_of_blob(&mut self, rest: &[u8], at: &mut usize, left: usize) -> Result<bool, BadReply> {
        let taken = rest.len().min(left);
        // Checks the byte of the string's CRLF that is here, if any: the CR, or the LF after the CR came.
        for (byte, left) in rest[..taken].iter().rev().zip(left - taken + 1..=2) {
            let wanted = match left {
                1 => b'\n',
                _ => b'\r',
            };
            if *byte != wanted {
                return Err(bad(scan::NO_CRLF));
            }
        }
        *at += taken;
        match left - taken {
            0 => {
                self.state = State::Head;
                Ok(true)
            }
            left => {
                self.state = State::Blob { left };
                Ok(false)
            }
        }
    }

    /// Counts an element that ended. True when the frame ends with it.
    #[inline]
    fn element_ended(&mut self, at: usize) -> Result<bool, BadReply> {
        while let Some(level) = self.open.last_mut() {
            match level.what {
                Open::Counted | Open::Attributes => {
                    level.elements -= 1;
                    if level.elements > 0 {
                        return Ok(false);
                    }
                    let attributes = level.what == Open::Attributes;
                    self.open.pop();
                    if attributes {
                        self.attributes_end = self.before + at;
                        return Ok(false);
                    }
                }
                Open::Streamed { .. } => {
                    level.elements += 1;
                    return match level.elements > self.limits.max_elements {
                        true => Err(bad("an aggregate has more elements than the limit")),
                        false => Ok(false),
                    };
                }
                Open::Chunks => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The bytes of the frame so far, with `at` more; checks the limit.
    #[inline]
    fn count(&self, at: usize) -> Result<usize, BadReply> {
        match self.before.checked_add(at) {
            Some(bytes) if bytes <= self.limits.max_reply_bytes => Ok(bytes),
            _ => Err(bad(TOO_LONG)),
        }
    }
}

const STRAY_CHUNK: &str = "a chunk is outside of a string in chunks";

#[cfg(test)]
mod tests;
