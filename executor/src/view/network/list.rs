//! Reads a network configuration list: its plugins, in order.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::network::List;
use bowline_sys::read_regular_file;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::version;

/// The most bytes of a configuration.
const LARGEST: u64 = 1 << 20;

/// A list, and the version that it is run with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigList {
    pub name: String,
    /// The `cniVersion` that its plugins are called with.
    pub version: String,
    /// Whether CHECK must not be called.
    pub disable_check: bool,
    /// The bridge that its first plugin makes if necessary, if the list is one of our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// The configuration of each plugin, at least one.
    pub plugins: Vec<Map<String, Value>>,
}

impl ConfigList {
    /// Reads the list that a description names or contains.
    ///
    /// # Errors
    /// `NotFound`, or `BadSpec` for what is not a list.
    pub fn of(list: &List) -> Result<ConfigList> {
        match list {
            List::File(path) => ConfigList::read(path),
            List::Made(value) => {
                let list = ConfigList::parse(value.clone(), None).map_err(|e| e.within("bad network list"))?;
                let bridge = list.plugins[0].get("bridge").filter(|_| list.kind(0) == "bridge");
                let bridge = bridge.and_then(Value::as_str).map(str::to_owned);
                Ok(ConfigList { bridge, ..list })
            }
        }
    }

    /// Reads a list, or a single plugin's configuration, from a file.
    fn read(path: &Path) -> Result<ConfigList> {
        let what = || format!("cannot read network list {}", path.display());
        let text = read_regular_file(path, LARGEST).map_err(|error| {
            let kind = if error.kind() == ErrorKind::NotFound { Kind::NotFound } else { Kind::Internal };
            Error::new(kind, format!("{}: {error}", what()))
        })?;
        let value = serde_json::from_slice(&text).doing(Kind::BadSpec, what)?;
        ConfigList::parse(value, path.parent()).map_err(|error| error.within(what()))
    }

    /// `beside` is the folder where a subfolder with the network's name may hold plugins.
    fn parse(value: Value, beside: Option<&Path>) -> Result<ConfigList> {
        let Value::Object(mut all) = value else { return Err(bad("it is not an object")) };
        let name = match all.get("name") {
            Some(Value::String(name)) => name.clone(),
            _ => return Err(bad("it has no name")),
        };
        check_name(&name)?;
        let version = chosen_version(&all)?;
        let disable_check = flag(&all, "disableCheck")?;
        let inlined = flag(&all, "loadOnlyInlinedPlugins")?;
        let mut plugins = match all.remove("plugins") {
            Some(Value::Array(plugins)) => plugins,
            Some(_) => return Err(bad("its plugins are not a list")),
            // A plugin's configuration alone: a list of one.
            None if all.contains_key("type") => vec![Value::Object(all)],
            None => Vec::new(),
        };
        if let Some(beside) = beside.filter(|_| !inlined) {
            plugins.extend(plugins_in(&beside.join(&name))?);
        }
        let plugins: Vec<_> = plugins.into_iter().enumerate().map(plugin).collect::<Result<_>>()?;
        if plugins.is_empty() {
            return Err(bad("it has no plugins"));
        }
        Ok(ConfigList { name, version, disable_check, bridge: None, plugins })
    }

    /// The type of a plugin, which is its program's name.
    pub fn kind(&self, index: usize) -> &str {
        self.plugins[index].get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether its first plugin gives out addresses of a subnet that is still to be chosen.
    pub fn wants_subnet(&self) -> bool {
        let ipam = self.plugins[0].get("ipam").filter(|_| self.bridge.is_some());
        ipam.is_some_and(|ipam| ipam["type"] == "host-local" && ipam.get("ranges").is_none())
    }

    /// Has its first plugin give out addresses of `subnet`.
    pub fn set_subnet(&mut self, subnet: &str) {
        if let Some(ipam) = self.plugins[0].get_mut("ipam") {
            ipam["ranges"] = json!([[{"subnet": subnet}]]);
        }
    }

    /// The input of a plugin: its configuration with the list's settings, the result of the plugins before, and
    /// those of `capabilities` that it names.
    pub fn config<'a>(
        &self,
        index: usize,
        result: Option<&Value>,
        capabilities: impl IntoIterator<Item = (&'a String, &'a Value)>,
    ) -> Value {
        let mut all = self.plugins[index].clone();
        let asks = |name: &str| all.get("capabilities").and_then(|of| of.get(name)) == Some(&Value::Bool(true));
        let given = capabilities.into_iter().filter(|(name, _)| asks(name));
        let given: Map<String, Value> = given.map(|(name, value)| (name.clone(), value.clone())).collect();
        all.insert("name".to_owned(), json!(self.name));
        all.insert("cniVersion".to_owned(), json!(self.version));
        if !given.is_empty() {
            all.insert("runtimeConfig".to_owned(), Value::Object(given));
        }
        if let Some(result) = result {
            all.insert("prevResult".to_owned(), result.clone());
        }
        Value::Object(all)
    }
}

fn bad(why: impl Into<String>) -> Error {
    Error::new(Kind::BadSpec, why)
}

/// Checks the name, which becomes part of paths, the plugins' and ours.
fn check_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(bad(format!("{name:?} is not a network's name: letters, digits, '_', '.', '-', the first a letter or digit")))
}

/// Whether CNI accepts `text` as the name of a network, or as a container's id.
pub fn is_name(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    text.bytes().all(fine) && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn chosen_version(all: &Map<String, Value>) -> Result<String> {
    let text = |value: &'static str| bad(format!("its {value} is not text"));
    let version = all.get("cniVersion").map(|v| v.as_str().ok_or_else(|| text("cniVersion"))).transpose()?;
    let versions = match all.get("cniVersions") {
        None => Vec::new(),
        Some(Value::Array(versions)) => {
            versions.iter().map(|v| v.as_str().ok_or_else(|| text("cniVersions"))).collect::<Result<_>>()?
        }
        Some(_) => return Err(bad("its cniVersions are not a list")),
    };
    version::chosen(version.filter(|version| !version.is_empty()), &versions)
}

/// Reads a flag, which some lists write as text.
fn flag(all: &Map<String, Value>, name: &str) -> Result<bool> {
    match all.get(name) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(other) => Err(bad(format!("its {name} is neither true nor false but {other}"))),
    }
}

fn plugin((index, value): (usize, Value)) -> Result<Map<String, Value>> {
    match value {
        Value::Object(plugin) if plugin.get("type").and_then(Value::as_str).is_some_and(|kind| !kind.is_empty()) => {
            Ok(plugin)
        }
        _ => Err(bad(format!("its plugin #{index} has no type"))),
    }
}

/// The plugins in a folder, from files that end in `.conf`, by name.
fn plugins_in(folder: &Path) -> Result<Vec<Value>> {
    let what = |path: &Path| format!("cannot read {}", path.display());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.doing(Kind::Internal, || what(folder))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.doing(Kind::Internal, || what(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "conf") && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = read_regular_file(path, LARGEST).doing(Kind::Internal, || what(path))?;
        serde_json::from_slice(&text).doing(Kind::BadSpec, || what(path))
    };
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn made(value: Value) -> Result<ConfigList> {
        ConfigList::of(&List::Made(value))
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_reason() {
        for (value, reason) in [
            (json!([]), "not an object"),
            (json!({"plugins": [{"type": "a"}]}), "no name"),
            (json!({"name": "../a", "plugins": [{"type": "a"}]}), "not a network's name"),
            (json!({"name": "", "plugins": [{"type": "a"}]}), "not a network's name"),
            (json!({"name": "a"}), "no plugins"),
            (json!({"name": "a", "plugins": []}), "no plugins"),
            (json!({"name": "a", "plugins": {}}), "not a list"),
            (json!({"name": "a", "plugins": [{"type": "a"}, {"type": ""}]}), "plugin #1 has no type"),
            (json!({"name": "a", "plugins": ["a"]}), "plugin #0 has no type"),
            (json!({"name": "a", "plugins": [{"type": "a"}], "cniVersion": "x"}), "not a version"),
            (json!({"name": "a", "plugins": [{"type": "a"}], "cniVersion": 1}), "cniVersion is not text"),
            (json!({"name": "a", "plugins": [{"type": "a"}], "cniVersions": "1"}), "not a list"),
            (json!({"name": "a", "plugins": [{"type": "a"}], "disableCheck": 1}), "neither true nor false but 1"),
        ] {
            let error = made(value.clone()).expect_err("no list");
            assert_eq!(error.kind(), Kind::BadSpec, "{value}");
            assert!(error.message().starts_with("bad network list: ") && error.message().contains(reason), "{error}");
        }
    }

    #[test]
    fn a_file_has_a_list_or_one_plugin_and_more_beside_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
        let read = |name: &str| ConfigList::read(&dir.path().join(name));
        write("one.conf", r#"{"name": "one", "cniVersion": "0.4.0", "type": "bridge", "disableCheck": "True"}"#);
        let one = read("one.conf").expect("a plugin");
        assert_eq!((one.plugins.len(), one.kind(0), &*one.version, one.disable_check), (1, "bridge", "0.4.0", true));
        write("a.conflist", r#"{"name": "a", "cniVersions": ["1.0.0", "7.0.0"], "plugins": [{"type": "x"}]}"#);
        fs::create_dir(dir.path().join("a")).expect("made");
        write("a/2.conf", r#"{"type": "z"}"#);
        write("a/1.conf", r#"{"type": "y"}"#);
        write("a/readme", "no plugin");
        let list = read("a.conflist").expect("a list");
        assert_eq!((list.kind(0), list.kind(1), list.kind(2), &*list.version), ("x", "y", "z", "1.0.0"));
        write("b.conflist", r#"{"name": "a", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "x"}]}"#);
        assert_eq!(read("b.conflist").expect("a list").plugins.len(), 1);
        write("bad.conflist", "{");
        let named = |name: &str| dir.path().join(name).display().to_string();
        for (name, kind) in [("bad.conflist", Kind::BadSpec), ("none.conflist", Kind::NotFound)] {
            let error = read(name).expect_err("no list");
            assert_eq!(error.kind(), kind);
            assert!(error.message().contains(&named(name)), "{error}");
        }
    }

    #[test]
    fn a_plugin_gets_what_is_the_lists_and_the_capabilities_that_it_names() {
        let plugin =
            json!({"type": "m", "name": "x", "capabilities": {"portMappings": true, "mac": false}, "snat": true});
        let list =
            made(json!({"name": "a", "cniVersion": "1.0.0", "plugins": [plugin, {"type": "n"}]})).expect("a list");
        let given = [("portMappings", json!([1])), ("mac", json!("m")), ("ips", json!([]))];
        let given: BTreeMap<String, Value> = given.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let expected = json!({
            "cniVersion": "1.0.0", "name": "a", "type": "m", "snat": true,
            "capabilities": {"portMappings": true, "mac": false}, "runtimeConfig": {"portMappings": [1]},
        });
        assert_eq!(list.config(0, None, &given), expected);
        let expected = json!({"cniVersion": "1.0.0", "name": "a", "type": "n", "prevResult": {"ips": []}});
        assert_eq!(list.config(1, Some(&json!({"ips": []})), &given), expected);
    }
}
