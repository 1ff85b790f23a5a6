//! Finds the folders of this repository: its root, its members, and where cargo builds.

use anyhow::Context;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The folders of this repository.
pub struct Workspace {
    root: PathBuf,
}

/// One member below `crates/` or `examples/`, or `xtask`.
pub struct Member {
    /// Its folder.
    pub dir: PathBuf,
    /// Its manifest, as text.
    manifest: String,
}

impl Workspace {
    /// The repository this program was built from.
    pub fn find() -> Self {
        let here = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let root = here.parent().expect("xtask is a folder of the repository");
        Self {
            root: root.to_path_buf(),
        }
    }

    /// The folder with the workspace manifest.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where cargo builds: a build with other compiler flags goes in a folder below it, so that
    /// neither throws away what the other made.
    pub fn target_dir(&self) -> PathBuf {
        let named = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        self.root.join(named)
    }

    /// All crates, examples and this program, by name of their folder.
    pub fn members(&self) -> anyhow::Result<Vec<Member>> {
        let mut dirs = vec![self.root.join("xtask")];
        for folder in ["crates", "examples"] {
            let folder = self.root.join(folder);
            for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                dirs.push(entry?.path());
            }
        }
        dirs.retain(|dir| dir.join("Cargo.toml").is_file());
        dirs.sort();
        dirs.into_iter().map(Member::read).collect()
    }
}

impl Member {
    fn read(dir: PathBuf) -> anyhow::Result<Self> {
        let path = dir.join("Cargo.toml");
        let manifest = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Self { dir, manifest })
    }

    /// The name of its folder.
    pub fn folder(&self) -> &str {
        let name = self.dir.file_name().expect("it was found in a folder");
        name.to_str().expect("crates have plain names")
    }

    /// The name of its package.
    pub fn package(&self) -> &str {
        self.manifest
            .lines()
            .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
            .expect("cargo built this workspace, so each package has a name")
    }

    /// Whether it has a dependency of its own under the model checker.
    pub fn is_modelled(&self) -> bool {
        self.manifest.contains("cfg(loom)")
    }

    /// Whether there is a test program `tests/<name>.rs`.
    pub fn has_test(&self, name: &str) -> bool {
        self.dir.join(format!("tests/{name}.rs")).is_file()
    }
}

#[cfg(test)]
mod tests {
    use super::Workspace;

    #[test]
    fn members_are_found() {
        let members = Workspace::find().members().unwrap();
        let wire = members.iter().find(|m| m.folder() == "wire").unwrap();
        assert_eq!(wire.package(), "embar-wire");
        assert!(wire.has_test("fuzz"));
        let fabric = members.iter().find(|m| m.folder() == "fabric").unwrap();
        assert!(fabric.is_modelled() && !wire.is_modelled());
        for package in ["xtask", "chat"] {
            assert!(members.iter().any(|m| m.package() == package), "{package}");
        }
    }
}
