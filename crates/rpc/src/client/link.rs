//! What the handles of a channel are made of, and its calls.

use std::sync::Arc;

use embar_session::Session;

use super::table::Table;
use crate::{Metadata, Method, Status};

/// Adds metadata to each call; see [`Channel::intercept`](super::Channel::intercept).
type Interceptor = dyn Fn(&Method, &mut Metadata) -> Result<(), Status> + Send + Sync;

/// A session, the calls that it has in flight, and what is done to each call before it leaves.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) table: Arc<Table>,
    pub(super) session: Session,
    interceptor: Option<Arc<Interceptor>>,
}

impl Link {
    /// Of a table whose session is open.
    pub(super) fn new(table: Arc<Table>, session: Session) -> Self {
        Self {
            table,
            session,
            interceptor: None,
        }
    }

    /// The same with one interceptor more.
    pub(super) fn intercept(
        &self,
        interceptor: impl Fn(&Method, &mut Metadata) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        let interceptor: Arc<Interceptor> = match self.interceptor.clone() {
            None => Arc::new(interceptor),
            Some(before) => Arc::new(move |method: &Method, metadata: &mut Metadata| {
                before(method, metadata)?;
                interceptor(method, metadata)
            }),
        };
        Self {
            interceptor: Some(interceptor),
            ..self.clone()
        }
    }

    pub(super) fn add_metadata(
        &self,
        method: &Method,
        metadata: &mut Metadata,
    ) -> Result<(), Status> {
        match &self.interceptor {
            Some(interceptor) => interceptor(method, metadata).map_err(Status::unsent),
            None => Ok(()),
        }
    }
}
