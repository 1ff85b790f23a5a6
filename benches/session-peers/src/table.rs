//! All of them in turn, each as a process of its own, several times.
//!
//! Machines differ from hour to hour. So in each round one is measured after the other, beginning with another one each
//! time, and they are compared within a round.

mod comparison;
mod process;

use self::comparison::Comparison;
use crate::arguments::{Arguments, Test};
use anyhow::ensure;
use indicatif::{ProgressBar, ProgressStyle};

/// Measures all there is to measure, and prints it.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let comparison = measure(arguments)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&comparison)?);
    } else {
        print!("{}", comparison.markdown());
    }
    let failed = comparison.problems.len();
    ensure!(failed == 0, "{failed} measurements failed, see above");
    Ok(())
}

fn measure(arguments: &Arguments) -> anyhow::Result<Comparison> {
    let (peers, rounds) = (&arguments.peers, arguments.rounds as usize);
    let mut problems = Vec::new();
    // By test, then by peer, then by round.
    let mut reports = Test::ALL.map(|_| vec![vec![None; rounds]; peers.len()]);
    // It draws nothing where nobody looks.
    let bar = ProgressBar::new((rounds * Test::ALL.len() * peers.len()) as u64);
    let bar = bar.with_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} {msg} (about {eta} left)",
    )?);
    for round in 0..rounds {
        for (test, reports) in Test::ALL.into_iter().zip(&mut reports) {
            for turn in 0..peers.len() {
                let index = (round + turn) % peers.len();
                let peer = peers[index];
                bar.inc(1);
                if !test.is_of(peer) {
                    continue;
                }
                bar.set_message(format!("round {}: {peer}, {test}", round + 1));
                match process::measure(peer, test, arguments.messages(test)) {
                    Ok(report) => reports[index][round] = Some(report),
                    Err(error) => {
                        let what = format!("{peer}, {test}, round {}: {error:#}", round + 1);
                        bar.suspend(|| eprintln!("{what}"));
                        problems.push(what);
                    }
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(Comparison::new(arguments, &reports, problems))
}
