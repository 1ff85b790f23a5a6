//! How a call ended that brought no reply: the codes of gRPC, with their meanings.

use std::fmt;

use thiserror::Error;

use crate::limits::{MAX_DETAILS_BYTES, MAX_STATUS_TEXT_BYTES};

macro_rules! codes {
    ($($number:literal $name:ident $make:ident $doc:literal;)*) => {
        /// The kind of a [`Status`]. Numbers and meanings are those of gRPC.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Code {
            /// No error: the call brought its reply.
            Ok = 0,
            $(#[doc = $doc] $name = $number,)*
        }

        impl Code {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; 17] = [Self::Ok, $(Self::$name,)*];

            /// Its name, as gRPC writes it in Rust.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Ok => "Ok",
                    $(Self::$name => stringify!($name),)*
                }
            }
        }

        impl Status {
            $(#[doc = $doc]
            #[must_use]
            pub fn $make(text: impl Into<String>) -> Self {
                Self::new(Code::$name, text)
            })*
        }
    };
}

codes! {
    1 Cancelled cancelled "The caller gave the call up.";
    2 Unknown unknown "An error that has no other code.";
    3 InvalidArgument invalid_argument "The request makes no sense, whatever the state of the server.";
    4 DeadlineExceeded deadline_exceeded "The time of the call was over before its end.";
    5 NotFound not_found "What was asked for is not there.";
    6 AlreadyExists already_exists "What was to be made is there already.";
    7 PermissionDenied permission_denied "The caller may not do this.";
    8 ResourceExhausted resource_exhausted "Something is used up: calls in flight, memory, a quota.";
    9 FailedPrecondition failed_precondition "The server's state must change before this can be done.";
    10 Aborted aborted "Others were faster: try it all again.";
    11 OutOfRange out_of_range "Beyond what there is.";
    12 Unimplemented unimplemented "The server has no such method.";
    13 Internal internal "A bug, or bytes that make no sense.";
    14 Unavailable unavailable "The server cannot be reached now: try again, if the call may be made twice.";
    15 DataLoss data_loss "Data is lost or damaged.";
    16 Unauthenticated unauthenticated "The caller did not say who it is, or cannot prove it.";
}

impl Code {
    /// The code with this number; [`Code::Unknown`] for a number that has none.
    #[must_use]
    pub fn from_number(number: u16) -> Self {
        let code = Self::ALL.get(usize::from(number));
        code.copied().unwrap_or(Self::Unknown)
    }

    /// Its number, on the wire and in gRPC.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{code}: {text}")]
pub struct Status {
    code: Code,
    text: String,
    details: Vec<u8>,
    unsent: bool,
}

impl Status {
    /// A status with this code and a text for people. Of the text, at most [`MAX_STATUS_TEXT_BYTES`]
    /// go to the other end. A status is an error, so [`Code::Ok`] becomes [`Code::Unknown`].
    #[must_use]
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        let code = match code {
            Code::Ok => Code::Unknown,
            code => code,
        };
        Self {
            code,
            text: text.into(),
            details: Vec::new(),
            unsent: false,
        }
    }

    /// The same with details for programs, in whatever format both ends agree on. Those above
    /// [`MAX_DETAILS_BYTES`] do not go to the other end.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Vec<u8>>) -> Self {
        self.details = details.into();
        self
    }

    /// The request did not leave.
    pub(crate) fn unsent(mut self) -> Self {
        self.unsent = true;
        self
    }

    /// Its kind.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// For programs; empty if there are none.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        &self.details
    }

    /// Whether the method may have run, or may still run. False is sure: the request did not leave
    /// this process, so the call can be made again whatever it does.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        !self.unsent
    }

    /// What goes to the other end of text and details.
    pub(crate) fn on_the_wire(&self) -> (&str, &[u8]) {
        let mut end = self.text.len().min(MAX_STATUS_TEXT_BYTES);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let details = match self.details.len() {
            0..=MAX_DETAILS_BYTES => &self.details[..],
            _ => &[],
        };
        (&self.text[..end], details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_grpc() {
        for (number, code) in (0..).zip(Code::ALL) {
            assert_eq!((code.number(), Code::from_number(number)), (number, code));
        }
        assert_eq!(Code::Unauthenticated.number(), 16);
        assert_eq!(Code::from_number(17), Code::Unknown);
        assert_eq!(Status::new(Code::Ok, "").code(), Code::Unknown);
        let status = Status::not_found("no such user");
        assert_eq!(status.to_string(), "NotFound: no such user");
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        let status = Status::internal("ä".repeat(MAX_STATUS_TEXT_BYTES)).with_details([1; 5]);
        let (text, details) = status.on_the_wire();
        assert_eq!(text.len(), MAX_STATUS_TEXT_BYTES);
        assert_eq!(details, [1; 5]);
        let status = Status::internal("aä".repeat(MAX_STATUS_TEXT_BYTES))
            .with_details([1; MAX_DETAILS_BYTES + 1]);
        let (text, details) = status.on_the_wire();
        assert_eq!(text.len(), MAX_STATUS_TEXT_BYTES);
        assert!(details.is_empty());
    }
}
