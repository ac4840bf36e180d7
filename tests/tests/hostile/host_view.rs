//! What of the host's own files a task without a root filesystem reads: what
//! everybody may, and nothing that is root's, whatever the host does meanwhile.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::{Ran, binary, lacks};

/// A file of the host's that only root may read.
const SECRET: &str = "root's alone";

/// A file or folder of this test below a folder of the host, which goes in any case.
struct Own(PathBuf);

impl Own {
    fn file(host: &Host, parent: &str, name: &str, mode: u32) -> Own {
        let own = Own(Path::new(parent).join(format!("{}-{name}", host.prefix())));
        own.write(mode);
        own
    }

    /// Puts a new file in its place, as `passwd` and `useradd` do.
    fn write(&self, mode: u32) {
        let new = self.0.with_extension("new");
        fs::write(&new, SECRET).expect("root may");
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).expect("root may");
        fs::rename(&new, &self.0).expect("root may");
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0).or_else(|_| fs::remove_file(&self.0));
    }
}

/// Every file of a list, read by whoever runs this.
fn reads(paths: &[&str]) -> String {
    paths.iter().map(|path| format!("cat '{path}' 2>/dev/null; ")).collect::<String>() + "echo end"
}

#[test]
fn root_inside_reads_no_file_of_the_host_that_is_root_s_alone() {
    let host = Host::new();
    let files = [0o600, 0o640, 0o400, 0o000].map(|mode| Own::file(&host, "/etc", &format!("{mode:o}"), mode));
    let paths: Vec<String> = files.iter().map(Own::path).collect();
    let mut paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    paths.extend(["/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/sudoers", "/etc/krb5.keytab"]);
    paths.extend(["/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_ed25519_key", "/etc/security/opasswd"]);
    // With every right that a task has by default, and with one more.
    for toml in ["", "capabilities.add = ['DAC_READ_SEARCH']\n", "no_new_privs = false\n"] {
        let command = format!("command = 'sh'\nargs = ['-c', \"\"\"{}\"\"\"]\n", reads(&paths));
        host.described(&format!("{command}{toml}")).run().assert_says("end");
    }
    drop(files);
}

#[test]
fn a_file_renamed_over_a_closed_one_is_not_readable_either() {
    let host = Host::new();
    let file = Own::file(&host, "/etc", "shadow", 0o640);
    let path = file.path();
    let task = host.task("exec sleep 1000").start();
    task.exec(&reads(&[&path])).assert_says("end");
    file.write(0o640);
    task.exec(&reads(&[&path])).assert_says("end");
    // What is new, too.
    let later = Own::file(&host, "/etc", "later", 0o600);
    task.exec(&reads(&[&path, &later.path()])).assert_says("end");
    task.end();
    drop((file, later));
}

#[test]
fn a_health_check_sees_no_more_than_the_task() {
    let host = Host::new();
    let file = Own::file(&host, "/etc", "checked", 0o600);
    let toml = format!(
        "command = 'sleep'\nargs = ['1000']\n\
         healthcheck = {{ exec = ['sh', '-c', 'cat {}'], interval = '10ms', retries = 1, on_unhealthy = 'stop' }}\n\
         stop.grace = '0s'",
        file.path()
    );
    let task = host.described(&toml).start();
    assert_eq!(task.wait()["stopped_by"], "health", "a check that could read it would succeed");
    drop(file);
}

#[test]
fn nothing_below_a_closed_folder_is_found() {
    let host = Host::new();
    let folder = Own(Path::new("/etc").join(format!("{}-private", host.prefix())));
    fs::create_dir(&folder.0).expect("root may");
    fs::write(folder.0.join("key"), SECRET).expect("root may");
    fs::set_permissions(folder.0.join("key"), fs::Permissions::from_mode(0o644)).expect("root may");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o710)).expect("root may");
    let script = format!("ls {0} 2>/dev/null; cat {0}/key 2>/dev/null; echo end", folder.path());
    host.task(&script).run().assert_says("end");
    drop(folder);
}

#[test]
fn another_user_reads_nothing_by_its_number_or_its_groups() {
    let host = Host::new();
    let file = Own::file(&host, "/etc", "groups", 0o640);
    std::os::unix::fs::chown(&file.0, Some(4711), Some(4712)).expect("root may");
    for user in ["--user=4711", "--user=4713:4712", "--user=65534:65534"] {
        host.task(&reads(&[&file.path()])).flag(user).run().assert_says("end");
    }
    drop(file);
}

#[test]
fn root_mapped_to_the_host_s_root_reads_no_more() {
    let host = Host::new();
    let file = Own::file(&host, "/etc", "userns", 0o600);
    let toml = format!(
        "command = 'sh'\nargs = ['-c', \"\"\"{}\"\"\"]\nnamespaces.user = 'private'\n\
         uid_mappings = [{{container = 0, host = 0, size = 65536}}]\n\
         gid_mappings = [{{container = 0, host = 0, size = 65536}}]",
        reads(&[&file.path()])
    );
    host.described(&toml).run().assert_says("end");
    drop(file);
}

#[test]
fn programs_find_in_etc_what_they_need() {
    let host = Host::new();
    let script = "cat /etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf > /dev/null && id -un && \
                  getent passwd nobody | cut -d: -f1; [ -L /etc/os-release ] && grep -c ^ID= /etc/os-release; \
                  [ ! -e /etc/ssl/certs ] || ls /etc/ssl/certs > /dev/null && echo certificates; \
                  cat /etc/ld.so.cache > /dev/null && echo linker";
    host.task(script).run().assert_says("root\nnobody\n1\ncertificates\nlinker");
}

/// `bowline run` of `inside` in a mount namespace of its own, where `$etc`, which
/// `script` changes, lies upon `/etc`: a copy of that.
#[track_caller]
fn with_etc(host: &Host, script: &str, inside: &str) -> Ran {
    let etc = host.work().join("etc");
    let script = format!(
        "etc={}; mkdir $etc; for f in /etc/*; do case $f in */bl-*) ;; *) cp -a $f $etc;; esac; done; {script}\n\
         mount --rbind \"$etc\" /etc",
        etc.display(),
    );
    with_mounts(host, &script, inside)
}

/// `bowline run` of `inside` in a mount namespace of its own, which `script` has
/// mounted something in, with flags that it puts into `$flags`.
#[track_caller]
fn with_mounts(host: &Host, script: &str, inside: &str) -> Ran {
    let mut command = host.command("unshare");
    let bowline = binary("bowline");
    let id = host.new_id();
    let script = format!(
        "set -e; {script}\n{} --state {} run --rm --name {id} $flags -- /bin/sh -c '{inside}'",
        bowline.display(),
        host.state().display(),
    );
    command.args(["-m", "sh", "-c", &script]);
    host.execute(command)
}

#[test]
fn an_etc_that_is_a_mount_with_mounts_below_is_shown_as_it_is() {
    let host = Host::new();
    let script = "mkdir $etc/below; mount -t tmpfs below $etc/below -o mode=755; \
                  echo open > $etc/below/open; echo secret > $etc/below/closed; chmod 600 $etc/below/closed; \
                  cp $etc/hosts $etc/own-hosts; echo 127.9.9.9 stand-in > $etc/own-hosts; \
                  mount --bind $etc/own-hosts $etc/hosts; true";
    let ran = with_etc(&host, script, "cat /etc/hosts; cat /etc/below/open /etc/below/closed 2>/dev/null; echo end");
    let out = ran.assert_code(0).out();
    assert!(out.contains("127.9.9.9 stand-in") && out.ends_with("end"), "{ran}");
    assert!(!out.contains("secret"), "{ran}");
}

#[test]
fn a_resolv_conf_link_shows_its_file_and_nothing_else_of_run() {
    let host = Host::new();
    // With a folder of run, and with what a socket and a secret there stand for.
    for (folder, link) in [
        ("/run/systemd/resolve", "../run/systemd/resolve/stub-resolv.conf"),
        ("/run/resolvconf", "/run/resolvconf/stub-resolv.conf"),
        ("/run/NetworkManager", "/var/run/NetworkManager/stub-resolv.conf"),
        ("/mnt/wsl", "/mnt/wsl/stub-resolv.conf"),
    ] {
        let script = format!(
            "mount -t tmpfs run /run; mount -t tmpfs mnt /mnt; mkdir -p {folder}; cd {folder}; echo nameserver 127.9.9.9 > stub-resolv.conf; \
             mkfifo io.systemd.Resolve; echo secret > secret; echo secret > /run/secret; \
             rm -f $etc/resolv.conf; ln -s {link} $etc/resolv.conf"
        );
        let inside = "cat /etc/resolv.conf; (echo x >> /etc/resolv.conf) 2>/dev/null || echo read-only; find /run /mnt /var/run ! -type d 2>/dev/null | wc -l";
        let ran = with_etc(&host, &script, inside);
        ran.assert_says("nameserver 127.9.9.9\nread-only\n1");
        std::fs::remove_dir_all(host.work().join("etc")).expect("the next one makes it");
    }
}

#[test]
fn a_private_network_gets_the_servers_behind_a_loopback_stub() {
    let host = Host::new();
    let stub = "mount -t tmpfs run /run; mkdir -p /run/systemd/resolve; cd /run/systemd/resolve; \
                echo nameserver 127.0.0.53 > stub; echo nameserver 192.0.2.53 > resolv.conf; \
                rm -f $etc/resolv.conf; ln -s $PWD/stub $etc/resolv.conf; flags=--network=none";
    for (change, seen) in [
        ("true", "nameserver 192.0.2.53"),
        ("rm $etc/resolv.conf; cp stub $etc/resolv.conf", "nameserver 192.0.2.53"),
        ("flags=", "nameserver 127.0.0.53"),
        ("chmod 600 resolv.conf", "nameserver 127.0.0.53"),
        ("rm resolv.conf", "nameserver 127.0.0.53"),
        ("echo nameserver 192.0.2.1 >> stub", "nameserver 192.0.2.1"),
    ] {
        with_etc(&host, &format!("{stub}; {change}"), "cat /etc/resolv.conf").assert_says(seen);
        fs::remove_dir_all(host.work().join("etc")).expect("the next one makes it");
    }
}

#[test]
fn a_link_to_what_is_missing_closed_or_no_file_is_left_as_it_is() {
    let host = Host::new();
    for make in ["true", "echo closed > it; chmod 600 it", "mkfifo it", "ln -s /proc/version it"] {
        let script =
            format!("mount -t tmpfs run /run; cd /run; {make}; rm -f $etc/resolv.conf; ln -s /run/it $etc/resolv.conf");
        with_etc(&host, &script, "ls /run; readlink /etc/resolv.conf").assert_says("/run/it");
        std::fs::remove_dir_all(host.work().join("etc")).expect("the next one makes it");
    }
}

#[test]
fn opt_is_shown_as_everybody_may_read_it_or_not_at_all() {
    let host = Host::new();
    let mapped = !lacks("fsopen") && !lacks("mount_setattr") && !lacks("openat2");
    let (open, closed) = (Own::file(&host, "/opt", "open", 0o644), Own::file(&host, "/opt", "closed", 0o600));
    for toml in ["", "no_new_privs = false\n"] {
        let read = reads(&[&open.path(), &closed.path()]);
        let ran = host.described(&format!("command = 'sh'\nargs = ['-c', \"\"\"{read}\"\"\"]\n{toml}")).run();
        ran.assert_says(&format!("{}end", if mapped { SECRET } else { "" }));
    }
    // An overlay shows its owners whatever is done.
    let binaries = binary("bowline").with_file_name("");
    let script = format!(
        "cd {}; mkdir lower up bin; echo open > lower/open; mount -t tmpfs up up; mkdir up/up up/work; \
         mount --bind {binaries} bin; mount -t overlay over -o lowerdir=lower,upperdir=up/up,workdir=up/work /opt; \
         mkdir -p {binaries}; mount --bind bin {binaries}",
        host.work().display(),
        binaries = binaries.display()
    );
    with_mounts(&host, &script, "ls -A /opt; touch /opt/x 2>/dev/null || echo read-only").assert_says("read-only");
    drop((open, closed));
}

#[test]
fn without_idmapping_etc_is_a_copy_of_what_everybody_may_read() {
    let host = Host::new();
    // An overlay cannot be.
    let script = "mkdir $etc.up; mount -t tmpfs up $etc.up; mkdir $etc.up/up $etc.up/work; \
                  echo closed > $etc/shadow; chmod 640 $etc/shadow; \
                  mkdir -p $etc/ssl/private $etc/ssl/certs; echo closed > $etc/ssl/private/key; chmod 710 $etc/ssl/private; \
                  echo open > $etc/ssl/certs/mine; echo odd > $etc/odd; \
                  mount -t overlay over -o lowerdir=$etc,upperdir=$etc.up/up,workdir=$etc.up/work $etc";
    let inside = "cat /etc/shadow /etc/ssl/private/key /etc/odd 2>/dev/null; cat /etc/ssl/certs/mine; id -un; \
                  touch /etc/x 2>/dev/null || echo read-only; stat -f -c %T /etc";
    let ran = with_etc(&host, script, inside);
    ran.assert_says("open\nroot\nread-only\ntmpfs");
}

#[test]
fn root_s_files_in_usr_are_not_read_where_owners_can_be_hidden() {
    let host = Host::new();
    let mapped = !lacks("fsopen") && !lacks("mount_setattr") && !lacks("openat2");
    let file = Own::file(&host, "/usr/share", "closed", 0o600);
    let open = Own::file(&host, "/usr/share", "open", 0o644);
    let link = Own(open.0.with_extension("link"));
    symlink(&open.0, &link.0).expect("root may");
    let ran = host.task(&reads(&[&file.path()])).run();
    if mapped {
        ran.assert_says("end");
    }
    host.task(&format!("cat {}; id -u", link.path())).run().assert_says(&format!("{SECRET}0"));
    drop((file, open, link));
}

#[test]
fn a_mount_below_usr_that_shows_owners_exposes_no_other() {
    let host = Host::new();
    let mapped = !lacks("fsopen") && !lacks("mount_setattr") && !lacks("openat2");
    let file = Own::file(&host, "/usr/share", "beside", 0o600);
    let path = file.path();
    // An overlay cannot be idmapped; what lies upon one can.
    let script = format!(
        "cd {}; mkdir lower up work; echo open > lower/open; mount -t tmpfs up up; mkdir up/up up/work lower/further; \
         mount -t overlay over -o lowerdir=lower,upperdir=up/up,workdir=up/work /usr/src; \
         mount -t tmpfs further /usr/src/further; echo closed > /usr/src/further/closed; \
         chmod 600 /usr/src/further/closed; echo open > /usr/src/further/open",
        host.work().display()
    );
    let inside = format!("cat {path} /usr/src/further/closed 2>/dev/null; cat /usr/src/open /usr/src/further/open");
    let ran = with_mounts(&host, &script, &inside);
    if mapped {
        ran.assert_says("open\nopen");
    }
    drop(file);
}

#[test]
fn a_task_with_as_few_processes_as_can_be_has_the_same_view() {
    let host = Host::new();
    let file = Own::file(&host, "/etc", "pids", 0o600);
    let path = file.path();
    host.task_of(["head", "-c1", &path]).flag("--pids=1").run().assert_code(1);
    host.task_of(["head", "-c4", "/etc/passwd"]).flag("--pids=1").run().assert_says("root");
    drop(file);
}
