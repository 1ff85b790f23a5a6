//! The thread that asks the provider for credentials, and tells living connections of new ones.
//!
//! It is a thread of its own, because a provider may block: what needs no new credentials goes on then.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread;

use embar_mux::{Call, Connection, Turn};

use super::credential_store::{CredentialStore, Step};
use super::greeting::encoded_auth;
use super::router::Router;
use super::shared::Shared;
use super::timers::after;
use crate::command::Class;
use crate::credentials::Credentials;
use crate::endpoint::Endpoint;
use crate::resp::{ServerError, View, parse};

/// Starts the thread, if the client has a provider. It ends when the client is closed, once the provider lets it.
pub(crate) fn start(router: &Arc<Router>) -> io::Result<()> {
    let Some(store) = &router.shared.credentials else {
        return Ok(());
    };
    let authentication = Authentication {
        store: Arc::clone(store),
        shared: Arc::clone(&router.shared),
        router: Arc::downgrade(router),
    };
    #[cfg(feature = "tokio")]
    let runtime = tokio::runtime::Handle::try_current().ok();
    let thread = thread::Builder::new().name("redis-credentials".into());
    thread.spawn(move || {
        // Providers use its clock and its sockets.
        #[cfg(feature = "tokio")]
        let _inside = runtime.as_ref().map(tokio::runtime::Handle::enter);
        authentication.run();
    })?;
    Ok(())
}

struct Authentication {
    store: Arc<CredentialStore>,
    shared: Arc<Shared>,
    router: Weak<Router>,
}

impl Authentication {
    fn run(self) {
        loop {
            match self.store.next_step() {
                Step::Ask => self.store.answered(self.ask()),
                Step::Tell => self.tell(),
                Step::End => return,
            }
        }
    }

    fn ask(&self) -> Result<Credentials, String> {
        let deadline = after(self.shared.config.connect_timeout);
        let mut asked = pin!(self.store.provider.ask());
        let answer = self.store.block_on(deadline, |cx| asked.as_mut().poll(cx));
        answer.unwrap_or_else(|| Err("it took longer than connect_timeout".to_owned()))
    }

    /// Tells all connections.
    fn tell(&self) {
        let Ok((credentials, _)) = self.store.current() else {
            return;
        };
        for member in self.store.members() {
            member.authenticate(&credentials);
        }
        let Some(router) = self.router.upgrade() else {
            return;
        };
        let mut untold = Vec::new();
        for node in &router.routes().nodes {
            let conns = node.connections().iter().filter_map(|one| one.current());
            untold.extend(conns.map(|conn| Told::new(&node.endpoint, &conn)));
        }
        drop(router);
        let auth = encoded_auth(&credentials);
        let deadline = after(self.shared.config.timeout);
        let (mut refused, mut accepted) = (false, false);
        // What was sent and is not answered in time will be some time.
        let _all = self.store.block_on(deadline, |cx| {
            untold.retain_mut(|one| match one.poll(&auth, cx) {
                Poll::Pending => true,
                Poll::Ready(answer) => {
                    refused |= answer == Some(false);
                    accepted |= answer == Some(true);
                    false
                }
            });
            match untold.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        self.store.told(refused, accepted);
    }
}

/// A connection that is told.
struct Told {
    node: Endpoint,
    conn: Connection,
    turn: Turn,
    call: Option<Call>,
}

impl Told {
    fn new(node: &Endpoint, conn: &Connection) -> Self {
        Self {
            node: node.clone(),
            conn: conn.clone(),
            turn: Turn::default(),
            call: None,
        }
    }

    /// Ready when the server has accepted or refused, or, with `None`, when the connection is over: the next one begins with
    /// the new credentials.
    fn poll(&mut self, auth: &[u8], cx: &mut Context<'_>) -> Poll<Option<bool>> {
        let call = match &mut self.call {
            Some(call) => call,
            None => {
                let mut fill = |out: &mut [u8]| out.copy_from_slice(auth);
                let (len, class, turn) = (auth.len(), Class::Write as u8, &mut self.turn);
                let submitted = self
                    .conn
                    .poll_submit(turn, cx, len, 1, class, None, &mut fill);
                match submitted {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(call)) => self.call.insert(call),
                    Poll::Ready(Err(_)) => return Poll::Ready(None),
                }
            }
        };
        let answer = call.poll_reply(cx, |reply| match parse(reply) {
            Ok((View::Error(error), _)) => Err(ServerError::from(error)),
            _ => Ok(()),
        });
        answer.map(|answer| match answer {
            Ok(Ok(())) => Some(true),
            Ok(Err(error)) => {
                log_refusal(&self.node, &error);
                Some(false)
            }
            Err(_) => None,
        })
    }
}

/// A server does not take new credentials on a living connection.
pub(super) fn log_refusal(node: &Endpoint, error: &ServerError) {
    let error = &error.text;
    tracing::warn!(%node, error, "new credentials were refused; the connection keeps the old ones");
}
