//! Rust source as words and signs, without comments and literals.

/// A word, `::`, or a sign of one character, and the line that it is in (from 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// Its text.
    pub text: &'a str,
    /// Its line.
    pub line: usize,
}

/// Cuts a source into tokens.
pub fn of(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (len, is_token) = match first {
            _ if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            _ if rest.starts_with("/*") => (block_comment(rest), false),
            _ if rest.starts_with("::") => (2, true),
            '"' => (string(rest), false),
            '\'' => (quoted(rest), false),
            _ if is_word(first) => match raw_string(rest) {
                Some(len) => (len, false),
                None => (word(rest), true),
            },
            _ => (first.len_utf8(), !first.is_whitespace()),
        };
        let (token, after) = rest.split_at(len);
        if is_token {
            tokens.push(Token { text: token, line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    tokens
}

/// Whether a word begins or goes on with this character.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn word(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

/// Comments may be in comments.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Bytes of a string that begins with a quotation mark.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Bytes of `r"…"`, `br#"…"#` and the like; `b"…"` and `c"…"` are a word and a string.
fn raw_string(text: &str) -> Option<usize> {
    let prefix = text.find(|c| !"bcr".contains(c))?;
    let marks = text[prefix..].find(|c| c != '#')?;
    if !text[..prefix].ends_with('r') || prefix > 2 || !text[prefix + marks..].starts_with('"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(marks));
    let start = prefix + marks + 1;
    let len = text[start..].find(&end)?;
    Some(start + len + end.len())
}

/// Bytes of a character, or of the mark of a lifetime.
fn quoted(text: &str) -> usize {
    let mut inside = text.char_indices().skip(1);
    match inside.next() {
        Some((_, '\\')) => {
            let end = text[3..].find('\'').map(|at| at + 4);
            end.unwrap_or(text.len())
        }
        Some((at, c)) if text[at + c.len_utf8()..].starts_with('\'') => at + c.len_utf8() + 1,
        _ => 1,
    }
}
