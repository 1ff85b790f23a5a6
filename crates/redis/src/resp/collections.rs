//! Converts replies to collections and tuples.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{BuildHasher, Hash},
};

use super::from_reply::elements;
use super::{FromReply, Items, View, WrongType};

/// The elements of an aggregate that has an order.
#[inline]
fn ordered(view: View<'_>) -> Option<Items<'_>> {
    match view {
        View::Array(items) | View::Push(items) => Some(items),
        _ => None,
    }
}

impl<T: FromReply> FromReply for Vec<T> {
    #[inline]
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        T::many_from_reply(view)
    }
}

impl<T: FromReply> FromReply for Box<[T]> {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        T::many_from_reply(view).map(Self::from)
    }
}

impl<T: FromReply, const N: usize> FromReply for [T; N] {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        T::many_from_reply(view)?
            .try_into()
            .map_err(|_| WrongType::new("an array of another length", view))
    }
}

const SET: &str = "a set";

impl<T, S> FromReply for HashSet<T, S>
where
    T: FromReply + Eq + Hash,
    S: BuildHasher + Default,
{
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        let items = elements(view).ok_or_else(|| WrongType::new(SET, view))?;
        let mut set = Self::with_capacity_and_hasher(items.len(), S::default());
        for item in items {
            set.insert(T::from_reply(item)?);
        }
        Ok(set)
    }
}

impl<T: FromReply + Ord> FromReply for BTreeSet<T> {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        let items = elements(view).ok_or_else(|| WrongType::new(SET, view))?;
        items.map(T::from_reply).collect()
    }
}

const MAP: &str = "a map";

impl<K, V, S> FromReply for HashMap<K, V, S>
where
    K: FromReply + Eq + Hash,
    V: FromReply,
    S: BuildHasher + Default,
{
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        let mut rows = Rows::new(view, MAP, 2)?;
        let mut map = Self::with_capacity_and_hasher(rows.left, S::default());
        while let Some(row) = rows.next()? {
            map.insert(next(row)?, next(row)?);
        }
        Ok(map)
    }
}

impl<K: FromReply + Ord, V: FromReply> FromReply for BTreeMap<K, V> {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        let mut rows = Rows::new(view, MAP, 2)?;
        let mut map = Self::new();
        while let Some(row) = rows.next()? {
            map.insert(next(row)?, next(row)?);
        }
        Ok(map)
    }
}

fn next<T: FromReply>(row: &mut Items<'_>) -> Result<T, WrongType> {
    T::from_reply(row.next().expect("the length of a row was checked"))
}

/// Rows of a known width: each in an array of its own, as RESP3 often sends them, or one behind the
/// other in one array, as RESP2 does.
struct Rows<'a> {
    view: View<'a>,
    wanted: &'static str,
    width: usize,
    left: usize,
    items: Items<'a>,
    /// The current row, if rows are arrays of their own.
    nested: Option<Items<'a>>,
}

impl<'a> Rows<'a> {
    fn new(view: View<'a>, wanted: &'static str, width: usize) -> Result<Self, WrongType> {
        let wrong = || WrongType::new(wanted, view);
        let items = elements(view).ok_or_else(wrong)?;
        let mut ahead = items;
        let nested = match view {
            View::Map(_) => None,
            _ => ahead.next().and_then(ordered),
        };
        let left = match nested {
            Some(_) => items.len(),
            None if items.len() % width == 0 => items.len() / width,
            None => return Err(wrong()),
        };
        Ok(Self {
            view,
            wanted,
            width,
            left,
            items,
            nested,
        })
    }

    /// Begins the next row. The caller must take all of its elements, and no more.
    fn next(&mut self) -> Result<Option<&mut Items<'a>>, WrongType> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let Some(nested) = &mut self.nested else {
            return Ok(Some(&mut self.items));
        };
        match self.items.next().and_then(ordered) {
            Some(row) if row.len() == self.width => {
                *nested = row;
                Ok(Some(nested))
            }
            _ => Err(WrongType::new(self.wanted, self.view)),
        }
    }
}

macro_rules! tuples {
    ($($count:literal, $wanted:literal: $($name:ident)*;)*) => {$(
        impl<$($name: FromReply),*> FromReply for ($($name,)*) {
            fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
                let mut row = ordered(view)
                    .filter(|row| row.len() == $count)
                    .ok_or_else(|| WrongType::new($wanted, view))?;
                Ok(($(next::<$name>(&mut row)?,)*))
            }

            fn many_from_reply(view: View<'_>) -> Result<Vec<Self>, WrongType> {
                let wanted = concat!("an array of rows, each ", $wanted);
                let mut rows = Rows::new(view, wanted, $count)?;
                let mut list = Vec::with_capacity(rows.left);
                while let Some(row) = rows.next()? {
                    list.push(($(next::<$name>(row)?,)*));
                }
                Ok(list)
            }
        }
    )*};
}

tuples! {
    1, "an array of 1": A;
    2, "an array of 2": A B;
    3, "an array of 3": A B C;
    4, "an array of 4": A B C D;
    5, "an array of 5": A B C D E;
    6, "an array of 6": A B C D E F;
    7, "an array of 7": A B C D E F G;
    8, "an array of 8": A B C D E F G H;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{ServerError, Value, parse};

    fn read<T: FromReply>(bytes: &str) -> Result<T, WrongType> {
        T::from_reply(parse(bytes.as_bytes()).expect(bytes).0)
    }

    fn got<T: FromReply + std::fmt::Debug>(bytes: &str) -> String {
        read::<T>(bytes).expect_err(bytes).got
    }

    #[test]
    fn lists_come_from_all_that_has_elements() {
        for bytes in [
            "*2\r\n:1\r\n$1\r\n2\r\n",
            "~2\r\n:1\r\n:2\r\n",
            ">2\r\n:1\r\n:2\r\n",
            "%1\r\n:1\r\n:2\r\n",
            "*?\r\n:1\r\n:2\r\n.\r\n",
        ] {
            assert_eq!(read(bytes), Ok(vec![1, 2]), "{bytes}");
            assert_eq!(read(bytes), Ok([1_u8, 2]), "{bytes}");
            assert_eq!(read(bytes), Ok(BTreeSet::from([1, 2])), "{bytes}");
            assert_eq!(read(bytes), Ok(HashSet::<i64>::from([1, 2])), "{bytes}");
            assert_eq!(read(bytes), Ok(Box::<[u64]>::from([1, 2])), "{bytes}");
        }
        assert_eq!(read("*2\r\n_\r\n:2\r\n"), Ok([None, Some(2)]));
        assert_eq!(read("*0\r\n"), Ok(Vec::<String>::new()));
        assert_eq!(got::<Vec<i64>>("_\r\n"), "null");
        assert_eq!(got::<Vec<i64>>("*1\r\n+x\r\n"), "a simple string 'x'");
        assert_eq!(got::<[i64; 2]>("*1\r\n:1\r\n"), "an array of 1");
    }

    #[test]
    fn bytes_are_strings_and_no_lists() {
        assert_eq!(read("$2\r\nab\r\n"), Ok(b"ab".to_vec()));
        assert_eq!(read("$2\r\nab\r\n"), Ok(*b"ab"));
        assert_eq!(read("*1\r\n$2\r\nab\r\n"), Ok(vec![b"ab".to_vec()]));
        assert_eq!(read("*2\r\n:1\r\n:2\r\n"), Ok(vec![1_u8, 2]));
    }

    #[test]
    fn maps_are_the_same_in_all_forms() {
        let wanted = [("a".to_owned(), 1.5), ("b".to_owned(), 2.0)];
        for bytes in [
            "%2\r\n+a\r\n,1.5\r\n+b\r\n,2\r\n",
            "*4\r\n$1\r\na\r\n$3\r\n1.5\r\n$1\r\nb\r\n$1\r\n2\r\n",
            "*2\r\n*2\r\n$1\r\na\r\n,1.5\r\n*2\r\n$1\r\nb\r\n,2\r\n",
            "%?\r\n+a\r\n,1.5\r\n+b\r\n,2\r\n.\r\n",
        ] {
            assert_eq!(read(bytes), Ok(BTreeMap::from(wanted.clone())), "{bytes}");
            let map = HashMap::<_, _>::from(wanted.clone());
            assert_eq!(read(bytes), Ok(map), "{bytes}");
            assert_eq!(read(bytes), Ok(wanted.to_vec()), "{bytes}");
        }
        let map = got::<BTreeMap<String, i64>>("*1\r\n+a\r\n");
        assert_eq!(map, "an array of 1");
        let map = got::<BTreeMap<String, i64>>("*1\r\n*1\r\n+a\r\n");
        assert_eq!(map, "an array of 1");
        assert_eq!(read("*0\r\n"), Ok(BTreeMap::<String, i64>::new()));
    }

    #[test]
    fn keys_of_a_map_may_be_arrays_themselves() {
        let map = read("%1\r\n*2\r\n:1\r\n:2\r\n:3\r\n");
        assert_eq!(map, Ok(BTreeMap::from([((1, 2), 3)])));
    }

    #[test]
    fn tuples_are_arrays_of_their_length() {
        let bytes = "*3\r\n$1\r\na\r\n:2\r\n*1\r\n:3\r\n";
        assert_eq!(read(bytes), Ok(("a".to_owned(), 2, vec![3])));
        assert_eq!(got::<(String, i64)>(bytes), "an array of 3");
        assert_eq!(read("*1\r\n:1\r\n"), Ok((1,)));
        let eight = "*8\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n";
        assert_eq!(read(eight), Ok((1, 2, 3, 4, 5, 6, 7, 8)));
        let entry = "*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n+f\r\n+v\r\n";
        let fields = BTreeMap::from([("f".to_owned(), "v".to_owned())]);
        assert_eq!(read(entry), Ok(vec![("1-1".to_owned(), fields)]));
    }

    #[test]
    fn errors_within_are_kept_where_they_are_wanted() {
        let bytes = "*2\r\n:1\r\n-WRONGTYPE x\r\n";
        let (one, two) = read::<(Result<i64, ServerError>, Result<i64, ServerError>)>(bytes)
            .expect("two results");
        assert_eq!(one, Ok(1));
        assert_eq!(two.expect_err("an error").text, "WRONGTYPE x");
        let wrong = read::<Vec<i64>>(bytes).expect_err("an error is no number");
        assert!(wrong.to_string().contains("WRONGTYPE x"), "{wrong}");
        let values = read::<Vec<Value>>(bytes).expect("values");
        assert!(matches!(values[..], [Value::Integer(1), Value::Error(_)]));
    }
}
