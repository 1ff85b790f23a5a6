//! The program as it is run, on loopback as it is.

use std::process::Command;

fn fresh(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fresh"))
        .args(arguments)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    said
}

#[test]
fn each_way_has_its_figures() {
    let said = fresh(&["state", "--seconds", "1"]);
    for name in ["TCP, messages", "QUIC, messages", "QUIC, datagrams"] {
        let line = said.lines().find(|line| line.starts_with(name));
        let figures = line.expect("a line of its own").split_whitespace();
        assert!(figures.last().is_some_and(|max| max.parse::<f64>().is_ok()));
    }
    let said = fresh(&["echo", "--count", "100", "--mib", "4"]);
    assert!(
        ["TCP", "TLS", "QUIC"]
            .iter()
            .all(|name| said.contains(name)),
        "{said}"
    );
}
