//! The state of containers as JSON, and as tables for people.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use bowline_executor::internal::{Container, Containers, Status};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use serde::Serialize;

/// The newest version of the specification that is followed.
pub const SPECIFICATION: &str = "1.3.0";

/// The state of one container (OCI runtime specification, "State"), with runc's fields besides, in runc's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    oci_version: String,
    id: String,
    pid: i32,
    status: &'static str,
    bundle: PathBuf,
    rootfs: PathBuf,
    created: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    owner: String,
    /// Why nothing else is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl State {
    /// The state of a container.
    pub fn of(containers: &Containers, container: &Container) -> Result<State> {
        let status = containers.status(container)?;
        let recorded = container.record.container.clone().unwrap_or_default();
        let version = Some(recorded.oci_version).filter(|version| !version.is_empty());
        Ok(State {
            oci_version: version.unwrap_or_else(|| SPECIFICATION.to_owned()),
            id: container.id.to_string(),
            pid: if status == Status::Stopped { 0 } else { container.pid() },
            status: status.as_str(),
            bundle: recorded.bundle,
            rootfs: recorded.rootfs,
            created: container.record.created_at.to_string(),
            annotations: recorded.annotations,
            owner: owner(recorded.owner),
            error: None,
        })
    }

    /// One that cannot be read is a row too.
    fn unknown(id: &TaskId, error: &Error) -> State {
        State {
            oci_version: SPECIFICATION.to_owned(),
            id: id.to_string(),
            pid: 0,
            status: "unknown",
            bundle: PathBuf::new(),
            rootfs: PathBuf::new(),
            created: String::new(),
            annotations: BTreeMap::new(),
            owner: String::new(),
            error: Some(error.message().to_owned()),
        }
    }

    /// The cells of its row.
    fn cells(&self) -> Vec<String> {
        let bundle = self.bundle.display().to_string();
        vec![
            self.id.clone(),
            self.pid.to_string(),
            self.status.to_owned(),
            bundle,
            self.created.clone(),
            self.owner.clone(),
        ]
    }
}

/// The name of a user, empty where nothing tells it.
fn owner(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let name =
        line.filter(|fields| fields.get(2) == Some(&&*uid.to_string())).map(|fields| fields[0].to_owned()).next();
    name.unwrap_or_default()
}

/// Prints all containers.
pub fn list(containers: &Containers, as_json: bool, quiet: bool) -> Result<()> {
    let all = containers.all()?;
    if quiet {
        let ids: String = all.iter().map(|(id, _)| format!("{id}\n")).collect();
        return print(&ids);
    }
    let found = all.iter().map(|(id, found)| match found {
        Ok(container) => State::of(containers, container).unwrap_or_else(|error| State::unknown(id, &error)),
        Err(error) => State::unknown(id, error),
    });
    let rows: Vec<State> = found.collect();
    if as_json {
        // As runc has it.
        let rows = Some(rows).filter(|rows| !rows.is_empty());
        return print(&(serde_json::to_string(&rows).doing(Kind::Internal, || "cannot write JSON")? + "\n"));
    }
    let heads = ["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"].map(str::to_owned).to_vec();
    print(&table(std::iter::once(heads).chain(rows.iter().map(State::cells)).collect()))
}

/// Lines of cells, each column as wide as its widest cell.
pub fn table(rows: Vec<Vec<String>>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default() + 2).collect();
    let line = |row: &Vec<String>| {
        let cells: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.trim_end())
    };
    rows.iter().map(line).collect()
}

/// Writes to stdout. A reader that has gone is an error, as with runc.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).doing(Kind::Internal, || "cannot write to stdout")
}
