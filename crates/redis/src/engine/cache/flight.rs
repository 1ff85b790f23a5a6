//! A request that many callers wait for. Each of them drives it, so it goes on as long as one of them waits,
//! whichever that is; when the last one goes, it is dropped.
//!
//! The locks of a flight are taken in this order: `asking`, then those of the cache, then `callers`. No part of a
//! request is dropped under one of the last two.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use embar_mux::waiters::{Outworn, Place, Waiters};

use crate::error::Error;

/// The frame that answers the command, or why there is none.
pub(crate) type Outcome = Result<Arc<[u8]>, Error>;
/// The request itself.
pub(crate) type Asking = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A request that many callers wait for.
pub(crate) struct Flight {
    /// `None` once it is over, or nobody wants it any more.
    asking: Mutex<Option<Asking>>,
    callers: Mutex<Callers>,
}

struct Callers {
    count: usize,
    waiting: Waiters,
    outcome: Option<Outcome>,
}

impl Flight {
    /// Has a request wait for its first caller to drive it.
    pub fn begin(asking: Asking) -> Waiter {
        let callers = Callers {
            count: 1,
            waiting: Waiters::default(),
            outcome: None,
        };
        let flight = Arc::new(Self {
            asking: Mutex::new(Some(asking)),
            callers: Mutex::new(callers),
        });
        Waiter {
            flight,
            place: None,
        }
    }

    /// One more caller. `None`: all callers have gone, and the request with them.
    pub fn join(self: &Arc<Self>) -> Option<Waiter> {
        let mut callers = self.callers();
        if callers.count == 0 {
            return None;
        }
        callers.count += 1;
        Some(Waiter {
            flight: Arc::clone(self),
            place: None,
        })
    }

    fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asking(&self) -> MutexGuard<'_, Option<Asking>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the request. Its outcome is known to all before anybody finds the request gone.
    fn drive(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut asking = self.asking();
        let Some(request) = &mut *asking else {
            return;
        };
        let Poll::Ready(outcome) = request.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return;
        };
        self.callers().outcome = Some(outcome);
        let over = asking.take();
        drop(asking);
        drop(over);
        self.wake_all();
    }

    fn wake_all(&self) {
        let all = self.callers().waiting.wake_all();
        all.wake();
    }
}

impl Wake for Flight {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flight")
    }
}

/// A caller that waits for a request.
#[derive(Debug)]
pub(crate) struct Waiter {
    flight: Arc<Flight>,
    place: Option<Place>,
}

impl Waiter {
    /// What it waits for.
    pub fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }

    /// Ready when the request is over.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(outcome) = &self.flight.callers().outcome {
            return Poll::Ready(outcome.clone());
        }
        {
            let mut outworn = Outworn::default();
            let waker = cx.waker().clone();
            let mut callers = self.flight.callers();
            // Before it looks at the request: so no end of that passes it by.
            let waiting = &mut callers.waiting;
            waiting.wait(&mut self.place, 1, waker, &mut outworn);
        }
        self.flight.drive();
        match &self.flight.callers().outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => Poll::Pending,
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut outworn = Outworn::default();
        let mut callers = self.flight.callers();
        if let Some(place) = self.place {
            callers.waiting.leave(place, &mut outworn);
        }
        callers.count -= 1;
        // From now on nobody may join.
        let is_last = callers.count == 0;
        drop(callers);
        if is_last {
            let abandoned = self.flight.asking().take();
            drop(abandoned);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn task() -> (Arc<Woken>, Waker) {
        let woken = Arc::<Woken>::default();
        (Arc::clone(&woken), Waker::from(woken))
    }

    fn poll(waiter: &mut Waiter, waker: &Waker) -> Poll<Outcome> {
        waiter.poll(&mut Context::from_waker(waker))
    }

    /// Whether a request is over, and whom to wake then.
    type Ending = Mutex<(bool, Option<Waker>)>;

    /// The first caller of a request, how that ends, and what lives as long as it.
    fn request() -> (Waiter, Arc<Ending>, Arc<()>) {
        let state = Arc::new(Mutex::new((false, None)));
        let alive = Arc::new(());
        let (of_request, token) = (Arc::clone(&state), Arc::clone(&alive));
        let first = Flight::begin(Box::pin(async move {
            let _token = token;
            std::future::poll_fn(|cx| {
                let mut state = of_request.lock().expect("no panic");
                state.1 = Some(cx.waker().clone());
                match state.0 {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            Ok(b"+OK\r\n".as_slice().into())
        }));
        (first, state, alive)
    }

    fn join(other: &Waiter) -> Waiter {
        other.flight.join().expect("somebody waits")
    }

    fn end(state: &Ending) {
        let mut state = state.lock().expect("no panic");
        state.0 = true;
        let waker = state.1.take().expect("somebody drove it");
        drop(state);
        waker.wake();
    }

    #[test]
    fn all_who_wait_get_the_outcome_and_one_that_goes_takes_it_from_nobody() {
        let (mut first, state, alive) = request();
        let (mut second, mut third) = (join(&first), join(&first));
        let (woken, waker) = task();
        assert!(poll(&mut first, &waker).is_pending());
        assert!(poll(&mut second, &waker).is_pending());
        // The one that drove it first goes.
        drop(first);
        assert_eq!(Arc::strong_count(&alive), 2, "the request goes on");
        end(&state);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let ok: Outcome = Ok(b"+OK\r\n".as_slice().into());
        assert_eq!(poll(&mut second, &waker), Poll::Ready(ok.clone()));
        assert_eq!(poll(&mut third, &waker), Poll::Ready(ok));
        assert_eq!(Arc::strong_count(&alive), 1, "the request is over");
    }

    #[test]
    fn who_waits_is_woken_when_another_one_finds_the_outcome() {
        let (mut first, state, _alive) = request();
        let mut second = join(&first);
        let (of_first, of_second) = (task(), task());
        assert!(poll(&mut first, &of_first.1).is_pending());
        assert!(poll(&mut second, &of_second.1).is_pending());
        state.lock().expect("no panic").0 = true;
        assert!(poll(&mut first, &of_first.1).is_ready());
        assert_eq!(of_second.0.0.load(Ordering::Relaxed), 1);
        assert!(poll(&mut second, &of_second.1).is_ready());
    }

    #[test]
    fn a_request_that_nobody_waits_for_is_dropped() {
        let (mut first, state, alive) = request();
        let mut second = join(&first);
        let flight = Arc::clone(&first.flight);
        let (woken, waker) = task();
        assert!(poll(&mut first, &waker).is_pending());
        assert!(poll(&mut second, &waker).is_pending());
        drop(first);
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(second);
        assert!(flight.join().is_none());
        assert_eq!(Arc::strong_count(&alive), 1, "the request is dropped");
        // Its waker may be called late.
        end(&state);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    }
}
