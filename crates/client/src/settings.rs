//! What the builders of publishers and subscribers have in common.

use std::time::Duration;

use embar_wire::topic::check_topic_name;

use crate::connection::MAX_NAME_BYTES;
use crate::error::Error;

pub(crate) const DEFAULT_OPEN_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn default_name() -> String {
    format!("embar-client {}", env!("CARGO_PKG_VERSION"))
}

/// Checks a topic's and a client's name, and that every limit leaves some time.
pub(crate) fn check(
    topic: &str,
    name: &str,
    limits: &[(&'static str, Duration)],
) -> Result<(), Error> {
    check_topic_name(topic).map_err(|rule| Error::setting("topic", topic, rule.to_string()))?;
    if name.len() > MAX_NAME_BYTES {
        let rule = format!("must have at most {MAX_NAME_BYTES} bytes");
        return Err(Error::setting("client_name", name, rule));
    }
    match limits.iter().find(|(_, limit)| limit.is_zero()) {
        None => Ok(()),
        Some((setting, _)) => Err(Error::setting(setting, "0", "must be longer than nothing")),
    }
}
