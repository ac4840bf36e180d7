//! What SECURITY.md names as a test is one.

use std::fs;

use super::top;

/// Each test that SECURITY.md names, by its module or its name or the beginning of that, is there.
#[test]
fn every_attack_that_is_told_is_tried() {
    let read = |path: &str| fs::read_to_string(top().join(path)).expect("a file of the repository");
    let page = read("SECURITY.md");
    let rows = page.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split(" | ").nth(2));
    let names: Vec<&str> = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let (module, case) = name.split_once("::").unwrap_or((name, ""));
        let path = format!("tests/tests/{module}.rs");
        assert!(top().join(&path).exists(), "SECURITY.md names {name}, and there is no {path}");
        let case = format!("fn {}", case.trim_end_matches('…'));
        assert!(read(&path).contains(&case), "SECURITY.md names {name}, which is not in {path}");
    }
}
