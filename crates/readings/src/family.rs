//! A process and all that it started: what they used of the processors together, so that what is left was used by others.

use std::collections::BTreeMap;
use std::fs;

use crate::process::{KernelError, Member};

/// Processor seconds of a process and its descendants since they started, also of those that have ended and were waited for.
///
/// Descendants whose parent has ended belong to nobody, and are not counted.
///
/// # Errors
/// The process is gone, or `/proc` cannot be read. Who ends meanwhile is not counted.
pub fn cpu_s(pid: u32) -> Result<f64, KernelError> {
    let all: BTreeMap<u32, Member> = processes()
        .filter_map(|it| Some((it, Member::of(it).ok()?)))
        .collect();
    let own = Member::of(pid)?;
    let is_ours = |mut of: u32| {
        // Parents are other processes, so a chain is no longer than there are processes, unless ids were reused meanwhile.
        for _ in 0..all.len() {
            match all.get(&of) {
                Some(it) if it.parent == pid => return true,
                Some(it) if it.parent > 1 => of = it.parent,
                _ => return false,
            }
        }
        false
    };
    let others = all.iter().filter(|(id, _)| **id != pid && is_ours(**id));
    let others: f64 = others.map(|(_, it)| it.cpu_s).sum();
    Ok(own.cpu_s + others)
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command};

    use super::*;

    #[test]
    fn children_count_while_they_run_and_once_they_have_ended() {
        let before = cpu_s(process::id()).expect("/proc");
        let mut child = Command::new("sh")
            .args(["-c", "i=0; while :; do i=$((i+1)); done"])
            .spawn()
            .expect("a shell");
        let used = |at_least: f64| {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while cpu_s(process::id()).expect("/proc") < before + at_least {
                assert!(std::time::Instant::now() < until, "the child computes");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        used(0.05);
        child.kill().expect("it runs");
        child.wait().expect("it ended");
        used(0.05);
    }

    #[test]
    fn who_is_gone_has_no_family() {
        assert!(cpu_s(u32::MAX).is_err());
    }
}
