//! What SECURITY.md, docs/reliability.md and the Makefile name as a test, or as a source file, is one.

use std::fs;

use super::{sources, top};

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).expect("a file of the repository")
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Fails unless there is a test of this name: a module, or after `::` a case, or the beginning of one before `…`.
#[track_caller]
fn assert_is_a_test(page: &str, name: &str) {
    let file = |module: &str| {
        let base = format!("tests/tests/{}", module.replace("::", "/"));
        [format!("{base}.rs"), format!("{base}/mod.rs")].into_iter().find(|path| top().join(path).exists())
    };
    let found = file(name).map(|path| (path, "")).or_else(|| {
        let (module, case) = name.rsplit_once("::")?;
        Some((file(module)?, case))
    });
    let (path, case) = found.unwrap_or_else(|| panic!("{page} names {name}, and there is no such file"));
    let case = format!("fn {}", case.trim_end_matches('…'));
    assert!(read(&path).contains(&case), "{page} names {name}, which is not in {path}");
}

/// Each attack has a test in its row, and what remains may name some.
#[test]
fn every_attack_that_is_told_is_tried() {
    let page = read("SECURITY.md");
    let rows = page.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split(" | ").nth(2));
    let names: Vec<&str> =
        rows.flat_map(quoted).chain(quoted(&page).filter(|name| name.len() > 2 && name.contains("::"))).collect();
    assert!(names.len() > 60, "{names:?}");
    for name in names {
        assert_is_a_test("SECURITY.md", name);
    }
}

#[test]
fn what_survives_a_crash_is_tried_by_tests_that_there_are() {
    let page = read("docs/reliability.md");
    let told =
        page.split("\nThe tests ").nth(1).and_then(|rest| rest.split(" try each").next()).expect("it names its tests");
    let names = quoted(told);
    let cases = quoted(&page).filter(|name| name.contains("::"));
    let names: Vec<&str> = names.chain(cases).collect();
    assert!(names.len() >= 9, "{names:?}");
    for name in names {
        assert_is_a_test("docs/reliability.md", name);
    }
}

/// The table of time limits says in which file each is.
#[test]
fn every_time_limit_is_in_a_file_that_there_is() {
    let page = read("docs/reliability.md");
    let files: Vec<String> = ["executor", "shim"].into_iter().flat_map(sources).map(|source| source.name).collect();
    // By its crate and its folders, without those between.
    let is_one = |name: &str| {
        files.iter().any(|file| {
            let mut parts = file.split('/');
            name.split('/').all(|part| parts.any(|found| found == part)) && parts.next().is_none()
        })
    };
    let names: Vec<&str> = quoted(&page).filter(|name| name.ends_with(".rs")).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(is_one(name), "docs/reliability.md names {name}, which is no source file");
    }
}

/// CI has no systemd but in the virtual machine.
#[test]
fn what_needs_systemd_is_run_where_it_is() {
    let makefile = read("Makefile");
    let of = |variable: &str| {
        let text = makefile.split(&format!("\n{variable} = ")).nth(1).expect("it is there");
        // A line that ends with a backslash goes on.
        let mut lines =
            text.lines().scan(true, |goes_on, line| std::mem::replace(goes_on, line.ends_with('\\')).then_some(line));
        lines
            .by_ref()
            .flat_map(str::split_whitespace)
            .filter(|word| *word != "\\")
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // `make test` has the first ones, less what takes longest there; `make test-all` has both.
    let run = [of("VM_CASES"), of("VM_MORE")].concat();
    let mut needing = 0;
    for source in sources("tests/tests").iter().filter(|source| !source.name.ends_with("/named_tests.rs")) {
        let module = source.name.split("tests/tests/").last().unwrap_or_default().trim_end_matches(".rs");
        let module = module.trim_end_matches("/mod").replace('/', "::");
        let is_run = |name: &str| run.iter().any(|of| name == of || name.starts_with(&format!("{of}::")));
        for case in source.text.split("#[test]\nfn ").skip(1) {
            let (name, body) = case.split_once('(').expect("a function");
            let case = format!("{module}::{name}");
            if body.contains("lacks_systemd()") || body.contains("host.cri_with_systemd()") {
                needing += 1;
                assert!(is_run(&case), "{case} is not among VM_CASES");
            }
        }
    }
    assert!(needing > 40, "{needing}");
}
