//! Colours of a text for people.

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const NORMAL: &str = "\x1b[0m";

/// Colours words, or leaves them as they are.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    is_on: bool,
}

impl Paint {
    /// Colours if `is_on`.
    pub const fn new(is_on: bool) -> Self {
        Self { is_on }
    }

    /// Whether it colours.
    pub fn is_on(self) -> bool {
        self.is_on
    }

    /// A heading, in bold.
    pub fn heading(self, text: &str) -> String {
        self.with(BOLD, text)
    }

    /// A word that says all is well, in green.
    pub fn good(self, text: &str) -> String {
        self.with(GREEN, text)
    }

    /// A word that says something is not well, in red.
    pub fn bad(self, text: &str) -> String {
        self.with(RED, text)
    }

    /// How long the code is with which a text begins, if it colours and that is one of its own; else 0.
    pub(crate) fn code_at_start(self, text: &str) -> usize {
        let codes = [BOLD, GREEN, RED, NORMAL];
        let own = codes.into_iter().find(|code| text.starts_with(code));
        own.filter(|_| self.is_on).map_or(0, str::len)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.is_on {
            format!("{code}{text}{NORMAL}")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_colours_unless_asked() {
        assert_eq!(Paint::new(false).good("ok"), "ok");
        assert_eq!(Paint::new(true).good("ok"), "\x1b[32mok\x1b[0m");
    }
}
