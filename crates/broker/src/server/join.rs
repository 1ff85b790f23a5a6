//! How a follower asks the head where the region is. It happens once, before
//! any thread runs, so it simply blocks.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use embar_transport::socket::{self, SocketOptions};
use embar_wire::control::{self, Control, Hello, Join, Role};
use embar_wire::frame::{FrameHeader, PROTOCOL_VERSION};
use embar_wire::limits::{FRAME_HEADER_BYTES, Limits};

use crate::error::StartError;

/// How long the head may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the region is, and the head's idea of a row for us.
pub(super) struct Invitation {
    pub dir: PathBuf,
    pub nonce: u64,
    pub row: u16,
}

pub(super) fn ask(head: SocketAddr, address: SocketAddr) -> Result<Invitation, StartError> {
    let fail = |why: String| StartError::Join { head, why };
    let stream = socket::connect(head, PATIENCE, &SocketOptions::default());
    let mut stream = stream.map_err(|e| fail(e.to_string()))?;
    let timeouts = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    timeouts.map_err(|e| fail(e.to_string()))?;
    let hello = Hello {
        version: PROTOCOL_VERSION,
        role: Role::Broker,
        name: "broker".into(),
    };
    call(&mut stream, &Control::Hello(hello)).map_err(fail)?;
    let join = Join {
        pid: std::process::id(),
        address: address.to_string(),
        takes_data: true,
    };
    match call(&mut stream, &Control::Join(join)).map_err(fail)? {
        Control::Joined(joined) => Ok(Invitation {
            dir: PathBuf::from(joined.region_dir),
            nonce: joined.nonce,
            row: u16::try_from(joined.broker_id).unwrap_or(u16::MAX),
        }),
        other => Err(fail(format!("it answered Join with {:?}", other.id()))),
    }
}

/// One request, one answer.
fn call(stream: &mut TcpStream, request: &Control) -> Result<Control, String> {
    let mut bytes = Vec::new();
    control::encode(request, &mut bytes).map_err(|e| e.to_string())?;
    stream.write_all(&bytes).map_err(|e| e.to_string())?;
    let mut head = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut head).map_err(|e| e.to_string())?;
    let header = FrameHeader::parse(&head);
    let id = header
        .check(&Limits::default())
        .map_err(|e| e.to_string())?;
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body).map_err(|e| e.to_string())?;
    match control::decode(id, &body).map_err(|e| e.to_string())? {
        Control::Error(error) => Err(error.message),
        answer => Ok(answer),
    }
}
