//! That each promise of the crate's page has its tests.

const PAGE: &str = include_str!("../../README.md");
const TESTS: [&str; 5] = [
    include_str!("cuts.rs"),
    include_str!("limits.rs"),
    include_str!("moves.rs"),
    include_str!("processes.rs"),
    include_str!("room.rs"),
];

#[test]
fn each_promise_names_tests_that_exist() {
    let head = "| what | each message is handled | test |";
    let (_, table) = PAGE.split_once(head).expect("the table of promises");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut promises = 0;
    for row in rows {
        let tests = row.trim_end_matches(" |").rsplit('|').next().unwrap();
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row}");
        for name in names {
            let test = format!("#[test]\nfn {name}()");
            assert!(TESTS.iter().any(|file| file.contains(&test)), "{name}");
        }
        promises += 1;
    }
    assert!(promises > 0);
}
