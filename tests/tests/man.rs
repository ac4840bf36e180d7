//! `bowline man`: a page of bowline and one of each command.

use std::fs;
use std::path::Path;

use bowline_tests::Host;

/// The commands that `--help` lists, and those of a group of commands.
fn commands(host: &Host) -> Vec<String> {
    let top = below(host, &[]);
    let grouped =
        top.iter().flat_map(|group| below(host, &[group]).into_iter().map(move |name| format!("{group}-{name}")));
    let grouped: Vec<String> = grouped.collect();
    top.into_iter().chain(grouped).collect()
}

fn below(host: &Host, group: &[&str]) -> Vec<String> {
    let help = host.bowline(group.iter().chain(&["--help"])).assert_code(0).out();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // The second line of a long description is further to the right.
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !["", "help"].contains(name)).map(str::to_owned).collect()
}

fn pages(host: &Host) -> Vec<String> {
    host.bowline(["man", host.work().to_str().expect("ASCII")]).assert_says("");
    let entries = fs::read_dir(host.work()).expect("the work folder").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().expect("ASCII")).collect();
    names.sort();
    names
}

#[test]
fn every_command_has_a_page() {
    let host = Host::new();
    let mut expected: Vec<String> = commands(&host).iter().map(|name| format!("bowline-{name}.1")).collect();
    assert!(expected.len() > 10, "{expected:?}");
    expected.push("bowline.1".to_owned());
    expected.sort();
    assert_eq!(pages(&host), expected);
}

#[test]
fn every_page_is_one_that_groff_takes() {
    let host = Host::new();
    for page in pages(&host) {
        let path = host.work().join(page);
        let text = fs::read_to_string(&path).expect("text");
        assert!(text.starts_with(".ie ") || text.starts_with(".TH "), "{text}");
        if Path::new("/usr/bin/groff").exists() {
            let mut groff = host.command("groff");
            groff.args(["-man", "-ww", "-z"]).arg(&path);
            let ran = host.execute(groff);
            assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{ran}");
        }
    }
}

#[test]
fn the_page_of_bowline_has_exit_codes_environment_and_files() {
    let host = Host::new();
    let text = host.bowline(["man"]).assert_code(0).out();
    for part in ["EXIT STATUS", "ENVIRONMENT", "FILES", "125", "BOWLINE_STATE", "exit.json"] {
        assert!(text.contains(part), "{part} is missing\n{text}");
    }
}

#[test]
fn every_page_has_examples() {
    let host = Host::new();
    for page in pages(&host) {
        let text = fs::read_to_string(host.work().join(&page)).expect("text");
        let examples = text.split_once(".SH EXAMPLES\n").unwrap_or_else(|| panic!("{page} has none\n{text}")).1;
        assert!(examples.starts_with(".PP\n\\fBbowline "), "{page}: {examples}");
        assert!(!text.contains(".SH EXTRA"), "{page}: {text}");
    }
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let host = Host::new();
    host.bowline(["man", "/no/such/folder"]).assert_refused(125, &["/no/such/folder"]);
}
