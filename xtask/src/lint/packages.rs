//! What users take from a registry: which packages are published, what their manifests say, and how little a bare
//! build of a library needs.

use crate::api;
use crate::command::Call;
use crate::workspace::Workspace;
use serde::Deserialize;

/// Crates that no user takes. Nothing outside of `crates/` is published either.
const UNPUBLISHED: [&str; 1] = ["embar-sim"];

/// What a library without features never needs: formats and servers for figures.
const NOT_IN_BARE_BUILDS: [&str; 3] = ["httparse", "prometheus-client", "serde_json"];

/// Words by which a package is found; a registry takes no more.
const KEYWORDS_MAX: usize = 5;

/// What `cargo metadata` prints.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    description: Option<String>,
    license: Option<String>,
    readme: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    /// The registries that take it; all without a list.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `*` for one without a version.
    req: String,
    /// `dev`, `build`, or none for what the package itself uses.
    kind: Option<String>,
    /// Of a member of the workspace.
    path: Option<String>,
}

/// What is wrong with the packages of the workspace.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let call = Call::cargo("metadata --locked --no-deps --format-version 1");
    let metadata: Metadata = serde_json::from_str(&call.output(workspace)?)?;
    let published: Vec<&str> = metadata
        .packages
        .iter()
        .map(|package| package.name.as_str())
        .filter(|name| name.starts_with("embar-") && !UNPUBLISHED.contains(name))
        .collect();
    let packages = metadata.packages.iter();
    let mut found: Vec<String> = packages
        .flat_map(|package| wrong_with(package, &published))
        .collect();
    for library in api::LIBRARIES {
        let library = format!("embar-{library}");
        let tree = "tree --locked --no-default-features --edges normal --prefix none --package";
        let tree = Call::cargo(tree).arg(&library).output(workspace)?;
        let needed = super::layers::needed(&tree, &NOT_IN_BARE_BUILDS);
        let needed = needed.into_iter();
        found.extend(needed.map(|it| format!("{library} needs {it} without any feature")));
    }
    Ok(found)
}

/// What is wrong with one package, if these are published.
fn wrong_with(package: &Package, published: &[&str]) -> Vec<String> {
    let name = &package.name;
    let refuses = package.publish.as_ref().is_some_and(Vec::is_empty);
    if !published.contains(&name.as_str()) {
        let wrong = (!refuses).then(|| format!("{name} is for nobody else: publish = false"));
        return wrong.into_iter().collect();
    }
    let is_door = name == "embar-cli"
        || api::LIBRARIES
            .iter()
            .any(|it| *name == format!("embar-{it}"));
    let rules = [
        (refuses, "is for users, and has publish = false"),
        (package.description.is_none(), "has no description"),
        (package.license.is_none(), "has no license"),
        (package.keywords.is_empty(), "has no keywords"),
        (
            package.keywords.len() > KEYWORDS_MAX,
            "has too many keywords",
        ),
        (package.categories.is_empty(), "has no categories"),
        (is_door && package.readme.is_none(), "has no README.md"),
    ];
    let broken = rules.into_iter().filter(|(is_broken, _)| *is_broken);
    let mut found: Vec<String> = broken.map(|(_, what)| format!("{name} {what}")).collect();
    for used in package.dependencies.iter().filter(|it| it.path.is_some()) {
        // A test's dependency without a version is left out of the package.
        let is_left_out = used.kind.as_deref() == Some("dev") && used.req == "*";
        if !published.contains(&used.name.as_str()) && !is_left_out {
            found.push(format!(
                "{name} is published, and its dependency {} is not",
                used.name
            ));
        } else if used.req == "*" && !is_left_out {
            found.push(format!(
                "{name}: {} needs a version beside its path",
                used.name
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Dependency, Package, wrong_with};

    fn dependency(name: &str, req: &str, kind: Option<&str>) -> Dependency {
        Dependency {
            name: name.to_owned(),
            req: req.to_owned(),
            kind: kind.map(str::to_owned),
            path: Some(format!("/crates/{name}")),
        }
    }

    fn package(name: &str) -> Package {
        Package {
            name: name.to_owned(),
            description: Some("is for something".to_owned()),
            license: Some("Apache-2.0".to_owned()),
            readme: None,
            keywords: vec!["log".to_owned()],
            categories: vec!["encoding".to_owned()],
            publish: None,
            dependencies: Vec::new(),
        }
    }

    #[test]
    fn a_published_package_says_what_it_is() {
        let mut embar = package("embar-a");
        assert!(wrong_with(&embar, &["embar-a"]).is_empty());
        embar.description = None;
        embar.categories.clear();
        embar.keywords = vec![String::new(); 6];
        embar.publish = Some(Vec::new());
        assert_eq!(wrong_with(&embar, &["embar-a"]).len(), 4);
        let client = wrong_with(&package("embar-client"), &["embar-client"]);
        assert_eq!(client, ["embar-client has no README.md"]);
    }

    #[test]
    fn what_is_not_published_refuses_it() {
        let mut sim = package("embar-sim");
        assert_eq!(wrong_with(&sim, &[]).len(), 1);
        sim.publish = Some(Vec::new());
        assert!(wrong_with(&sim, &[]).is_empty());
    }

    #[test]
    fn what_a_published_package_needs_is_published_too() {
        let published = ["embar-a", "embar-b"];
        let wrong = |used: Dependency| {
            let mut embar = package("embar-a");
            embar.dependencies.push(used);
            wrong_with(&embar, &published).len()
        };
        assert_eq!(wrong(dependency("embar-b", "^0.1", None)), 0);
        assert_eq!(wrong(dependency("embar-b", "*", Some("build"))), 1);
        assert_eq!(wrong(dependency("embar-sim", "^0.1", None)), 1);
        assert_eq!(wrong(dependency("embar-sim", "^0.1", Some("dev"))), 1);
        assert_eq!(wrong(dependency("embar-sim", "*", Some("dev"))), 0);
    }
}
