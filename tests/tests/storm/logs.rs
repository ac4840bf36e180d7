//! Storms on a log that is followed while it is rotated many times a second: by rotation alone, and beside somebody who
//! kills the shims or renames the log.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Trace, eventually, storm, touch};

use crate::logs::fast::{assert_accounted, followed, followed_in, length};

#[test]
fn each_line_comes_once_and_in_order_or_is_said_to_be_missing() {
    storm(6, |round| {
        let format = ["json", "raw"][round % 2];
        let host = Host::new();
        let (task, logs) = followed(&host, &[&format!("--log={format}")]);
        touch(task.program_pid(), "go");
        assert_accounted(&logs.finish(), length(format));
        host.assert_nothing_left();
    });
}

#[test]
fn lines_keep_their_order_where_shims_are_killed() {
    storm(4, |round| {
        let format = ["json", "raw"][round % 2];
        let host = Host::new();
        let (task, logs) = followed(&host, &[&format!("--log={format}"), "--init"]);
        let program = task.program_pid();
        touch(program, "stay");
        touch(program, "go");
        for _ in 0..3 {
            task.crash_shim();
            // `logs` has a new one started.
            task.wait_until_running();
        }
        fs::remove_file(format!("/proc/{program}/root/tmp/stay")).expect("it is there");
        assert_accounted(&logs.finish(), length(format));
        host.assert_nothing_left();
    });
}

/// What is missing is known to the byte, whichever call of a rotation is a shim's last.
#[test]
fn so_it_is_where_a_shim_is_killed_at_any_call_of_a_rotation() {
    let calls = ["openat", "rename", "pwrite64", "fallocate", "ftruncate"];
    storm(12, |round| {
        let (format, files) = (["json", "raw"][round % 2], 1 + round / 2 % 3);
        let (call, which) = (calls[round % calls.len()], 1 + round / calls.len() % 6);
        let host = Host::new();
        let (task, logs) = followed_in(&host, &[&format!("--log={format}"), "--init"], files);
        let (program, shim) = (task.program_pid(), task.shim_pid());
        touch(program, "stay");
        let kill = format!("inject={call}:signal=SIGKILL:when={which}");
        let trace = Trace::of(&host, shim, ["-e", &format!("trace={call}"), "-e", &kill]);
        touch(program, "go");
        // Not each file makes so many calls. `logs` has a new shim started.
        eventually("half is written", || {
            fs::exists(format!("/proc/{program}/root/tmp/half")).is_ok_and(|is| is).then_some(())
        });
        drop(trace.end());
        fs::remove_file(format!("/proc/{program}/root/tmp/stay")).expect("it is there");
        assert_accounted(&logs.finish(), length(format));
        host.assert_nothing_left();
    });
}

#[test]
fn so_it_is_where_the_log_is_renamed_again_and_again() {
    storm(4, |round| {
        let format = ["json", "raw"][round % 2];
        let host = Host::new();
        let (task, logs) = followed(&host, &[&format!("--log={format}")]);
        let log = task.file(if format == "json" { "log.json" } else { "stdout.log" });
        let program = task.program_pid();
        touch(program, "stay");
        touch(program, "go");
        let moved = log.with_file_name("x");
        let has_half = |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.contains("0010000"));
        while !has_half(&log) && !has_half(&moved) {
            let _ = fs::rename(&log, &moved);
        }
        fs::remove_file(format!("/proc/{program}/root/tmp/stay")).expect("it is there");
        assert_accounted(&logs.finish(), length(format));
        host.assert_nothing_left();
    });
}
