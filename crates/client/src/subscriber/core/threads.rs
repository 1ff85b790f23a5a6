//! What a driver asks whose threads share the core: each has some of the channels, and no thread holds the core while it
//! looks at bytes.

use super::super::arriving::PayloadCheck;
use super::SubscriberCore;
use crate::connection::ChannelId;

impl SubscriberCore {
    /// Lends the checksum of the payload that the driver receives on `channel`, if it does, so that the driver may
    /// update it without the core. It goes back by [`SubscriberCore::return_check`].
    pub fn lend_check(&mut self, channel: ChannelId) -> Option<PayloadCheck> {
        self.channels[channel.data_index()?].lend_check()
    }

    /// Takes back the checksum that was lent, before the driver hands in the buffer of the payload.
    pub fn return_check(&mut self, channel: ChannelId, check: PayloadCheck) {
        if let Some(index) = channel.data_index() {
            self.channels[index].return_check(check);
        }
    }

    /// True if `channel` reads nothing before a buffer is returned.
    pub fn is_channel_starved(&self, channel: ChannelId) -> bool {
        let index = channel.data_index();
        index.is_some_and(|index| self.channels[index].is_starved(&self.config))
    }
}
