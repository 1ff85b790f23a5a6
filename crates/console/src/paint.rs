//! Colours of a text for people.

/// Colours words, or leaves them as they are.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    is_on: bool,
}

impl Paint {
    /// Colours if `is_on`.
    pub fn new(is_on: bool) -> Self {
        Self { is_on }
    }

    /// Whether it colours.
    pub fn is_on(self) -> bool {
        self.is_on
    }

    /// A heading, in bold.
    pub fn heading(self, text: &str) -> String {
        self.with("1", text)
    }

    /// A word that says all is well, in green.
    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    /// A word that says something is not well, in red.
    pub fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.is_on {
            format!("\x1b[{code}m{text}\x1b[0m")
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
