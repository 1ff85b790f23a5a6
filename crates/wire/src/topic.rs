//! Which topic names are allowed, and what order levels promise.

use crate::error::NameError;
use crate::limits::MAX_TOPIC_NAME_BYTES;

/// Whether a topic of this order level has one order over all brokers. Its offsets are positions in
/// that order then, and its publishers have sessions; otherwise each broker counts its own offsets.
#[must_use]
pub fn is_totally_ordered(order: u32) -> bool {
    order >= 2
}

/// Checks a topic name: 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, and neither `.` nor `..`,
/// so that a name is also a file name anywhere.
///
/// # Errors
/// Says which rule the name breaks.
pub fn check_topic_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_TOPIC_NAME_BYTES {
        return Err(NameError::TooLong { bytes: name.len() });
    }
    if name == "." || name == ".." {
        return Err(NameError::Dots);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.chars().find(|&c| !allowed(c)) {
        Some(found) => Err(NameError::Character { found }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let longest = "x".repeat(MAX_TOPIC_NAME_BYTES);
        for good in ["a", "orders.eu-1_x", "...", "..a", &longest] {
            assert_eq!(check_topic_name(good), Ok(()), "{good}");
        }
        let longer = "x".repeat(MAX_TOPIC_NAME_BYTES + 1);
        assert_eq!(check_topic_name(""), Err(NameError::Empty));
        assert_eq!(check_topic_name("."), Err(NameError::Dots));
        assert_eq!(check_topic_name(".."), Err(NameError::Dots));
        assert_eq!(
            check_topic_name(&longer),
            Err(NameError::TooLong { bytes: 250 })
        );
        for (bad, found) in [("a/b", '/'), ("a b", ' '), ("grün", 'ü'), ("a\0", '\0')] {
            assert_eq!(check_topic_name(bad), Err(NameError::Character { found }));
        }
    }
}
