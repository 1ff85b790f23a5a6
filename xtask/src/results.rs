//! Adds up the results that test programs print.

use std::fmt::{self, Display};

/// The sum of the closing lines of test programs (`test result: ok. 3 passed; 0 failed; ...`).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Results {
    programs: u32,
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Results {
    /// Takes one line of output; lines of other kinds change nothing.
    pub fn read(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        self.programs += 1;
        self.passed += count(counts, "passed");
        self.failed += count(counts, "failed");
        self.ignored += count(counts, "ignored");
    }

    /// Adds those of another step.
    pub fn add(&mut self, other: &Self) {
        self.programs += other.programs;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Whether a test program said anything.
    pub fn any(&self) -> bool {
        self.programs > 0
    }
}

impl Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        let (passed, failed, ignored) = (self.passed, self.failed, self.ignored);
        write!(
            f,
            "test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; in {} test programs",
            self.programs
        )
    }
}

/// The number before `word`.
fn count(counts: &str, word: &str) -> u32 {
    counts
        .split([';', '.'])
        .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::Results;

    #[test]
    fn closing_lines_are_added_up() {
        let mut results = Results::default();
        assert!(!results.any());
        for line in [
            "running 4 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.25s",
            "test it_prints_a_result ... ok",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s",
        ] {
            results.read(line);
        }
        assert_eq!(
            results.to_string(),
            "test result: FAILED. 13 passed; 2 failed; 1 ignored; in 2 test programs"
        );
    }
}
