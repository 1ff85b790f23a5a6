//! The exit codes of the program, which error ends it with which of them, and the message that the user then sees.

mod log_client;

use std::io;

use embar_bench::compare::measure::BenchFailed;
use embar_bench::session::measure::ProbeLost;
use embar_bench::stamp::NotVerified;
use embar_broker::StartError;
use embar_console::explain;
use embar_console::interrupt::Interrupted;
use embar_console::setting::BadSetting;
use embar_console::size::Size;
use embar_supervise::child::LogError;
use embar_supervise::cluster::StartFailed;
use embar_supervise::protocol::{EXIT_OVERTAKEN, EXIT_USAGE};
use embar_supervise::supervisor_lock::RegionInUse;
use embar_verify::findings::NotKept;

/// All went well.
pub const OK: u8 = 0;
/// Anything that has no code of its own.
pub const FAILURE: u8 = 1;
/// The command line cannot be used as it is.
pub const USAGE: u8 = EXIT_USAGE;
/// No broker answers, or no server.
pub const CANNOT_CONNECT: u8 = 3;
/// Data was lost, changed, repeated, or may have been.
pub const DATA: u8 = 4;
/// A verification had nothing to judge.
pub const NOTHING_TRIED: u8 = 5;
/// A broker stood still for so long that others went on without it.
pub const OVERTAKEN: u8 = EXIT_OVERTAKEN;
/// Stopped by Ctrl-C or SIGTERM.
pub const INTERRUPTED: u8 = 130;

/// For `--help`.
pub const HELP: &str = "\
Exit codes:
  0    done
  1    failed; the message says why and what to do
  2    the command line cannot be used as it is
  3    no broker, or no server, answers
  4    verification failed: data was lost, changed or repeated, or may have been
  5    nothing was tried: a verification ended well, and nothing happened that could have broken a
       promise
  6    a broker stood still for so long that others went on without it: start it again
  130  interrupted by Ctrl-C or SIGTERM; commands that only read end by the signal itself: 130, 143";

/// Errors that have an exit code of their own.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Exit code 4.
    #[error("{0}")]
    Data(String),
    /// Exit code 6.
    #[error(
        "this broker was overtaken: it stood still for so long that others went on without it; start it again, what it acknowledged is kept"
    )]
    Overtaken,
    /// Whoever read our output has gone, which is their right: exit code 0, and not a word.
    #[error("the reader of the output has gone")]
    OutputClosed,
}

/// An error about the command line.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Problem::Usage(message.into()).into()
}

/// An error about what the log or a server keeps, which is not what it must be. A file that cannot be read as what it should
/// be is none: nothing was lost, so it is a plain failure.
pub fn data(message: impl Into<String>) -> anyhow::Error {
    Problem::Data(message.into()).into()
}

/// The bytes of an option as a `u32`; `flag` names it in the error.
pub fn to_u32(size: Size, flag: &str) -> anyhow::Result<u32> {
    size.to_u32().ok_or_else(|| {
        usage(format!(
            "{flag} {size} is too large: at most 4 GiB - 1 byte"
        ))
    })
}

/// Turns a failed write to standard output into an error; a closed pipe becomes [`Problem::OutputClosed`].
pub fn output(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Problem::OutputClosed.into()
    } else {
        anyhow::Error::from(error).context("cannot write to standard output")
    }
}

/// The message and its causes, each once, and which options to change.
pub fn explain(error: &anyhow::Error) -> String {
    let text = explain::explain(error.as_ref());
    match error.chain().find_map(hint) {
        Some(hint) => format!("{text}: {hint}"),
        None => text,
    }
}

/// Libraries know no options: what to change when they cannot go on.
fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(bad) = cause.downcast_ref::<BadSetting>() {
        let flags: Vec<String> = bad.settings.iter().map(|it| flag_of(it)).collect();
        return Some(format!("change {}", flags.join(" or ")));
    }
    if cause.is::<LogError>() {
        return Some("choose another --log-dir".into());
    }
    if cause.is::<RegionInUse>() {
        return Some("--region names another".into());
    }
    if cause.is::<ProbeLost>() {
        return Some("give --rate".into());
    }
    log_client::hint(cause)
}

/// The option that sets a field of a plan.
fn flag_of(setting: &str) -> String {
    let name = match setting {
        "message_bytes" => "message-size",
        "batch_bytes" => "batch-size",
        "total_bytes" => "size",
        "region_bytes" => "region-size",
        "faults" => "faults",
        other => return format!("--{}", other.replace('_', "-")),
    };
    format!("--{name}")
}

/// The exit code of `error`: that of the first cause that has one.
pub fn code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(cause_code).unwrap_or(FAILURE)
}

fn cause_code(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(problem) = cause.downcast_ref::<Problem>() {
        return Some(match problem {
            Problem::Usage(_) => USAGE,
            Problem::Data(_) => DATA,
            Problem::Overtaken => OVERTAKEN,
            Problem::OutputClosed => OK,
        });
    }
    if let Some(failed) = cause.downcast_ref::<StartFailed>() {
        return (failed.code == USAGE).then_some(USAGE);
    }
    if let Some(failed) = cause.downcast_ref::<BenchFailed>() {
        return failed.code.and_then(|code| u8::try_from(code).ok());
    }
    match cause.downcast_ref::<NotKept>() {
        Some(NotKept::Broken(_)) => return Some(DATA),
        Some(NotKept::NothingTried(_)) => return Some(NOTHING_TRIED),
        None => {}
    }
    if cause.is::<Interrupted>() {
        return Some(INTERRUPTED);
    }
    if cause.is::<BadSetting>() {
        return Some(USAGE);
    }
    if cause.is::<NotVerified>() || cause.is::<ProbeLost>() {
        return Some(DATA);
    }
    if let Some(StartError::NoHead { .. }) = cause.downcast_ref() {
        return Some(CANNOT_CONNECT);
    }
    log_client::code(cause).or_else(|| cause.downcast_ref().and_then(redis_code))
}

fn redis_code(error: &embar_redis::Error) -> Option<u8> {
    use embar_redis::Error;
    match error {
        Error::Unavailable { .. } => Some(CANNOT_CONNECT),
        Error::Config(_) => Some(USAGE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_code_survives_context() {
        let error = Err::<(), _>(usage("no"))
            .context("while parsing")
            .expect_err("an error");
        assert_eq!(code(&error), USAGE);
        assert_eq!(code(&anyhow::anyhow!("plain")), FAILURE);
        assert_eq!(code(&Interrupted.into()), INTERRUPTED);
        assert_eq!(code(&Problem::Overtaken.into()), OVERTAKEN);
    }

    #[test]
    fn errors_of_the_redis_client_are_sorted() {
        let why = "connection refused".into();
        let nobody = embar_redis::Error::Unavailable { why };
        assert_eq!(code(&nobody.into()), CANNOT_CONNECT);
        assert_eq!(code(&embar_redis::Error::TimedOut.into()), FAILURE);
    }

    #[test]
    fn a_setting_is_named_by_its_option() {
        let settings = &["key_size", "total_bytes"];
        let error = anyhow::Error::from(BadSetting::new(settings, "it does not fit"));
        assert_eq!(code(&error), USAGE);
        assert_eq!(
            explain(&error.context("bench")),
            "bench: it does not fit: change --key-size or --size"
        );
    }

    #[test]
    fn errors_of_the_libraries_are_sorted() {
        let failed = |code| StartFailed {
            code,
            message: "no".into(),
        };
        let verdict = |verdict: fn(String) -> NotKept| verdict("no".into());
        let lost = ProbeLost { lost: 1 };
        let codes = [
            (failed(EXIT_USAGE).into(), USAGE),
            (failed(3).into(), FAILURE),
            (verdict(NotKept::Broken).into(), DATA),
            (verdict(NotKept::NothingTried).into(), NOTHING_TRIED),
            (lost.into(), DATA),
        ];
        for (error, expected) in codes {
            let error: anyhow::Error = error;
            assert_eq!(code(&error), expected, "{error}");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        assert_eq!(code(&output(io::ErrorKind::BrokenPipe.into())), OK);
        assert_eq!(code(&output(io::ErrorKind::StorageFull.into())), FAILURE);
    }
}
