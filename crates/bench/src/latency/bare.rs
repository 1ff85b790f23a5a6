//! The round trip that acknowledgements are compared with: over a bare socket this thread sends another thread as many
//! bytes as a batch of one message has, and gets back as many as an acknowledgement of that batch has.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use embar_frame::FRAME_HEADER_BYTES;
use embar_wire::ack::ack_len;
use embar_wire::limits::{BATCH_HEADER_BYTES, LINE_BYTES, MESSAGE_HEADER_BYTES};

/// Bytes of an acknowledgement of one batch.
const ACK_BYTES: usize = FRAME_HEADER_BYTES + ack_len(1);

/// A connection to a thread that answers.
pub struct BareConnection {
    stream: TcpStream,
    message: Vec<u8>,
    thread: Option<JoinHandle<()>>,
}

impl BareConnection {
    /// Connects to a new thread, for messages of this size.
    pub fn start(message_bytes: usize) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let stream = TcpStream::connect(listener.local_addr()?).context("cannot connect")?;
        let (mut far, _) = listener.accept().context("cannot accept")?;
        stream.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let payload = (MESSAGE_HEADER_BYTES + message_bytes).next_multiple_of(LINE_BYTES);
        let message = vec![7; BATCH_HEADER_BYTES + payload];
        let mut taken = message.clone();
        let answer = move || {
            while far.read_exact(&mut taken).is_ok() && far.write_all(&[1; ACK_BYTES]).is_ok() {}
        };
        let thread = thread::Builder::new().name("bare".into()).spawn(answer)?;
        Ok(Self {
            stream,
            message,
            thread: Some(thread),
        })
    }

    /// Sends a message and receives its answer.
    pub fn round_trip(&mut self) -> Result<()> {
        self.stream.write_all(&self.message)?;
        self.stream.read_exact(&mut [0; ACK_BYTES])?;
        Ok(())
    }
}

impl Drop for BareConnection {
    fn drop(&mut self) {
        // The thread ends when it reads the end.
        drop(self.stream.shutdown(std::net::Shutdown::Both));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_as_long_as_help_says() {
        assert_eq!(ACK_BYTES, 32);
    }

    #[test]
    fn a_message_goes_there_and_back() {
        let mut bare = BareConnection::start(1024).expect("starts");
        for _ in 0..3 {
            bare.round_trip().expect("answered");
        }
    }
}
