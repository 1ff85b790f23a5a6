//! Finds modules of a crate that use each other in a circle: none of them can be read, moved or tested without the
//! others.
//!
//! Only modules with the same parent are compared. What the children of a module use counts as used by that module. A
//! child may use its parent, and a parent its children. Tests are not looked at.

mod paths;
mod tokens;

use crate::workspace::Member;
use paths::Crate;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Modules of one parent that use each other.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    /// Their parent, `crate` or `crate::a`.
    parent: String,
    /// Their names.
    modules: BTreeSet<String>,
    /// One place for each that uses another: who, whom, where.
    uses: Vec<(String, String, Place)>,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    file: PathBuf,
    line: usize,
}

/// The circles of one crate: (file below its folder, text).
pub fn of(sources: &[(PathBuf, String)]) -> Vec<Circle> {
    let parsed = Crate::read(sources);
    let mut by_parent: BTreeMap<Vec<String>, Graph> = BTreeMap::new();
    for (user, used, place) in parsed.uses() {
        let shared = user.iter().zip(&used).take_while(|(a, b)| a == b).count();
        // A parent and what is below it are no siblings.
        if let (Some(from), Some(to)) = (user.get(shared), used.get(shared)) {
            let graph = by_parent.entry(user[..shared].to_vec()).or_default();
            graph.add(from.clone(), to.clone(), place);
        }
    }
    let circles = by_parent.into_iter().flat_map(|(parent, graph)| {
        let parent = [&["crate".to_owned()], &parent[..]].concat().join("::");
        graph.circles(&parent)
    });
    circles.collect()
}

/// Which module uses which, and the first place where it does.
#[derive(Default)]
struct Graph(BTreeMap<String, BTreeMap<String, Place>>);

impl Graph {
    fn add(&mut self, from: String, to: String, place: Place) {
        self.0.entry(from).or_default().entry(to).or_insert(place);
    }

    /// Everything that can be reached from a module.
    fn reached(&self, from: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            for used in self.0.get(module).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(used.as_str()) {
                    open.push(used);
                }
            }
        }
        reached
    }

    fn circles(&self, parent: &str) -> Vec<Circle> {
        let reached: BTreeMap<&str, BTreeSet<&str>> = self
            .0
            .keys()
            .map(|module| (module.as_str(), self.reached(module)))
            .collect();
        let mut found: Vec<Circle> = Vec::new();
        for (module, others) in &reached {
            let back = |other: &&&str| reached.get(**other).is_some_and(|it| it.contains(module));
            let modules: BTreeSet<String> =
                others.iter().filter(back).map(|&it| it.into()).collect();
            let known = found.iter().any(|it| it.modules == modules);
            if !modules.is_empty() && !known {
                let uses = self.uses_within(&modules);
                found.push(Circle {
                    parent: parent.to_owned(),
                    modules,
                    uses,
                });
            }
        }
        found
    }

    fn uses_within(&self, modules: &BTreeSet<String>) -> Vec<(String, String, Place)> {
        let from = self.0.iter().filter(|(from, _)| modules.contains(*from));
        let uses = from.flat_map(|(from, to)| to.iter().map(move |(to, place)| (from, to, place)));
        let within = uses.filter(|(_, to, _)| modules.contains(*to));
        let owned = within.map(|(from, to, place)| (from.clone(), to.clone(), place.clone()));
        owned.collect()
    }
}

/// The circles of all crates, described.
pub fn check(members: &[Member]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for member in members {
        let circles = of(&sources(&member.dir)?);
        let described = circles.iter().map(|it| it.describe(member.folder()));
        found.extend(described);
    }
    Ok(found)
}

impl Circle {
    fn describe(&self, folder: &str) -> String {
        let names: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        let mut text = format!(
            "{folder}: {} of {} use each other in a circle:",
            names.join(", "),
            self.parent
        );
        for (from, to, Place { file, line }) in &self.uses {
            text += &format!("\n    {from} uses {to}: {}:{line}", file.display());
        }
        text
    }
}

/// The sources of a crate, with their place below its folder `src`.
fn sources(dir: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let root = dir.join("src");
    let mut sources = Vec::new();
    for path in super::files(&root, true)? {
        if path.extension().is_some_and(|it| it == "rs") {
            let inside = path.strip_prefix(&root).expect("it was found there");
            sources.push((inside.to_path_buf(), super::read(&path)?));
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::{Circle, of};

    fn circles(sources: &[(&str, &str)]) -> Vec<Circle> {
        let owned = sources
            .iter()
            .map(|(path, text)| (path.into(), (*text).to_owned()));
        of(&owned.collect::<Vec<_>>())
    }

    fn names(circles: &[Circle]) -> Vec<String> {
        let name = |it: &Circle| {
            let modules: Vec<&str> = it.modules.iter().map(String::as_str).collect();
            format!("{}: {}", it.parent, modules.join(" "))
        };
        circles.iter().map(name).collect()
    }

    #[test]
    fn a_circle_of_three_is_found_and_a_tree_is_none() {
        let lib = ("lib.rs", "mod a; mod b; mod c; mod d;");
        let tree = [
            lib,
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", ""),
            ("d.rs", "use crate::a;"),
        ];
        assert!(circles(&tree).is_empty());
        let mut circle = tree;
        circle[3] = ("c.rs", "fn f() { crate::a::g() }");
        let found = circles(&circle);
        assert_eq!(names(&found), ["crate: a b c"]);
        let text = found[0].describe("x");
        assert!(text.contains("c uses a: src/c.rs:1"), "{text}");
    }

    #[test]
    fn children_use_for_their_parents_and_siblings_below_count() {
        let below = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod x; mod y; use x::X;"),
            ("a/x.rs", "use super::y::Y;"),
            ("a/y.rs", "use super::{x::X, Z};"),
        ];
        assert_eq!(names(&circles(&below)), ["crate::a: x y"]);
        let above = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod x;"),
            ("a/x.rs", "use super::super::b::B;"),
            ("b.rs", "use crate::a::A;"),
        ];
        assert_eq!(names(&circles(&above)), ["crate: a b"]);
        let family = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod x; use x::X;"),
            ("a/x.rs", "use super::A; use crate::a;"),
        ];
        assert!(circles(&family).is_empty());
    }

    #[test]
    fn a_name_that_is_passed_on_leads_to_where_it_is_defined() {
        let sources = [
            ("lib.rs", "mod a; mod b; pub use a::{A, f as g};"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::g;"),
        ];
        assert_eq!(names(&circles(&sources)), ["crate: a b"]);
        let other = [sources[0], sources[1], ("b.rs", "use crate::Other;")];
        assert!(circles(&other).is_empty());
    }

    #[test]
    fn tests_comments_and_strings_use_nothing() {
        let uses = |text: &str| {
            let mut sources = vec![
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b;"),
                ("b.rs", text),
            ];
            if text.contains("mod tests;") {
                sources.push(("b/tests.rs", "use crate::a;"));
            }
            circles(&sources).len()
        };
        assert_eq!(uses("use crate::a;"), 1);
        for text in [
            "// use crate::a;",
            "/* crate::a /* x */ crate::a */",
            "/// [`A`](crate::a::A)\nfn f() {}",
            "const T: &str = \"crate::a \\\" crate::a\";",
            "const T: &str = r#\"crate::a \" crate::a\"#;",
            "#[cfg(test)]\nmod tests { use crate::a; }",
            "#[cfg(all(test, not(loom)))]\nmod tests;",
            "#[cfg(loom)]\nuse crate::a::{self};",
            "#[test]\nfn f() { crate::a::f(); }",
        ] {
            assert_eq!(uses(text), 0, "{text}");
        }
        for text in [
            "#[cfg(not(loom))]\nuse crate::a;",
            "#[cfg(test)]\nmod tests { }\nuse crate::a;",
            "struct S<'a> { #[cfg(test)] t: &'a str, u: &'a crate::a::A }",
            "fn f(c: char) { if c == '\"' { crate::a::f() } }",
            "mod inline { use super::super::a; }",
            "macro_rules! m { () => { $crate::a::f() } }",
        ] {
            assert_eq!(uses(text), 1, "{text}");
        }
    }
}
