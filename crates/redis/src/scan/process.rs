//! Which server process answered: a cursor of `SCAN` means nothing to another one, as each places keys by a
//! secret of its own.
//!
//! As long as the connection is the same, the process is. Behind another connection it is the same one if
//! it says the same `run_id`. A user who may not ask for that (`INFO`) begins anew with each connection.

use embar_mux::Call;

use crate::client::Client;
use crate::cmd::Cmd;
use crate::command::{Class, Route};
use crate::error::Error;

/// The process that answers a scan.
#[derive(Debug)]
pub(super) struct Process {
    /// A command that it has answered.
    call: Call,
    run_id: Option<String>,
}

impl Process {
    /// The process that has answered this. `route` and `class` are those of the scan.
    pub async fn of(
        client: &Client,
        (route, class): (Route, Class),
        call: Call,
    ) -> Result<Self, Error> {
        let run_id = run_id(client, (route, class), &call).await?;
        Ok(Self { call, run_id })
    }

    /// Whether it has answered this, too.
    pub async fn has_answered(
        &mut self,
        client: &Client,
        (route, class): (Route, Class),
        call: Call,
    ) -> Result<bool, Error> {
        if call.shares_connection_with(&self.call) {
            return Ok(true);
        }
        let run_id = run_id(client, (route, class), &call).await?;
        let is_same = run_id.is_some() && run_id == self.run_id;
        if is_same {
            self.call = call;
        }
        Ok(is_same)
    }
}

/// What the process that has answered this says of itself; `None` if it does not, or another one answers.
async fn run_id(
    client: &Client,
    (route, class): (Route, Class),
    answered: &Call,
) -> Result<Option<String>, Error> {
    let info = match class {
        Class::Read => Cmd::read("INFO"),
        Class::Write => Cmd::write("INFO"),
    };
    let info = info.arg("server").to(route);
    let mut request = client.send::<_, String>(info).repeatable();
    let text = match (&mut request).await {
        Ok(text) => text,
        Err(Error::Server(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let call = request.into_answered();
    if !call.is_some_and(|call| call.shares_connection_with(answered)) {
        return Ok(None);
    }
    let run_id = text.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok(run_id.map(str::to_owned))
}
