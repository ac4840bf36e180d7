//! Stand-ins for plugins: shell scripts that note each call.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::program::Program;

/// A folder with stand-ins in `bin`, and a record of their calls.
pub struct Stand {
    dir: TempDir,
}

impl Stand {
    pub fn new() -> Stand {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("bin")).expect("made");
        Stand { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn folders(&self) -> Vec<PathBuf> {
        vec![self.path().join("bin")]
    }

    /// A plugin that does what `script` says; `$in` is its configuration.
    pub fn plugin(&self, name: &str, script: &str) {
        let note = r#"in=$(cat); it=${0##*/}; dir=${0%/bin/*}
if [ $CNI_COMMAND != VERSION ]; then
    echo "$CNI_COMMAND $it $CNI_IFNAME ${CNI_NETNS:-gone}" >>$dir/calls
    printf %s "$in" >$dir/$CNI_COMMAND.$it.$CNI_IFNAME
fi"#;
        self.file(name, &format!("#!/bin/sh\n{note}\n{script}\n"));
    }

    /// Writes a program with this text, by another process: if this one wrote it, a fork of another test could hold
    /// it open, and it could not be executed.
    pub fn file(&self, name: &str, text: &str) {
        let path = self.path().join("bin").join(name);
        let script = "cat >\"$0\" && chmod +x \"$0\"";
        let argv = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), path.as_os_str()];
        let program = Program::new(Path::new("/bin/sh"), argv, ["PATH=/usr/bin:/bin"]).expect("plain");
        let started = program.captured().reading(text.as_bytes()).expect("a file").start_inside().expect("it starts");
        let outcome = started.finish_blocking(Duration::from_secs(60)).expect("it ends");
        outcome.success("writing a plugin").expect("written");
    }

    /// The calls until now, in order: the command, the plugin, the interface and the
    /// namespace; the latter by its file's name.
    pub fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path().join("calls")).unwrap_or_default();
        let prefix = format!("{}/", self.path().display());
        text.lines().map(|line| line.replace(&prefix, "")).collect()
    }

    /// What a plugin was given at its last call of this kind.
    pub fn given(&self, call: &str) -> Value {
        let text = std::fs::read(self.path().join(call)).expect("it was called");
        serde_json::from_slice(&text).expect("JSON")
    }
}
