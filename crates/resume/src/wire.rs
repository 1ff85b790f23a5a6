//! What travels: the greetings, and the messages between the messages. Whatever a peer sends here, this reads or refuses.

use buffa::{DecodeOptions, MessageView, ViewEncode};
use embar_session::MAX_GREETING_BYTES;

use crate::proto::{ControlView, Fresh, HelloView, Outcome, WelcomeView};
use crate::state::WhyFresh;
use crate::token::{TOKEN_BYTES, Token};

/// The message id that belongs to resumption: messages of a program have lower ones.
pub const RESERVED_ID: u16 = 0xFEFF;

/// Longest greeting of a program, in bytes.
pub const MAX_PROGRAM_GREETING_BYTES: usize = MAX_GREETING_BYTES - 128;

/// What a greeting takes beside the program's own and the token: tags, lengths and numbers.
const OTHER_FIELDS_BYTES: usize = 90;
const _: () = assert!(OTHER_FIELDS_BYTES + TOKEN_BYTES <= 128);

/// Longest Control, in bytes.
pub(crate) const MAX_CONTROL_BYTES: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"EMBR");
const VERSION: u32 = 1;

/// Why an end closed a connection, as its code beside [`CloseReason::Refused`](embar_session::CloseReason::Refused).
pub(crate) mod code {
    /// Another connection has resumed the session.
    pub(crate) const TAKEN_OVER: u32 = 0x454D_0001;
    /// The peer broke a rule of resumption.
    pub(crate) const BAD_PEER: u32 = 0x454D_0002;
    /// The replay buffer is full, and the session is to end then.
    pub(crate) const FULL: u32 = 0x454D_0003;
    /// A message that waits is longer than the peer takes.
    pub(crate) const UNSENDABLE: u32 = 0x454D_0004;
    /// The handler panicked.
    pub(crate) const PANICKED: u32 = 0x454D_0005;
}

pub(crate) struct Hello<'a> {
    pub(crate) token: Option<&'a [u8]>,
    pub(crate) received: u64,
    pub(crate) keeps: Keeps,
    pub(crate) greeting: &'a [u8],
    /// Which of the session's connections this is; 0: not told.
    pub(crate) attempt: u64,
}

/// What the sender keeps at most until it is acknowledged; 0: not told.
#[derive(Clone, Copy)]
pub(crate) struct Keeps {
    pub(crate) messages: u32,
    pub(crate) bytes: u32,
}

pub(crate) enum Answer {
    Fresh(WhyFresh),
    Resumed,
    Draining,
}

pub(crate) struct Welcome<'a> {
    pub(crate) answer: Answer,
    pub(crate) token: Option<Token>,
    pub(crate) received: u64,
    pub(crate) keeps: Keeps,
    pub(crate) window_ms: u64,
    pub(crate) greeting: &'a [u8],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) received: u64,
    pub(crate) answer: bool,
    pub(crate) leaving: bool,
    pub(crate) left: bool,
}

/// Which end says something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    Client,
    Server,
}

impl Hello<'_> {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let view = HelloView {
            magic: MAGIC,
            version: VERSION,
            token: self.token.unwrap_or_default(),
            received: self.received,
            replay_messages: self.keeps.messages,
            replay_bytes: self.keeps.bytes,
            greeting: self.greeting,
            attempt: self.attempt,
        };
        view.encode_to_vec()
    }

    /// # Errors
    /// The text for the peer.
    pub(crate) fn read(bytes: &[u8]) -> Result<Hello<'_>, String> {
        let view: HelloView<'_> = read(bytes).ok_or_else(not_resumable)?;
        check(view.magic, view.version)?;
        if view.greeting.len() > MAX_PROGRAM_GREETING_BYTES {
            return Err("the greeting is too long".to_owned());
        }
        Ok(Hello {
            token: (!view.token.is_empty()).then_some(view.token),
            received: view.received,
            keeps: Keeps {
                messages: view.replay_messages,
                bytes: view.replay_bytes,
            },
            greeting: view.greeting,
            attempt: view.attempt,
        })
    }
}

/// What a client's program says in a greeting, of which resumption has a part of its own: for a server that gives sessions
/// [priorities](embar_session::ServerBuilder::prioritize). `None` if the client does not resume; the keeper refuses it.
///
/// A client says the same on each of its connections.
#[must_use]
pub fn program_greeting(greeting: &[u8]) -> Option<&[u8]> {
    Hello::read(greeting).ok().map(|hello| hello.greeting)
}

impl Welcome<'_> {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (outcome, fresh) = match self.answer {
            Answer::Fresh(why) => (Outcome::OUTCOME_FRESH, number_of(why)),
            Answer::Resumed => (Outcome::OUTCOME_RESUMED, Fresh::FRESH_UNSPECIFIED),
            Answer::Draining => (Outcome::OUTCOME_DRAINING, Fresh::FRESH_UNSPECIFIED),
        };
        let token = self.token.map(|token| token.to_bytes());
        let view = WelcomeView {
            magic: MAGIC,
            version: VERSION,
            outcome: outcome.into(),
            fresh: fresh.into(),
            token: token.as_ref().map_or(&[], |token| token.as_slice()),
            received: self.received,
            replay_messages: self.keeps.messages,
            replay_bytes: self.keeps.bytes,
            window_ms: self.window_ms,
            greeting: self.greeting,
        };
        view.encode_to_vec()
    }

    /// # Errors
    /// The text for the peer.
    pub(crate) fn read(bytes: &[u8]) -> Result<Welcome<'_>, String> {
        let view: WelcomeView<'_> = read(bytes).ok_or_else(not_resumable)?;
        check(view.magic, view.version)?;
        let answer = match view.outcome.to_i32() {
            number if number == Outcome::OUTCOME_FRESH as i32 => {
                Answer::Fresh(why_of(view.fresh.to_i32()))
            }
            number if number == Outcome::OUTCOME_RESUMED as i32 => Answer::Resumed,
            number if number == Outcome::OUTCOME_DRAINING as i32 => Answer::Draining,
            number => return Err(format!("there is no outcome {number} of a greeting")),
        };
        let token = Token::read(view.token);
        if token.is_none() && !matches!(answer, Answer::Draining) {
            return Err("a greeting without a token".to_owned());
        }
        Ok(Welcome {
            answer,
            token,
            received: view.received,
            keeps: Keeps {
                messages: view.replay_messages,
                bytes: view.replay_bytes,
            },
            window_ms: view.window_ms,
            greeting: view.greeting,
        })
    }
}

impl Control {
    fn view(&self) -> ControlView<'static> {
        ControlView {
            received: self.received,
            answer: self.answer,
            leaving: self.leaving,
            left: self.left,
            ..ControlView::default()
        }
    }

    /// Sends it by `send`, as a message of [`RESERVED_ID`].
    pub(crate) fn send_on(
        self,
        session: &embar_session::Session,
    ) -> Result<(), embar_session::SendError> {
        session.send_view(RESERVED_ID, &self.view())
    }

    /// What `by` said.
    ///
    /// # Errors
    /// How it broke the rules.
    pub(crate) fn read(bytes: &[u8], by: Speaker) -> Result<Self, String> {
        let too_long = bytes.len() > MAX_CONTROL_BYTES;
        let view: Option<ControlView<'_>> = read(bytes).filter(|_| !too_long);
        let view = view.ok_or("a control message that cannot be read")?;
        let is_out_of_place = match by {
            Speaker::Client => view.left,
            Speaker::Server => view.leaving,
        };
        if is_out_of_place {
            return Err("only a client leaves, and only a server lets it go".to_owned());
        }
        Ok(Self {
            received: view.received,
            answer: view.answer,
            leaving: view.leaving,
            left: view.left,
        })
    }
}

fn number_of(why: WhyFresh) -> Fresh {
    match why {
        WhyFresh::New | WhyFresh::Moved => Fresh::FRESH_UNSPECIFIED,
        WhyFresh::Unknown => Fresh::FRESH_UNKNOWN,
        WhyFresh::OldToken => Fresh::FRESH_OLD_TOKEN,
        WhyFresh::Expired => Fresh::FRESH_EXPIRED,
        WhyFresh::Evicted => Fresh::FRESH_EVICTED,
        WhyFresh::Ended => Fresh::FRESH_ENDED,
    }
}

/// A number that only a newer version knows is as good as unknown.
fn why_of(number: i32) -> WhyFresh {
    let known = [
        WhyFresh::New,
        WhyFresh::OldToken,
        WhyFresh::Expired,
        WhyFresh::Evicted,
        WhyFresh::Ended,
    ];
    let is = |why: &WhyFresh| number_of(*why) as i32 == number;
    known.into_iter().find(is).unwrap_or(WhyFresh::Unknown)
}

fn check(magic: u32, version: u32) -> Result<(), String> {
    if magic != MAGIC {
        return Err(not_resumable());
    }
    if version != VERSION {
        return Err(format!(
            "this end has version {VERSION} of resumption, the peer {version}: use the same release"
        ));
    }
    Ok(())
}

fn not_resumable() -> String {
    "one end resumes sessions and the other does not: use embar-resume on both, or on neither"
        .to_owned()
}

fn read<'a, V: MessageView<'a>>(bytes: &'a [u8]) -> Option<V> {
    DecodeOptions::new()
        .with_max_message_size(MAX_GREETING_BYTES)
        .with_element_memory_limit(0)
        .with_unknown_field_limit(64)
        .with_recursion_limit(4)
        .decode_view(bytes)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPS: Keeps = Keeps {
        messages: u32::MAX,
        bytes: u32::MAX,
    };

    #[test]
    fn the_longest_greetings_fit() {
        let greeting = [0; MAX_PROGRAM_GREETING_BYTES];
        let token = [255; TOKEN_BYTES];
        let hello = Hello {
            token: Some(&token),
            received: u64::MAX,
            keeps: KEEPS,
            greeting: &greeting,
            attempt: u64::MAX,
        };
        assert!(hello.to_bytes().len() <= MAX_GREETING_BYTES);
        let welcome = Welcome {
            answer: Answer::Fresh(WhyFresh::Ended),
            token: Token::read(&token),
            received: u64::MAX,
            keeps: KEEPS,
            window_ms: u64::MAX,
            greeting: &greeting,
        };
        let bytes = welcome.to_bytes();
        assert!(bytes.len() <= MAX_GREETING_BYTES);
        let read = Welcome::read(&bytes).unwrap();
        assert!(matches!(read.answer, Answer::Fresh(WhyFresh::Ended)));
        assert_eq!(read.greeting.len(), greeting.len());
        let control = Control {
            received: u64::MAX,
            answer: true,
            leaving: true,
            left: true,
        };
        assert!(control.view().encode_to_vec().len() <= MAX_CONTROL_BYTES);
    }

    #[test]
    fn only_clients_leave_and_only_servers_let_them_go() {
        let control = Control {
            received: u64::MAX,
            answer: true,
            ..Control::default()
        };
        let leaving = Control {
            leaving: true,
            ..control
        };
        let left = Control {
            left: true,
            ..control
        };
        let read = |said: Control, by| Control::read(&said.view().encode_to_vec(), by).ok();
        for (said, by_client, by_server) in [
            (control, true, true),
            (leaving, true, false),
            (left, false, true),
        ] {
            assert_eq!(read(said, Speaker::Client), by_client.then_some(said));
            assert_eq!(read(said, Speaker::Server), by_server.then_some(said));
        }
    }

    #[test]
    fn what_is_no_greeting_of_this_version_is_refused() {
        for bytes in [&b""[..], b"hello", &[0xFF; 100]] {
            assert!(Hello::read(bytes).is_err());
            assert!(Welcome::read(bytes).is_err());
        }
        let newer = HelloView {
            magic: MAGIC,
            version: VERSION + 1,
            ..HelloView::default()
        };
        let refused = Hello::read(&newer.encode_to_vec()).err().unwrap();
        assert!(refused.contains("the peer 2"), "{refused}");
        assert!(Control::read(&[0xFF; 5], Speaker::Client).is_err());
        assert!(Control::read(&[0; MAX_CONTROL_BYTES + 1], Speaker::Client).is_err());
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
            at in 0..40usize,
            byte in proptest::num::u8::ANY,
        ) {
            let _ = (Hello::read(&bytes), Welcome::read(&bytes).is_ok());
            let _ = (Control::read(&bytes, Speaker::Client), Control::read(&bytes, Speaker::Server));
            // Nearly right.
            let token = [7; TOKEN_BYTES];
            let hello = Hello {
                token: Some(&token),
                received: 5,
                keeps: KEEPS,
                greeting: &bytes,
                attempt: 1,
            };
            let mut near = hello.to_bytes();
            let index = at.min(near.len() - 1);
            near[index] = byte;
            let _ = Hello::read(&near).map(|hello| hello.token.and_then(Token::read));
            let _ = Welcome::read(&near).is_ok();
        }
    }

    #[test]
    fn every_reason_travels() {
        for number in 0..=5 {
            assert_eq!(number_of(why_of(number)) as i32, number);
        }
        assert_eq!(why_of(99), WhyFresh::Unknown);
    }
}
