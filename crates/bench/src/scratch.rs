//! Directories that a bench makes below those that users name, on the disks that it measures. Each goes when it is dropped. A
//! bench that was killed leaves them, and the next one that comes to the same place removes them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context as _, Result, bail};
use embar_console::context::Context;
use embar_console::size::Size;
use embar_disk::{Directory, Storage};
use embar_supervise::leftovers;
use tempfile::TempDir;

/// All names begin so; the id of the process that made the directory follows, and a part of its own.
const PREFIX: &str = ".embar-bench-";

/// How long the processes of a killed run may take to end.
const ENDING_MAX: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Makes a directory below `place`, which is made if it is not there, and has room for so many bytes.
///
/// # Errors
/// What the system says, or how much room there is.
pub fn make(place: &Path, needed: u64, context: &Context) -> Result<TempDir> {
    let cannot = || format!("cannot write to {}", place.display());
    fs::create_dir_all(place).with_context(cannot)?;
    for left in sweep(place) {
        context.note(format_args!(
            "removed {}, left by a run that was killed",
            left.display()
        ));
    }
    let dir = make_in(place, std::process::id()).with_context(cannot)?;
    let free = Directory::open(dir.path()).and_then(|opened| opened.free_bytes());
    let free = free.with_context(cannot)?;
    if free < needed {
        bail!(
            "{} has room for {}, and the measurement needs {}: choose a smaller --size, or another --data",
            place.display(),
            Size(free),
            Size(needed)
        );
    }
    Ok(dir)
}

fn make_in(place: &Path, maker: u32) -> std::io::Result<TempDir> {
    leftovers::make(place, PREFIX, maker)
}

/// Removes the directories of processes that have ended. Returns what it removed.
fn sweep(place: &Path) -> Vec<PathBuf> {
    let left = leftovers::find(place, PREFIX).into_iter();
    left.filter(|dir| remove(dir)).collect()
}

/// Brokers of a killed run end a moment after it, and make files meanwhile.
fn remove(dir: &Path) -> bool {
    let until = Instant::now() + ENDING_MAX;
    loop {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                if Instant::now() >= until {
                    return false;
                }
                thread::sleep(LOOK_EVERY);
            }
            removed => return removed.is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use embar_console::interrupt::Interrupt;
    use embar_console::progress::Silent;

    use super::*;

    /// Above the largest id that Linux gives out.
    const DEAD: u32 = 4_194_305;

    #[test]
    fn what_a_killed_run_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().expect("a directory");
        let mine = make_in(place.path(), std::process::id()).expect("made");
        let left = make_in(place.path(), DEAD).expect("made").keep();
        fs::write(left.join("000000000000.segment"), "x").expect("written");
        for name in ["other", ".embar-bench-x", ".embar-bench-4194305"] {
            fs::create_dir(place.path().join(name)).expect("made");
        }
        assert_eq!(sweep(place.path()), [left]);
        assert!(mine.path().exists());
        assert_eq!(fs::read_dir(place.path()).map_or(0, Iterator::count), 4);
    }

    #[test]
    fn a_process_that_ends_while_its_directory_goes_leaves_nothing() {
        let place = tempfile::tempdir().expect("a directory");
        let left = make_in(place.path(), DEAD).expect("made").keep();
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..2000 {
                    // In vain once the directory is gone.
                    drop(fs::write(left.join(number.to_string()), "x"));
                }
            });
            assert_eq!(sweep(place.path()).first(), Some(&left));
        });
        assert_eq!(fs::read_dir(place.path()).map_or(9, Iterator::count), 0);
    }

    #[test]
    fn a_place_without_room_is_refused_and_stays_empty() {
        let place = tempfile::tempdir().expect("a directory");
        let below = place.path().join("a/b");
        let context = Context {
            progress: Arc::new(Silent),
            interrupt: Interrupt::default(),
            program: PathBuf::new(),
        };
        let error = make(&below, u64::MAX, &context).expect_err("no disk has it");
        assert!(error.to_string().contains("--data"), "{error}");
        assert_eq!(fs::read_dir(&below).map_or(0, Iterator::count), 0);
        let dir = make(&below, 0, &context).expect("room");
        assert!(dir.path().exists());
    }
}
