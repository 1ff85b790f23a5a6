//! Checks that each crate uses only crates before it in a fixed order, that the documents list them in this order, and
//! that sessions and the Redis client need nothing of the log.
//!
//! Programs (`examples/`, `xtask`) may use any crate, and so may the tests of a crate: a dependency that only
//! tests have is not looked at.

use crate::command::Call;
use crate::workspace::{Member, Workspace};
use std::path::Path;

/// Folders of the crates: each uses only those before it. The tables of [`DOCUMENTS`] list them so.
pub const LAYERS: [&str; 27] = [
    // What everything stands on.
    "build",
    "meter",
    "readings",
    "diagnose",
    "report",
    "memory",
    "frame",
    "transport",
    // Sessions and calls on them, and the Redis client.
    "session",
    "quic",
    "resume",
    "rpc",
    "mux",
    "redis",
    "redis-servers",
    // The log.
    "fabric",
    "order",
    "wire",
    "disk",
    "broker",
    "client",
    "sim",
    // The program.
    "console",
    "supervise",
    "verify",
    "bench",
    "cli",
];

/// A document with a table of the crates, and the heading of the section that it is in.
pub const DOCUMENTS: [(&str, &str); 2] = [
    ("ARCHITECTURE.md", "## Code map"),
    ("CONTRIBUTING.md", "## Where things are"),
];

/// Folders at the top that the tables name, and that are no crates.
const PROGRAMS: [&str; 2] = ["xtask", "outside"];

/// Packages that a user takes without the log.
const STAND_ALONE: [&str; 5] = [
    "embar-session",
    "embar-quic",
    "embar-resume",
    "embar-rpc",
    "embar-redis",
];

/// The packages of the log: none that stands alone may need one.
const LOG: [&str; 5] = [
    "embar-fabric",
    "embar-order",
    "embar-wire",
    "embar-disk",
    "embar-broker",
];

/// Crates without a layer, and layers without a crate.
pub fn unplaced(folders: &[&str]) -> Vec<String> {
    let without_layer = folders.iter().filter(|folder| !LAYERS.contains(folder));
    let without_crate = LAYERS.iter().filter(|layer| !folders.contains(layer));
    without_layer
        .map(|folder| format!("crates/{folder} has no place in LAYERS of xtask/src/lint/layers.rs"))
        .chain(without_crate.map(|layer| format!("layer {layer:?} has no crate")))
        .collect()
}

/// (line number from 1, what is wrong) for each dependency of a crate that is not below it.
pub fn upward(folder: &str, manifest: &str) -> Vec<(usize, String)> {
    let Some(own) = LAYERS.iter().position(|layer| *layer == folder) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (line, package) in dependencies(manifest) {
        let Some(used) = package.strip_prefix("embar-") else {
            continue;
        };
        if !LAYERS[..own].contains(&used) {
            let what = format!(
                "{folder} must not use {used}: it may use {}",
                LAYERS[..own].join(", ")
            );
            found.push((line, what));
        }
    }
    found
}

/// The packages that a manifest names as dependencies of anything but tests.
fn dependencies(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    (1..)
        .zip(manifest.lines())
        .filter_map(move |(number, line)| {
            if let Some(section) = line.strip_prefix('[') {
                let section = section.trim_end().trim_end_matches(']');
                inside =
                    section.ends_with("dependencies") && !section.ends_with("dev-dependencies");
                return None;
            }
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            (inside && !name.is_empty() && !name.starts_with('#')).then_some((number, name))
        })
}

/// (line number from 1, what is wrong) if the table of crates below `heading` is not [`LAYERS`].
pub fn differs(heading: &str, document: &str) -> Vec<(usize, String)> {
    let order = || format!("the order is: {}", LAYERS.join(", "));
    let Some(start) = document.lines().position(|line| line == heading) else {
        return vec![(
            1,
            format!("no section {heading:?} with the crates; {}", order()),
        )];
    };
    let section = document.lines().enumerate().skip(start + 1);
    let section = section.take_while(|(_, line)| !line.starts_with("## "));
    let mut rows = section.filter_map(|(index, line)| Some((index + 1, crate_of(line)?)));
    for layer in LAYERS {
        match rows.next() {
            Some((_, found)) if found == layer => {}
            Some((line, found)) => {
                return vec![(
                    line,
                    format!("{found} where {layer} was expected; {}", order()),
                )];
            }
            None => return vec![(start + 1, format!("{layer} is missing; {}", order()))],
        }
    }
    let more = rows.map(|(line, found)| (line, format!("{found} is no crate with a layer")));
    more.collect()
}

/// The crate that a row of a table is about: `` | `name` | `` or `` | `crates/name` | ``. Other folders
/// are not crates.
fn crate_of(line: &str) -> Option<&str> {
    let name = line.strip_prefix("| `")?.split_once('`')?.0;
    match name.strip_prefix("crates/") {
        Some(name) => Some(name),
        None => (!name.contains('/') && !PROGRAMS.contains(&name)).then_some(name),
    }
}

/// What is wrong with the layers of the whole workspace, as `file:line: what`.
pub fn check(workspace: &Workspace, members: &[Member]) -> anyhow::Result<Vec<String>> {
    let crates = members.iter().filter(|member| is_crate(&member.dir));
    let folders: Vec<&str> = crates.clone().map(Member::folder).collect();
    let mut found = unplaced(&folders);
    for member in crates {
        let path = member.dir.join("Cargo.toml");
        found.extend(super::prefixed(
            &path,
            upward(member.folder(), &super::read(&path)?),
        ));
    }
    for (document, heading) in DOCUMENTS {
        let path = workspace.root().join(document);
        found.extend(super::prefixed(
            &path,
            differs(heading, &super::read(&path)?),
        ));
    }
    for package in STAND_ALONE {
        let tree =
            Call::cargo("tree --locked --all-features --edges normal --prefix none --package");
        found.extend(needs_the_log(
            package,
            &tree.arg(package).output(workspace)?,
        ));
    }
    Ok(found)
}

fn is_crate(dir: &Path) -> bool {
    dir.parent()
        .is_some_and(|parent| parent.ends_with("crates"))
}

/// What a package that stands alone needs of the log.
fn needs_the_log(package: &str, tree: &str) -> Vec<String> {
    let line = |needed| {
        format!("{package} stands alone, and needs {needed}: see `cargo tree -p {package}`")
    };
    needed(tree, &LOG).into_iter().map(line).collect()
}

/// Which of these packages are in a tree that has one `name version …` in each line.
pub fn needed<'a>(tree: &'a str, packages: &[&str]) -> Vec<&'a str> {
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let mut needed: Vec<&str> = names.filter(|name| packages.contains(name)).collect();
    needed.sort_unstable();
    needed.dedup();
    needed
}

#[cfg(test)]
mod tests {
    use super::{LAYERS, crate_of, differs, needs_the_log, unplaced, upward};

    #[test]
    fn a_crate_uses_only_those_before_it() {
        let manifest = |section: &str, package: &str| {
            format!(
                "[package]\nname = \"embar-session\"\n\n[{section}]\nbuffa.workspace = true\n{package}\n"
            )
        };
        for good in [
            "embar-memory.workspace = true",
            "embar-frame = { workspace = true }",
        ] {
            assert!(
                upward("session", &manifest("dependencies", good)).is_empty(),
                "{good}"
            );
        }
        for section in [
            "dependencies",
            "build-dependencies",
            "target.'cfg(loom)'.dependencies",
        ] {
            let found = upward(
                "session",
                &manifest(section, "embar-fabric.workspace = true"),
            );
            assert_eq!(found.len(), 1, "{section}");
            assert_eq!(found[0].0, 6);
            assert!(found[0].1.contains("must not use fabric"), "{}", found[0].1);
        }
        let itself = upward(
            "session",
            &manifest("dependencies", "embar-session = \"1\""),
        );
        assert_eq!(itself.len(), 1);
        let unknown = upward(
            "cli",
            &manifest("dependencies", "embar-elsewhere.workspace = true"),
        );
        assert_eq!(unknown.len(), 1);
    }

    #[test]
    fn what_only_tests_use_may_be_anywhere() {
        let manifest = "[dev-dependencies]\nembar-cli.workspace = true\n[features]\na = []\n";
        assert!(upward("memory", manifest).is_empty());
    }

    #[test]
    fn every_crate_has_a_layer_and_every_layer_a_crate() {
        assert!(unplaced(&LAYERS).is_empty());
        let others = [&["new"], &LAYERS[1..]].concat();
        assert_eq!(unplaced(&others).len(), 2);
    }

    fn document(rows: &[String]) -> String {
        format!(
            "## Before\n| `x` | y |\n## Map\nText.\n\n| crate | is |\n| --- | --- |\n{}\n## After\n| `z` |\n",
            rows.join("\n")
        )
    }

    #[test]
    fn a_table_lists_the_layers_in_their_order() {
        let mut rows: Vec<String> = LAYERS.map(|layer| format!("| `{layer}` | is |")).into();
        assert!(differs("## Map", &document(&rows)).is_empty());
        let folders = LAYERS.map(|layer| format!("| `crates/{layer}` | `embar-{layer}` |"));
        let mut folders: Vec<String> = folders.into();
        folders.push("| `benches/peers` | a workspace |".into());
        folders.push("| `xtask` | chores |".into());
        assert!(differs("## Map", &document(&folders)).is_empty());

        assert_eq!(differs("## Else", &document(&rows)).len(), 1);
        rows.swap(2, 3);
        assert_eq!(differs("## Map", &document(&rows))[0].0, 10);
        rows.swap(2, 3);
        rows.push("| `more` | is |".into());
        assert_eq!(differs("## Map", &document(&rows)).len(), 1);
        rows.truncate(3);
        let missing = format!("{} is missing", LAYERS[3]);
        assert!(differs("## Map", &document(&rows))[0].1.contains(&missing));
    }

    #[test]
    fn only_crates_are_rows() {
        assert_eq!(crate_of("| `wire` | bytes | never |"), Some("wire"));
        assert_eq!(crate_of("| `crates/wire` | `embar-wire` |"), Some("wire"));
        for other in [
            "| crate | is for |",
            "| --- |",
            "`wire`",
            "| `examples/chat` | `chat` |",
            "| `outside` | a workspace of its own |",
            "",
        ] {
            assert_eq!(crate_of(other), None, "{other}");
        }
    }

    #[test]
    fn who_stands_alone_needs_nothing_of_the_log() {
        let tree =
            "embar-session v0.1.0 (/x)\nembar-frame v0.1.0 (/x)\nbuffa v0.9.2\nbuffa v0.9.2 (*)\n";
        assert!(needs_the_log("embar-session", tree).is_empty());
        let more = format!("{tree}embar-wire v0.1.0 (/x)\nembar-wire v0.1.0 (/x) (*)\n");
        assert_eq!(needs_the_log("embar-session", &more).len(), 1);
    }
}
