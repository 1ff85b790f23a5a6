//! Lists the programs that the tests need, and the packages or toolchain components that contain them.

/// A program that must be there.
pub struct Program {
    /// What is started, with an argument that makes it end at once.
    pub command: [&'static str; 2],
    pub why: &'static str,
    /// Packages of Debian and its relatives that bring it.
    pub packages: &'static [&'static str],
    /// The component of the Rust toolchain that it is.
    pub component: Option<&'static str>,
}

pub const PROGRAMS: [Program; 11] = [
    Program {
        command: ["cc", "--version"],
        why: "a C compiler, which also links what Rust compiles",
        packages: &["gcc", "libc6-dev"],
        component: None,
    },
    Program {
        command: ["cargo-fmt", "--version"],
        why: "the formatter of the Rust toolchain",
        packages: &[],
        component: Some("rustfmt"),
    },
    Program {
        command: ["cargo-clippy", "--version"],
        why: "the linter of the Rust toolchain",
        packages: &[],
        component: Some("clippy"),
    },
    // Where systemd runs, Debian's package starts a server on port 6379: no test uses that port.
    Program {
        command: ["redis-server", "--version"],
        why: "the server that the Redis client is tested with",
        packages: &["redis-server"],
        component: None,
    },
    Program {
        command: ["python3", "--version"],
        why: "a client of sessions in another language runs in it",
        packages: &["python3"],
        component: None,
    },
    Program {
        command: ["setpriv", "--version"],
        why: "it ends Redis servers with the test that started them",
        packages: &["util-linux"],
        component: None,
    },
    Program {
        command: ["ip", "-V"],
        why: "it makes networks that tests can cut",
        packages: &["iproute2"],
        component: None,
    },
    Program {
        command: ["mkfs.ext4", "-V"],
        why: "it makes file systems whose power tests can cut",
        packages: &["e2fsprogs"],
        component: None,
    },
    Program {
        command: ["mkfs.xfs", "-V"],
        why: "it makes others",
        packages: &["xfsprogs"],
        component: None,
    },
    Program {
        command: ["xfs_io", "-V"],
        why: "it cuts the power of both",
        packages: &["xfsprogs"],
        component: None,
    },
    Program {
        command: ["mount", "-V"],
        why: "it mounts them",
        packages: &["mount"],
        component: None,
    },
];
