//! What help shows, and how it looks.

use bowline_tests::Host;
use bowline_tests::harness::Ran;

/// `bowline ARGS --help` on a terminal with this many columns.
fn on_terminal(host: &Host, columns: u16, args: &[&str]) -> Ran {
    let mut shell = host.command("/bin/sh");
    shell.args(["-c", &format!("stty cols {columns}; exec \"$0\" \"$@\" --help")]);
    shell.arg(bowline_tests::harness::binary("bowline")).args(args).env("NO_COLOR", "1");
    host.command_in_terminal(&shell).finish()
}

/// The lines of a help below this heading.
fn below<'h>(help: &'h str, heading: &str) -> Vec<&'h str> {
    help.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty()).collect()
}

/// The names of all commands that a help lists.
fn commands(host: &Host, group: &[&str]) -> Vec<String> {
    let help = host.bowline(group.iter().chain(&["--help"])).assert_code(0).out();
    let names = below(&help, "Commands:").into_iter().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !["", "help"].contains(name)).map(str::to_owned).collect()
}

#[test]
fn help_and_version_are_answers() {
    let host = Host::new();
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["exec", "--help"], &["help", "run"]] {
        let ran = host.bowline(args);
        assert!(ran.code == Some(0) && !ran.stdout.is_empty() && ran.stderr.is_empty(), "{ran}");
    }
}

#[test]
fn bowline_alone_and_a_group_of_commands_alone_print_help() {
    let host = Host::new();
    for group in [&[][..], &["sandbox"], &["cgroup"], &["limits"]] {
        let ran = host.bowline(group);
        assert!(ran.stderr.is_empty(), "{ran}");
        let help = host.bowline(group.iter().chain(&["--help"])).out();
        ran.assert_says(&help);
    }
}

#[test]
fn help_is_as_wide_as_the_terminal() {
    let host = Host::new();
    let widths = [60, 80, 200].map(|columns| {
        let ran = on_terminal(&host, columns, &["run"]);
        let widest = ran.assert_code(0).out().lines().map(|line| line.chars().count()).max().unwrap_or_default();
        assert!(widest <= columns.into(), "{widest} of {columns} columns\n{ran}");
        widest
    });
    assert!(widths.is_sorted() && widths[0] > 40 && widths[2] > 100, "{widths:?}");
}

#[test]
fn flags_of_every_command_have_a_heading_of_their_own() {
    let host = Host::new();
    for args in [&[][..], &["run"], &["ps"], &["sandbox"], &["sandbox", "create"]] {
        let help = host.bowline(args.iter().chain(&["--help"])).assert_code(0).out();
        let global = help.split("\nGlobal options:\n").nth(1).expect("the heading");
        for flag in ["--state <DIR>", "--color <WHEN>", "-h, --help"] {
            assert!(global.contains(flag), "{flag} is not among the global ones of {args:?}\n{help}");
            assert_eq!(help.matches(flag).count(), 1, "{flag}\n{help}");
        }
    }
}

#[test]
fn the_limits_of_a_launch_have_a_heading_of_their_own() {
    let host = Host::new();
    for command in ["run", "start"] {
        let help = host.bowline([command, "--help"]).assert_code(0).out();
        let (options, limits) = (below(&help, "Options:"), below(&help, "Limits:"));
        let has = |lines: &[&str], flag: &str| lines.iter().any(|line| line.contains(flag));
        assert!(has(&limits, " --memory <") && has(&limits, " --ulimit <"), "{help}");
        for flag in [" --env <", " --json "] {
            assert!(has(&options, flag) && !has(&limits, flag), "{flag}\n{help}");
        }
    }
}

#[test]
fn a_limit_is_called_a_limit() {
    let host = Host::new();
    for command in ["run", "start", "update"] {
        let help = host.bowline([command, "--help"]).assert_code(0).out();
        for flag in ["--memory", "--cpus", "--pids"] {
            let lines = help.lines().skip_while(|line| !line.contains(&format!("{flag} <")));
            let told = lines.take(2).collect::<Vec<_>>().join(" ").to_lowercase();
            assert!(told.contains("limit"), "{command} {flag}: {told}");
        }
    }
}

#[test]
fn every_command_has_examples() {
    let host = Host::new();
    let mut all: Vec<Vec<String>> = commands(&host, &[]).into_iter().map(|name| vec![name]).collect();
    for group in ["sandbox", "cgroup", "limits"] {
        all.extend(commands(&host, &[group]).into_iter().map(|name| vec![group.to_owned(), name]));
    }
    assert!(all.len() > 40, "{all:?}");
    for command in all {
        let help = host.bowline(command.iter().map(String::as_str).chain(["--help"])).assert_code(0).out();
        let examples = below(&help, "Examples:");
        let name = command.join(" ");
        assert!(examples.iter().any(|line| line.starts_with(&format!("  bowline {name}"))), "{name}\n{help}");
    }
}
