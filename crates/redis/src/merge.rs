//! How a command goes to several nodes, and one reply of theirs.

use crate::error::Error;
use crate::resp::{Out, ServerError, View, WrongType, header_len, parse};

/// How a command goes to several nodes.
#[derive(Debug)]
#[doc(hidden)]
pub struct FanOut {
    pub(crate) merge: Merge,
    pub(crate) parts: Parts,
}

#[derive(Debug)]
pub(crate) enum Parts {
    /// The whole command, to each.
    Whole,
    /// A command for each slot.
    Slots(Vec<Part>),
}

/// A command about the keys of one slot.
#[derive(Debug)]
pub(crate) struct Part {
    /// Encoded.
    pub bytes: Vec<u8>,
    pub slot: u16,
    /// Which of all keys they are, from 0.
    pub places: Vec<usize>,
}

impl FanOut {
    pub(crate) fn whole(merge: Merge) -> Self {
        let parts = Parts::Whole;
        Self { merge, parts }
    }

    pub(crate) fn slots(merge: Merge, parts: Vec<Part>) -> Self {
        let parts = Parts::Slots(parts);
        Self { merge, parts }
    }
}

/// What becomes of the replies of several nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merge {
    /// All must succeed; the first one stands for all.
    Same,
    /// One must succeed: the first one that did.
    One,
    /// The first one that is not null.
    NotNull,
    /// The sum of numbers.
    Sum,
    /// Whether all are true, also element by element.
    And,
    /// The elements of all arrays.
    Joined,
    /// An array with the reply of each node.
    Each,
    /// The elements of all arrays, in the order of the keys.
    InOrder,
}

/// What came.
pub(crate) struct Replies<'r> {
    /// The reply of each.
    pub frames: Vec<Result<&'r [u8], Error>>,
    /// Of parts: which of all keys each is about.
    pub places: &'r [Vec<usize>],
    /// The node of each.
    pub nodes: &'r [String],
    /// The command may change data.
    pub may_change: bool,
    /// It may do so and then fail.
    pub may_fail_midway: bool,
}

impl Replies<'_> {
    /// Those that are no errors.
    fn good(&self) -> impl Iterator<Item = Result<&[u8], Error>> {
        self.frames.iter().map(|frame| {
            let frame = frame.clone()?;
            match parse(frame)?.0 {
                View::Error(error) => {
                    let error = ServerError::from(error);
                    Err(error.answering(self.may_fail_midway).into())
                }
                _ => Ok(frame),
            }
        })
    }

    /// All, if none is an error.
    fn all(&self) -> Result<Vec<&[u8]>, Error> {
        let mut first = None;
        let mut all = Vec::new();
        let mut failed = 0;
        for (place, frame) in self.good().enumerate() {
            match frame {
                Ok(frame) => all.push(frame),
                Err(error) => {
                    failed += 1;
                    first.get_or_insert((place, error));
                }
            }
        }
        let Some((place, error)) = first else {
            return Ok(all);
        };
        if self.frames.len() == 1 {
            return Err(error);
        }
        Err(Error::OnSomeNodes {
            failed,
            of: self.frames.len(),
            node: self.nodes.get(place).cloned().unwrap_or_default(),
            executed: self.may_change && !all.is_empty(),
            error: Box::new(error),
        })
    }
}

impl Merge {
    /// One reply of all.
    pub(crate) fn reply(self, replies: &Replies<'_>) -> Result<Vec<u8>, Error> {
        match self {
            Self::Same => first(&replies.all()?),
            Self::One => {
                let mut good = replies.good();
                match good.find_map(Result::ok) {
                    Some(frame) => Ok(frame.to_vec()),
                    None => first(&replies.all()?),
                }
            }
            Self::NotNull => {
                let all = replies.all()?;
                let is_null = |frame: &&&[u8]| matches!(parse(frame), Ok((View::Null, _)));
                match all.iter().find(|frame| !is_null(frame)) {
                    Some(frame) => Ok(frame.to_vec()),
                    None => first(&all),
                }
            }
            Self::Sum => by_number(&replies.all()?, i64::saturating_add),
            Self::And => by_number(&replies.all()?, |a, b| i64::from(a != 0 && b != 0)),
            Self::Joined => {
                let all = replies.all()?;
                let lists = all.iter().map(|frame| elements(frame));
                let lists = lists.collect::<Result<Vec<_>, _>>()?;
                Ok(array(&lists.concat()))
            }
            Self::Each => Ok(array(&replies.all()?)),
            Self::InOrder => in_order(&replies.all()?, replies.places),
        }
    }
}

fn first(all: &[&[u8]]) -> Result<Vec<u8>, Error> {
    let first = all.first();
    Ok(first.ok_or(no_reply())?.to_vec())
}

fn no_reply() -> Error {
    let why = "no node is known that it goes to".to_owned();
    Error::Unavailable { why }
}

/// An array of these frames.
fn array(frames: &[&[u8]]) -> Vec<u8> {
    let mut reply = vec![0; header_len(frames.len())];
    let mut out = Out::new(&mut reply);
    out.header(frames.len());
    out.finish();
    for frame in frames {
        reply.extend_from_slice(frame);
    }
    reply
}

/// The frames of the elements of an array or a set.
fn elements(frame: &[u8]) -> Result<Vec<&[u8]>, Error> {
    let count = match parse(frame)?.0 {
        View::Array(items) | View::Set(items) => items.len(),
        other => return Err(WrongType::new("an array of each node", other).into()),
    };
    let first_line = memchr::memchr(b'\n', frame).map_or(frame.len(), |end| end + 1);
    let mut rest = &frame[first_line..];
    let mut elements = Vec::with_capacity(count);
    for _ in 0..count {
        let (element, behind) = rest.split_at(parse(rest)?.1);
        elements.push(element);
        rest = behind;
    }
    Ok(elements)
}

/// Brings numbers together, or arrays of them element by element.
fn by_number(all: &[&[u8]], join: fn(i64, i64) -> i64) -> Result<Vec<u8>, Error> {
    let Some((first, rest)) = all.split_first() else {
        return Err(no_reply());
    };
    if let View::Integer(first) = parse(first)?.0 {
        let join_next = |sum, frame: &&[u8]| Ok::<_, Error>(join(sum, number(frame)?));
        return rest.iter().try_fold(first, join_next).map(integer);
    }
    let mut joined = numbers(first)?;
    for frame in rest {
        let its = numbers(frame)?;
        if its.len() != joined.len() {
            return Err(WrongType::new("as many numbers of each node", parse(frame)?.0).into());
        }
        for (sum, it) in joined.iter_mut().zip(its) {
            *sum = join(*sum, it);
        }
    }
    let frames: Vec<_> = joined.into_iter().map(integer).collect();
    let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
    Ok(array(&frames))
}

fn numbers(frame: &[u8]) -> Result<Vec<i64>, Error> {
    elements(frame)?.into_iter().map(number).collect()
}

fn number(frame: &[u8]) -> Result<i64, Error> {
    match parse(frame)?.0 {
        View::Integer(number) => Ok(number),
        other => Err(WrongType::new("a number of each node", other).into()),
    }
}

fn integer(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

/// The elements of all arrays, each at its place.
fn in_order(all: &[&[u8]], places: &[Vec<usize>]) -> Result<Vec<u8>, Error> {
    let mut frames = vec![&b"_\r\n"[..]; places.iter().map(Vec::len).sum()];
    for (frame, places) in all.iter().zip(places) {
        let elements = elements(frame)?;
        if elements.len() != places.len() {
            return Err(WrongType::new("a value for each key", parse(frame)?.0).into());
        }
        for (element, place) in elements.into_iter().zip(places) {
            frames[*place] = element;
        }
    }
    Ok(array(&frames))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::ErrorKind;

    fn merged(merge: Merge, frames: &[&str]) -> Result<String, Error> {
        let nodes: Vec<_> = (0..frames.len()).map(|it| format!("node-{it}")).collect();
        let frames = frames.iter().map(|frame| Ok(frame.as_bytes())).collect();
        let reply = merge.reply(&Replies {
            frames,
            places: &[],
            nodes: &nodes,
            may_change: true,
            may_fail_midway: false,
        })?;
        Ok(String::from_utf8(reply).unwrap())
    }

    #[test]
    fn replies_become_one_as_the_tips_say() {
        let of = |merge, frames: &[&str]| merged(merge, frames).unwrap();
        assert_eq!(of(Merge::Same, &["+OK\r\n", "+OK\r\n"]), "+OK\r\n");
        assert_eq!(of(Merge::One, &["-NOTBUSY x\r\n", "+OK\r\n"]), "+OK\r\n");
        assert_eq!(
            of(Merge::NotNull, &["$-1\r\n", "$1\r\na\r\n"]),
            "$1\r\na\r\n"
        );
        assert_eq!(of(Merge::NotNull, &["_\r\n", "_\r\n"]), "_\r\n");
        assert_eq!(of(Merge::Sum, &[":1\r\n", ":2\r\n", ":-7\r\n"]), ":-4\r\n");
        let (a, b) = ("*2\r\n:1\r\n:1\r\n", "*2\r\n:0\r\n:1\r\n");
        assert_eq!(of(Merge::And, &[a, b]), b);
        let (a, b) = ("*1\r\n$1\r\na\r\n", "*2\r\n$1\r\nb\r\n*0\r\n");
        assert_eq!(
            of(Merge::Joined, &[a, b]),
            "*3\r\n$1\r\na\r\n$1\r\nb\r\n*0\r\n"
        );
        assert_eq!(of(Merge::Each, &["+a\r\n", ":1\r\n"]), "*2\r\n+a\r\n:1\r\n");
    }

    #[test]
    fn values_come_in_the_order_of_the_keys() {
        let replies = Replies {
            frames: vec![Ok(b"*2\r\n$1\r\na\r\n$-1\r\n"), Ok(b"*1\r\n$1\r\nb\r\n")],
            places: &[vec![2, 0], vec![1]],
            nodes: &[],
            may_change: false,
            may_fail_midway: false,
        };
        let reply = Merge::InOrder.reply(&replies).unwrap();
        assert_eq!(reply, b"*3\r\n$-1\r\n$1\r\nb\r\n$1\r\na\r\n");
    }

    #[test]
    fn an_error_says_how_many_failed_and_whether_others_did_it() {
        let error = merged(
            Merge::Same,
            &["+OK\r\n", "-OOM no memory\r\n", "-ERR x\r\n"],
        );
        let Err(Error::OnSomeNodes {
            failed,
            of,
            node,
            executed,
            error,
        }) = error
        else {
            panic!("{error:?}")
        };
        assert_eq!(
            (failed, of, node.as_str(), executed),
            (2, 3, "node-1", true)
        );
        assert!(
            matches!(&*error, Error::Server(error) if error.kind == ErrorKind::OutOfMemory),
            "{error:?}"
        );
        let none = merged(Merge::One, &["-NOTBUSY x\r\n", "-NOTBUSY y\r\n"]);
        let none = none.unwrap_err();
        assert!(!none.may_have_executed(), "{none:?}");
        // A script may have written before it failed, at each of them.
        let frames = [b"-ERR x\r\n"; 2];
        let failed = Merge::Each.reply(&Replies {
            frames: frames.iter().map(|frame| Ok(&frame[..])).collect(),
            places: &[],
            nodes: &[],
            may_change: true,
            may_fail_midway: true,
        });
        let failed = failed.unwrap_err();
        assert!(failed.may_have_executed(), "{failed:?}");
    }

    #[test]
    fn replies_of_another_type_are_errors() {
        for (merge, frames) in [
            (Merge::Sum, ["+OK\r\n", ":1\r\n"]),
            (Merge::Sum, [":1\r\n", "+OK\r\n"]),
            (Merge::And, ["*1\r\n:1\r\n", "*2\r\n:1\r\n:1\r\n"]),
            (Merge::Joined, ["*0\r\n", ":1\r\n"]),
        ] {
            let error = merged(merge, &frames).unwrap_err();
            assert!(matches!(error, Error::WrongType(_)), "{error:?}");
        }
    }
}
