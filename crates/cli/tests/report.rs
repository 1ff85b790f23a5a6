//! `embar report`: from files and standard input to a page, or to an error and nothing.

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use common::{Space, embar, output_of, run, text};
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
    assert!(refused(&[bad], 4).contains("trials is a number, where a list is expected"));
    assert!(
        refused(&[&recorded("read"), &recorded("scale")], 4).contains("embar bench walls --json")
    );
    assert!(refused(&["none.json"], 1).contains("none.json"));
    assert!(refused(&["-", "-"], 2).contains("once"));
    assert!(refused(&["-"], 4).contains("standard input is empty"));
    refused(&[], 2);

    let read = recorded("read");
    let nowhere = space.dir.join("none/page.html");
    let output = run(embar(&["report", &read, "--out"]).arg(&nowhere));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let output = run(&mut embar(&["--json", "report", &read, "--out", "-"]));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
