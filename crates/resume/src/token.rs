//! Tokens: what a client shows to resume its session.
//!
//! A token has two halves of 128 random bits. The name finds the session and stays the same. The secret is compared in
//! constant time and is another one after each resumption. The one before it is good until the client has shown that it
//! knows the new one, because the answer that carries that may be lost.

use std::fmt;

use subtle::ConstantTimeEq;

/// Length of a token, in bytes.
pub const TOKEN_BYTES: usize = 32;

const HALF: usize = TOKEN_BYTES / 2;

/// The half of a token that finds a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name([u8; HALF]);

/// The half of a token that proves whose it is.
#[derive(Clone, Copy)]
pub struct Secret([u8; HALF]);

impl Secret {
    fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// What a client shows.
#[derive(Clone, Copy)]
pub struct Token {
    /// Which session.
    pub name: Name,
    /// That it is the client's.
    pub secret: Secret,
}

impl Token {
    /// From its bytes; `None` if their number is another.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (name, secret) = bytes.split_at_checked(HALF)?;
        Some(Self {
            name: Name(name.try_into().ok()?),
            secret: Secret(secret.try_into().ok()?),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; TOKEN_BYTES] {
        let mut bytes = [0; TOKEN_BYTES];
        bytes[..HALF].copy_from_slice(&self.name.0);
        bytes[HALF..].copy_from_slice(&self.secret.0);
        bytes
    }
}

/// Never shows what a token is made of.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The tokens of one session on the side that checks them.
pub struct Tokens {
    name: Name,
    current: Secret,
    /// Good until the client has shown that it knows the current one.
    previous: Option<Secret>,
}

impl Tokens {
    /// Those of a session that begins with this token.
    #[must_use]
    pub fn new(first: Token) -> Self {
        Self {
            name: first.name,
            current: first.secret,
            previous: None,
        }
    }

    /// Whether a client that shows `secret` may resume.
    #[must_use]
    pub fn accept(&self, secret: &Secret) -> bool {
        // Both are looked at, whichever it is.
        let previous = self.previous.is_some_and(|it| it.is(secret));
        self.current.is(secret) | previous
    }

    /// The client that showed `shown`, which was accepted, is sent a new token with the secret `next`.
    pub fn rotate(&mut self, shown: Secret, next: Secret) -> Token {
        self.previous = Some(shown);
        self.current = next;
        Token {
            name: self.name,
            secret: next,
        }
    }

    /// The client knows the current token: no other is good any more.
    pub fn confirmed(&mut self) {
        self.previous = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret([byte; HALF])
    }

    fn tokens() -> Tokens {
        Tokens::new(Token {
            name: Name([9; HALF]),
            secret: secret(1),
        })
    }

    #[test]
    fn an_old_token_is_good_until_the_client_has_the_new_one() {
        let mut tokens = tokens();
        assert!(tokens.accept(&secret(1)));
        assert!(!tokens.accept(&secret(2)));
        tokens.rotate(secret(1), secret(2));
        // The answer was lost, twice.
        assert!(tokens.accept(&secret(1)));
        tokens.rotate(secret(1), secret(3));
        assert!(tokens.accept(&secret(1)) && tokens.accept(&secret(3)));
        assert!(!tokens.accept(&secret(2)), "nobody ever had that one");
        tokens.confirmed();
        assert!(!tokens.accept(&secret(1)) && tokens.accept(&secret(3)));
        // The client shows the latest one: those before it are over.
        tokens.rotate(secret(3), secret(4));
        assert!(!tokens.accept(&secret(1)));
    }

    #[test]
    fn tokens_are_of_one_length_and_show_nothing() {
        for len in (0..100).filter(|len| *len != TOKEN_BYTES) {
            assert!(Token::read(&vec![0; len]).is_none());
        }
        let bytes: Vec<u8> = (0..TOKEN_BYTES as u8).collect();
        let token = Token::read(&bytes).unwrap();
        assert_eq!(token.to_bytes(), *bytes);
        assert_eq!(format!("{token:?}"), "Token");
    }
}
