//! What a consumer asks the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acknowledger::Acknowledger;
use super::delivery::{Delivery, Fields};
use super::entry_id::EntryId;
use super::options::{ConsumerOptions, DeadLetters};
use super::plan::{Step, Whose};
use crate::blocking;
use crate::cmd::Cmd;
use crate::commands::blocking::group_read;
use crate::commands::options::{XReadGroupOptions, millis};
use crate::engine::{Router, sleep_until};
use crate::error::Error;
use crate::request::Request;
use crate::resp::{ErrorKind, FromReply, ServerError};

/// An entry as servers send it. One that was deleted has no fields.
type Entry = (String, Option<Fields>);

/// A row of `XPENDING`: the id, the consumer, milliseconds since it was given the entry, how often it was.
type Pending = (String, Vec<u8>, u64, u64);

/// Which group of which stream, and who reads.
pub(super) struct Reader {
    pub router: Arc<Router>,
    pub key: Vec<u8>,
    pub group: Vec<u8>,
    pub name: Vec<u8>,
    pub options: ConsumerOptions,
    pub acknowledger: Arc<Acknowledger>,
}

/// What a step came to.
pub(super) struct Done {
    pub deliveries: Vec<Delivery>,
    /// Up to where a sweep came; `None`: there was no more, or it was no sweep.
    pub last: Option<EntryId>,
    /// Why entries that were delivered too often are still there. The others are among the deliveries.
    pub trouble: Option<Error>,
}

impl Reader {
    /// Makes the group, if that is wanted and there is none.
    ///
    /// # Errors
    /// The server's; when there is no server.
    pub async fn create_group(&self) -> Result<(), Error> {
        let Some(from) = &self.options.create_from else {
            return Ok(());
        };
        let cmd = Cmd::write("XGROUP").arg("CREATE").key(&self.key);
        let cmd = cmd.arg(&self.group).arg(from).arg("MKSTREAM");
        match self.send(cmd, true).await {
            Err(Error::Server(error)) if error.kind == ErrorKind::BusyGroup => Ok(()),
            other => other,
        }
    }

    /// Takes a step, after a pause if there is one.
    ///
    /// # Errors
    /// The server's; when there is no server. It may have given entries nevertheless.
    pub async fn take(
        self: Arc<Self>,
        step: Step,
        most: usize,
        not_before: Option<Instant>,
    ) -> Result<Done, Error> {
        if let Some(at) = not_before {
            sleep_until(&self.router.shared.schedule, at).await;
        }
        match step {
            Step::Sweep(whose, after) => self.sweep(whose, after, most).await,
            Step::Read(wait) => self.read(wait, most).await,
        }
    }

    async fn send<R: FromReply>(&self, cmd: Cmd, repeatable: bool) -> Result<R, Error> {
        let request = Request::new(&self.router, cmd);
        match repeatable {
            true => request.repeatable().await,
            false => request.await,
        }
    }

    /// New entries.
    async fn read(&self, wait: Duration, most: usize) -> Result<Done, Error> {
        let options = XReadGroupOptions::new().count(most as u64);
        let streams = [(&self.key, ">")];
        let command = group_read(&self.group, &self.name, streams, options);
        // Not again: the answer that was lost may have had entries, which are pending now.
        let reply = blocking::run(Arc::clone(&self.router), command, wait, false).await?;
        let streams: Option<Vec<(Vec<u8>, Vec<Entry>)>> = blocking::read(reply)?;
        let entries = streams
            .into_iter()
            .flatten()
            .flat_map(|(_, entries)| entries);
        let mut deliveries = Vec::new();
        for entry in entries {
            let entry = entry_of(entry)?;
            deliveries.extend(Delivery::new(entry, 1, &self.acknowledger));
        }
        Ok(Done {
            deliveries,
            last: None,
            trouble: None,
        })
    }

    /// Pending entries behind this one. `XPENDING` says how often each was delivered, which `XAUTOCLAIM` does not; and it
    /// leaves alone what the program holds, of which `XAUTOCLAIM` would count another delivery.
    async fn sweep(
        &self,
        whose: Whose,
        after: Option<EntryId>,
        most: usize,
    ) -> Result<Done, Error> {
        let pending = self.pending(whose, after, most).await?;
        let mut done = Done {
            deliveries: Vec::new(),
            last: None,
            trouble: None,
        };
        let (mut live, mut dead) = (Vec::new(), Vec::new());
        for (id, _, idle, delivered) in &pending {
            let id = id_of(id)?;
            done.last = Some(id);
            let is_dead = self
                .options
                .dead
                .as_ref()
                .is_some_and(|(most, _)| delivered >= most);
            match self.acknowledger.holds(id) {
                true => {}
                false if is_dead => dead.push((id, *idle, *delivered)),
                false => live.push((id, *idle, *delivered)),
            }
        }
        for ((id, fields), delivered) in self.claim(whose, &live).await? {
            let delivery = Delivery::new((id, fields), delivered + 1, &self.acknowledger);
            done.deliveries.extend(delivery);
        }
        // What was claimed counts as delivered from now on, so it must reach the program whatever becomes of the dead ones.
        done.trouble = self.bury_all(whose, &dead).await.err();
        Ok(done)
    }

    async fn pending(
        &self,
        whose: Whose,
        after: Option<EntryId>,
        most: usize,
    ) -> Result<Vec<Pending>, Error> {
        let start = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        // As a write, since a replica may not know yet.
        let cmd = Cmd::write("XPENDING").key(&self.key).arg(&self.group);
        let (cmd, consumer) = match whose {
            Whose::Own => (cmd, Some(&self.name)),
            Whose::Idle(idle) => (cmd.arg("IDLE").arg(millis(idle)), None),
        };
        let cmd = cmd.arg(start).arg("+").arg(most).args(consumer);
        self.send(cmd, true).await
    }

    /// Takes these entries, unless somebody else has taken them meanwhile, with how often they were delivered before.
    async fn claim(
        &self,
        whose: Whose,
        pending: &[(EntryId, u64, u64)],
    ) -> Result<Vec<((EntryId, Fields), u64)>, Error> {
        let Some(least_idle) = pending.iter().map(|(_, idle, _)| *idle).min() else {
            return Ok(Vec::new());
        };
        // Whoever takes an entry ends its idleness.
        let idle = match whose {
            Whose::Own => least_idle,
            Whose::Idle(idle) => millis(idle),
        };
        let cmd = Cmd::write("XCLAIM").key(&self.key).arg(&self.group);
        let cmd = cmd.arg(&self.name).arg(idle);
        let cmd = cmd.args(pending.iter().map(|(id, ..)| id.to_string()));
        // Servers before 7.0 answer null for what was deleted.
        let entries: Vec<Option<Entry>> = self.send(cmd, false).await?;
        let mut claimed = Vec::new();
        for entry in entries.into_iter().flatten() {
            let entry = entry_of(entry)?;
            let known = pending.iter().find(|(id, ..)| *id == entry.0);
            claimed.push((entry, known.map_or(1, |(_, _, delivered)| *delivered)));
        }
        Ok(claimed)
    }

    async fn bury_all(&self, whose: Whose, dead: &[(EntryId, u64, u64)]) -> Result<(), Error> {
        for (entry, delivered) in self.claim(whose, dead).await? {
            self.bury(entry, delivered).await?;
        }
        Ok(())
    }

    /// Does with an entry that was delivered too often what the options say.
    async fn bury(&self, (id, fields): (EntryId, Fields), delivered: u64) -> Result<(), Error> {
        let stream = String::from_utf8_lossy(&self.key);
        tracing::warn!(%stream, %id, delivered, "an entry was delivered too often");
        if let Some((_, DeadLetters::MoveTo(key))) = &self.options.dead {
            let cmd = Cmd::write("XADD").key(key).arg("*");
            let cmd = cmd.arg("dead.stream").arg(&self.key);
            let cmd = cmd.arg("dead.group").arg(&self.group);
            let cmd = cmd.arg("dead.id").arg(id.to_string());
            let cmd = cmd.arg("dead.deliveries").arg(delivered);
            let _id: String = self.send(cmd.pairs(fields), false).await?;
        }
        let cmd = Cmd::write("XACK").key(&self.key).arg(&self.group);
        let _count: u64 = self.send(cmd.arg(id.to_string()), true).await?;
        Ok(())
    }
}

fn id_of(text: &str) -> Result<EntryId, Error> {
    text.parse().map_err(|error| {
        let text = format!("ERR {error}, not '{text}'");
        Error::Server(ServerError::new(text))
    })
}

fn entry_of((id, fields): Entry) -> Result<(EntryId, Fields), Error> {
    Ok((id_of(&id)?, fields.unwrap_or_default()))
}
