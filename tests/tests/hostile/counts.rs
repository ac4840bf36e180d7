//! What the kernel counts for a user or for the whole host: no task takes all of it.

use std::fs;

use bowline_tests::Host;
use rustix::fs::inotify;
use serde_json::{Value, json};

/// Opens terminals until that fails; prints how many there are, and why there is no other.
const OPEN_TERMINALS: &str = "while (open(my $t, '+<', '/dev/ptmx')) { push @all, $t } print scalar(@all), \" $!\\n\"";

/// Makes instances of inotify until that fails; prints how many there are.
#[cfg(target_arch = "x86_64")]
const MAKE_INSTANCES: &str = "$| = 1; while (syscall(294, 0) >= 0) { $n++ } print \"$n\\n\"";
#[cfg(not(target_arch = "x86_64"))]
const MAKE_INSTANCES: &str = "$| = 1; while (syscall(26, 0) >= 0) { $n++ } print \"$n\\n\"";

fn setting(path: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/sys/{path}")).expect("a setting");
    text.trim().parse().expect("a number")
}

#[test]
fn a_task_has_so_many_terminals_and_no_more() {
    let host = Host::new();
    for (more, most) in [("", 512), ("profile = 'untrusted'\n", 16)] {
        let toml = format!("command = 'perl'\nargs = ['-e', '''{OPEN_TERMINALS}''']\n{more}");
        host.described(&toml).run().assert_says(&format!("{most} No space left on device"));
    }
}

/// The kernel keeps some for filesystems that are made in its first mount namespace (`kernel.pty.reserve`). A task without
/// a mount namespace of its own gets none of those either.
#[test]
fn no_task_takes_the_terminals_that_are_the_hosts() {
    let host = Host::alone();
    let (all, reserve) = (setting("kernel/pty/max"), setting("kernel/pty/reserve"));
    let file = host.file("x.toml", "command = 'perl'\nargs = ['-e', 'print 1']\nrlimits.nofile = 8192");
    let printed = host.bowline(["spec", file.to_str().expect("ASCII")]).assert_code(0).out();
    let mut config: Value = serde_json::from_str(&printed).expect("JSON");
    config["process"]["args"] = json!(["perl", "-e", OPEN_TERMINALS]);
    for mount in config["mounts"].as_array_mut().expect("a list").iter_mut().filter(|mount| mount["type"] == "devpts") {
        let options = mount["options"].as_array_mut().expect("a list");
        options.retain(|option| !option.as_str().is_some_and(|option| option.starts_with("max=")));
    }
    let folder = host.work().join("bundle");
    fs::create_dir(&folder).expect("a new folder");
    for shared in [false, true] {
        if shared {
            let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
            namespaces.retain(|namespace| namespace["type"] != "mount");
        }
        fs::write(folder.join("config.json"), config.to_string()).expect("written");
        let ran = host.task_of([]).flag(format!("--bundle={}", folder.display())).run();
        let out = ran.out();
        let (opened, why) = out.split_once(' ').unwrap_or_else(|| panic!("{ran}"));
        assert_eq!(why.trim(), "No space left on device", "{ran}");
        assert!(opened.parse::<u64>().is_ok_and(|opened| opened < all - reserve), "{ran}");
    }
}

#[test]
fn pending_signals_leave_the_host_half_of_its_own() {
    let host = Host::new();
    let quarter = setting("kernel/threads-max") / 4;
    let shown = "set -- $(grep '^Max pending signals' /proc/self/limits); echo $4 $5";
    let task = host.task(&format!("{shown}; exec sleep 1000")).start();
    task.wait_for_line(&format!("{quarter} {quarter}"));
    task.exec(shown).assert_says(&format!("{quarter} {quarter}"));
    task.end();
    host.task(shown).toml("rlimits.sigpending = 7\n").run().assert_says("7 7");
}

const MAPPED: &str = "namespaces.user = 'private'\nuid_mappings = [{ container = 0, host = 100000, size = 65536 }]\n\
                      gid_mappings = [{ container = 0, host = 100000, size = 65536 }]\n";

/// They count for the namespace's owner too, the host's root.
#[test]
fn a_user_namespace_leaves_root_half_of_its_inotify_instances() {
    let host = Host::new();
    let half = setting("user/max_inotify_instances") / 2;
    let toml =
        |more: &str| format!("command = 'perl'\nargs = ['-e', '''{MAKE_INSTANCES}; sleep 1000''']\n{MAPPED}{more}");
    let task = host.described(&toml("")).start();
    task.wait_for_line(&half.to_string());
    inotify::init(inotify::CreateFlags::CLOEXEC).expect("root has some left");
    let watches = task.exec("cat /proc/sys/user/max_inotify_watches").assert_code(0).out();
    assert_eq!(watches.parse(), Ok(setting("user/max_inotify_watches") / 2));
    task.end();
    // Another limit is for the description to say.
    let task = host.described(&toml("sysctls = { 'user/max_inotify_instances' = '5' }")).start();
    task.wait_for_line("5");
    task.end();
}
