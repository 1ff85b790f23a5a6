//! The server: one room, and a handler for each member of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use buffa::MessageView as _;
use embar_session::{
    Address, Broadcast, CloseReason, Closed, Flow, Handler, Lag, Message, OnFull, Server, Session,
    Settings,
};

use crate::packets::{
    JoinView, JoinedView, LeftView, PresentView, SaidView, SayView, check_name, clean, id,
};
use crate::print;

/// Most members at a time.
const MEMBERS_MAX: usize = 500;
/// How long members have, when the server stops, to take what was said.
const FAREWELL: Duration = Duration::from_secs(2);

/// Who is there.
#[derive(Default)]
struct Room {
    /// By name; false while somebody is still on the way in.
    members: Mutex<BTreeMap<String, bool>>,
    /// Those who are in. A send to it fails for nobody: who reads too slowly is dropped, and then
    /// [`Handler::closed`] follows. Nobody waits for anybody here. As it is used while the room is locked, all members
    /// get all lines in one order.
    all: Broadcast,
}

impl Room {
    fn members(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One session. All calls come from one thread, one after the other.
struct Member {
    room: Arc<Room>,
    /// Once it is let in.
    name: Option<String>,
}

impl Handler for Member {
    /// The handshake: an `Err` here is what the client's connect ends with.
    fn greeted(&mut self, _: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
        let join = JoinView::decode_view(greeting).map_err(|error| error.to_string())?;
        check_name(join.name)?;
        let mut members = self.room.members();
        if members.contains_key(join.name) {
            return Err(format!("{} is here already: take another name", join.name));
        }
        members.insert(join.name.to_owned(), false);
        self.name = Some(join.name.to_owned());
        Ok(Vec::new())
    }

    fn opened(&mut self, session: &Session, _: &[u8]) {
        let Some(name) = &self.name else { return };
        let mut members = self.room.members();
        let present = members.iter().filter(|(_, there)| **there);
        let _ = session.send_view(
            id::PRESENT,
            &PresentView {
                names: present.map(|(name, _)| name.as_str()).collect(),
            },
        );
        let joined = JoinedView { name };
        let _ = self.room.all.send_view(id::JOINED, &joined);
        self.room.all.join(session, Lag::Close);
        members.insert(name.clone(), true);
    }

    /// A line: it is read where the kernel put it, and written straight into the rings of the
    /// others.
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let (Some(name), id::SAY, Ok(say)) =
            (&self.name, message.id(), message.decode::<SayView<'_>>())
        else {
            // Not one of ours.
            session.abort();
            return Flow::Continue;
        };
        let text = &*clean(say.text);
        if !text.is_empty() {
            let said = SaidView { name, text };
            let _locked = self.room.members();
            let _ = self.room.all.except(session).send_view(id::SAID, &said);
        }
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let Some(name) = self.name.take() else { return };
        let mut members = self.room.members();
        let came_in = members.remove(&name) == Some(true);
        if came_in {
            let why = match why.reason {
                CloseReason::Finished => String::new(),
                reason => reason.to_string(),
            };
            let left = LeftView {
                name: &name,
                why: &why,
            };
            let _ = self.room.all.send_view(id::LEFT, &left);
        }
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default().with(|settings| {
        settings.max_sessions = MEMBERS_MAX;
        // A member who does not read has 64 KiB in the kernel and 256 KiB in the ring, about a
        // hundred full lines; then that member is dropped, and nobody else notices.
        settings.on_full = OnFull::Close;
    });
    settings.sockets.send_buffer_bytes = Some(64 << 10);
    settings
}

/// Serves until the process is asked to stop.
pub fn run(address: Address) -> anyhow::Result<()> {
    let mut signals = crate::stop_signals()?;
    let room = Arc::new(Room::default());
    let server = Server::builder()
        .settings(settings())
        .listen(address)
        .start(move |_peer| Member {
            room: Arc::clone(&room),
            name: None,
        })?;
    print(&format!("listening on {}; Ctrl-C stops", server.address()));
    signals.forever().next();
    server.shutdown(FAREWELL);
    Ok(())
}
