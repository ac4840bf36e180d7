//! Mounts: cgroups, propagation, owners, recursive options.

use crate::Test;

pub const ALL: &[(&str, fn())] = &[("a_bundle_runs", runs)];

fn runs() {
    assert_eq!(Test::new("echo hello").run().said(), "hello");
    assert_eq!(Test::new("echo hello; id -u").in_user_namespace().run().said(), "hello\n0");
}
