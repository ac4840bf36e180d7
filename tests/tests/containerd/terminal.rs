//! Terminals under containerd.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Code, Input, Stdio};
use bowline_tests::harness::eventually;

#[test]
fn a_terminal_is_one_for_all_three_streams() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run_at_terminal("test -t 0 && test -t 1 && test -t 2 && echo yes");
    running.stdout.wait_for("yes\r\n");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 0);
    assert!(running.shim.state(&running.id, "").expect("a state").terminal);
    running.end();
}

#[test]
fn what_is_typed_is_echoed_and_read() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run_at_terminal("read line; echo \"got $line\"; sleep 1000");
    running.stdin.as_mut().expect("a FIFO").write("word\r");
    running.stdout.wait_for("word\r\ngot word\r\n");
    running.end();
}

#[test]
fn an_interrupt_typed_at_a_terminal_is_a_signal() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running =
        containerd.run_at_terminal("trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.1; done");
    running.stdout.wait_for("ready");
    running.stdin.as_mut().expect("a FIFO").write("\x03");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 3);
    running.stdout.wait_for("interrupted");
    running.end();
}

#[test]
fn a_terminal_has_the_size_that_it_is_given() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "trap 'busybox stty size' WINCH; echo ready; while :; do sleep 0.05; done";
    let running = containerd.run_at_terminal(script);
    running.stdout.wait_for("ready");
    running.shim.resize(&running.id, "", 123, 45).expect("resized");
    running.stdout.wait_for("45 123");
    running.end();
}

#[test]
fn a_terminal_resized_before_start_has_its_size_at_once() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("busybox stty size; sleep 1000").terminal();
    let shim = containerd.start(&bundle);
    let io = bundle.fifos_of_terminal("init");
    let (stdout, _) = io.open();
    shim.create(&bundle, &io).expect("created");
    shim.resize(&bundle.id, "", 99, 33).expect("resized");
    shim.start(&bundle.id, "").expect("started");
    stdout.wait_for("33 99");
    shim.end(&bundle.id);
}

#[test]
fn an_exec_has_a_terminal_of_its_own() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos_of_terminal("e");
    let (stdout, _) = io.open();
    let mut process = running.bundle.process(&["/bin/sh", "-c", "read line; busybox stty size; exit 4"]);
    process["terminal"] = serde_json::json!(true);
    running.shim.exec(&running.id, "e", &process, &io).expect("added");
    running.shim.start(&running.id, "e").expect("started");
    running.shim.resize(&running.id, "e", 77, 22).expect("resized");
    Input::open(io.stdin.as_ref()).write("go\r");
    stdout.wait_for("22 77");
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 4);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn where_all_terminals_are_in_use_it_is_refused_as_exhausted() {
    let host = Host::new();
    if host.reference_fails("its answer has no code of its own") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exec sleep 1000").edit(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        let pts = mounts.iter_mut().find(|mount| mount["destination"] == "/dev/pts").expect("one");
        let options = pts["options"].as_array_mut().expect("a list");
        options.retain(|option| !option.as_str().is_some_and(|option| option.starts_with("max=")));
        options.push(serde_json::json!("max=1"));
    });
    let running = {
        let io = bundle.fifos("init");
        containerd.run_with(bundle, &io)
    };
    let begin = |exec: &str| {
        let io = running.bundle.fifos_of_terminal(exec);
        let ends = io.open();
        let mut process = running.bundle.process(&["/bin/sleep", "1000"]);
        process["terminal"] = serde_json::json!(true);
        running.shim.exec(&running.id, exec, &process, &io).expect("added");
        (running.shim.start(&running.id, exec), ends)
    };
    let (first, _ends) = begin("a");
    first.expect("started");
    let (second, _ends) = begin("b");
    let refused = second.expect_err("there is no second one");
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused:?}");
    assert!(refused.message.contains("are in use"), "{refused:?}");
    running.end();
}

#[test]
fn a_terminals_output_is_whole_when_it_ends() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run_at_terminal("seq 1 20000; echo done");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 0);
    running.stdout.wait_for("20000\r\ndone\r\n");
    assert_eq!(running.stdout.text().lines().count(), 20001);
    running.end();
}

#[test]
fn a_client_may_leave_a_terminal_and_come_back() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run_at_terminal("while read line; do echo \"got $line\"; done");
    let stdin = running.bundle.path.join("init-stdin");
    let stdout = running.bundle.path.join("init-stdout");
    running.stdin.as_mut().expect("a FIFO").write("one\r");
    running.stdout.wait_for("got one");
    drop(running.stdin.take());
    running.stdout = bowline_tests::harness::containerd::Output::open(&stdout);
    Input::open(&stdin).write("two\r");
    running.stdout.wait_for("got two");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}

#[test]
fn a_logger_may_keep_a_terminals_output() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("test -t 1 && echo yes").terminal();
    let path = bundle.path.join("logger");
    let log = bundle.path.join("log.txt");
    fs::write(&path, format!("exec 5>&-; cat <&3 >{}", log.display())).expect("the work folder is writable");
    let uri = format!("binary:///bin/sh?{}=word", path.display());
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio { terminal: true, stdout: uri, ..Stdio::null() });
    shim.wait(&bundle.id, "").expect("an end");
    shim.delete(&bundle.id, "").expect("deleted");
    eventually("the log", || fs::read_to_string(&log).is_ok_and(|text| text == "yes\r\n").then_some(()));
    shim.over();
}
