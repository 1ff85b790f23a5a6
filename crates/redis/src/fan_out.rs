//! Commands that go to several nodes: to all of them or all primaries, or in parts to those that serve their keys. One reply is made of theirs.
//!
//! The rules are those of the servers' command tips: <https://redis.io/docs/latest/develop/reference/command-tips/>.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::command::{Class, Command, Route};
use crate::engine::Router;
use crate::error::Error;
use crate::merge::{FanOut, Part, Parts, Replies};
use crate::runs::{EncodedCommands, run_of};

/// The reply that was made of several.
pub(crate) type Reply = Pin<Box<dyn Future<Output = Result<Vec<u8>, Error>> + Send>>;

/// Sends a command to all nodes to which `fan_out` says that it goes.
///
/// # Errors
/// When it cannot be said which these are.
pub(crate) fn send(
    router: &Arc<Router>,
    command: &impl Command,
    fan_out: FanOut,
    timeout: Option<Duration>,
) -> Result<Reply, Error> {
    let mut list = EncodedCommands::default();
    let mut nodes = Vec::new();
    let places = match fan_out.parts {
        Parts::Whole => {
            for (route, node) in router.targets(command.route())? {
                list.add_to(command, route);
                nodes.push(node);
            }
            Vec::new()
        }
        Parts::Slots(parts) => {
            for Part { bytes, slot, .. } in &parts {
                list.add_encoded(bytes, Route::Slot(*slot), command.class());
                let node = router.primary_of(*slot);
                nodes.push(node.map_or_else(|| format!("slot {slot}"), |it| it.to_string()));
            }
            parts.into_iter().map(|part| part.places).collect()
        }
    };
    let (router, merge) = (Arc::clone(router), fan_out.merge);
    let may_change = command.class() == Class::Write;
    let may_fail_midway = command.may_fail_midway();
    Ok(Box::pin(async move {
        let results = run_of(&router, &list, timeout).await;
        let frames = (0..results.len()).map(|index| results.frames(index));
        merge.reply(&Replies {
            frames: frames.collect(),
            places: &places,
            nodes: &nodes,
            may_change,
            may_fail_midway,
        })
    }))
}
