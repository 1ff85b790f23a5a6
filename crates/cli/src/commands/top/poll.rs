//! A thread that looks at the cluster again and again, so that keys never wait for a broker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use embar_bench::diagnose::attach::asking::Asker;
use embar_bench::diagnose::attach::look_by;
use embar_console::connect::{Connector, ReportingAdmin};
use embar_console::interrupt::Interrupt;

use super::look::Look;

/// How long a broker may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Between two tries at a cluster that does not answer, and between two looks at whether to go on.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Looks at a cluster, and keeps its connections in between: with brokers that it has heard of it goes on although those that it was
/// told of are gone.
pub struct Looker {
    connector: Connector,
    admin: Option<ReportingAdmin>,
    asker: Asker,
}

impl Looker {
    /// Connects only when it looks.
    pub fn new(connector: Connector) -> Self {
        Self {
            connector,
            admin: None,
            asker: Asker::new(ANSWER_WITHIN),
        }
    }

    /// Looks once.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn look(
        &mut self,
        interval: Duration,
        before: Option<&Look>,
        stop: &Interrupt,
    ) -> Result<Look> {
        let admin = match &self.admin {
            Some(admin) => admin,
            None => self
                .admin
                .insert(self.connector.admin_within(ANSWER_WITHIN)?),
        };
        let seen = look_by(admin, &mut self.asker, interval, stop)?;
        let known = before.map_or(&[][..], |look| &look.topics);
        let known: Vec<String> = known.iter().map(|it| it.name.clone()).collect();
        let topics = self.asker.topics(&seen.cluster, &known);
        Ok(Look::of(seen, topics, before))
    }
}

/// What the thread has found out.
#[derive(Default)]
pub struct News {
    /// The newest look.
    pub look: Option<Arc<Look>>,
    /// Since when nothing can be seen, and why.
    pub trouble: Option<(Instant, String)>,
    /// How long the next look is to take.
    pub interval: Duration,
    /// No look begins meanwhile.
    pub is_paused: bool,
}

/// The thread. It ends when this is dropped, once its look is over.
pub struct Poll {
    news: Arc<Mutex<News>>,
    stop: Interrupt,
    thread: JoinHandle<()>,
}

impl Poll {
    /// Begins to look: so long, and with what was seen before.
    pub fn start(
        interval: Duration,
        look: impl FnMut(Duration, Option<&Look>, &Interrupt) -> Result<Look> + Send + 'static,
    ) -> Result<Self> {
        let news = Arc::new(Mutex::new(News {
            interval,
            ..News::default()
        }));
        let stop = Interrupt::default();
        let (told, heard) = (Arc::clone(&news), stop.clone());
        let thread = thread::Builder::new()
            .name("embar-top".into())
            .spawn(move || run(look, &told, &heard))
            .context("cannot start a thread")?;
        Ok(Self { news, stop, thread })
    }

    /// What it has found out.
    ///
    /// # Errors
    /// The thread has panicked. Then the terminal is as it was before, too, so nothing more must be drawn.
    pub fn news(&self) -> Result<MutexGuard<'_, News>> {
        ensure!(
            !self.thread.is_finished(),
            "the thread that looks at the cluster has panicked: please report what it said"
        );
        Ok(lock(&self.news))
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.stop.raise();
    }
}

fn lock(news: &Mutex<News>) -> MutexGuard<'_, News> {
    news.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(
    mut look: impl FnMut(Duration, Option<&Look>, &Interrupt) -> Result<Look>,
    news: &Mutex<News>,
    stop: &Interrupt,
) {
    while !stop.is_raised() {
        let (interval, is_paused, before) = {
            let news = lock(news);
            (news.interval, news.is_paused, news.look.clone())
        };
        if is_paused {
            thread::sleep(AGAIN_AFTER);
            continue;
        }
        match look(interval, before.as_deref(), stop) {
            Ok(look) => {
                let mut news = lock(news);
                news.look = Some(Arc::new(look));
                news.trouble = None;
            }
            Err(error) => {
                let mut news = lock(news);
                let since = news.trouble.as_ref().map_or_else(Instant::now, |it| it.0);
                news.trouble = Some((since, format!("{error:#}")));
                drop(news);
                thread::sleep(AGAIN_AFTER);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panicked_is_an_error_and_no_old_look() {
        let poll = Poll::start(Duration::ZERO, |_, _, _| panic!("on purpose")).expect("a thread");
        let until = Instant::now() + Duration::from_secs(60);
        let error = loop {
            match poll.news() {
                Err(error) => break error.to_string(),
                Ok(_) => assert!(Instant::now() < until, "it goes on"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert!(error.contains("panicked"), "{error}");
    }
}
