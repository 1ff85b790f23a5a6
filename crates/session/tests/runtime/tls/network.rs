//! A network that somebody has a hand in.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use embar_session::Address;

/// What is done to a connection.
#[derive(Clone, Copy)]
pub enum Fault {
    /// Both ends see the end of their stream.
    Cut = 1,
    /// Each further piece that the client sends is changed in its last byte.
    Change = 2,
}

/// Passes one connection on.
pub struct Proxy {
    address: SocketAddr,
    fault: Arc<AtomicU8>,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (fault, ends) = (Arc::new(AtomicU8::new(0)), Arc::<Mutex<Vec<_>>>::default());
        let proxy = Self {
            address,
            fault: Arc::clone(&fault),
            ends: Arc::clone(&ends),
        };
        thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            let server = TcpStream::connect(server).unwrap();
            let pair = |from: &TcpStream, to: &TcpStream| {
                (from.try_clone().unwrap(), to.try_clone().unwrap())
            };
            let (up, down) = (pair(&client, &server), pair(&server, &client));
            let mut kept = ends.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend([client, server]);
            drop(kept);
            thread::spawn(move || pass(up, Some(&fault)));
            pass(down, None);
        });
        proxy
    }

    pub fn address(&self) -> Address {
        Address::Tcp(self.address)
    }

    pub fn commit(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
        if matches!(fault, Fault::Cut) {
            for end in &*self.ends.lock().unwrap() {
                let _ = end.shutdown(Shutdown::Both);
            }
        }
    }
}

fn pass((mut from, mut to): (TcpStream, TcpStream), fault: Option<&AtomicU8>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let changes = fault.is_some_and(|f| f.load(Ordering::SeqCst) == Fault::Change as u8);
        if changes {
            buffer[count - 1] ^= 1;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
