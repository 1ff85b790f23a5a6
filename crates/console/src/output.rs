//! What a command says: for people, or as JSON; and progress on a terminal.
//!
//! Results go to standard output, everything else to standard error, so that a pipe carries results only. With `--json`
//! standard output carries JSON and nothing else.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
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

/// Work shorter than this shows no bar: it would only flicker.
const SHOW_AFTER: Duration = Duration::from_millis(700);

/// Where results and remarks go.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    color: bool,
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
        Self { json, color }
    }

    /// Whether results are wanted as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A result for people; silent with `--json`.
    pub fn say(&self, text: impl Display) -> Result<()> {
        if self.json {
            return Ok(());
        }
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

    /// A remark on standard error. One that cannot be written is dropped: there is nobody to tell.
    pub fn note(&self, text: impl Display) {
        note(text);
    }

    /// A heading in bold.
    pub fn heading(&self, text: &str) -> String {
        self.paint("1", text)
    }

    /// A word that says all is well.
    pub fn good(&self, text: &str) -> String {
        self.paint("32", text)
    }

    /// A word that says something is not well.
    pub fn bad(&self, text: &str) -> String {
        self.paint("31", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// A bar of `total` bytes, on standard error when that is a terminal.
    pub fn bytes_bar(&self, label: &str, total: u64) -> Bar {
        Bar::new(label, total)
    }
}

/// As [`Output::note`], for places that have none at hand.
pub fn note(text: impl Display) {
    let _nobody_to_tell = writeln!(io::stderr().lock(), "{text}");
}

/// A line on standard output for the process that started this one, whatever the options are.
pub fn raw_line(line: &impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(exit::output)
}

/// A progress bar that appears once its work takes long enough to wonder about. Shared by threads.
pub struct Bar {
    started: Instant,
    label: String,
    total: u64,
    terminal: bool,
    bar: Mutex<Option<ProgressBar>>,
}

impl Bar {
    fn new(label: &str, total: u64) -> Self {
        Self {
            started: Instant::now(),
            label: label.to_owned(),
            total,
            terminal: io::stderr().is_terminal(),
            bar: Mutex::new(None),
        }
    }

    /// `done` bytes of the total are done.
    pub fn set(&self, done: u64) {
        if !self.terminal || self.started.elapsed() < SHOW_AFTER {
            return;
        }
        let mut bar = self
            .bar
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "{msg:<22} [{bar:32}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            )
            .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr_with_hz(10))
                .with_style(style)
                .with_elapsed(self.started.elapsed())
                .with_message(self.label.clone())
        });
        bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Ok(Some(bar)) = self.bar.get_mut().map(Option::take) {
            bar.finish_and_clear();
        }
    }
}

/// Bytes as text for JSON: as they are when they are UTF-8, else in base64 (RFC 4648, padded).
#[derive(Debug, PartialEq, Eq)]
pub enum Text<'a> {
    /// Valid UTF-8.
    Plain(&'a str),
    /// Anything else.
    Base64(String),
}

impl<'a> Text<'a> {
    /// Picks the form.
    pub fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Plain(text),
            Err(_) => Self::Base64(base64(bytes)),
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for place in 0..4 {
            if place <= group.len() {
                text.push(char::from(
                    ALPHABET[(word >> (18 - 6 * place)) as usize & 63],
                ));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_the_rfc() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn only_bytes_that_are_no_text_are_encoded() {
        assert_eq!(Text::of("grün".as_bytes()), Text::Plain("grün"));
        assert_eq!(Text::of(&[0xff]), Text::Base64("/w==".into()));
    }

    #[test]
    fn no_colours_unless_asked() {
        assert_eq!(Output::new(false, Color::Never).good("ok"), "ok");
        assert_eq!(
            Output::new(false, Color::Always).good("ok"),
            "\x1b[32mok\x1b[0m"
        );
    }
}
