//! Tests with stand-ins for plugins, which assert what these were called with.

use bowline_spec::network::List;
use serde_json::json;

use super::*;
use crate::view::network::LONGEST;
use crate::view::network::testing::Stand;

/// A stand with a plugin for each name, whose result names it, and a file in the
/// namespace's place.
fn stand(plugins: &[&str]) -> (Stand, Sandbox) {
    let stand = Stand::new();
    for name in plugins {
        stand.plugin(name, &answer(name));
    }
    let netns = stand.path().join("blue");
    std::fs::write(&netns, "").expect("written");
    let sandbox = Sandbox {
        id: "web".to_owned(),
        netns,
        folders: stand.folders(),
        args: BTreeMap::new(),
        capabilities: BTreeMap::new(),
        timeout: LONGEST,
    };
    (stand, sandbox)
}

/// A script that answers ADD with a result that names the plugin.
fn answer(name: &str) -> String {
    format!("[ $CNI_COMMAND != ADD ] || echo '{{\"cniVersion\":\"1.0.0\",\"dns\":{{\"domain\":\"{name}\"}}}}'")
}

fn result(name: &str) -> Value {
    json!({"cniVersion": "1.0.0", "dns": {"domain": name}})
}

fn attachment(interface: &str, name: &str, version: &str, plugins: &[&str]) -> NetworkAttachment {
    let plugins: Vec<Value> = plugins.iter().map(|kind| json!({"type": kind})).collect();
    let list = json!({"name": name, "cniVersion": version, "plugins": plugins});
    NetworkAttachment { interface: interface.to_owned(), list: List::Made(list) }
}

/// Two lists: `a` and `b` make eth0, `c` makes eth1.
fn two() -> [NetworkAttachment; 2] {
    [attachment("eth0", "one", "1.0.0", &["a", "b"]), attachment("eth1", "two", "1.0.0", &["c"])]
}

fn kept(stand: &Stand) -> bool {
    stand.path().join("networks.json").exists()
}

/// The calls from number `first` on, each as `DEL a eth0`.
fn calls_from(stand: &Stand, first: usize) -> Vec<String> {
    stand.calls()[first..].iter().map(|call| call.trim_end_matches(" blue").to_owned()).collect()
}

#[test]
fn lists_are_run_in_order_and_undone_in_reverse() {
    let (stand, sandbox) = stand(&["a", "b", "c"]);
    let connected = add(stand.path(), &sandbox, &two()).expect("it is added");
    let expected = |interface: &str, network: &str, last: &str| Connected {
        interface: interface.to_owned(),
        network: network.to_owned(),
        result: result(last),
    };
    assert_eq!(connected, [expected("eth0", "one", "b"), expected("eth1", "two", "c")]);
    assert_eq!(stand.calls(), ["ADD a eth0 blue", "ADD b eth0 blue", "ADD c eth1 blue"]);
    let config = |kind: &str| json!({"type": kind, "name": "one", "cniVersion": "1.0.0"});
    let after = |kind: &str, before: &str| {
        let mut config = config(kind);
        config["prevResult"] = result(before);
        config
    };
    assert_eq!((stand.given("ADD.a.eth0"), stand.given("ADD.b.eth0")), (config("a"), after("b", "a")));
    assert!(stand.given("ADD.c.eth1").get("prevResult").is_none(), "each list begins without a result");

    let again = add(stand.path(), &sandbox, &two()).expect_err("it is there");
    assert_eq!((again.kind(), stand.calls().len()), (Kind::AlreadyExists, 3));

    assert_eq!(check(stand.path(), LONGEST).expect("all is well"), Vec::<String>::new());
    assert_eq!(calls_from(&stand, 3), ["CHECK a eth0", "CHECK b eth0", "CHECK c eth1"]);
    assert_eq!(stand.given("CHECK.a.eth0"), after("a", "b"));

    del(stand.path(), LONGEST).expect("it is removed");
    assert_eq!(calls_from(&stand, 6), ["DEL c eth1", "DEL b eth0", "DEL a eth0"]);
    assert_eq!((stand.given("DEL.b.eth0"), stand.given("DEL.a.eth0")), (after("b", "b"), after("a", "b")));
    assert!(!kept(&stand));
    del(stand.path(), LONGEST).expect("nothing is left to do");
    assert_eq!((check(stand.path(), LONGEST).expect("nothing"), stand.calls().len()), (Vec::new(), 9));
}

#[test]
fn an_add_that_fails_is_undone_as_far_as_it_went() {
    let (stand, sandbox) = stand(&["a", "b", "c", "d"]);
    stand.plugin("c", r#"[ $CNI_COMMAND != ADD ] || { echo '{"code":11,"msg":"later"}'; exit 1; }"#);
    let lists = [attachment("eth0", "one", "1.0.0", &["a", "b"]), attachment("eth1", "two", "1.0.0", &["c", "d"])];
    let error = add(stand.path(), &sandbox, &lists).expect_err("it fails");
    let why = "cannot add eth1 to network two: network plugin c failed at ADD: code 11: later";
    assert_eq!((error.kind(), error.message()), (Kind::Internal, why));
    assert_eq!(calls_from(&stand, 3), ["DEL c eth1", "DEL b eth0", "DEL a eth0"]);
    assert!(stand.given("DEL.c.eth1").get("prevResult").is_none() && !kept(&stand));

    // What cannot be undone is reported as well, and kept.
    stand.plugin("b", &format!("{}\n[ $CNI_COMMAND != DEL ] || {{ echo stuck; exit 1; }}", answer("b")));
    let error = add(stand.path(), &sandbox, &lists).expect_err("it fails");
    let stuck =
        "cannot remove eth0 from network one: network plugin b failed at DEL: exit code 1, and it said \"stuck\"";
    assert_eq!(error.message(), format!("{why}; and undoing it failed: {stuck}"));
    assert_eq!(calls_from(&stand, 9), ["DEL c eth1", "DEL b eth0", "DEL a eth0"]);
    stand.plugin("b", "");
    del(stand.path(), LONGEST).expect("it is removed");
    assert_eq!(calls_from(&stand, 12), ["DEL b eth0", "DEL a eth0"]);
    assert!(!kept(&stand));
}

#[test]
fn one_that_says_that_it_has_failed_need_not_undo_that() {
    let (stand, sandbox) = stand(&["a"]);
    // Like host-device with an interface that it has not found.
    stand.plugin("b", "echo \"{\\\"code\\\":999,\\\"msg\\\":\\\"no link at $CNI_COMMAND\\\"}\"; exit 1");
    let list = [attachment("eth0", "one", "1.0.0", &["a", "b"])];
    let error = add(stand.path(), &sandbox, &list).expect_err("it fails");
    assert_eq!(
        error.message(),
        "cannot add eth0 to network one: network plugin b failed at ADD: code 999: no link at ADD"
    );
    assert_eq!(calls_from(&stand, 2), ["DEL b eth0", "DEL a eth0"], "it is asked all the same");
    assert!(!kept(&stand));
    // A plugin that was killed may have left anything: it is asked until it has undone that.
    stand.plugin("b", "[ $CNI_COMMAND != ADD ] || kill -9 $$; echo '{\"code\":11,\"msg\":\"later\"}'; exit 1");
    let error = add(stand.path(), &sandbox, &list).expect_err("it fails");
    assert!(error.message().contains("; and undoing it failed: cannot remove eth0 from network one: "), "{error}");
    assert!(kept(&stand));
    del(stand.path(), LONGEST).expect_err("not yet");
    assert!(kept(&stand));
    stand.plugin("b", "");
    del(stand.path(), LONGEST).expect("it is removed");
    assert!(!kept(&stand));
}

#[test]
fn a_plugin_that_removes_has_no_longer_than_it_had_to_add() {
    let (stand, sandbox) = stand(&["a"]);
    let list = [attachment("eth0", "one", "1.0.0", &["a"])];
    add(stand.path(), &Sandbox { timeout: Duration::from_secs(1), ..sandbox }, &list).expect("it is added");
    stand.plugin("a", "[ $CNI_COMMAND != DEL ] || exec sleep 1000");
    let error = del(stand.path(), LONGEST).expect_err("it hangs");
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(error.message().ends_with("it did not end within 1s and was killed"), "{error}");
    assert!(kept(&stand));
}

#[test]
fn a_plugin_that_hangs_in_add_is_undone_too() {
    let (stand, sandbox) = stand(&["a", "b", "c"]);
    stand.plugin("b", "[ $CNI_COMMAND != ADD ] || exec sleep 1000");
    // On a busy machine, the first plugin may be late itself.
    let late = [2, 8, 32].into_iter().find(|seconds| {
        let sandbox = Sandbox { timeout: Duration::from_secs(*seconds), ..sandbox.clone() };
        let error = add(stand.path(), &sandbox, &two()).expect_err("it is late");
        assert_eq!(error.kind(), Kind::Timeout, "{error}");
        stand.calls().contains(&"DEL b eth0 blue".to_owned())
    });
    assert!(late.is_some() && stand.calls().ends_with(&["DEL a eth0 blue".to_owned()]), "{:?}", stand.calls());
    assert_eq!(stand.given("DEL.b.eth0")["prevResult"], result("a"));
    assert!(!kept(&stand));
}

#[test]
fn a_del_goes_on_after_an_error_and_tells_all() {
    let (stand, sandbox) = stand(&["a", "b", "c"]);
    add(stand.path(), &sandbox, &two()).expect("it is added");
    stand.plugin("a", "echo '{\"code\":7,\"msg\":\"first\"}'; exit 1");
    stand.plugin("c", "kill -9 $$");
    let error = del(stand.path(), LONGEST).expect_err("two fail");
    assert_eq!(
        error.message(),
        "cannot remove eth1 from network two: network plugin c failed at DEL: killed by signal 9, and it said nothing; \
         cannot remove eth0 from network one: network plugin a failed at DEL: code 7: first"
    );
    assert_eq!(calls_from(&stand, 3), ["DEL c eth1", "DEL b eth0", "DEL a eth0"]);
    assert!(kept(&stand));
    // The plugins of a list are asked again together: DEL may be called any number of times.
    stand.plugin("c", "");
    del(stand.path(), LONGEST).expect_err("one fails");
    assert_eq!(calls_from(&stand, 6), ["DEL c eth1", "DEL b eth0", "DEL a eth0"]);
    stand.plugin("a", "");
    del(stand.path(), LONGEST).expect("it is removed");
    assert_eq!(calls_from(&stand, 9), ["DEL b eth0", "DEL a eth0"]);
    assert!(!kept(&stand));
}

#[test]
fn what_was_begun_is_undone_after_a_crash() {
    // Each plugin keeps what a crash during its call would have left.
    let (stand, sandbox) = stand(&[]);
    for name in ["a", "b", "c"] {
        stand.plugin(name, &format!("[ $CNI_COMMAND != ADD ] || cp $dir/networks.json $dir/in.$it\n{}", answer(name)));
    }
    add(stand.path(), &sandbox, &two()).expect("it is added");
    for (crash, expected, result_of) in [
        ("a", &["DEL a eth0"][..], None),
        ("b", &["DEL b eth0", "DEL a eth0"], Some("a")),
        ("c", &["DEL c eth1", "DEL b eth0", "DEL a eth0"], Some("b")),
    ] {
        let left = std::fs::read(stand.path().join(format!("in.{crash}"))).expect("it was kept before");
        std::fs::write(stand.path().join("networks.json"), left).expect("written");
        let state = check(stand.path(), LONGEST).map_err(|e| e.kind());
        assert_eq!(state, Err(Kind::WrongState), "{crash}");
        let before = stand.calls().len();
        del(stand.path(), LONGEST).expect("it is removed");
        assert_eq!(calls_from(&stand, before), expected, "{crash}");
        let given = stand.given("DEL.a.eth0");
        assert_eq!(given.get("prevResult"), result_of.map(result).as_ref(), "{crash}");
        assert!(!kept(&stand));
    }
}

#[test]
fn a_namespace_that_has_gone_is_not_taken_for_another() {
    for another in [false, true] {
        let (stand, sandbox) = stand(&["a"]);
        add(stand.path(), &sandbox, &[attachment("eth0", "one", "1.0.0", &["a"])]).expect("it is added");
        // Created while the first exists, so that it has another inode.
        let other = stand.path().join("other");
        std::fs::write(&other, "").expect("written");
        match another {
            true => std::fs::rename(&other, &sandbox.netns).expect("replaced"),
            false => std::fs::remove_file(&sandbox.netns).expect("removed"),
        }
        assert_eq!(check(stand.path(), LONGEST).map_err(|e| e.kind()), Err(Kind::WrongState));
        del(stand.path(), LONGEST).expect("it is removed");
        assert_eq!(stand.calls(), ["ADD a eth0 blue", "DEL a eth0 gone"]);
    }
}

#[test]
fn check_is_for_those_that_can_be_asked() {
    let (stand, sandbox) = stand(&["a", "b", "c"]);
    let mut off = attachment("eth1", "two", "1.0.0", &["b"]);
    if let List::Made(list) = &mut off.list {
        list["disableCheck"] = json!(true);
    }
    let lists = [attachment("eth0", "one", "0.3.1", &["a"]), off, attachment("eth2", "three", "0.4.0", &["c"])];
    add(stand.path(), &sandbox, &lists).expect("it is added");
    assert_eq!(check(stand.path(), LONGEST).expect("all is well"), ["one", "two"]);
    assert_eq!(calls_from(&stand, 3), ["CHECK c eth2"]);
    stand.plugin("c", "echo '{\"code\":3,\"msg\":\"no such veth\"}'; exit 1");
    let error = check(stand.path(), LONGEST).expect_err("it is not well");
    let expected = "eth2 in network three: network plugin c failed at CHECK: code 3: no such veth";
    assert_eq!(error.message(), expected);
    stand.plugin("c", "");
    del(stand.path(), LONGEST).expect("it is removed");
    // Before 0.4, DEL got no result.
    assert!(stand.given("DEL.a.eth0").get("prevResult").is_none());
    assert_eq!(stand.given("DEL.c.eth2")["prevResult"], result("c"));
}

#[test]
fn what_is_missing_is_told_before_anything_is_run() {
    let (stand, sandbox) = stand(&["a", "b"]);
    let error = add(stand.path(), &sandbox, &two()).expect_err("c is missing");
    let expected = format!("cannot find the network plugin c in {}", stand.folders()[0].display());
    assert_eq!((error.kind(), error.message()), (Kind::Unsupported, &*expected));
    let twice = [attachment("eth0", "one", "1.0.0", &["a"]), attachment("eth0", "one", "1.0.0", &["b"])];
    assert_eq!(add(stand.path(), &sandbox, &twice).map_err(|e| e.kind()), Err(Kind::BadSpec));
    let nowhere = Sandbox { netns: "/nowhere".into(), ..sandbox.clone() };
    let one = [attachment("eth0", "one", "1.0.0", &["a"])];
    assert_eq!(add(stand.path(), &nowhere, &one).map_err(|e| e.kind()), Err(Kind::NotFound));
    let no_id = Sandbox { id: "../web".to_owned(), ..sandbox.clone() };
    assert_eq!(add(stand.path(), &no_id, &one).map_err(|e| e.kind()), Err(Kind::BadSpec));
    let file = NetworkAttachment { interface: "eth0".to_owned(), list: List::File(stand.path().join("none.conflist")) };
    assert_eq!(add(stand.path(), &sandbox, &[file]).map_err(|e| e.kind()), Err(Kind::NotFound));
    assert!(stand.calls().is_empty() && !kept(&stand), "{:?}", stand.calls());
    std::fs::write(stand.path().join("networks.json"), "{").expect("written");
    let error = del(stand.path(), LONGEST).expect_err("it is damaged");
    assert!(error.message().contains("networks.json is damaged"), "{error}");
}

#[test]
fn arguments_and_capabilities_are_the_same_for_every_command() {
    let (stand, sandbox) = stand(&[]);
    stand.plugin("a", "echo \"$CNI_CONTAINERID $CNI_ARGS\" >>$dir/seen; [ $CNI_COMMAND != ADD ] || echo '{}'");
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mappings = json!([{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}]);
    let sandbox = Sandbox {
        args: BTreeMap::from([pair("A", "b"), pair("C", "d")]),
        capabilities: BTreeMap::from([("portMappings".to_owned(), mappings.clone())]),
        ..sandbox
    };
    let plugin = json!({"type": "a", "capabilities": {"portMappings": true}});
    let list = List::Made(json!({"name": "one", "cniVersion": "1.0.0", "plugins": [plugin]}));
    let connected = add(stand.path(), &sandbox, &[NetworkAttachment { interface: "eth0".to_owned(), list }]);
    assert_eq!(connected.expect("it is added")[0].result, json!({"cniVersion": "1.0.0"}), "the list's version");
    check(stand.path(), LONGEST).expect("all is well");
    del(stand.path(), LONGEST).expect("it is removed");
    for call in ["ADD", "CHECK", "DEL"] {
        assert_eq!(stand.given(&format!("{call}.a.eth0"))["runtimeConfig"], json!({"portMappings": mappings}));
    }
    assert_eq!(std::fs::read_to_string(stand.path().join("seen")).expect("written"), "web A=b;C=d\n".repeat(3));
}

#[test]
fn versions_that_plugins_lack_are_told_together() {
    let (stand, sandbox) = stand(&[]);
    for (name, versions) in [("a", r#""0.4.0","1.0.0""#), ("b", r#""0.3.1","0.4.0""#)] {
        stand.plugin(name, &format!("echo '{{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[{versions}]}}'"));
    }
    stand.plugin("c", "echo hello");
    validate(&sandbox, &[attachment("eth0", "one", "0.4.0", &["a", "b"])]).expect("both have it");
    let error = validate(&sandbox, &two()).expect_err("one lacks it");
    assert_eq!(
        (error.kind(), error.message()),
        (
            Kind::Unsupported,
            "network one needs CNI 1.0.0 of its plugin b, which has 0.3.1, 0.4.0; \
             network plugin c failed at VERSION: it said \"hello\" in place of an answer"
        )
    );
}
