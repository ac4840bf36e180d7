//! The manifest: which slices and services get which limits.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Change, CpuPercent, UnitKind, UnitName};
use crate::invalid::Invalid;
use crate::parse::{Format, found_in, read};
use crate::task::is_default;
use crate::values::ByteSize;

/// The least memory that an entry may leave: with less nothing runs, and what is
/// meant is nearly always a size whose suffix was forgotten.
pub const LEAST_MEMORY: ByteSize = ByteSize::mib(1);

/// The prefixes of the slices of sandboxes and of their shims: a slice with such
/// a name and without a shim counts as an orphan.
const OURS: [&str; 4] = ["bowline.slice", "bowline-", "bowline_", "bowline\\x2d"];

/// The most characters of a wrong name that an error quotes.
const NAME_CHARS: usize = 60;

/// Limits of the host's slices and services.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Slices, which are made where they are missing. All get their limits, or none.
    #[serde(default)]
    pub slices: Vec<Slice>,
    /// Services that the host has: each by itself.
    #[serde(default)]
    pub services: Vec<Service>,
    /// What happens to the other limits when a slice fails.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_failure: OnFailure,
}

/// What happens when a slice cannot be as wanted, or systemd refuses to start a
/// task in a slice of the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// All limits stay as they were before.
    #[default]
    Keep,
    /// All limits that were applied are lifted, those of services too.
    Disable,
}

/// A slice and its limits; without any it has no quota, and CPU time and memory
/// are counted. It is in the one that its name says: `a-b.slice` is
/// in `a.slice`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Its name, which ends with `.slice`.
    pub name: UnitName,
    /// The most CPU time, in percent of one CPU. Default: as it is, or none if
    /// there is no `memory` either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<CpuPercent>,
    /// The most memory. Default: as it is, or any if there is no `cpu_percent`
    /// either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
}

/// A service of the host's and its limits; without any it has no quota, and CPU
/// time and memory are counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its name, which ends with `.service`.
    pub name: UnitName,
    /// The most CPU time, in percent of one CPU. Default: as it is, or none if
    /// there is no `memory` either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<CpuPercent>,
    /// The most memory. Default: as it is, or any if there is no `cpu_percent`
    /// either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// The slice that it should be in; it is left alone in another. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<UnitName>,
}

impl Slice {
    /// The limits that the slice should have. An entry without any lifts those in force.
    pub fn wanted(&self) -> Change {
        Change::to(self.cpu_percent, self.memory)
    }

    fn check(&self) -> Result<(), Invalid> {
        of_kind("name", &self.name, UnitKind::Slice, "slice, as it does not end with .slice")?;
        let name = self.name.as_str();
        if OURS.iter().any(|start| name.starts_with(start)) {
            let why = format!("{name} is called as slices of sandboxes are, which `bowline gc` removes");
            return Err(Invalid::new("name", format!("{why}; choose a name that does not begin with bowline")));
        }
        enough(self.memory)
    }
}

impl Service {
    /// The limits that the service should have. An entry without any lifts those in force.
    pub fn wanted(&self) -> Change {
        Change::to(self.cpu_percent, self.memory)
    }

    fn check(&self) -> Result<(), Invalid> {
        of_kind("name", &self.name, UnitKind::Service, "service, as it does not end with .service")?;
        if let Some(slice) = &self.slice {
            of_kind("slice", slice, UnitKind::Slice, "slice, as it does not end with .slice")?;
        }
        enough(self.memory)
    }
}

/// A manifest as far as it makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// The entries that make sense.
    pub manifest: Manifest,
    /// Services' entries that make no sense, and why.
    pub skipped: Vec<Invalid>,
}

/// What is wanted, as far as it makes sense.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    slices: Vec<Value>,
    #[serde(default)]
    services: Vec<Value>,
    #[serde(default)]
    on_failure: OnFailure,
}

/// The manifest in `text`, which is JSON.
///
/// # Errors
/// What is no JSON, or names nothing at all; a slice's entry that makes no sense
/// or is there twice. Each with its place, entries with their index and name.
pub fn parse(text: &str) -> Result<Parsed, Invalid> {
    let raw: Raw = read(text, Format::Json)?;
    if raw.slices.is_empty() && raw.services.is_empty() {
        return Err(Invalid::value("it names neither a slice nor a service: there is nothing to limit"));
    }
    let manifest = Manifest { on_failure: raw.on_failure, ..Manifest::default() };
    let mut parsed = Parsed { manifest, skipped: Vec::new() };
    for (index, value) in raw.slices.iter().enumerate() {
        let place = Place { list: "slices", index, value, text };
        let slice: Slice = place.read(Slice::check)?;
        if let Some(first) = parsed.manifest.slices.iter().position(|known| known.name == slice.name) {
            return Err(place.wrong(Invalid::new("name", format!("it is there already, as slices[{first}]"))));
        }
        parsed.manifest.slices.push(slice);
    }
    for (index, value) in raw.services.iter().enumerate() {
        let place = Place { list: "services", index, value, text };
        let read = place.read(Service::check).and_then(|service: Service| {
            let twice = parsed.manifest.services.iter().any(|known| known.name == service.name);
            let why = "an entry before it has the same name, and counts";
            if twice { Err(place.wrong(Invalid::new("name", why))) } else { Ok(service) }
        });
        match read {
            Ok(service) => parsed.manifest.services.push(service),
            Err(wrong) => parsed.skipped.push(wrong),
        }
    }
    Ok(parsed)
}

/// The JSON schema of a manifest.
pub fn schema() -> Value {
    schemars::schema_for!(Manifest).to_value()
}

/// One entry of the manifest, and what an error needs to name its place.
struct Place<'a> {
    list: &'static str,
    index: usize,
    value: &'a Value,
    text: &'a str,
}

impl Place<'_> {
    /// The entry, read on its own.
    fn read<T: DeserializeOwned>(&self, check: fn(&T) -> Result<(), Invalid>) -> Result<T, Invalid> {
        let read = read(&self.value.to_string(), Format::Json);
        let wrong = |error: Invalid| self.wrong(error);
        let entry = read.map_err(wrong)?;
        check(&entry).map_err(wrong)?;
        Ok(entry)
    }

    /// What is wrong with a field of it, told with index, name and place.
    fn wrong(&self, error: Invalid) -> Invalid {
        let entry = format!("{}[{}]", self.list, self.index);
        let field = [entry.as_str(), &error.field].join(if error.field.is_empty() { "" } else { "." });
        let found = found_in(Invalid::new(field.clone(), error.reason), self.text, Format::Json);
        match self.value.get("name").and_then(Value::as_str) {
            Some(name) => {
                let name: String = name.chars().take(NAME_CHARS).flat_map(char::escape_debug).collect();
                found.in_field(format!("{field} ({name})"))
            }
            None => found,
        }
    }
}

fn of_kind(field: &str, name: &UnitName, kind: UnitKind, what: &str) -> Result<(), Invalid> {
    if name.kind() == kind {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{name} is no {what}")))
}

fn enough(memory: Option<ByteSize>) -> Result<(), Invalid> {
    match memory {
        Some(memory) if memory < LEAST_MEMORY => {
            let why = format!("{memory} is less than {LEAST_MEMORY}, with which nothing runs; write it as 200M or 1G");
            Err(Invalid::new("memory", why))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host_limits::{HostCpuQuota, INFINITY};

    fn refused(text: &str) -> Invalid {
        parse(text).expect_err(text)
    }

    fn skipped(service: &str) -> String {
        let good = r#"{"name": "good.service", "memory": "64M"}"#;
        let parsed = parse(&format!("{{\"services\": [{service}, {good}]}}")).expect(service);
        assert_eq!(parsed.manifest.services.len(), 1, "{service}: the rest counts");
        assert_eq!(parsed.skipped.len(), 1, "{service}");
        parsed.skipped[0].to_string()
    }

    #[test]
    fn a_manifest_names_slices_and_services() {
        let text = r#"{
            "slices": [{"name": "agents.slice", "cpu_percent": 50, "memory": "512M"}, {"name": "jobs.slice"}],
            "services": [
                {"name": "cron.service", "cpu_percent": 25, "memory": "200M", "slice": "system.slice"},
                {"name": "dbus.service"}
            ],
            "on_failure": "disable"
        }"#;
        let Parsed { manifest, skipped } = parse(text).unwrap();
        assert_eq!(skipped, []);
        assert_eq!(manifest.slices[0].wanted(), Change::to("50".parse().ok(), Some(ByteSize::mib(512))));
        let no_quota = Change { cpu: Some(HostCpuQuota::NONE), memory: Some(INFINITY) };
        assert_eq!((manifest.slices[1].wanted(), manifest.services[1].wanted()), (no_quota, no_quota));
        assert_eq!(manifest.on_failure, OnFailure::Disable);
        assert_eq!(manifest.services[0].slice.as_ref().map(UnitName::as_str), Some("system.slice"));
        let written = serde_json::to_string(&manifest).unwrap();
        assert_eq!(parse(&written).unwrap().manifest, manifest);
    }

    #[test]
    fn what_is_no_manifest_is_refused_with_its_place() {
        for (text, part, line) in [
            ("", "EOF", Some(1)),
            ("slices:\n  - x", "expected value", Some(1)),
            ("{\"slices\": [\n{\"name\": \"a.slice\",}]}", "trailing comma", Some(2)),
            ("{\"services\": [{\"name\": \"a.service\", \"cpu_percent\": NaN}]}", "expected value", Some(1)),
            ("[]", "", None),
            ("{}", "nothing to limit", None),
            ("{\"slices\": [], \"services\": []}", "nothing to limit", None),
            ("{\"slices\": {}}", "expected a sequence", Some(1)),
            ("{\"service\": []}", "unknown field", Some(1)),
            ("{\"slices\": [{\"name\": \"a.slice\"}], \"on_failure\": \"stop\"}", "unknown variant `stop`", Some(1)),
        ] {
            let error = refused(text);
            assert!(error.to_string().contains(part), "{text}: {error}");
            assert!(line.is_none() || error.line == line, "{text}: {error}");
        }
    }

    #[test]
    fn a_wrong_slice_is_an_error_of_the_whole() {
        for (slice, parts) in [
            (r#"{"cpu_percent": 50}"#, ["slices[0]: ", "missing field `name`"]),
            (r#"{"name": "cron.service"}"#, ["slices[0].name (cron.service): ", "is no slice"]),
            (r#"{"name": "a.slice", "cpu_percent": 0}"#, ["slices[0].cpu_percent (a.slice): ", "not above 0"]),
            (r#"{"name": "a.slice", "memory": 0}"#, ["slices[0].memory (a.slice): ", "less than 1M"]),
            (r#"{"name": "a.slice", "cpu": 5}"#, ["slices[0].cpu (a.slice): ", "unknown field"]),
            (r#""a.slice""#, ["slices[0]: ", "invalid type"]),
            (r#"{"name": "bowline-a.slice"}"#, ["slices[0].name (bowline-a.slice): ", "`bowline gc`"]),
            (r#"{"name": "bowline.slice"}"#, ["slices[0].name (bowline.slice): ", "`bowline gc`"]),
        ] {
            let error = refused(&format!("{{\"slices\": [\n{slice}]}}"));
            assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
            assert_eq!(error.line, Some(2), "{error}");
        }
        let twice = r#"{"slices": [{"name": "a.slice"}, {"name": "a.slice", "cpu_percent": 5}]}"#;
        assert!(refused(twice).to_string().starts_with("slices[1].name (a.slice): it is there already, as slices[0]"));
    }

    #[test]
    fn a_wrong_service_is_skipped_with_index_and_name() {
        for (service, parts) in [
            (r#"{"name": "../a.service", "memory": "1G"}"#, ["services[0].name (../a.service): ", "'/'"]),
            (r#"{"name": "a..b.service", "memory": "1G"}"#, ["services[0].name (a..b.service): ", "two dots"]),
            (r#"{"name": "a.slice", "memory": "1G"}"#, ["services[0].name (a.slice): ", "is no service"]),
            (r#"{"name": "a.service", "cpu_percent": 0}"#, ["services[0].cpu_percent (a.service): ", "not above 0"]),
            (r#"{"name": "a.service", "cpu_percent": -25}"#, ["services[0].cpu_percent (a.service): ", "-25"]),
            (r#"{"name": "a.service", "cpu_percent": "NaN"}"#, ["services[0].cpu_percent (a.service): ", "NaN"]),
            (
                r#"{"name": "a.service", "cpu_percent": 1e300}"#,
                ["services[0].cpu_percent (a.service): ", "any machine"],
            ),
            (r#"{"name": "a.service", "memory": 512}"#, ["services[0].memory (a.service): ", "512 is less than 1M"]),
            (r#"{"name": "a.service", "memory": "-1G"}"#, ["services[0].memory (a.service): ", "is not a size"]),
            (r#"{"memory": "1G"}"#, ["services[0]: ", "missing field"]),
            (r#"{"name": 5, "memory": "1G"}"#, ["services[0].name: ", "invalid type"]),
            ("7", ["services[0]: ", "invalid type"]),
            (
                r#"{"name": "a.service", "memory": "1G", "slice": "b.service"}"#,
                ["services[0].slice (a.service): ", "is no slice"],
            ),
        ] {
            let error = skipped(service);
            assert!(parts.iter().all(|part| error.contains(part)), "{service}: {error}");
            assert!(error.contains("(line 1, column "), "{error}");
        }
        let again = r#"{"name": "a.service", "memory": "1G"}, {"name": "a.service", "memory": "2G"}"#;
        assert!(skipped_of_two(again).starts_with("services[1].name (a.service): an entry before it"));
    }

    fn skipped_of_two(services: &str) -> String {
        let parsed = parse(&format!("{{\"services\": [{services}]}}")).unwrap();
        assert_eq!((parsed.manifest.services.len(), parsed.skipped.len()), (1, 1));
        parsed.skipped[0].to_string()
    }

    #[test]
    fn a_name_with_control_characters_is_told_without_them() {
        let error = skipped(r#"{"name": "\u001b[31m\n", "memory": "1G"}"#);
        assert!(!error.contains('\u{1b}') && !error.contains('\n'), "{error:?}");
    }
}
