//! Ctrl-C and SIGTERM: the first of them raises a flag that work looks at, and calls callbacks for threads that wait
//! for something else. Also tells a child process when its parent is gone.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What a second Ctrl-C ends the process with, as shells do: 128 and the signal's number.
const SECOND_SIGINT_CODE: i32 = 128 + SIGINT;

/// The work was ended by a signal, or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

type Callback = Box<dyn Fn() + Send>;

/// Raised once a signal came. Clones see the same.
#[derive(Clone, Default)]
pub struct Interrupt {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    raised: AtomicBool,
    callbacks: Mutex<Vec<Callback>>,
}

impl Interrupt {
    /// Takes over both signals for the life of the process. The first one asks for an orderly end; one more SIGINT
    /// ends the process at once: whoever presses Ctrl-C twice does not want to wait.
    pub fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let seen = interrupt.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    if seen.is_raised() && signal == SIGINT {
                        std::process::exit(SECOND_SIGINT_CODE);
                    }
                    seen.raise();
                }
            })?;
        Ok(interrupt)
    }

    /// Whether a signal came.
    pub fn is_raised(&self) -> bool {
        // Partner: the store in `raise`; nothing else is published by it.
        self.inner.raised.load(Ordering::Relaxed)
    }

    /// An error once a signal came.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.is_raised() {
            return Err(Interrupted);
        }
        Ok(())
    }

    /// Calls `callback` from another thread when a signal comes; at once if one came already.
    pub fn on_raise(&self, callback: impl Fn() + Send + 'static) {
        let mut callbacks = self.callbacks();
        if self.is_raised() {
            callback();
        }
        callbacks.push(Box::new(callback));
    }

    /// Acts as if a signal came.
    pub fn raise(&self) {
        self.inner.raised.store(true, Ordering::Relaxed);
        for callback in self.callbacks().iter() {
            callback();
        }
    }

    fn callbacks(&self) -> std::sync::MutexGuard<'_, Vec<Callback>> {
        self.inner
            .callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `gone` when standard input ends: with a pipe as standard input, that is when the parent process is no more,
/// however it ended.
pub fn on_parent_exit(gone: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name("parent".into())
        .spawn(move || {
            let _ended_or_broken = io::copy(&mut io::stdin().lock(), &mut io::sink());
            gone();
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn callbacks_are_called_whether_they_come_before_or_after_the_signal() {
        let interrupt = Interrupt::default();
        let (send, receive) = mpsc::channel();
        let early = send.clone();
        interrupt.on_raise(move || early.send("early").expect("receiver lives"));
        assert!(interrupt.check().is_ok());
        interrupt.raise();
        interrupt.on_raise(move || send.send("late").expect("receiver lives"));
        assert_eq!(
            receive.iter().take(2).collect::<Vec<_>>(),
            ["early", "late"]
        );
        assert!(interrupt.check().is_err());
    }
}
