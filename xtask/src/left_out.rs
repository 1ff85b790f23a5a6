//! Collects the tests that could not run on this machine: those that cut networks, where only root may make networks.
//! The run then fails, unless its user accepted that.

use crate::needs;
use anyhow::{Context, bail};
use std::path::PathBuf;
use std::{env, fs, io, process};

/// Names the file to the tests that add their names to it (`embar_redis_servers::Net::test`).
const VARIABLE: &str = "EMBAR_WITHOUT_NETWORKS";

/// What becomes of tests that cut networks in this run.
pub struct LeftOut {
    /// Where they say that they could not run, if none can.
    file: Option<PathBuf>,
    accepted: bool,
}

impl LeftOut {
    /// No test is.
    pub fn nothing() -> Self {
        Self {
            file: None,
            accepted: false,
        }
    }

    /// Looks what can be done here, and says so. `accepted`: it need not be possible.
    pub fn find(accepted: bool) -> anyhow::Result<Self> {
        let Some(why) = needs::no_networks() else {
            return Ok(Self::nothing());
        };
        let then = match accepted {
            true => "as was asked for",
            false => "and the run will fail in the end (accept it with `--without-networks`)",
        };
        eprintln!("nobody may cut networks here ({why}): tests that do so are left out, {then}");
        let file = env::temp_dir().join(format!("embar-left-out-{}", process::id()));
        fs::write(&file, "").with_context(|| file.display().to_string())?;
        let file = Some(file);
        Ok(Self { file, accepted })
    }

    /// The environment variable for the tests.
    pub fn variable(&self) -> Option<(&'static str, String)> {
        let file = self.file.as_ref()?;
        Some((VARIABLE, file.to_string_lossy().into_owned()))
    }

    /// Says which tests could not run; an error, unless that was accepted.
    pub fn report(&self) -> anyhow::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let said = match fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            said => said.with_context(|| file.display().to_string())?,
        };
        let names = names(&said);
        if names.is_empty() {
            return Ok(());
        }
        println!("left out, as nobody may cut networks here:");
        for name in &names {
            println!("  {name}");
        }
        if !self.accepted {
            bail!(
                "not all tests could run ({} could not): run this as root, allow everybody user \
                 namespaces, or accept it with `cargo xtask test --without-networks`",
                names.len()
            );
        }
        Ok(())
    }
}

impl Drop for LeftOut {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // At worst it stays with other temporary files.
            let _removed = fs::remove_file(file);
        }
    }
}

/// In order, each once.
fn names(said: &str) -> Vec<&str> {
    let mut names: Vec<&str> = said.lines().collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::{LeftOut, names};

    fn run(accepted: bool, said: Option<&str>) -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("left-out");
        said.map_or(Ok(()), |said| std::fs::write(&file, said))?;
        let file = Some(file);
        LeftOut { file, accepted }.report()
    }

    #[test]
    fn a_run_without_some_tests_fails_unless_that_is_accepted() {
        assert!(run(true, Some("b\na\n")).is_ok());
        let error = run(false, Some("b\na\nb\n")).unwrap_err().to_string();
        assert!(error.contains("2 could not") && error.contains("--without-networks"));
        for nothing in [None, Some("")] {
            assert!(run(false, nothing).is_ok());
        }
        assert_eq!(names("b\na\nb\n"), ["a", "b"]);
    }
}
