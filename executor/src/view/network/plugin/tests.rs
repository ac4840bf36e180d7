//! Tests with stand-ins: every way in which a plugin may end, or not.

use std::time::Instant;

use rustix::process::{Pid, Signal};

use super::*;
use crate::view::network::testing::Stand;

fn call() -> Call<'static> {
    let netns = Some(Path::new("/run/netns/web"));
    Call { command: "ADD", id: "web", netns, interface: "eth0", args: "A=b;C=d" }
}

fn error(stand: &Stand, timeout: Duration) -> Error {
    let plugins = Plugins { folders: &stand.folders(), bounds: timeout.into() };
    plugins.ask("p", call(), &json!({"cniVersion": "1.0.0"})).expect_err("it fails").error
}

#[test]
fn a_plugin_has_its_parameters_and_its_configuration() {
    let stand = Stand::new();
    stand.plugin(
        "p",
        r#"printf '{"env":"%s %s %s %s %s %s","in":%s}' $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS \
        $CNI_IFNAME "$CNI_ARGS" $CNI_PATH "$in"; echo a log >&2"#,
    );
    let folders = [PathBuf::from("/nowhere"), stand.folders().remove(0)];
    let plugins = Plugins { folders: &folders, bounds: LONGEST.into() };
    let config = json!({"cniVersion": "0.4.0", "type": "p"});
    let path = format!("/nowhere:{}", folders[1].display());
    let expected = json!({
        "cniVersion": "0.4.0", "in": config, "env": format!("ADD web /run/netns/web eth0 A=b;C=d {path}"),
    });
    assert_eq!(plugins.ask("p", call(), &config).expect("it answers"), expected);
    // A plugin that says nothing has still done its work.
    stand.plugin("q", "");
    plugins.tell("q", Call { netns: None, ..call() }, &config).expect("it ends well");
}

#[test]
fn a_plugin_that_is_missing_is_named_with_the_folders() {
    let folders = [PathBuf::from("/nowhere"), PathBuf::from("/no/where")];
    let plugins = Plugins { folders: &folders, bounds: LONGEST.into() };
    let error = plugins.tell("p", call(), &json!({})).expect_err("there is none");
    assert_eq!(error.kind(), Kind::Unsupported);
    assert_eq!(error.message(), "cannot find the network plugin p in /nowhere, /no/where");
    assert!(error.hint_text().is_some());
    for kind in ["", "a/b", ".."] {
        assert_eq!(plugins.find(kind).map_err(|e| e.kind()), Err(Kind::BadSpec), "{kind}");
    }
}

#[test]
fn a_plugin_that_hangs_is_killed_with_all_that_it_started() {
    let stand = Stand::new();
    // The plugin's child would hold the pipe open; it writes down its pid first.
    stand.plugin("p", "sh -c 'echo $$ >$0.pid; exec sleep 1000' $0 & wait");
    let pid = || std::fs::read_to_string(stand.folders()[0].join("p.pid")).ok().filter(|pid| !pid.is_empty());
    // On a busy machine, the child may not have come so far.
    let seconds = [1, 4, 16, 64].into_iter().find(|seconds| {
        let error = error(&stand, Duration::from_secs(*seconds));
        let expected = format!("it did not end within {seconds}s and was killed");
        assert_eq!(error.kind(), Kind::Timeout);
        assert_eq!(error.message(), format!("network plugin p failed at ADD: {expected}"));
        pid().is_some()
    });
    let pid = pid().filter(|_| seconds.is_some()).expect("it ran");
    let begun = Instant::now();
    loop {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") || state.contains(") X ") {
            break;
        }
        assert!(begun.elapsed() < LONGEST, "it still runs: {state}");
        std::thread::yield_now();
    }
}

#[test]
fn an_error_of_cni_is_told_with_its_code_message_and_details() {
    let stand = Stand::new();
    for (code, kind) in [(1, Kind::Unsupported), (7, Kind::BadSpec), (100, Kind::Internal)] {
        let body = r#"{"cniVersion":"1.0.0","code":CODE,"msg":"no bridge","details":"br0\nis down"}"#;
        stand.plugin("p", &format!("printf %s '{}'; exit 1", body.replace("CODE", &code.to_string())));
        let error = error(&stand, LONGEST);
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.message(), format!("network plugin p failed at ADD: code {code}: no bridge: br0 is down"));
    }
}

#[test]
fn garbage_is_told_by_its_beginning() {
    let stand = Stand::new();
    for (script, expected) in [
        ("echo hello", r#"it said "hello" in place of an answer"#),
        ("echo '[1]'", r#"it said "[1]" in place of an answer"#),
        ("", "it said nothing in place of an answer"),
        ("echo oops >&2; exit 3", r#"exit code 3, and it said "oops""#),
        ("echo oops >&2; echo what; exit 3", r#"exit code 3, and it said "what""#),
        ("exit 4", "exit code 4, and it said nothing"),
        ("kill -9 $$", "killed by signal 9, and it said nothing"),
    ] {
        stand.plugin("p", script);
        let error = error(&stand, LONGEST);
        assert_eq!(error.kind(), Kind::Internal);
        assert_eq!(error.message(), format!("network plugin p failed at ADD: {expected}"), "{script}");
    }
    stand.plugin("p", "head -c 3000 /dev/zero | tr '\\0' x");
    let long = error(&stand, LONGEST);
    assert!(long.message().len() < 400, "{long}");
}

#[test]
fn what_a_plugin_says_is_bounded() {
    let stand = Stand::new();
    stand.plugin("p", "yes");
    let error = error(&stand, LONGEST);
    assert!(error.message().contains("it said more than 1048576 bytes: \"y y y"), "{error}");
    // A log of any length is no part of the answer.
    stand.plugin("q", "yes | head -c 200000 >&2; echo '{}'");
    let plugins = Plugins { folders: &stand.folders(), bounds: LONGEST.into() };
    assert_eq!(plugins.ask("q", call(), &json!({"cniVersion": "1"})).expect("it answers"), json!({"cniVersion": "1"}));
    // A process that the plugin leaves running, such as a DHCP client, is not waited for.
    stand.plugin("r", "sleep 1000 & echo '{\"pid\":'$!'}'");
    let answer = plugins.ask("r", call(), &json!({"cniVersion": "1"})).expect("it answers");
    let pid = answer["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("a pid");
    rustix::process::kill_process(pid, Signal::KILL).expect("it runs on");
}

#[test]
fn what_cannot_be_run_is_told() {
    let stand = Stand::new();
    stand.file("p", "#!/no/shell\n");
    assert_eq!(error(&stand, LONGEST).kind(), Kind::CommandNotFound);
    let folders = [PathBuf::from("/etc")];
    let plugins = Plugins { folders: &folders, bounds: LONGEST.into() };
    assert_eq!(plugins.tell("passwd", call(), &json!({})).map_err(|e| e.kind()), Err(Kind::NotExecutable));
}

#[test]
fn a_plugin_says_which_versions_it_has() {
    let stand = Stand::new();
    let folders = stand.folders();
    let plugins = Plugins { folders: &folders, bounds: LONGEST.into() };
    for (answer, expected) in [
        (r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#, Some(["0.4.0", "1.0.0"])),
        (r#"{"cniVersion":"0.2.0"}"#, Some(["0.1.0", "0.2.0"])),
        (r#"{"cniVersion":"1.0.0"}"#, None),
        ("1.0.0", None),
    ] {
        stand.plugin("p", &format!("[ $CNI_COMMAND = VERSION ] && echo '{answer}'"));
        let versions = plugins.versions("p").ok();
        assert_eq!(versions, expected.map(|all| all.map(str::to_owned).to_vec()), "{answer}");
    }
}
