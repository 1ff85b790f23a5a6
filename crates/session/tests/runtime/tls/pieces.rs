//! Two ends without a socket: what is encrypted of bytes that lie in several places.

use std::collections::VecDeque;
use std::sync::Arc;

use embar_memory::{Coherence, Extent, Foreign, Mapped, Memory, PayloadFile, Span};
use embar_transport::tls::{Acceptor, Channel, Turn};
use embar_transport::{Body, Payload, Pieces, RecvBuf, SendBuf};

use super::Authority;

const FILE_BYTES: u64 = 1 << 20;
const ROOM: usize = 10_000;

struct End {
    channel: Channel,
    /// Ciphertext on its way to it.
    wire: VecDeque<u8>,
    landing: Option<RecvBuf>,
    plain: Vec<u8>,
    /// How much of the buffer was sent each time that it came back.
    steps: Vec<usize>,
    sent: Option<SendBuf>,
}

impl End {
    fn new(mut channel: Channel) -> Self {
        channel.receive(RecvBuf::heap(vec![0; ROOM], 0..ROOM));
        Self {
            channel,
            wire: VecDeque::new(),
            landing: None,
            plain: Vec::new(),
            steps: Vec::new(),
            sent: None,
        }
    }

    /// Goes as far as it can with what is there; the ciphertext that it sends.
    fn run(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            match self.channel.turn() {
                Turn::Received(buf, result) => {
                    result.unwrap();
                    buf.with_filled(buf.filled(), |bytes| self.plain.extend(bytes));
                    self.channel.receive(RecvBuf::heap(vec![0; ROOM], 0..ROOM));
                }
                Turn::Sent(buf, result) => {
                    result.unwrap();
                    self.steps.push(buf.sent());
                    if buf.remaining() > 0 {
                        self.channel.send(buf);
                    } else {
                        self.sent = Some(buf);
                    }
                }
                Turn::Wait { send, receive } => {
                    self.landing = self.landing.take().or(receive);
                    let landed = self.land();
                    if let Some(mut buf) = send {
                        buf.with_unsent(|bytes, _| out.extend(bytes));
                        buf.advance(buf.remaining());
                        self.channel.sent(buf, &Ok(()));
                    } else if !landed {
                        return out;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn land(&mut self) -> bool {
        if self.wire.is_empty() {
            return false;
        }
        let Some(mut buf) = self.landing.take() else {
            return false;
        };
        let count = buf.fill(self.wire.make_contiguous());
        self.wire.drain(..count);
        self.channel.arrived(buf, &Ok(count));
        true
    }
}

fn run(a: &mut End, b: &mut End) {
    loop {
        let (there, back) = (a.run(), b.run());
        if there.is_empty() && back.is_empty() && a.wire.is_empty() && b.wire.is_empty() {
            return;
        }
        b.wire.extend(there);
        a.wire.extend(back);
    }
}

fn commit(extent: &mut Extent<Mapped>, bytes: &[u8]) -> Span<Mapped> {
    let mut reservation = extent.reserve(bytes.len() as u32).unwrap();
    reservation.write(0, bytes);
    reservation.commit()
}

#[test]
fn pieces_are_encrypted_from_where_they_lie_and_come_back_in_steps() {
    let authority = Authority::new();
    let client = authority.target().connect().unwrap();
    let server = Acceptor::new(authority.server()).accept().unwrap();
    let (mut a, mut b) = (End::new(client), End::new(server));
    run(&mut a, &mut b);
    assert!(!a.channel.is_handshaking() && !b.channel.is_handshaking());

    let own = PayloadFile::anonymous(FILE_BYTES, Coherence::Coherent).unwrap();
    let mut extent = own.allocate(FILE_BYTES as u32).unwrap();
    let other = Arc::new(Mapped::anonymous(FILE_BYTES, Coherence::Coherent).unwrap());
    for with_foreign in [false, true] {
        let mut pieces: Box<Pieces> = Box::default();
        let mut expected = b"hi!".to_vec();
        for (number, len) in [5, 100_000, 16_384, 1, 70_000].into_iter().enumerate() {
            let content: Vec<u8> = (0..len).map(|at| (number + at * 31) as u8).collect();
            let payload = if with_foreign && number % 2 == 1 {
                let at = number as u64 * (FILE_BYTES / 8);
                other.write(at, &content);
                Payload::Foreign(Foreign::over(&other, at, content.len()).unwrap())
            } else {
                Payload::Own(commit(&mut extent, &content))
            };
            let header = [number as u8; 64];
            pieces.push(header, payload);
            expected.extend(header);
            expected.extend(content);
        }
        (a.steps, b.plain) = (Vec::new(), Vec::new());
        a.channel
            .send(SendBuf::new(b"hi!".to_vec(), Body::Pieces(pieces)));
        run(&mut a, &mut b);
        assert!(b.plain == expected, "bytes differ");
        assert_eq!(a.sent.take().map(|buf| buf.sent()), Some(expected.len()));
        assert!(a.steps.is_sorted());
        if with_foreign {
            assert!(a.steps.len() > 1, "{:?}", a.steps);
        } else {
            assert_eq!(a.steps, [expected.len()]);
        }
    }
}
