//! Lets any user run tests that need a network.
//!
//! Only root may make network namespaces. But where the kernel allows user namespaces (user_namespaces(7)), any user is
//! root of one of their own. Only a process with a single thread can enter one, and a test is a thread among others. So
//! the test runs once more, alone in a new process that begins inside a user namespace.

use super::{Net, NetError};
use std::any::type_name;
use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

/// The variable that is set for the process that runs a test once more.
const ONCE_MORE: &str = "EMBAR_TEST_ONCE_MORE";

/// The variable that names a file, to which tests that cannot run here add their names; without it they fail.
const WITHOUT_NETWORKS: &str = "EMBAR_WITHOUT_NETWORKS";

/// Begins a command that runs as root of a user namespace.
const UNSHARE: [&str; 2] = ["--user", "--map-root-user"];

impl Net {
    /// Runs a test with a network that has so many hosts for servers: here, if this process may make networks, or else
    /// once more, alone in a process that may.
    ///
    /// The name of its closure identifies a test, so each test must call this itself.
    ///
    /// # Panics
    /// If the test does, or if it cannot run: only root may make networks on this machine, or a program is missing. Where
    /// the variable `EMBAR_WITHOUT_NETWORKS` names a file, a test that only root could run adds its name to that instead,
    /// one on each line.
    pub fn test<F: FnOnce(&Self)>(hosts: u8, test: F) {
        match Self::start(hosts) {
            Ok(net) => test(&net),
            Err(NetError::NotAllowed(why)) if env::var_os(ONCE_MORE).is_none() => {
                as_root_of_a_namespace(name_of(type_name::<F>()), why);
            }
            Err(error) => panic!("this test cuts networks of its own: {error}"),
        }
    }
}

/// Runs the test of that name once more; `why` says why it cannot run here.
fn as_root_of_a_namespace(name: &str, why: String) {
    let mut probe = Command::new("unshare");
    let probe = probe.args(UNSHARE).args(["--net", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return left_out(name, why);
    }
    let program = env::current_exe().expect("a running program is somewhere");
    let output = Command::new("unshare")
        .args(UNSHARE)
        .arg(program)
        .args([name, "--exact"])
        .env(ONCE_MORE, "1")
        .output()
        .expect("unshare was started before");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "there is no test {name}: {said}");
}

fn left_out(name: &str, why: String) {
    let Some(file) = env::var_os(WITHOUT_NETWORKS) else {
        panic!(
            "this test cuts networks of its own: {}",
            NetError::NotAllowed(why)
        );
    };
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&file)
        .unwrap_or_else(|error| panic!("{WITHOUT_NETWORKS}={}: {error}", file.display()));
    // One write, as other tests add their names at the same time.
    file.write_all(format!("{name}\n").as_bytes())
        .expect("there is room for a line");
}

/// The name of the test whose closure has this name: without its crate, and without the closure.
fn name_of(closure: &str) -> &str {
    let test = closure
        .strip_suffix("::{{closure}}")
        .expect("a test is given as a closure");
    test.split_once("::").map_or(test, |(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn the_name_of_its_closure_identifies_a_test() {
        let test = "client::network::a_test::{{closure}}";
        assert_eq!(name_of(test), "network::a_test");
        assert_eq!(name_of("program::a_test::{{closure}}"), "a_test");
    }
}
