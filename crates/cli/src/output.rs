//! Results of a command: for people, or as JSON.
//!
//! Results go to standard output, everything else to standard error, so that a pipe carries results only. With `--json`
//! standard output carries JSON and nothing else.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use embar_console::paint::Paint;
use embar_console::visible::visible;
use serde::Serialize;

use crate::exit;

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    paint: Paint,
}

impl Output {
    /// For one run of the program.
    pub fn new(json: bool, color: Color) -> Self {
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                io::stdout().is_terminal()
                    && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
            }
        };
        Self {
            json,
            paint: Paint::new(color),
        }
    }

    /// Whether results are wanted as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A result for people, as [`visible`] shows it; silent with `--json`.
    pub fn say(&self, text: impl Display) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let text = text.to_string();
        let text = visible(&text, self.paint);
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")
            .and_then(|()| out.flush())
            .map_err(exit::output)
    }

    /// A result for programs, on one line; silent without `--json`.
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let text = serde_json::to_string(value)?;
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")
            .and_then(|()| out.flush())
            .map_err(exit::output)
    }

    /// A report: its JSON for programs, `text` for people.
    pub fn report(&self, report: &impl Serialize, text: impl Display) -> Result<()> {
        self.json(report)?;
        self.say(text)
    }

    /// Colours for texts.
    pub fn paint(&self) -> Paint {
        self.paint
    }
}

/// A line on standard output for the process that started this one, whatever the options are.
pub fn raw_line(line: &impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(exit::output)
}
