//! A cluster to try things on: `cargo run -p embar-redis-servers --example cluster -- 5 0 7000` starts five masters
//! without replicas on ports 7000 to 7004, and stops them when its input ends (Ctrl-D) or it is interrupted.

use embar_redis_servers::{Cluster, ClusterOptions};
use std::error::Error;
use std::io::{Write, stdin, stdout};
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers = std::env::args().skip(1).map(|text| text.parse());
    let numbers: Vec<u16> = numbers
        .collect::<Result<_, _>>()
        .map_err(|_| "arguments: [masters [replicas of each [first port]]]")?;
    let options = ClusterOptions {
        masters: numbers.first().map_or(3, |masters| (*masters).into()),
        replicas: numbers.get(1).map_or(0, |replicas| (*replicas).into()),
        ports: numbers.get(2).copied(),
        ..ClusterOptions::default()
    };
    let begin = Instant::now();
    let cluster = Cluster::start(&options)?;
    let seconds = begin.elapsed().as_secs_f32();
    let ports: Vec<_> = cluster.nodes().iter().map(|node| node.port()).collect();
    writeln!(stdout(), "ready after {seconds:.1} s on ports {ports:?}")?;
    std::io::copy(&mut stdin(), &mut std::io::sink())?;
    Ok(())
}
