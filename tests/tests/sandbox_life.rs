//! A sandbox's life: what its members share, who is refused, and that whatever
//! happens to shim, members or cgroups, nothing is left.

use bowline_tests::Host;

#[test]
fn a_member_is_listed_and_gone_with_its_sandbox() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--memory=64M").create();
    let task = sandbox.task("exec sleep 1000").start();
    assert_eq!(sandbox.inspect()["members"], serde_json::json!([task.id()]));
    sandbox.bowline("rm", []).assert_refused(125, &[task.id()]);
    task.end();
    host.assert_nothing_left();
}
