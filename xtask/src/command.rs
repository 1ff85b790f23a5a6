//! Starts cargo and other programs, and prints for each call the line that a person types to repeat it.

use crate::results::Results;
use crate::workspace::Workspace;
use anyhow::{Context, bail};
use std::fmt::{self, Display};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::{env, io};

/// Set by the cargo that runs this program, about this program. Packages whose build depends on
/// such a variable would be built again for every way of starting cargo.
const ABOUT_THIS_PACKAGE: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"];

/// One call of a program, in the folder of the workspace. `Display` is the shell line that repeats
/// it.
pub struct Call {
    program: String,
    arguments: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Call {
    /// Cargo with these arguments, separated by spaces.
    pub fn cargo(arguments: &str) -> Self {
        let arguments = arguments.split_whitespace();
        Self::program("cargo").args(arguments)
    }

    /// A program on the `PATH`, or at this place.
    pub fn program(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// One more argument, which may hold anything.
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// More arguments.
    pub fn args<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// A flag added to those that the environment already gives in `name`.
    pub fn add_flag(self, name: &'static str, flag: &str) -> Self {
        let value = match env::var(name) {
            Ok(before) if !before.is_empty() => format!("{before} {flag}"),
            _ => flag.to_owned(),
        };
        self.env(name, value)
    }

    fn command(&self, workspace: &Workspace) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if ABOUT_THIS_PACKAGE.iter().any(|mark| text.starts_with(mark)) {
                command.env_remove(&name);
            }
        }
        command
            .current_dir(workspace.root())
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs to the end; an error unless it succeeded.
    pub fn run(&self, workspace: &Workspace) -> anyhow::Result<()> {
        let status = self
            .command(workspace)
            .status()
            .with_context(|| format!("cannot start {}", self.program))?;
        if !status.success() {
            bail!("{} ended with {status}", self.program);
        }
        Ok(())
    }

    /// As [`Call::run`], and returns what it writes to standard output.
    pub fn output(&self, workspace: &Workspace) -> anyhow::Result<String> {
        let mut output = String::new();
        self.run_lines(workspace, |line| {
            output += line;
            output.push('\n');
            Ok(())
        })?;
        Ok(output)
    }

    /// As [`Call::run`], and gives each line of standard output to `line` when it appears.
    pub fn run_lines(
        &self,
        workspace: &Workspace,
        mut line: impl FnMut(&str) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut child = self
            .command(workspace)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program))?;
        let mut output = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut bytes = Vec::new();
        while output.read_until(b'\n', &mut bytes)? > 0 {
            line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'))?;
            bytes.clear();
        }
        let status = child
            .wait()
            .with_context(|| format!("cannot wait for {}", self.program))?;
        if !status.success() {
            bail!("{} ended with {status}", self.program);
        }
        Ok(())
    }

    /// Runs test programs, shows what they say, and adds up their results, failed or not.
    pub fn run_tests(&self, workspace: &Workspace, results: &mut Results) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        self.run_lines(workspace, |line| {
            results.read(line);
            writeln!(out, "{line}")
        })
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.variables {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&quoted(&self.program))?;
        for argument in &self.arguments {
            write!(f, " {}", quoted(argument))?;
        }
        Ok(())
    }
}

/// As a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{Call, quoted};

    #[test]
    fn the_line_can_be_typed_again() {
        let call = Call::cargo("test -p a")
            .env("FLAGS", "--cfg loom")
            .arg("it's");
        assert_eq!(
            call.to_string(),
            r"FLAGS='--cfg loom' cargo test -p a 'it'\''s'"
        );
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("$HOME"), "'$HOME'");
    }
}
