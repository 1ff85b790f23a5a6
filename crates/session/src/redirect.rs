//! GOODBYE, and where a peer is sent by it.

use std::time::Duration;

use crate::CloseReason;
use crate::proto::GoodbyeView;

/// Longest address of a redirect, bytes.
pub const MAX_REDIRECT_BYTES: usize = 255;

/// Where a peer is asked to connect instead, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    pub(crate) address: String,
    pub(crate) after_ms: u32,
}

/// Text that cannot be the address of a redirect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} cannot be where a redirect leads: write 1 to {MAX_REDIRECT_BYTES} bytes of text without control characters"
)]
pub struct RedirectError {
    text: String,
}

impl Redirect {
    /// To this address, as the peer can parse it: an [`Address`](crate::Address) as text, or what else both programs agree on.
    ///
    /// # Errors
    /// [`RedirectError`] if it is empty, longer than [`MAX_REDIRECT_BYTES`], or has control characters.
    pub fn to(address: impl Into<String>) -> Result<Self, RedirectError> {
        let address = address.into();
        if !is_good(&address) {
            return Err(RedirectError { text: address });
        }
        Ok(Self {
            address,
            after_ms: 0,
        })
    }

    /// Asks the peer to wait for so long before it connects, in whole milliseconds, at most 49 days. Peers that get different waits do not all
    /// come at once.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.after_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        self
    }
}

fn is_good(address: &str) -> bool {
    (1..=MAX_REDIRECT_BYTES).contains(&address.len()) && !address.chars().any(char::is_control)
}

/// The peer asks for nothing new and ends soon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Goodbye<'a> {
    /// Why, for people; may be empty.
    pub text: &'a str,
    /// Where the peer asks this end to connect instead: text of 1 to [`MAX_REDIRECT_BYTES`] bytes without control characters, usually an
    /// [`Address`](crate::Address).
    ///
    /// This library does not follow it. Whoever does trusts the peer with where it connects, so compare it with the addresses that you
    /// expect, or be sure by TLS of who is there. To parse a host's name asks the resolver.
    pub redirect: Option<&'a str>,
    /// How long to wait before that.
    pub after: Duration,
}

impl<'a> Goodbye<'a> {
    pub(crate) fn of(view: &GoodbyeView<'a>) -> Self {
        Self {
            text: view.text,
            redirect: (!view.redirect.is_empty()).then_some(view.redirect),
            after: Duration::from_millis(view.delay_ms.into()),
        }
    }

    /// What is wrong with one of the peer.
    pub(crate) fn check(view: &GoodbyeView<'_>) -> Result<(), (CloseReason, String)> {
        if view.redirect.is_empty() || is_good(view.redirect) {
            return Ok(());
        }
        let text = "Goodbye: the address of its redirect is too long, or has control characters";
        Err((CloseReason::BadFrame, text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_to_text_of_a_sane_length() {
        for good in ["127.0.0.1:80", "unix:/run/a b", "host.example:7000"] {
            assert_eq!(Redirect::to(good).unwrap().address, good);
        }
        for bad in [
            String::new(),
            "a\nb".into(),
            "\u{1b}[2J".into(),
            "a".repeat(256),
        ] {
            assert!(Redirect::to(bad.clone()).is_err(), "{bad:?}");
            let view = GoodbyeView {
                redirect: &bad,
                ..GoodbyeView::default()
            };
            assert_eq!(Goodbye::check(&view).is_ok(), bad.is_empty(), "{bad:?}");
        }
        let late = Redirect::to("x").unwrap().after(Duration::MAX);
        assert_eq!(late.after_ms, u32::MAX);
    }
}
