//! Texts as a terminal may see them: names and messages of others must not move the cursor, change the title, or turn what
//! stands beside them around.

use std::borrow::Cow;

use crate::paint::Paint;

/// A text in which control characters, and those that change the direction of what follows, are written as `\u{1b}`. Newlines
/// and tabs stay, and so do the colours of `paint`.
pub fn visible(text: &str, paint: Paint) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_hidden) {
        shown.push_str(&rest[..at]);
        rest = &rest[at..];
        let own = paint.code_at_start(rest);
        let len = match own {
            0 => rest.chars().next().map_or(0, char::len_utf8),
            len => len,
        };
        let (one, later) = rest.split_at(len);
        match own {
            0 => shown.extend(one.escape_unicode()),
            _ => shown.push_str(one),
        }
        rest = later;
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

fn is_hidden(c: char) -> bool {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (c.is_control() && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Paint = Paint::new(false);

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        for (text, shown) in [
            ("a\tb\nä 1 µs", "a\tb\nä 1 µs"),
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("50 %\rno", "50 %\\u{d}no"),
            ("\u{9b}2J\u{7f}\0", "\\u{9b}2J\\u{7f}\\u{0}"),
            (
                "a\u{202e}b\u{2066}c\u{2069}",
                "a\\u{202e}b\\u{2066}c\\u{2069}",
            ),
        ] {
            assert_eq!(visible(text, PLAIN), shown);
        }
    }

    #[test]
    fn colours_stay_where_there_are_some() {
        let paint = Paint::new(true);
        let text = [paint.heading("a"), paint.good("b"), paint.bad("c")].concat();
        assert_eq!(visible(&text, paint), text);
        assert!(!visible(&text, PLAIN).contains('\u{1b}'));
        // Others may only do what ours do.
        let blinking = "\u{1b}[5mx\u{1b}[0m\u{1b}";
        assert_eq!(visible(blinking, paint), "\\u{1b}[5mx\u{1b}[0m\\u{1b}");
    }
}
