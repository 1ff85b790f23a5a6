//! Stands for `tls.rs` where the feature is off: none of these can exist, so whatever asks for
//! them is compiled to nothing.

use std::io;

use embar_transport::{RecvBuf, SendBuf};

use crate::Closed;

#[derive(Clone)]
pub(super) enum Acceptor {}

impl Acceptor {
    pub(super) fn accept(&self) -> io::Result<Channel> {
        match *self {}
    }
}

pub(super) enum Connector {}

impl Connector {
    pub(super) fn connect(&self) -> io::Result<Channel> {
        match *self {}
    }
}

pub(super) enum Channel {}

#[allow(dead_code, reason = "nothing can happen")]
pub(super) enum Turn {
    Received(RecvBuf, io::Result<usize>),
    Sent(SendBuf, io::Result<()>),
    Failed(Closed),
    Shutdown,
    Wait {
        send: Option<SendBuf>,
        receive: Option<RecvBuf>,
    },
}

impl Channel {
    pub(super) fn arrived(&mut self, _: RecvBuf, _: &io::Result<usize>) {
        match *self {}
    }

    pub(super) fn sent(&mut self, _: SendBuf, _: &io::Result<()>) {
        match *self {}
    }

    pub(super) fn receive(&mut self, _: RecvBuf) {
        match *self {}
    }

    pub(super) fn send(&mut self, _: SendBuf) {
        match *self {}
    }

    pub(super) fn shutdown(&mut self) {
        match *self {}
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(super) fn turn(&mut self) -> Turn {
        match *self {}
    }

    pub(super) fn take_all(&mut self) -> (Option<RecvBuf>, Option<SendBuf>) {
        match *self {}
    }
}
