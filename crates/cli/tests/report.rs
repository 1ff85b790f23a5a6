//! `embar report`: from files and standard input to a page, or to an error and nothing.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};

use common::{Space, embar, end_of, eventually, output_of, run, signal, text};
use serde_json::Value;

fn recorded(name: &str) -> String {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/results");
    let path = results.join(name).with_extension("json");
    path.to_str().expect("a name").to_owned()
}

/// The names of all files in a directory.
fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let names = entries.map(|it| it.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|it| it.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn files_become_one_page_that_replaces_the_one_before() {
    let space = Space::new();
    let (read, walls) = (recorded("read"), recorded("walls"));
    let mut command = embar(&["report", &read]);
    let output = run(command.current_dir(&space.dir));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(files(&space.dir), ["embar-report.html"]);
    let page = space.dir.join("embar-report.html");
    let first = fs::read_to_string(&page).expect("a page");
    assert!(first.starts_with("<!DOCTYPE html>") && first.contains("Read"));

    let args = [
        "--json",
        "report",
        &read,
        &walls,
        "--title",
        "Two & more",
        "--out",
        "embar-report.html",
    ];
    let output = run(embar(&args).current_dir(&space.dir));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(said["sections"][1]["title"], "Beside the walls");
    let second = fs::read_to_string(&page).expect("a page");
    assert_eq!(said["bytes"], second.len());
    assert!(second.contains("<h1>Two &amp; more</h1>") && second.ends_with("</html>"));
    assert_eq!(
        files(&space.dir),
        ["embar-report.html"],
        "nothing is left behind"
    );
}

#[test]
fn a_pipe_becomes_a_page_on_standard_output() {
    let result = fs::read(recorded("latency")).expect("recorded");
    let mut child = embar(&["report", "-", "--out", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("embar starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(&result).expect("it reads");
    drop(stdin);
    let output = output_of(child);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = text(&output.stdout);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
    assert!(page.contains("standard input") && page.contains("order 5"));
}

#[test]
fn what_is_no_result_leaves_the_page_as_it_is() {
    let space = Space::new();
    let page = space.dir.join("page.html");
    fs::write(&page, "as it was").expect("written");
    let bad = space.dir.join("bad.json");
    fs::write(&bad, "{\"bench\":\"read\",\"trials\":7}").expect("written");
    let bad = bad.to_str().expect("a name");
    let refused = |files: &[&str], code: i32| {
        let args = [&["report", "--out", page.to_str().expect("a name")], files].concat();
        let output = run(&mut embar(&args));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert_eq!(fs::read_to_string(&page).expect("there"), "as it was");
        error
    };
    assert!(refused(&[bad], 1).contains("trials is a number, where a list is expected"));
    assert!(
        refused(&[&recorded("read"), &recorded("log-peers")], 1)
            .contains("embar bench walls --json")
    );
    assert!(refused(&["none.json"], 1).contains("none.json"));
    // Names are texts of others: a terminal must not obey them.
    let error = refused(&["\u{1b}]0;owned\u{7}\u{202e}.json"], 1);
    assert!(
        error.contains("\\u{1b}]0;owned\\u{7}\\u{202e}.json"),
        "{error}"
    );
    assert!(refused(&["-", "-"], 2).contains("once"));
    assert!(refused(&["-"], 1).contains("standard input is empty"));
    refused(&[], 2);

    let read = recorded("read");
    let nowhere = space.dir.join("none/page.html");
    let output = run(embar(&["report", &read, "--out"]).arg(&nowhere));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let output = run(&mut embar(&["--json", "report", &read, "--out", "-"]));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn what_is_read_is_never_what_the_page_replaces() {
    let space = Space::new();
    let result = fs::read(recorded("read")).expect("recorded");
    let same = space.dir.join("same.json");
    fs::write(&same, &result).expect("written");
    let other = space.dir.join("other.json");
    fs::hard_link(&same, &other).expect("linked");
    let link = space.dir.join("link.json");
    symlink("same.json", &link).expect("linked");
    for (input, out) in [
        (&same, &same),
        (&other, &same),
        (&same, &link),
        (&link, &same),
    ] {
        let output = run(embar(&["report"]).arg(input).arg("--out").arg(out));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("another one for the page"), "{error}");
    }
    let stdin = File::open(&same).expect("there");
    let output = run(embar(&["report", "-", "--out"]).arg(&same).stdin(stdin));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert_eq!(fs::read(&same).expect("there"), result);
    assert_eq!(files(&space.dir), ["link.json", "other.json", "same.json"]);
}

#[test]
fn a_page_keeps_the_mode_the_links_and_the_name_of_what_it_replaces() {
    let space = Space::new();
    let read = recorded("read");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    let report = |out: &Path| {
        let output = run(embar(&["report", &read, "--out"]).arg(out));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let page = fs::read_to_string(out).expect("a page");
        assert!(page.starts_with("<!DOCTYPE html>"));
    };
    let long = space.dir.join("x".repeat(250) + ".html");
    fs::write(&long, "as it was").expect("written");
    fs::set_permissions(&long, fs::Permissions::from_mode(0o640)).expect("ours");
    report(&long);
    assert_eq!(mode(&long), 0o640);

    // A link stays one, whether there is something at its end or not yet.
    fs::create_dir(space.dir.join("pages")).expect("made");
    let (link, end) = (space.dir.join("link"), space.dir.join("pages/page.html"));
    symlink("pages/page.html", &link).expect("linked");
    for mode_before in [None, Some(0o600)] {
        if let Some(mode) = mode_before {
            fs::set_permissions(&end, fs::Permissions::from_mode(mode)).expect("ours");
        }
        report(&link);
        assert!(link.is_symlink() && !end.is_symlink());
        assert!(mode_before.is_none_or(|it| it == mode(&end)));
    }
    assert_eq!(files(&space.dir.join("pages")), ["page.html"]);
    assert_eq!(files(&space.dir).len(), 3);
}

/// The command as a terminal starts it. A shell starts what runs in its background with Ctrl-C ignored, tests included, and
/// children inherit that.
fn heeding_interrupts(arguments: &[&str]) -> Child {
    let command = embar(arguments);
    std::process::Command::new("env")
        .arg("--default-signal=INT")
        .arg(command.get_program())
        .args(arguments)
        .spawn()
        .expect("env starts")
}

#[test]
fn a_signal_ends_what_waits_for_a_file() {
    let space = Space::new();
    let fifo = space.dir.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo starts").success());
    let name = fifo.to_str().expect("a name");
    // A writer can be opened without waiting once somebody reads.
    let open = || {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&fifo)
    };
    for (arguments, by, number) in [
        (vec!["report", name], "INT", libc::SIGINT),
        (vec!["diagnose", "--from", name], "TERM", libc::SIGTERM),
        (
            vec!["diagnose", "redis", "--from", name],
            "INT",
            libc::SIGINT,
        ),
    ] {
        let mut child = heeding_interrupts(&arguments);
        let mut writer = None;
        eventually("it reads", || {
            writer = open().ok();
            writer.is_some()
        });
        signal(child.id(), by);
        // The writer is open until then, so that it is not the end of the file that ends it.
        assert_eq!(end_of(&mut child).signal(), Some(number), "{arguments:?}");
    }
    let mut child = embar(&["report", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("embar starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // More than fits into a pipe: it reads.
    pipe.write_all(&[b' '; 100_000]).expect("it reads");
    signal(child.id(), "TERM");
    assert_eq!(end_of(&mut child).signal(), Some(libc::SIGTERM));
    drop(pipe);
}
