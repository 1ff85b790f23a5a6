//! Errors of the system that, unlike `std::io::Error`, can be cloned and compared.

use std::io;
use std::sync::Arc;

/// An [`io::Error`], shared by all who hear of it. Two are equal if they are of one kind and say the same.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct IoError(Arc<io::Error>);

impl IoError {
    /// What kind of error the system reported.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.0.kind()
    }
}

impl From<io::Error> for IoError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl PartialEq for IoError {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.to_string() == other.to_string()
    }
}

impl Eq for IoError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_the_same_is_the_same() {
        let error = |kind, text: &str| IoError::from(io::Error::new(kind, text.to_string()));
        let reset = || error(io::ErrorKind::ConnectionReset, "a");
        assert_eq!(reset(), reset());
        assert_ne!(reset(), error(io::ErrorKind::ConnectionReset, "b"));
        assert_ne!(reset(), error(io::ErrorKind::ConnectionRefused, "a"));
    }
}
