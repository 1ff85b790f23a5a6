//! Names that take as long to resolve as a test wants, and one that has two addresses.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

/// A name server that answers when a test lets it. Each test has its own name, as tests run at the same
/// time.
pub(crate) struct NameServer {
    pub name: &'static str,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    silent: bool,
    /// Lookups that wait for an answer.
    waiting: usize,
}

impl NameServer {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            state: Mutex::new(State {
                silent: false,
                waiting: 0,
            }),
            changed: Condvar::new(),
        }
    }

    pub fn set_silent(&self, silent: bool) {
        self.state.lock().unwrap().silent = silent;
        self.changed.notify_all();
    }

    fn answer(&self) -> &'static str {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let silent = |state: &mut State| state.silent;
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, 2 * LONG, silent)
            .unwrap();
        state.waiting -= 1;
        "127.0.0.1"
    }

    /// Waits until a lookup waits for an answer.
    pub fn until_asked(&self) {
        let state = self.state.lock().unwrap();
        let idle = |state: &mut State| state.waiting == 0;
        let (_state, timeout) = self.changed.wait_timeout_while(state, LONG, idle).unwrap();
        assert!(!timeout.timed_out(), "no lookup comes");
    }

    /// Whether a lookup waits for an answer.
    pub fn is_asked(&self) -> bool {
        self.state.lock().unwrap().waiting > 0
    }
}

/// A name with two addresses of this machine, 127.0.0.1 and 127.0.0.2, in this order.
pub(crate) const TWO_ADDRESSES: &str = "two-addresses";

/// All slow names.
pub(crate) static SLOW: [NameServer; 2] = [NameServer::new("slow-1"), NameServer::new("slow-2")];

/// The address of a slow name, which is always this machine; `None` for all other names.
pub(super) fn resolve(host: &str) -> Option<&'static str> {
    let server = SLOW.iter().find(|server| server.name == host)?;
    Some(server.answer())
}
