//! Bytes as text for JSON: as they are if they are UTF-8, in base64 if not.

/// Bytes as text for JSON: as they are when they are UTF-8, else in base64 (RFC 4648, padded).
#[derive(Debug, PartialEq, Eq)]
pub enum Text<'a> {
    /// Valid UTF-8.
    Plain(&'a str),
    /// Anything else.
    Base64(String),
}

impl<'a> Text<'a> {
    /// Picks the form.
    pub fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Plain(text),
            Err(_) => Self::Base64(base64(bytes)),
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for place in 0..4 {
            if place <= group.len() {
                text.push(char::from(
                    ALPHABET[(word >> (18 - 6 * place)) as usize & 63],
                ));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_the_rfc() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn only_bytes_that_are_no_text_are_encoded() {
        assert_eq!(Text::of("grün".as_bytes()), Text::Plain("grün"));
        assert_eq!(Text::of(&[0xff]), Text::Base64("/w==".into()));
    }
}
