//! A thread that looks at the cluster again and again, so that keys never wait for a broker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_bench::diagnose::attach;
use embar_client::{AdminError, TopicDescription};
use embar_console::connect::{Connector, ReportingAdmin};
use embar_console::interrupt::Interrupt;

use super::look::Look;

/// Topics that are described in each look, at most.
const TOPICS_MAX: usize = 64;
/// How long a broker may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Between two tries at a cluster that does not answer, and between two looks at whether to go on.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

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
}

impl Poll {
    /// Begins to look.
    pub fn start(connector: Connector, interval: Duration) -> Result<Self> {
        let poll = Self {
            news: Arc::new(Mutex::new(News {
                interval,
                ..News::default()
            })),
            stop: Interrupt::default(),
        };
        let (news, stop) = (Arc::clone(&poll.news), poll.stop.clone());
        thread::Builder::new()
            .name("embar-top".into())
            .spawn(move || run(&connector, &news, &stop))
            .context("cannot start a thread")?;
        Ok(poll)
    }

    /// What it has found out.
    pub fn news(&self) -> MutexGuard<'_, News> {
        lock(&self.news)
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

fn run(connector: &Connector, news: &Mutex<News>, stop: &Interrupt) {
    let mut admin = None;
    while !stop.is_raised() {
        let (interval, is_paused, before) = {
            let news = lock(news);
            (news.interval, news.is_paused, news.look.clone())
        };
        if is_paused {
            thread::sleep(AGAIN_AFTER);
            continue;
        }
        match once(connector, &mut admin, interval, before.as_deref(), stop) {
            Ok(look) => {
                let mut news = lock(news);
                news.look = Some(Arc::new(look));
                news.trouble = None;
            }
            Err(error) => {
                // Its connection may be to a broker that is gone.
                admin = None;
                let mut news = lock(news);
                let since = news.trouble.as_ref().map_or_else(Instant::now, |it| it.0);
                news.trouble = Some((since, format!("{error:#}")));
                drop(news);
                thread::sleep(AGAIN_AFTER);
            }
        }
    }
}

/// Looks once.
///
/// # Errors
/// Nobody answers.
pub fn once(
    connector: &Connector,
    admin: &mut Option<ReportingAdmin>,
    interval: Duration,
    before: Option<&Look>,
    stop: &Interrupt,
) -> Result<Look> {
    let admin = match admin {
        Some(admin) => admin,
        None => admin.insert(connector.admin_within(ANSWER_WITHIN)?),
    };
    let seen = attach::look(admin, interval, stop)?;
    let topics = topics(admin)?;
    Ok(Look::of(seen, &topics, before))
}

/// Asks for all at once, and waits for the answers then. One that was deleted meanwhile is left out.
fn topics(admin: &ReportingAdmin) -> Result<Vec<TopicDescription>, AdminError> {
    let topics = admin.list_topics().wait()?;
    let asked = topics.into_iter().take(TOPICS_MAX);
    let asked: Vec<_> = asked.map(|it| admin.describe_topic(it.name)).collect();
    Ok(asked.into_iter().filter_map(|it| it.wait().ok()).collect())
}
