//! Runs of many commands, each of which goes to the node that serves it: what pipelines and commands for several nodes have in common.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Router;
use run::Run;

mod encoded;
mod lane;
mod lanes;
mod replies;
mod results;
mod retries;
mod run;
mod run_state;

pub(crate) use encoded::EncodedCommands;
pub use encoded::ResultKey;
pub(crate) use results::ReplyRange;
pub use results::Results;

/// Sends all commands of a list and waits for all results.
pub(crate) async fn run_of(
    router: &Arc<Router>,
    list: &EncodedCommands,
    timeout: Option<Duration>,
) -> Results {
    let mut run = Run::new(router, list, timeout);
    poll_fn(|cx| run.poll(cx)).await
}
