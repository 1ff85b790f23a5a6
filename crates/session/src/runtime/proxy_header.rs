//! The header by which a proxy says for whom it speaks: version 2 of the PROXY protocol, as HAProxy's `proxy-protocol.txt` has it.
//!
//! Bytes in, and out of them the address. It asks for as many bytes as belong to the header and never for more, so what follows stays
//! in the socket. Of what comes behind the addresses (TLVs) nothing is read, only skipped.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// What each header begins with.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length of the rest.
const FIXED_BYTES: usize = 16;
/// Two addresses of version 6 with their ports: the longest that is read.
const ADDRESSES_BYTES: usize = 36;
/// Longest rest of a header that is taken, bytes. The specification recommends to write no more than 520.
pub(super) const MAX_REST_BYTES: usize = 4096;
/// Received at a time.
const PIECE_BYTES: usize = 128;

/// A header that is coming.
#[derive(Debug)]
pub(super) struct ProxyHeader {
    bytes: [u8; FIXED_BYTES + ADDRESSES_BYTES],
    got: usize,
    /// Bytes in all, as far as is known.
    length: usize,
}

/// The header is no such header, or longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

impl ProxyHeader {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; FIXED_BYTES + ADDRESSES_BYTES],
            got: 0,
            length: FIXED_BYTES,
        }
    }

    /// How many bytes to receive next; 0: the header is complete.
    pub(super) fn wants(&self) -> usize {
        (self.length - self.got).min(PIECE_BYTES)
    }

    /// Takes bytes that came, no more than it wants.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let room = self.bytes.get_mut(self.got..).unwrap_or_default();
        let count = bytes.len().min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.got += bytes.len();
        let known = self.got.min(SIGNATURE.len());
        if self.bytes[..known] != SIGNATURE[..known] || self.got > self.length {
            return Err(Malformed);
        }
        if self.got == FIXED_BYTES && self.length == FIXED_BYTES {
            self.length += self.rest()?;
        }
        Ok(())
    }

    fn is_local(&self) -> bool {
        self.bytes[12] & 0xF == 0
    }

    /// Bytes behind the fixed ones.
    fn rest(&self) -> Result<usize, Malformed> {
        let rest = usize::from(u16::from_be_bytes([self.bytes[14], self.bytes[15]]));
        let (version, command) = (self.bytes[12] >> 4, self.bytes[12] & 0xF);
        let (family, transport) = (self.bytes[13] >> 4, self.bytes[13] & 0xF);
        let addresses = match family {
            0 => 0,
            1 => 12,
            2 => ADDRESSES_BYTES,
            3 => 216,
            _ => return Err(Malformed),
        };
        // Sessions come by streams.
        let streams = self.is_local() || family == 0 || transport == 1;
        let complete = self.is_local() || rest >= addresses;
        if version != 2 || command > 1 || !streams || !complete || rest > MAX_REST_BYTES {
            return Err(Malformed);
        }
        Ok(rest)
    }

    /// Once it is complete: for whom the proxy speaks. `None`: for itself, or for somebody without an IP address.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        if self.is_local() {
            return None;
        }
        let addresses = &self.bytes[FIXED_BYTES..];
        let port = |at: usize| u16::from_be_bytes([addresses[at], addresses[at + 1]]);
        match self.bytes[13] >> 4 {
            1 => {
                let ip: [u8; 4] = *addresses.first_chunk()?;
                Some((Ipv4Addr::from(ip), port(8)).into())
            }
            2 => {
                let ip: [u8; 16] = *addresses.first_chunk()?;
                Some((Ipv6Addr::from(ip), port(32)).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([0x20 | command, family]);
        bytes.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    fn v4() -> Vec<u8> {
        vec![192, 0, 2, 1, 10, 0, 0, 1, 0x12, 0x34, 0, 80]
    }

    /// Feeds it in pieces; what it says, and the bytes that it left.
    fn read(mut bytes: &[u8], piece: usize) -> Result<(Option<SocketAddr>, usize), Malformed> {
        let mut header = ProxyHeader::new();
        while header.wants() > 0 {
            let count = header.wants().min(piece).min(bytes.len());
            assert!(count > 0, "it wants more than there is");
            let (now, later) = bytes.split_at(count);
            header.take(now)?;
            bytes = later;
        }
        Ok((header.peer(), bytes.len()))
    }

    #[test]
    fn the_address_is_that_of_the_client_however_the_header_is_cut() {
        let mut long = v4();
        long.extend([7; 1000]);
        let mut v6 = vec![0; ADDRESSES_BYTES];
        v6[..16].copy_from_slice(&"2001:db8::5".parse::<Ipv6Addr>().unwrap().octets());
        v6[32..34].copy_from_slice(&9u16.to_be_bytes());
        let some = |text: &str| Some(text.parse().unwrap());
        for (bytes, peer) in [
            (header(1, 0x11, &v4()), some("192.0.2.1:4660")),
            (header(1, 0x11, &long), some("192.0.2.1:4660")),
            (header(1, 0x21, &v6), some("[2001:db8::5]:9")),
            (header(1, 0x31, &[1; 216]), None),
            (header(1, 0, &[]), None),
            (header(1, 0, &[1; 300]), None),
            (header(0, 0, &[]), None),
            (header(0, 0x11, &v4()), None),
            (header(0, 0x11, &[]), None),
        ] {
            let mut bytes = bytes;
            bytes.extend(b"HELLO");
            for piece in [1, 3, 16, 17, 128, 5000] {
                assert_eq!(read(&bytes, piece), Ok((peer, 5)), "{piece}");
            }
        }
    }

    #[test]
    fn what_is_no_header_is_refused_as_soon_as_that_is_known() {
        let mut version = header(1, 0x11, &v4());
        version[12] = 0x11;
        for bytes in [
            b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2\r\n".to_vec(),
            version,
            header(2, 0x11, &v4()),
            header(1, 0x12, &v4()),
            header(1, 0x41, &v4()),
            header(1, 0x11, &v4()[..11]),
            header(1, 0x21, &[0; 35]),
            header(1, 0x11, &[0; MAX_REST_BYTES + 1]),
            header(0, 0, &[0; MAX_REST_BYTES + 1]),
        ] {
            for piece in [1, 16] {
                assert_eq!(read(&bytes, piece), Err(Malformed), "{bytes:?}");
            }
        }
        let most = header(1, 0x11, &[0; MAX_REST_BYTES]);
        assert_eq!(read(&most, 77).map(|(_, left)| left), Ok(0));
        assert_eq!(ProxyHeader::new().take(b"G"), Err(Malformed));
    }

    #[test]
    fn whatever_comes_it_wants_a_bounded_number_of_bytes_and_ends() {
        bolero::check!()
            .with_type::<(Vec<u8>, u8, bool)>()
            .for_each(|(noise, piece, signed): &(Vec<u8>, u8, bool)| {
                let mut bytes = if *signed {
                    SIGNATURE.to_vec()
                } else {
                    Vec::new()
                };
                bytes.extend(noise);
                let (mut header, mut left, mut taken) = (ProxyHeader::new(), &bytes[..], 0);
                while header.wants() > 0 && !left.is_empty() {
                    let count = header.wants().min(usize::from(*piece) + 1).min(left.len());
                    let (now, later) = left.split_at(count);
                    left = later;
                    taken += count;
                    if header.take(now).is_err() {
                        return;
                    }
                }
                assert!(taken <= FIXED_BYTES + MAX_REST_BYTES);
                if header.wants() == 0 {
                    let _ = header.peer();
                }
            });
    }
}
