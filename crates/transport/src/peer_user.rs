//! Which user is at the other end of a Unix socket, as the kernel says.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// What the kernel says of users without a number, unless somebody changed that.
const OVERFLOW_USER: u32 = 65_534;

/// The effective user of the process at the other end, as it was when that connected or listened.
pub(crate) fn user_of_peer(socket: impl AsFd) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Whether this process may trust processes of a user: its own, or root.
pub(crate) fn is_trusted(user: u32) -> bool {
    user == 0 || (user == rustix::process::geteuid().as_raw() && is_one_user(user))
}

/// Whether this number means one user. In a user namespace the kernel gives one number to all users that have none there, be this
/// process's user among them or not.
fn is_one_user(user: u32) -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse();
    user != overflow.unwrap_or(OVERFLOW_USER) || all_have_numbers(&read("/proc/self/uid_map"))
}

/// Whether a namespace with this map has a number for every user, as the first one of the machine has.
fn all_have_numbers(map: &str) -> bool {
    let mapped = map.lines().map(|line| {
        let count = line.split_whitespace().nth(2);
        count.and_then(|it| it.parse::<u64>().ok()).unwrap_or(0)
    });
    mapped.sum::<u64>() >= u64::from(u32::MAX)
}

/// Whether a process that may be trusted is at the other end of a Unix socket: one of this process's user, or of root.
///
/// # Errors
/// The kernel does not say.
pub fn has_trusted_peer(socket: impl AsFd) -> io::Result<bool> {
    Ok(is_trusted(user_of_peer(socket)?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_a_map_of_all_users_has_a_number_for_each() {
        assert!(all_have_numbers("         0          0 4294967295\n"));
        assert!(all_have_numbers("0 1 4294967294\n4294967294 0 1\n"));
        for map in ["", "0 1000 1\n", "0 1000 1\n1 100000 65536\n", "0 0 all\n"] {
            assert!(!all_have_numbers(map), "{map}");
        }
    }

    /// This test once more, in a namespace in which no user has a number.
    const INSIDE: &str = "EMBAR_TEST_WITHOUT_USERS";

    #[test]
    fn a_user_without_a_number_is_nobodys_own() {
        if std::env::var_os(INSIDE).is_some() {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(user_of_peer(&ours).unwrap(), own);
            assert!(!has_trusted_peer(&ours).unwrap(), "{own}");
            return;
        }
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(has_trusted_peer(&ours).unwrap());
        let unshared = |program: &std::ffi::OsStr| {
            let mut command = Command::new("unshare");
            command.arg("--user").arg(program);
            command
        };
        let allowed = unshared("true".as_ref()).status();
        if !allowed.is_ok_and(|it| it.success()) {
            // Some kernels give nobody such a namespace.
            return;
        }
        let this = std::env::current_exe().unwrap();
        let name = "peer_user::tests::a_user_without_a_number_is_nobodys_own";
        let inside = unshared(this.as_os_str())
            .args([name, "--exact"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&inside.stdout);
        assert!(
            inside.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }
}
