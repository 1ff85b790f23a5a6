//! Puts an error and its causes into one message for people.

use std::error::Error;

/// The message of an error and of its causes, each once: many messages quote their cause already.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    for cause in causes.map(ToString::to_string) {
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Layer {
        message: &'static str,
        source: Box<dyn Error + Send + Sync>,
    }

    #[test]
    fn a_cause_that_was_quoted_is_not_said_again() {
        let message = "cannot listen: port in use; choose another";
        let source = io::Error::other("port in use").into();
        let quoting = Layer { message, source };
        let outer = Layer {
            message: "broker 1",
            source: quoting.into(),
        };
        assert_eq!(
            explain(&outer),
            "broker 1: cannot listen: port in use; choose another"
        );
    }
}
