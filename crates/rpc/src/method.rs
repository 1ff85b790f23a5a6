//! What a method is called, in text and as a number.

/// A method of a service, as generated code describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    path: &'static str,
    number: u32,
    streams: bool,
}

impl Method {
    /// The method with this path: `package.Service/Method`. `streams`: its reply is a stream of items.
    #[must_use]
    pub const fn new(path: &'static str, streams: bool) -> Self {
        Self {
            path,
            number: method_number(path),
            streams,
        }
    }

    /// `package.Service/Method`.
    #[must_use]
    pub const fn path(&self) -> &'static str {
        self.path
    }

    /// Its number on the wire: [`method_number`] of the path.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Whether its reply is a stream of items.
    #[must_use]
    pub const fn streams(&self) -> bool {
        self.streams
    }
}

/// The number of the method with this path (`package.Service/Method`): its FNV-1a hash of 32 bits
/// (<http://www.isthe.com/chongo/tech/comp/fnv/>).
#[must_use]
pub const fn method_number(path: &str) -> u32 {
    let bytes = path.as_bytes();
    let mut hash = 0x811C_9DC5_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_fnv() {
        // From the list of test vectors of FNV's authors.
        for (text, hash) in [
            ("", 0x811C_9DC5),
            ("a", 0xE40C_292C),
            ("foobar", 0xBF9C_F968),
        ] {
            assert_eq!(method_number(text), hash, "{text}");
        }
    }
}
