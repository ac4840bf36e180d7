//! CVE-2019-5736: a task that overwrites the runtime's binary, which it reaches by `/proc/PID/exe` of what starts a
//! process in it.
//!
//! Of the shim's own pid, in the host's pid namespace: `security::the_shims_binary_cannot_be_written_through_proc`;
//! containerd's: `containerd::start::the_binary_that_serves_cannot_be_written_to`; an init whose entrypoint is
//! `/proc/self/exe`: `security::a_command_that_is_the_shims_own_binary_cannot_write_it`.

use std::fs;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Stdio, shim_binary};
use bowline_tests::harness::{binary, is_slow, write_program};
use sha2::{Digest as _, Sha256};

/// Every binary of the runtime's, and what is in it.
fn binaries() -> Vec<(PathBuf, Vec<u8>)> {
    let all = [binary("bowline"), binary("bowline-shim"), shim_binary()];
    let digest = |path: &PathBuf| Sha256::digest(fs::read(path).expect("it is there")).to_vec();
    all.into_iter().map(|path| (path.clone(), digest(&path))).collect()
}

/// What looks for processes that come into the task, and tries to write to what they run: it counts those that it has
/// seen before they had executed their program, those whose binary it could open, and writes that worked. `done` ends it.
const LOOKS_FOR_BINARIES: &str = r#"
    $| = 1; my ($seen, $read, $wrote, %said); print "looking\n";
    until (-e '/tmp/done') {
        opendir(my $proc, '/proc');
        for my $pid (grep { /^\d+$/ && $_ != 1 && $_ != $$ } readdir $proc) {
            my $exe = readlink "/proc/$pid/exe";
            if (!defined $exe) { $said{"readlink: $!"}++; $seen++; next; }
            next if $exe =~ m{^(/usr)?/bin/};
            $seen++;
            if (open(my $kept, '<', "/proc/$pid/exe")) {
                $read++;
                # It may be written to once it runs no more.
                for (1 .. 2000) {
                    if (open(my $out, '>>', '/proc/self/fd/' . fileno $kept)) { $wrote++; last; }
                    $said{"write: $!"}++;
                }
            } else { $said{"open: $!"}++; }
        }
    }
    printf "seen %d read %d wrote %d\n", $seen, $read, $wrote;
    print join(', ', map { "$_ ($said{$_})" } sort keys %said), "\n";
"#;

#[test]
fn cve_2019_5736_the_binary_of_a_starting_exec_is_not_writable() {
    let host = Host::new();
    let before = binaries();
    let looking = "command = '/bin/sleep'\nargs = ['1000']\ncapabilities.add = ['SYS_PTRACE', 'DAC_READ_SEARCH']";
    let task = host.described(looking).start();
    let attacker = host.spawn(["exec", task.id(), "--", "perl", "-e", LOOKS_FOR_BINARIES]);
    attacker.wait_for_out("looking");
    for _ in 0..if is_slow() { 20 } else { 100 } {
        task.bowline("exec", ["--", "/bin/true"]).assert_code(0);
    }
    task.exec(": > /tmp/done").assert_code(0);
    let ran = attacker.finish();
    let out = ran.assert_code(0).out();
    let numbers = |what: &str| -> u32 {
        let words: Vec<_> = out.split_whitespace().collect();
        let at = words.iter().position(|word| *word == what).expect("it says so");
        words[at + 1].parse().expect("a number")
    };
    assert!(numbers("seen") > 0, "no process was seen on its way: nothing was tried\n{ran}");
    assert_eq!(numbers("wrote"), 0, "{ran}");
    task.end();
    assert!(binaries() == before, "a binary has changed\n{ran}");
}

/// The program is a script whose interpreter is the runtime itself, so that the runtime runs inside, where everything
/// that it loads is the image's.
#[test]
fn cve_2019_5736_the_runtime_run_as_an_exec_is_not_writable() {
    let host = Host::new();
    let before = binaries();
    let root = host.busybox_root();
    root.file("bin/script", "#!/proc/self/exe\n", 0o755);
    root.link("bin/linked", std::path::Path::new("/proc/self/exe"));
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    for program in ["/bin/script", "/bin/linked", "/proc/self/exe", "/proc/1/exe"] {
        for flags in ["--env=A=1", "--timeout=50s"] {
            // Without arguments none of those that it may lead to does anything.
            let ran = task.bowline("exec", [flags, "--", program]);
            assert!(ran.code.is_some_and(|code| code != 0), "{ran}");
        }
    }
    task.end();
    assert!(binaries() == before, "a binary has changed");
}

/// The attack through containerd, whose shim is another binary: an exec before it executes.
#[test]
fn cve_2019_5736_init_and_execs_cannot_write_containerds_shim() {
    let host = Host::new();
    let before = binaries();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let root = bundle.rootfs();
    write_program(&root.join("bin/script"), "#!/proc/self/exe\n");
    let script = "tried=0; opened=0; echo looking; until [ -e /tmp/done ]; do for p in /proc/[0-9]*; do \
        [ $p = /proc/1 ] && continue; tried=$((tried+1)); (: >> $p/exe) 2>/dev/null && opened=$((opened+1)); \
        done; done; echo tried $tried opened $opened";
    let bundle = bundle.script(script);
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    running.stdout.wait_for("looking");
    for round in 0..20 {
        let exec = format!("e{round}");
        let args: &[&str] = if round % 2 == 0 { &["/bin/script"] } else { &["/proc/self/exe"] };
        let process = running.bundle.process(args);
        running.shim.exec(&running.id, &exec, &process, &Stdio::null()).expect("added");
        // Whether it runs or not is its own business.
        if running.shim.start(&running.id, &exec).is_ok() {
            running.shim.status_at_end(&running.id, &exec);
        }
        running.shim.delete(&running.id, &exec).expect("it has ended");
    }
    running.exec("last", ": > /tmp/done");
    let said = running.stdout.to_end();
    assert!(said.ends_with(" opened 0\n") && !said.contains("tried 0"), "{said}");
    running.end();
    assert!(binaries() == before, "a binary has changed");
}
