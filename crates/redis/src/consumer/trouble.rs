//! Which errors pass by themselves.

use crate::error::Error;
use crate::resp::ErrorKind;

/// Whether the consumer goes on after a pause: a server is away, or takes no commands for now. Other errors last until
/// somebody does something about them.
pub(super) fn is_passing(error: &Error) -> bool {
    match error {
        Error::Unavailable { .. } | Error::UnknownOutcome(_) | Error::TimedOut | Error::Busy => {
            true
        }
        Error::Server(error) => {
            error.kind.is_retryable()
                || matches!(
                    error.kind,
                    ErrorKind::Unblocked
                        | ErrorKind::Busy
                        | ErrorKind::NoReplicas
                        | ErrorKind::Misconfigured
                        | ErrorKind::OutOfMemory
                )
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::ServerError;

    #[test]
    fn what_a_server_says_for_now_passes_and_what_it_says_of_the_group_lasts() {
        let passes = |text: &str| is_passing(&Error::Server(ServerError::new(text)));
        assert!(passes("LOADING Redis is loading the dataset in memory"));
        assert!(passes("UNBLOCKED client unblocked via CLIENT UNBLOCK"));
        assert!(passes("NOREPLICAS Not enough good replicas to write."));
        assert!(!passes("NOGROUP No such key 's' or consumer group 'g'"));
        assert!(!passes("WRONGTYPE Operation against a key"));
        assert!(is_passing(&Error::TimedOut));
        assert!(!is_passing(&Error::Closed));
    }
}
