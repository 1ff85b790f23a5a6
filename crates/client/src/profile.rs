//! Which stages and counters publishers and subscribers measure: their names, and the indices by which the code that
//! measures names them.

use embar_meter::Schema;

/// Stages and counters of a publisher.
pub mod publisher {
    use super::Schema;

    /// Title, stages and counters, in the order of the indices below.
    pub static SCHEMA: Schema = Schema {
        title: "PublisherPipelineProfile",
        stages: &["BufferWrite", "WaitForBuffer", "SendPayload", "WaitForAck"],
        counters: &[
            "send_calls",
            "send_bytes",
            "send_eagain",
            "batches",
            "messages",
            "batches_resent",
            "reconnects",
            "tcp_connections",
            "unix_connections",
            "shm_connections",
            "caller_sends",
            "caller_waits",
        ],
    };

    /// Writing a message into the current batch; sampled, one event per message.
    pub const BUFFER_WRITE: usize = 0;
    /// Waiting because no batch buffer was free.
    pub const WAIT_FOR_BUFFER: usize = 1;
    /// Send calls of a batch.
    pub const SEND_PAYLOAD: usize = 2;
    /// From a batch's hand-over to its connection until it was acknowledged. Waits overlap, so the sum may exceed the
    /// time that passed.
    pub const WAIT_FOR_ACK: usize = 3;

    /// Send calls made.
    pub const SEND_CALLS: usize = 0;
    /// Bytes handed to the kernel.
    pub const SEND_BYTES: usize = 1;
    /// Send calls that found no room in the socket.
    pub const SEND_EAGAIN: usize = 2;
    /// Batches sealed.
    pub const BATCHES: usize = 3;
    /// Messages in sealed batches.
    pub const MESSAGES: usize = 4;
    /// Batches sent again after their connection was lost.
    pub const BATCHES_RESENT: usize = 5;
    /// Connections opened again after a loss.
    pub const RECONNECTS: usize = 6;
    /// Connections made to data brokers by TCP.
    pub const TCP_CONNECTIONS: usize = 7;
    /// The same by Unix sockets.
    pub const UNIX_CONNECTIONS: usize = 8;
    /// The same by shared memory.
    pub const SHM_CONNECTIONS: usize = 9;
    /// Sends that a thread made whole which submitted a batch, instead of the connection's own.
    pub const CALLER_SENDS: usize = 10;
    /// Waits for an outcome in which the waiting thread drove the connection.
    pub const CALLER_WAITS: usize = 11;
}

/// Stages and counters of a subscriber.
pub mod subscriber {
    use super::Schema;

    /// Title, stages and counters, in the order of the indices below.
    pub static SCHEMA: Schema = Schema {
        title: "SubscriberPipelineProfile",
        stages: &["Receive", "Verify", "Deliver", "WaitForBatch"],
        counters: &[
            "recv_calls",
            "recv_bytes",
            "recv_eagain",
            "batches",
            "messages",
            "tcp_connections",
            "unix_connections",
            "shm_connections",
            "lent_bytes",
        ],
    };

    /// Receive calls; one event per completed receive.
    pub const RECEIVE: usize = 0;
    /// Checking headers, checksums and offsets; one event per completed receive.
    pub const VERIFY: usize = 1;
    /// Handing a batch to the consumer.
    pub const DELIVER: usize = 2;
    /// Waiting because no batch was there to be read: the consumer's time, not that of the threads that receive.
    pub const WAIT_FOR_BATCH: usize = 3;

    /// Receive calls made.
    pub const RECV_CALLS: usize = 0;
    /// Bytes received.
    pub const RECV_BYTES: usize = 1;
    /// Receive calls that found nothing.
    pub const RECV_EAGAIN: usize = 2;
    /// Batches delivered.
    pub const BATCHES: usize = 3;
    /// Messages in delivered batches.
    pub const MESSAGES: usize = 4;
    /// Connections made to data brokers by TCP.
    pub const TCP_CONNECTIONS: usize = 5;
    /// The same by Unix sockets.
    pub const UNIX_CONNECTIONS: usize = 6;
    /// The same by shared memory.
    pub const SHM_CONNECTIONS: usize = 7;
    /// Bytes of payloads that were read where a broker lends them; among the ones received.
    pub const LENT_BYTES: usize = 8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_index_of_each_table_is_its_last_name() {
        assert_eq!(
            publisher::SCHEMA.stages[publisher::WAIT_FOR_ACK],
            "WaitForAck"
        );
        assert_eq!(
            publisher::SCHEMA.counters[publisher::CALLER_WAITS],
            "caller_waits"
        );
        assert_eq!(
            subscriber::SCHEMA.stages[subscriber::WAIT_FOR_BATCH],
            "WaitForBatch"
        );
        assert_eq!(
            subscriber::SCHEMA.counters[subscriber::LENT_BYTES],
            "lent_bytes"
        );
    }
}
