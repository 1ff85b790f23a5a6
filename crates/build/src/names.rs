//! Names of Rust for names of proto files.

/// Words that cannot be names of functions unless they are written as `r#word`.
const KEYWORDS: [&str; 46] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where",
];

/// Words that are not written as `r#word`: most of them cannot be.
const NO_NAMES: [&str; 6] = ["_", "self", "super", "crate", "while", "yield"];

/// Functions that generated types have of their own, and those that a call on any value finds first.
const TAKEN: [&str; 5] = ["new", "channel", "clone", "into", "try_into"];

/// The name of the function for a method: `SayHello` is `say_hello`.
pub(crate) fn function(method: &str) -> String {
    let mut name = String::new();
    let letters: Vec<char> = method.chars().collect();
    for (index, letter) in letters.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| letters[before]);
        let lower = |other: Option<&char>| other.is_some_and(|other| other.is_lowercase());
        // A word begins with a capital behind a small letter or a digit, or before a small one.
        let begins = letter.is_uppercase()
            && before.is_some_and(|before| {
                before != '_' && (!before.is_uppercase() || lower(letters.get(index + 1)))
            });
        if begins {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    if NO_NAMES.contains(&name.as_str()) || TAKEN.contains(&name.as_str()) {
        name.push('_');
    } else if KEYWORDS.contains(&name.as_str()) {
        name.insert_str(0, "r#");
    }
    name
}

/// Whether a type or a trait can have this name.
pub(crate) fn is_word_of_rust(name: &str) -> bool {
    name == "Self" || KEYWORDS.contains(&name) || NO_NAMES.contains(&name)
}

/// The name of the function that takes a view, beside this one.
pub(crate) fn view(function: &str) -> String {
    let plain = function.trim_start_matches("r#").trim_end_matches('_');
    format!("{plain}_view")
}

#[cfg(test)]
mod tests {
    use super::{function, view};

    #[test]
    fn functions_are_named_as_rust_does() {
        for (method, name) in [
            ("SayHello", "say_hello"),
            ("get", "get"),
            ("GetHTTPPage", "get_http_page"),
            ("List2Things", "list2_things"),
            ("already_snake", "already_snake"),
            ("Type", "r#type"),
            ("New", "new_"),
            ("Self", "self_"),
            ("Into", "into_"),
            ("Drop", "drop"),
            ("_", "__"),
        ] {
            assert_eq!(function(method), name);
        }
        for (function, name) in [("r#type", "type_view"), ("new_", "new_view")] {
            assert_eq!(view(function), name);
        }
    }
}
