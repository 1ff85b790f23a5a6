//! Lines out of a stream, without a copy of each.

use std::io::{self, Read};

use memchr::memchr;

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Splits what a reader gives into lines. Holds one chunk, and more only for a line that is longer.
pub struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    limit: usize,
    ended: bool,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// A line, without its line feed.
    Line(&'a [u8]),
    /// No whole line is at hand: call [`Lines::fill`].
    Fill,
    /// A line is longer than the limit; nothing after it was looked at.
    TooLong,
    /// There is no more.
    End,
}

impl<R: Read> Lines<R> {
    /// Lines of at most `limit` bytes.
    pub fn new(reader: R, limit: usize) -> Self {
        Self {
            reader,
            buffer: vec![0; CHUNK_BYTES],
            start: 0,
            end: 0,
            limit,
            ended: false,
        }
    }

    /// The reader.
    pub fn reader(&self) -> &R {
        &self.reader
    }

    /// The next line, if it is at hand.
    #[inline]
    pub fn next(&mut self) -> Next<'_> {
        let rest = &self.buffer[self.start..self.end];
        let len = match memchr(b'\n', rest) {
            Some(len) => len,
            None if rest.len() > self.limit => return Next::TooLong,
            None if !self.ended => return Next::Fill,
            None if rest.is_empty() => return Next::End,
            // The last line of a file that does not end with a line feed.
            None => rest.len(),
        };
        if len > self.limit {
            return Next::TooLong;
        }
        let line = self.start..self.start + len;
        self.start = (line.end + 1).min(self.end);
        Next::Line(&self.buffer[line])
    }

    /// Reads once; blocks if there is nothing to read.
    pub fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.buffer.len() {
            let longer = self.buffer.len() * 2;
            self.buffer.resize(longer, 0);
        }
        match self.reader.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.ended = true,
            Ok(n) => self.end += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(into.len());
            into[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn collect(text: &[u8], step: usize, limit: usize) -> Result<Vec<Vec<u8>>, usize> {
        let mut lines = Lines::new(Trickle(text, step), limit);
        let mut out = Vec::new();
        loop {
            match lines.next() {
                Next::Line(line) => out.push(line.to_vec()),
                Next::TooLong => return Err(out.len()),
                Next::End => return Ok(out),
                Next::Fill => lines.fill().expect("memory never fails"),
            }
        }
    }

    #[test]
    fn lines_do_not_depend_on_how_they_arrive() {
        for step in [1, 2, 3, 100] {
            assert_eq!(
                collect(b"a\n\nbcd\r\ne", step, 10).expect("short"),
                [&b"a"[..], b"", b"bcd\r", b"e"]
            );
            assert_eq!(collect(b"a\n", step, 10).expect("short"), [b"a"]);
            assert_eq!(
                collect(b"", step, 10).expect("short"),
                Vec::<Vec<u8>>::new()
            );
        }
    }

    #[test]
    fn a_line_over_the_limit_is_found_with_and_without_its_end() {
        for step in [1, 100] {
            assert_eq!(collect(b"ok\n12345\nok\n", step, 4), Err(1));
            assert_eq!(collect(b"ok\n12345", step, 4), Err(1));
            assert_eq!(collect(b"1234\n", step, 4).expect("just fits"), [b"1234"]);
        }
    }

    #[test]
    fn a_line_longer_than_a_chunk_is_one_line() {
        let mut text = vec![b'x'; 3 * CHUNK_BYTES];
        text.push(b'\n');
        let lines = collect(&text, usize::MAX, text.len()).expect("allowed");
        assert_eq!((lines.len(), lines[0].len()), (1, 3 * CHUNK_BYTES));
    }
}
