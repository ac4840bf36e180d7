//! Nomad's agent, as far as a task driver sees it: `nomad-agent` launches plugins through HashiCorp's own go-plugin and
//! makes each call, and this says which.
//!
//! ```no_run
//! let host = bowline_tests::Host::new();
//! let Some(agent) = host.nomad() else { return };
//! let plugin = agent.launch();
//! let task = plugin.task("echo hello; exit 3").start();
//! plugin.wait(&task).assert_code(3);
//! plugin.destroy(&task);
//! host.assert_nothing_left();
//! ```
//!
//! What a case asks for in its own words goes to `integration/nomad`; messages are protobuf's JSON.

mod allocation;
mod base64;
mod fifo;
mod link;
mod plugin;
mod task;

pub use allocation::Allocation;
pub use base64::{decoded, encoded};
pub use fifo::Fifo;
pub use link::{Refusal, Stream};
pub use plugin::{Exit, Launch, Plugin};
pub use task::{Build, Prepared, Task};

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};

use super::{Host, beside_tests, binary};
use link::Link;

/// The file name of the plugin under test.
pub const DRIVER: &str = "nomad-driver-bowline";

pub fn driver() -> PathBuf {
    binary(DRIVER)
}

pub struct Agent<'h> {
    host: &'h Host,
    link: Rc<Link>,
}

impl Host {
    /// An agent of Nomad, which has launched nothing yet; none where the program was not built: the test says so and is
    /// over.
    pub fn nomad(&self) -> Option<Agent<'_>> {
        let here = std::env::current_exe().expect("a test has a path");
        if !here.ancestors().skip(1).take(2).any(|folder| folder.join("nomad-agent").exists()) {
            self.not_here("nomad-agent is not built (`make debug` does, with Go)");
            return None;
        }
        self.own_parents();
        let link = Rc::new(Link::start(self, &beside_tests("nomad-agent")));
        let ended = link.clone();
        self.at_end(move || ended.end());
        Some(Agent { host: self, link })
    }
}

impl<'h> Agent<'h> {
    /// A plugin launched as the agent does it the last time: configured, and ready for tasks.
    #[track_caller]
    pub fn launch(&self) -> Plugin<'h> {
        self.launch_with(json!({}))
    }

    /// Like [`Self::launch`], with this beside its state folder in its configuration.
    #[track_caller]
    pub fn launch_with(&self, config: Value) -> Plugin<'h> {
        let plugin = self.launch_bare();
        plugin.configure(self.config(config)).unwrap_or_else(|refusal| panic!("SetConfig: {refusal}"));
        plugin.driver("Init", json!({})).expect("it can begin");
        plugin
    }

    /// A configuration with the test's own state folder.
    pub fn config(&self, mut config: Value) -> Value {
        config["state_dir"] = json!(self.host.state());
        config
    }

    /// A plugin that has been told nothing yet.
    #[track_caller]
    pub fn launch_bare(&self) -> Plugin<'h> {
        self.try_launch(&Launch::new(&driver())).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// A plugin launched in this way, if it can be.
    pub fn try_launch(&self, launch: &Launch) -> Result<Plugin<'h>, Refusal> {
        Plugin::launch(self.host, self.link.clone(), launch)
    }

    /// The plugin that another agent has launched.
    #[track_caller]
    pub fn reattach(&self, plugin: &Plugin<'_>) -> Plugin<'h> {
        let launch = Launch::attached_to(plugin.pid(), plugin.socket());
        self.try_launch(&launch).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// This value as msgpack, in base64, whatever schema there is; `floats`: with all numbers as floating-point ones.
    #[track_caller]
    pub fn msgpack(&self, value: &Value, floats: bool) -> String {
        let asked = json!({"do": "msgpack", "value": value, "floats": floats});
        let packed = self.link.ask(asked).expect("anything can be packed");
        packed.as_str().expect("base64").to_owned()
    }

    /// Ends at once, as by SIGKILL: its plugins go on.
    pub fn die(self) {
        self.link.kill();
    }
}

/// A folder for what belongs to whichever test: `/tmp/bl-XXXXXX/w/NAME`.
fn folder(host: &Host, name: &str) -> PathBuf {
    let path = host.work().join(name);
    std::fs::create_dir_all(&path).expect("the work folder is writable");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("ASCII")
}
