//! The one thread that carries all connections of a listener or a connector.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A runtime that is not running yet.
pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// A thread that runs a runtime until it is told to stop, and has had some time for that.
pub(crate) struct CarrierThread {
    handle: Handle,
    stop: Option<oneshot::Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl CarrierThread {
    /// Starts it with `run`, which ends in the time that it gets when it is to stop.
    pub(crate) fn start<F>(
        name: &str,
        runtime: Runtime,
        run: impl FnOnce(Stop) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()>,
    {
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || runtime.block_on(run(Stop(stopped))))?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns when it has ended.
    pub(crate) fn stop(&mut self, timeout: Duration) {
        if let Some(stop) = self.stop.take() {
            // It fails if the thread has ended by itself.
            let _ = stop.send(timeout);
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that carries QUIC connections panicked: they are lost");
        }
    }
}

impl Drop for CarrierThread {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Tells when to stop.
pub(crate) struct Stop(oneshot::Receiver<Duration>);

impl Stop {
    /// Waits for that; how long it may take.
    pub(crate) async fn wait(&mut self) -> Duration {
        (&mut self.0).await.unwrap_or_default()
    }
}

/// `None`: it took longer than `most`; zero stands for no limit.
pub(crate) async fn within<T>(most: Duration, work: impl Future<Output = T>) -> Option<T> {
    match most {
        Duration::ZERO => Some(work.await),
        most => timeout(most, work).await.ok(),
    }
}
