//! Texts without the users and passwords that addresses have in them: results are handed on, and nobody looks for a password
//! in a command line of last week.

use std::borrow::Cow;

/// Options of a URL that say who somebody is.
const OPTIONS: [&str; 2] = ["username=", "password="];

/// A text with all addresses in it as [`address`] shows them. Addresses are words with a scheme, such as
/// `redis://user:password@host`, and those with a password before an `@`. A word is also what stands between quotes, as
/// shells need them around spaces.
pub fn without_secrets(text: &str) -> Cow<'_, str> {
    // Most texts have none of this, and are long at times.
    if !text.contains('@') && !OPTIONS.iter().any(|it| text.contains(it)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| !c.is_whitespace()) {
        shown.push_str(&rest[..start]);
        rest = &rest[start..];
        let quote = rest.chars().next().filter(|it| "'\"".contains(*it));
        let quote = quote.filter(|it| closing(rest, *it).is_some());
        let end = quote.and_then(|it| closing(rest, it));
        let end = end.unwrap_or_else(|| rest.find(char::is_whitespace).unwrap_or(rest.len()));
        let marks = quote.map_or(0, char::len_utf8);
        shown.push_str(&rest[..marks]);
        shown.push_str(&word(&rest[marks..end]));
        rest = &rest[end..];
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// The quote that ends what `text` begins with: one that a space or nothing follows.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut ends = text.match_indices(quote).skip(1);
    ends.find_map(|(at, _)| {
        let next = text[at + quote.len_utf8()..].chars().next();
        next.is_none_or(char::is_whitespace).then_some(at)
    })
}

/// One word, or one argument of a command, without secrets: as [`address`] shows it, if it is one.
pub fn word(text: &str) -> Cow<'_, str> {
    let has_scheme = text.contains("://");
    // A name, a colon, and an `@` somewhere behind them; a sentence has spaces before.
    let has_password = text
        .split_once(':')
        .is_some_and(|(name, rest)| rest.contains('@') && !name.contains(char::is_whitespace));
    let has_option = OPTIONS.iter().any(|it| text.contains(it));
    match has_scheme || has_password || has_option {
        true => Cow::Owned(address(text)),
        false => Cow::Borrowed(text),
    }
}

/// An address, a list of them or a URL, without user and password, and without the options of a URL that say these. The name
/// of an option of a command may stand before it, as in `--url=redis://host`.
///
/// A password may have any letters in it. So all that stands before the last `@` goes, also if that is more than one.
pub fn address(text: &str) -> String {
    let (before, options) = match text.split_once('?') {
        // Where an `@` comes later, the `?` is a part of what goes.
        Some((before, options)) if !options.contains('@') => (before, Some(options)),
        _ => (text, None),
    };
    let mut shown = match before.rsplit_once('@') {
        Some((user, host)) => format!("{}{host}", &user[..start(user)]),
        None => before.to_owned(),
    };
    let told = |it: &&str| !OPTIONS.iter().any(|option| it.starts_with(option));
    let options = options.map(|it| it.split('&').filter(told).collect::<Vec<_>>().join("&"));
    if let Some(options) = options.filter(|it| !it.is_empty()) {
        shown.push('?');
        shown.push_str(&options);
    }
    shown
}

/// Where the user begins: behind the scheme, or behind the name of an option.
fn start(text: &str) -> usize {
    if let Some(at) = text.find("://") {
        return at + "://".len();
    }
    let is_name = |it: &str| {
        it.bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'-')
    };
    text.find('=')
        .filter(|at| is_name(&text[..*at]))
        .map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_neither_user_nor_password() {
        for (text, shown) in [
            ("10.0.0.7:7000", "10.0.0.7:7000"),
            ("user:hunter2@a:1,b:2", "a:1,b:2"),
            ("user@a:1", "a:1"),
            (":hunt@er2@a", "a"),
            ("user:hun,ter2@a:1,user:hunter2@b:2", "b:2"),
            (
                "redis://user:hunter2@a/2?timeout=5s",
                "redis://a/2?timeout=5s",
            ),
            ("redis://user:hun?ter2@a", "redis://a"),
            (
                "redis://a?username=me&timeout=5s&password=hunter2",
                "redis://a?timeout=5s",
            ),
            ("a:1?password=hunter2", "a:1"),
            ("unix:me:hunter2@/run/redis.sock", "/run/redis.sock"),
            ("--url=rediss://:hunter2@a", "--url=rediss://a"),
            ("--standalone=me:hunter2@a", "--standalone=a"),
            ("url=redis://:hunter2@a,redis://:hunter2@b", "url=redis://b"),
        ] {
            assert_eq!(address(text), shown);
        }
    }

    #[test]
    fn a_text_keeps_all_but_its_secrets() {
        let same = "embar bench publish --note 'me@home wrote: it is 5 @ 7' -s 1GiB";
        assert_eq!(without_secrets(same), same);
        for (text, shown) in [
            (
                "embar bench redis --url redis://user:hunter2@h --compare pipeline=1,2",
                "embar bench redis --url redis://h --compare pipeline=1,2",
            ),
            (
                "embar bench redis --url 'redis://user:hun ter2@h?db=1&password=hunter2' -x",
                "embar bench redis --url 'redis://h?db=1' -x",
            ),
            (r"a 'redis://u:hun'\''ter 2@h' b@c", "a 'redis://h' b@c"),
            (" me:hunter2@a  b\n", " a  b\n"),
            ("me@home:hunter2@a", "a"),
            ("--standalone 'me:hun ter2@a'", "--standalone 'a'"),
            ("'redis://u:hunter2@h", "'redis://h"),
            ("'", "'"),
            (
                "no (redis://me:hunter2@h:1): refused",
                "no (redis://h:1): refused",
            ),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
    }
}
