//! Commands: arrays of bulk strings, written in place.

use std::{borrow::Cow, fmt};

/// An argument of a command: the content of one bulk string.
///
/// Implemented for bytes, strings, integers and floating point numbers, and references to them.
/// Numbers are written in decimal; a `f64` in the shortest form that reads back as itself, with
/// `inf` and `-inf` as Redis wants them.
#[expect(
    clippy::len_without_is_empty,
    reason = "an argument is not a collection"
)]
pub trait Arg {
    /// How many bytes the content is.
    fn len(&self) -> usize;

    /// Fills `out`, which is exactly [`Arg::len`] bytes.
    fn write(&self, out: &mut [u8]);
}

impl<T: Arg + ?Sized> Arg for &T {
    #[inline]
    fn len(&self) -> usize {
        (**self).len()
    }

    #[inline]
    fn write(&self, out: &mut [u8]) {
        (**self).write(out);
    }
}

impl Arg for [u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
}

/// Types that have their bytes in memory.
macro_rules! bytes {
    ($([$($generic:tt)*] $type:ty: $this:ident => $bytes:expr;)*) => {$(
        impl<$($generic)*> Arg for $type {
            #[inline]
            fn len(&self) -> usize {
                let $this = self;
                $bytes.len()
            }

            #[inline]
            fn write(&self, out: &mut [u8]) {
                let $this = self;
                out.copy_from_slice($bytes);
            }
        }
    )*};
}

bytes! {
    [const N: usize] [u8; N]: array => array.as_slice();
    [] str: text => text.as_bytes();
    [] String: text => text.as_bytes();
    [] Vec<u8>: bytes => bytes.as_slice();
    [] Box<[u8]>: bytes => bytes.as_ref();
    [] Box<str>: text => text.as_bytes();
    [] Cow<'_, [u8]>: bytes => bytes.as_ref();
    [] Cow<'_, str>: text => text.as_bytes();
}

macro_rules! unsigned {
    ($($type:ty)*) => {$(
        impl Arg for $type {
            #[inline]
            fn len(&self) -> usize {
                digits(*self as u64)
            }

            #[inline]
            fn write(&self, out: &mut [u8]) {
                decimal(*self as u64, out);
            }
        }
    )*};
}

macro_rules! signed {
    ($($type:ty)*) => {$(
        impl Arg for $type {
            #[inline]
            fn len(&self) -> usize {
                usize::from(*self < 0) + digits((*self as i64).unsigned_abs())
            }

            #[inline]
            fn write(&self, out: &mut [u8]) {
                let mut out = out;
                if *self < 0 {
                    out[0] = b'-';
                    out = &mut out[1..];
                }
                decimal((*self as i64).unsigned_abs(), out);
            }
        }
    )*};
}

unsigned!(u8 u16 u32 u64 usize);
signed!(i8 i16 i32 i64 isize);

macro_rules! float {
    ($($type:ty)*) => {$(
        impl Arg for $type {
            fn len(&self) -> usize {
                Float::of(self).text().len()
            }

            fn write(&self, out: &mut [u8]) {
                out.copy_from_slice(Float::of(self).text());
            }
        }
    )*};
}

float!(f32 f64);

/// A floating point number as text, on the stack.
struct Float {
    text: [u8; Self::LONGEST],
    len: usize,
}

impl Float {
    /// `-2.2250738585072014e-308` has 24 bytes.
    const LONGEST: usize = 32;

    /// Formats a number. Its `Debug` form is the shortest one, with an exponent where that is shorter.
    fn of(number: &impl fmt::Debug) -> Self {
        let mut float = Self {
            text: [0; Self::LONGEST],
            len: 0,
        };
        fmt::write(&mut float, format_args!("{number:?}")).expect("a number fits its longest form");
        if float.text().ends_with(b".0") {
            float.len -= 2;
        }
        float
    }

    fn text(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

impl fmt::Write for Float {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let place = self.text.get_mut(self.len..self.len + part.len());
        place.ok_or(fmt::Error)?.copy_from_slice(part.as_bytes());
        self.len += part.len();
        Ok(())
    }
}

/// How many digits a number has in decimal.
#[inline]
fn digits(number: u64) -> usize {
    match number.checked_ilog10() {
        Some(log) => log as usize + 1,
        None => 1,
    }
}

/// Writes a number of exactly as many digits as `out` has bytes.
#[inline]
fn decimal(mut number: u64, out: &mut [u8]) {
    for place in out.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
    assert!(number == 0, "a number needs more digits than it said");
}

/// How many bytes a bulk string with so many bytes of content has: `$`, the length, CRLF, the content,
/// CRLF.
#[inline]
#[must_use]
pub fn bulk_len(content: usize) -> usize {
    1 + digits(content as u64) + 2 + content + 2
}

/// How many bytes the first line of an array of so many elements has: `*`, the count, CRLF.
#[inline]
#[must_use]
pub fn header_len(count: usize) -> usize {
    1 + digits(count as u64) + 2
}

/// Encodes commands, one behind the other; each is its words.
pub(crate) fn encode_all<W: Arg>(commands: &[impl AsRef<[W]>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for command in commands {
        let command = command.as_ref();
        let words = command.iter().map(|word| bulk_len(word.len()));
        let at = bytes.len();
        bytes.resize(at + header_len(command.len()) + words.sum::<usize>(), 0);
        let mut out = Out::new(&mut bytes[at..]);
        out.header(command.len());
        for word in command {
            out.bulk(word);
        }
        out.finish();
    }
    bytes
}

/// Writes a command into memory that was reserved for it.
///
/// # Panics
/// All methods panic when there is no room: the caller has miscounted, with [`header_len`] and
/// [`bulk_len`], when it reserved.
#[derive(Debug)]
#[must_use = "only `finish` checks what was written"]
pub struct Out<'a> {
    rest: &'a mut [u8],
}

impl<'a> Out<'a> {
    /// Will fill all of `reservation`.
    #[inline]
    pub fn new(reservation: &'a mut [u8]) -> Self {
        Self { rest: reservation }
    }

    /// Begins a command of `count` arguments, its name included.
    #[inline]
    pub fn header(&mut self, count: usize) {
        let line = self.take(header_len(count));
        first_line(b'*', count, line);
    }

    /// Writes one argument.
    #[inline]
    pub fn bulk(&mut self, arg: &(impl Arg + ?Sized)) {
        let content = arg.len();
        let place = self.take(bulk_len(content));
        let (line, rest) = place.split_at_mut(header_len(content));
        first_line(b'$', content, line);
        let (content, end) = rest.split_at_mut(content);
        arg.write(content);
        end.copy_from_slice(b"\r\n");
    }

    /// Writes encoded bytes.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.take(bytes.len()).copy_from_slice(bytes);
    }

    /// Ends the command.
    ///
    /// # Panics
    /// When it does not fill the reservation: the connection would send the rest, whatever it is.
    #[inline]
    pub fn finish(self) {
        let left = self.rest.len();
        assert!(left == 0, "{left} bytes of a reservation were not written");
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> &'a mut [u8] {
        let rest = std::mem::take(&mut self.rest);
        let (taken, rest) = rest
            .split_at_mut_checked(bytes)
            .expect("a command is written into what was reserved for it");
        self.rest = rest;
        taken
    }
}

#[inline]
fn first_line(kind: u8, number: usize, line: &mut [u8]) {
    let digits = line.len() - 3;
    line[0] = kind;
    decimal(number as u64, &mut line[1..=digits]);
    line[1 + digits..].copy_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(arg: impl Arg) -> String {
        let mut out = vec![0; arg.len()];
        arg.write(&mut out);
        String::from_utf8(out).expect("numbers and names are text")
    }

    #[test]
    fn integers_are_decimal_up_to_their_ends() {
        assert_eq!(text(0_u8), "0");
        assert_eq!(text(9_usize), "9");
        assert_eq!(text(10_i16), "10");
        assert_eq!(text(-1_i8), "-1");
        for number in [i64::MIN, i64::MIN + 1, -10, -9, 99, 100, i64::MAX] {
            assert_eq!(text(number), number.to_string());
        }
        assert_eq!(text(i8::MIN), "-128");
        assert_eq!(text(u64::MAX), u64::MAX.to_string());
        for power in 0..20 {
            let number = 10_u64.pow(power);
            assert_eq!(text(number), number.to_string());
            assert_eq!(text(number - 1), (number - 1).to_string());
        }
    }

    #[test]
    fn floats_are_short_and_read_back() {
        assert_eq!(text(1.0), "1");
        assert_eq!(text(-0.5), "-0.5");
        assert_eq!(text(0.1_f32), "0.1");
        assert_eq!(text(1e300), "1e300");
        assert_eq!(text(f64::INFINITY), "inf");
        assert_eq!(text(f64::NEG_INFINITY), "-inf");
        for number in [f64::MIN, f64::MAX, f64::MIN_POSITIVE, -f64::MIN_POSITIVE] {
            assert_eq!(text(number).parse(), Ok(number));
        }
    }

    #[test]
    fn bytes_and_strings_are_themselves() {
        assert_eq!(text("a"), "a");
        assert_eq!(text(String::from("ä")), "ä");
        assert_eq!(text(b"xyz"), "xyz");
        assert_eq!(text(&b"xyz"[..]), "xyz");
        assert_eq!(text(vec![b'v']), "v");
        assert_eq!(text(Cow::Borrowed("c")), "c");
        assert_eq!(text(Cow::<[u8]>::Owned(vec![b'd'])), "d");
        assert_eq!(text(Box::<str>::from("e")), "e");
        let twice: &&str = &"f";
        assert_eq!(text(twice), "f");
    }

    #[test]
    fn a_command_fills_what_was_reserved() {
        let long = "v".repeat(1000);
        let args: [&dyn Arg; 3] = [&"SET", &-17, &long];
        let bytes = args.iter().map(|arg| bulk_len(arg.len())).sum::<usize>();
        let mut place = vec![0; header_len(args.len()) + bytes + 6];
        let mut out = Out::new(&mut place);
        out.header(args.len());
        for arg in args {
            out.bulk(arg);
        }
        out.raw(b"$0\r\n\r\n");
        out.finish();
        let wanted = format!("*3\r\n$3\r\nSET\r\n$3\r\n-17\r\n$1000\r\n{long}\r\n$0\r\n\r\n");
        assert_eq!(String::from_utf8(place), Ok(wanted));
    }

    #[test]
    #[should_panic(expected = "2 bytes of a reservation were not written")]
    fn a_reservation_that_is_not_filled_is_a_bug() {
        Out::new(&mut [0; 2]).finish();
    }
}
