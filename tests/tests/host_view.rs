//! Folders that programs expect and that the host view does not take from the host: `/run`, `/var/tmp`, a home.

use bowline_tests::Host;

#[test]
fn run_and_var_tmp_are_empty_and_the_task_s_own() {
    let host = Host::new();
    // The resolver's file may be below /run, in a folder of its own.
    let script = "for d in /run /var/tmp; do stat -c '%n %a %u' $d; find $d -type f | grep -v resolv; touch $d/x; done; \
                  touch /x 2>/dev/null || echo read-only";
    host.task(script).run().assert_says("/run 755 0\n/var/tmp 1777 0\nread-only");
    host.task("touch /var/tmp/x && ! touch /run/x 2>/dev/null && echo as it is")
        .flag("--user=nobody")
        .run()
        .assert_says("as it is");
}

#[test]
fn the_user_has_a_home_of_its_own_where_passwd_says() {
    let host = Host::new();
    let script = "cd && pwd && ls -A && echo mine > ~/x && cat ~/x && stat -c %a ~ && [ -O ~ ] && echo own";
    host.task(script).run().assert_says("/root\nmine\n700\nown");
    host.task(script).flag("--user=www-data").run().assert_says("/var/www\nmine\n700\nown");
}

#[test]
fn a_home_in_the_view_or_meant_to_be_missing_is_left_alone() {
    let host = Host::new();
    host.task("[ -n \"$(ls ~)\" ] && ! touch ~/x 2>/dev/null && echo ~")
        .flag("--user=daemon")
        .run()
        .assert_says("/usr/sbin");
    host.task("[ -e /nonexistent ] || echo missing").flag("--user=nobody").run().assert_says("missing");
    // A number without a name is at home in the root.
    host.task("echo ~; touch ~/x 2>/dev/null || echo read-only").flag("--user=4711").run().assert_says("/\nread-only");
}

#[test]
fn what_a_description_mounts_there_is_there_instead() {
    let host = Host::new();
    let file = host.file("mine", "mine");
    let folder = file.parent().expect("a folder").display();
    for place in ["/run", "/root", "/var/tmp", "/opt"] {
        host.task(&format!("cat {place}/mine")).flag(format!("--volume={folder}:{place}:ro")).run().assert_says("mine");
    }
}

#[test]
fn a_user_namespace_has_the_same_home() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'echo mine > ~/x && cat ~/x && [ -O ~ ] && echo own; touch /run/x /var/tmp/x']\n\
                namespaces.user = 'private'\n\
                uid_mappings = [{container = 0, host = 100000, size = 65536}]\n\
                gid_mappings = [{container = 0, host = 100000, size = 65536}]";
    host.described(toml).run().assert_says("mine\nown");
}

#[test]
fn an_untrusted_task_has_its_home_alone() {
    let host = Host::new();
    let script =
        "echo ~; [ -e /root ] || [ -e /opt ] || echo none; touch /var/tmp/x; touch /run/x 2>/dev/null || echo closed";
    host.task(script).flag("--untrusted").run().assert_says("/home\nnone\nclosed");
}
