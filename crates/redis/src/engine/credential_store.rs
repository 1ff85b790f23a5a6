//! The credentials of a client that has a provider of them, and when to ask it again. `authentication` asks, and tells
//! living connections.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::timers::after;
use crate::config::RetryPolicy;
use crate::credentials::{Credentials, CredentialsProvider};

/// The shortest pause before the provider is asked again; each further failure doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Connections that are no node's, and may live on while credentials change.
pub(crate) trait Authenticated: Send + Sync {
    /// Tells the server who the client is now.
    fn authenticate(&self, credentials: &Credentials);
}

/// What the thread that asks the provider does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask the provider.
    Ask,
    /// Tell the living connections.
    Tell,
    /// End: the client was closed.
    End,
}

/// The credentials of a client.
pub(crate) struct CredentialStore {
    pub provider: CredentialsProvider,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Credentials>>,
    /// How many there were.
    version: u64,
    /// Why there are none.
    why_not: Option<String>,
    /// When to ask the provider; `None`: when something happens.
    ask_at: Option<Instant>,
    /// No earlier than that, as servers or the provider were of no help before.
    not_before: Option<Instant>,
    /// How many times in a row the provider failed.
    failures: u32,
    /// How many times in a row servers refused what it gave.
    refusals: u32,
    /// Living connections are to be told.
    tell: bool,
    members: Vec<Weak<dyn Authenticated>>,
    /// The task that connects.
    waiting: Option<Waker>,
    /// What the thread waits for has happened.
    woken: bool,
    over: bool,
}

impl State {
    /// The provider failed.
    fn failed(&mut self, now: Instant) {
        self.ask_again(self.failures, now);
        self.failures = self.failures.saturating_add(1);
    }

    /// A server refused what it gave.
    fn refused(&mut self, now: Instant) {
        self.ask_again(self.refusals, now);
        self.refusals = self.refusals.saturating_add(1);
    }

    /// Asks again, after a pause that is the longer the more there were before.
    fn ask_again(&mut self, before: u32, now: Instant) {
        let pauses = RetryPolicy {
            backoff_min: PAUSE_MIN,
            backoff_max: PAUSE_MAX,
            ..RetryPolicy::default()
        };
        let at = now + pauses.backoff(before);
        self.not_before = Some(at);
        self.ask_at = Some(at);
    }

    fn put(&mut self, credentials: Credentials, now: Instant) {
        let renew_after = credentials.renew_after.map(|time| time.max(PAUSE_MIN));
        let old = self.current.as_ref();
        let is_new = old.is_none_or(|old| !old.are(&credentials));
        if is_new {
            self.current = Some(Arc::new(credentials));
            self.version += 1;
        }
        // The same ones may be accepted by now.
        self.tell |= self.version > 1 && (is_new || self.refusals > 0);
        self.failures = 0;
        self.why_not = None;
        self.ask_at = renew_after.map(|time| now.checked_add(time).unwrap_or_else(|| after(time)));
        self.not_before = None;
    }

    /// What to do now.
    fn due(&mut self, now: Instant) -> Option<Step> {
        if self.over {
            return Some(Step::End);
        }
        if std::mem::take(&mut self.tell) {
            return Some(Step::Tell);
        }
        let is_due = self.next().is_some_and(|at| at <= now);
        if is_due {
            self.ask_at = None;
        }
        is_due.then_some(Step::Ask)
    }

    /// When to ask the provider.
    fn next(&self) -> Option<Instant> {
        let at = self.ask_at?;
        Some(self.not_before.map_or(at, |bound| at.max(bound)))
    }
}

impl CredentialStore {
    pub fn new(provider: CredentialsProvider) -> Arc<Self> {
        let state = State {
            ask_at: Some(Instant::now()),
            ..State::default()
        };
        Arc::new(Self {
            provider,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// How many credentials there were so far.
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// The credentials and their version.
    ///
    /// # Errors
    /// Why there are none.
    pub fn current(&self) -> Result<(Arc<Credentials>, u64), String> {
        let state = self.state();
        match &state.current {
            Some(current) => Ok((Arc::clone(current), state.version)),
            None => Err(match &state.why_not {
                Some(why) => format!("the provider of credentials failed: {why}"),
                None => "the provider of credentials has not answered yet".to_owned(),
            }),
        }
    }

    /// Ready when there are credentials.
    pub fn poll_first(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.current.is_some() {
            return Poll::Ready(());
        }
        let old = state.waiting.replace(cx.waker().clone());
        // Dropping a waker may run any code.
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Has the provider asked.
    pub fn renew(&self) {
        self.state().ask_at = Some(Instant::now());
        self.changed.notify_one();
    }

    /// A server has refused credentials of this version, or those of now.
    pub fn refused(&self, version: Option<u64>) {
        let mut state = self.state();
        // There may be newer ones by now. One refusal is enough for a pause.
        let are_newest = version.is_none_or(|version| version == state.version);
        if are_newest && state.not_before.is_none() {
            state.refused(Instant::now());
            drop(state);
            self.changed.notify_one();
        }
    }

    /// A server has accepted credentials of this version.
    pub fn accepted(&self, version: u64) {
        let mut state = self.state();
        if state.version == version {
            state.refusals = 0;
        }
    }

    /// A connection opened with credentials of this version: if there are newer ones, it is to be told.
    pub fn opened(&self, version: u64) {
        let mut state = self.state();
        if state.version != version {
            state.tell = true;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Has connections told of new credentials as long as they live.
    pub fn add(&self, member: Weak<dyn Authenticated>) {
        let mut state = self.state();
        state.members.retain(|known| known.strong_count() > 0);
        state.members.push(member);
    }

    pub(super) fn members(&self) -> Vec<Arc<dyn Authenticated>> {
        let state = self.state();
        state.members.iter().filter_map(Weak::upgrade).collect()
    }

    /// The provider has answered.
    pub(super) fn answered(&self, answer: Result<Credentials, String>) {
        let mut state = self.state();
        match answer {
            Ok(credentials) => state.put(credentials, Instant::now()),
            Err(why) => {
                tracing::warn!("the provider of credentials failed: {why}");
                state.why_not = Some(why);
                state.failed(Instant::now());
            }
        }
        let waiting = state.waiting.take();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Living connections were told: whether some server refused, and whether one accepted.
    pub(super) fn told(&self, refused: bool, accepted: bool) {
        let mut state = self.state();
        if refused {
            state.refused(Instant::now());
        } else if accepted {
            state.refusals = 0;
        }
    }

    /// Waits until there is something to do.
    pub(super) fn next_step(&self) -> Step {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            if let Some(step) = state.due(now) {
                return step;
            }
            state = match state.next() {
                None => {
                    let waited = self.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                Some(at) => {
                    let pause = at.saturating_duration_since(now);
                    let waited = self.changed.wait_timeout(state, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Polls until it is ready. `None`: that time has come, or the client is closed.
    pub(super) fn block_on<R>(
        self: &Arc<Self>,
        deadline: Instant,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<R>,
    ) -> Option<R> {
        let waker = Waker::from(Arc::clone(self));
        let cx = &mut Context::from_waker(&waker);
        loop {
            if let Poll::Ready(result) = poll(cx) {
                return Some(result);
            }
            let mut state = self.state();
            while !std::mem::take(&mut state.woken) {
                let left = deadline.saturating_duration_since(Instant::now());
                if state.over || left.is_zero() {
                    return None;
                }
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// The client is closed.
    pub fn end(&self) {
        self.state().over = true;
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread that waits in [`CredentialStore::block_on`].
impl Wake for CredentialStore {
    fn wake(self: Arc<Self>) {
        self.state().woken = true;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(word: &str) -> Credentials {
        Credentials::new(None::<&str>, word)
    }

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn they_are_asked_for_when_they_must_be_renewed() {
        let (mut state, now) = (State::default(), Instant::now());
        state.put(word("a").renew_after(DAY), now);
        assert_eq!(
            state.due(now),
            None,
            "nobody is to be told of the first ones"
        );
        assert_eq!(state.due(now + DAY), Some(Step::Ask));
        assert_eq!(state.due(now + 2 * DAY), None, "it was asked");
        state.put(word("b").renew_after(Duration::ZERO), now);
        assert_eq!(state.due(now), Some(Step::Tell));
        assert_eq!(state.due(now), None);
        assert_eq!(state.due(now + PAUSE_MIN), Some(Step::Ask));
        state.put(word("b"), now);
        assert_eq!(state.due(now + DAY), None);
        assert_eq!(state.version, 2);
    }

    #[test]
    fn failures_make_pauses_that_grow_up_to_a_limit() {
        let (mut state, now) = (State::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..40 {
            state.failed(now);
            let next = state.next().expect("it is asked again");
            pauses.push(next - now);
            // Whoever wants it sooner waits, too.
            state.ask_at = Some(now);
            assert_eq!(state.next(), Some(next));
        }
        assert!((PAUSE_MIN / 2..=PAUSE_MIN).contains(&pauses[0]));
        assert!((PAUSE_MAX / 2..=PAUSE_MAX).contains(&pauses[39]));
    }

    #[test]
    fn the_same_ones_are_tried_again_where_they_were_refused() {
        let (mut state, now) = (State::default(), Instant::now());
        state.put(word("a"), now);
        state.put(word("b"), now);
        assert_eq!(state.due(now), Some(Step::Tell));
        state.refused(now);
        state.put(word("b"), now);
        assert_eq!(state.due(now), Some(Step::Tell));
        state.refusals = 0;
        state.put(word("b"), now);
        assert_eq!(state.due(now), None, "there is nothing new");
    }
}
