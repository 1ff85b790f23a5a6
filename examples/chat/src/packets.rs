//! What both sides know: packet ids, messages, and what a name and a line may be.

use std::borrow::Cow;

#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/chat.include.rs"));
}

pub use generated::chat::v1::*;

/// Packet ids; every frame carries one.
pub mod id {
    /// [`Say`](super::Say)
    pub const SAY: u16 = 1;
    /// [`Present`](super::Present)
    pub const PRESENT: u16 = 2;
    /// [`Joined`](super::Joined)
    pub const JOINED: u16 = 3;
    /// [`Left`](super::Left)
    pub const LEFT: u16 = 4;
    /// [`Said`](super::Said)
    pub const SAID: u16 = 5;
    /// [`Welcome`](super::Welcome)
    pub const WELCOME: u16 = 6;
}

/// Tells a member from all others, also when it comes again. Who knows it can take the member's place.
pub type MemberId = [u8; 16];

/// Longest name, in characters.
const NAME_MAX: usize = 24;
/// Longest line, in bytes; the rest of a longer one is cut off.
pub const LINE_MAX: usize = 2000;

/// Whether `name` may come in.
///
/// # Errors
/// What to change.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.chars().count() > NAME_MAX {
        return Err(format!("a name has 1 to {NAME_MAX} characters"));
    }
    match name
        .chars()
        .find(|c| !c.is_alphanumeric() && !"-_.".contains(*c))
    {
        Some(c) => Err(format!(
            "a name has letters, digits, '-', '_' and '.', not {c:?}"
        )),
        None => Ok(()),
    }
}

/// `text` without what would confuse a terminal, and no longer than [`LINE_MAX`]. Neither side
/// trusts the other, so both call this.
pub fn clean(text: &str) -> Cow<'_, str> {
    let text = text[..text.floor_char_boundary(LINE_MAX)].trim_end();
    if text.contains(char::is_control) {
        return Cow::Owned(text.chars().filter(|c| !c.is_control()).collect());
    }
    Cow::Borrowed(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_words() {
        for good in ["anna", "Jörg", "a.b-c_9", &"x".repeat(24)] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["", "two words", "tab\t", "\u{1b}[31m", &"x".repeat(25)] {
            check_name(bad).unwrap_err();
        }
    }

    #[test]
    fn lines_lose_what_a_terminal_would_obey() {
        assert_eq!(clean("hello \r\n"), "hello");
        assert_eq!(clean("a\u{1b}[2Jb"), "a[2Jb");
        assert_eq!(clean(&"é".repeat(LINE_MAX)).len(), LINE_MAX);
    }
}
