//! The server of `bench session`: sends each message back. Where messages go one way only, it checks and counts them,
//! and answers the last one with the counts.

use std::ops::Range;

use buffa::{Message as _, MessageView as _};
use embar_session::{BodyStore, Flow, Handler, Message, SendError, Session};

use super::copying::{Arrived, COUNT, ECHO, Packet, START};
use super::payloads::{PAYLOAD_BYTES_MAX, Payload, Payloads};
use super::plan::{Phase, ReceiveMode, SendMode, SessionPlan, Test};
use super::proto::{Count, Task, TaskView};

/// The greeting of a client: what the server is to do.
pub fn task(plan: &SessionPlan, phase: Phase) -> Vec<u8> {
    let one_way = match plan.test {
        Test::OneWay => plan.iterations,
        _ => 0,
    };
    task_of(phase, plan.payload, one_way)
}

/// The greeting of a client that wants echoes of such payloads, encoded in place and read as views.
pub fn echo_task(payload: Payload) -> Vec<u8> {
    let phase = Phase {
        send: SendMode::ZeroCopy,
        receive: ReceiveMode::ZeroCopy,
    };
    task_of(phase, payload, 0)
}

fn task_of(phase: Phase, payload: Payload, one_way: u64) -> Vec<u8> {
    Task {
        send: phase.send as u32,
        receive: phase.receive as u32,
        one_way,
        payload_min: payload.min,
        payload_max: payload.max,
    }
    .encode_to_vec()
}

/// Serves one session.
#[derive(Default)]
pub struct EchoServer {
    work: Option<Work>,
}

struct Work {
    phase: Phase,
    count: Option<Counting>,
}

struct Counting {
    payloads: Payloads,
    expected: u64,
    seen: u64,
    right: u64,
}

impl Work {
    fn of(greeting: &[u8]) -> Result<Self, String> {
        let task = TaskView::decode_view(greeting)
            .map_err(|error| format!("the greeting is none of this bench: {error}"))?;
        let send = [SendMode::Copy, SendMode::Gather, SendMode::ZeroCopy];
        let receive = [ReceiveMode::Copy, ReceiveMode::ZeroCopy];
        let phase = send
            .get(task.send as usize)
            .zip(receive.get(task.receive as usize))
            .map(|(send, receive)| Phase {
                send: *send,
                receive: *receive,
            })
            .ok_or("the greeting asks for modes that this version does not know")?;
        let sizes = Payload {
            min: task.payload_min,
            max: task.payload_max,
        };
        if sizes.min > sizes.max || sizes.max > PAYLOAD_BYTES_MAX {
            return Err("the greeting asks for payloads that cannot be".into());
        }
        let count = (task.one_way > 0).then(|| Counting {
            payloads: Payloads::new(sizes),
            expected: task.one_way,
            seen: 0,
            right: 0,
        });
        Ok(Self { phase, count })
    }

    fn take(&mut self, session: &Session, arrived: &Arrived<'_>) -> Result<(), SendError> {
        let Some(count) = &mut self.count else {
            return arrived.send(self.phase.send, session);
        };
        let (sequence, payload) = arrived.parts();
        count.seen += 1;
        if count.payloads.is_right(0, count.seen, sequence, payload) {
            count.right += 1;
        }
        if count.seen < count.expected {
            return Ok(());
        }
        let answer = Count {
            right: count.right,
            wrong: count.seen - count.right,
        };
        session.send(COUNT, &answer)
    }
}

impl EchoServer {
    fn arrived(
        &mut self,
        session: &Session,
        arrived: Result<Arrived<'_>, buffa::DecodeError>,
    ) -> Flow {
        let taken = match (&mut self.work, arrived) {
            (Some(work), Ok(arrived)) => work.take(session, &arrived).is_ok(),
            _ => false,
        };
        if !taken {
            // The client reports what is missing.
            session.abort();
        }
        Flow::Continue
    }
}

impl Handler for EchoServer {
    fn greeted(&mut self, _: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
        self.work = Some(Work::of(greeting)?);
        Ok(Vec::new())
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let receive = self
            .work
            .as_ref()
            .map_or(ReceiveMode::ZeroCopy, |work| work.phase.receive);
        match message.id() {
            ECHO => self.arrived(session, Arrived::from_ring(receive, &message)),
            START => {
                if session.send_with(START, 0, |_| {}).is_err() {
                    session.abort();
                }
                Flow::Continue
            }
            _ => {
                session.abort();
                Flow::Continue
            }
        }
    }

    fn body_done(&mut self, session: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        let _one_piece = range;
        let bytes = store.into_heap().unwrap_or_default();
        self.arrived(session, Arrived::from_packet(&Packet { id, bytes }));
    }
}
