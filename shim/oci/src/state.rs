//! The state of containers as JSON, and as tables for people.

use std::io::Write as _;

use bowline_executor::internal::{Container, Containers, Status};
use bowline_model::{Doing, Kind, Result};
use bowline_spec::id::TaskId;
use serde_json::{Value, json};

/// The newest version of the specification that is followed.
pub const SPECIFICATION: &str = "1.3.0";

/// The state of one container (OCI runtime specification, "State"), with runc's fields besides.
pub fn json(containers: &Containers, container: &Container) -> Result<Value> {
    let status = containers.status(container)?;
    let recorded = container.record.container.clone().unwrap_or_default();
    let version = Some(recorded.oci_version.as_str()).filter(|version| !version.is_empty()).unwrap_or(SPECIFICATION);
    let mut state = json!({
        "ociVersion": version,
        "id": container.id.as_str(),
        "pid": if status == Status::Stopped { 0 } else { container.pid() },
        "status": status.as_str(),
        "bundle": recorded.bundle,
        "rootfs": recorded.rootfs,
        "created": container.record.created_at.to_string(),
        "owner": owner(recorded.owner),
    });
    if !recorded.annotations.is_empty() {
        state["annotations"] = json!(recorded.annotations);
    }
    Ok(state)
}

/// The name of a user, empty where nothing tells it.
fn owner(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let name =
        line.filter(|fields| fields.get(2) == Some(&&*uid.to_string())).map(|fields| fields[0].to_owned()).next();
    name.unwrap_or_default()
}

/// One that cannot be read is a row too, with its error in the place of its status.
fn row(containers: &Containers, id: &TaskId, found: Result<Container>) -> Value {
    match found.and_then(|container| json(containers, &container)) {
        Ok(state) => state,
        Err(error) => json!({
            "ociVersion": SPECIFICATION, "id": id.as_str(), "pid": 0, "status": "unknown", "bundle": "", "rootfs": "",
            "created": "", "owner": "", "error": error.message(),
        }),
    }
}

/// Prints all containers.
pub fn list(containers: &Containers, as_json: bool, quiet: bool) -> Result<()> {
    let all = containers.all()?;
    if quiet {
        let ids: String = all.iter().map(|(id, _)| format!("{id}\n")).collect();
        return print(&ids);
    }
    let rows: Vec<Value> = all.into_iter().map(|(id, found)| row(containers, &id, found)).collect();
    if as_json {
        return print(&format!("{}\n", if rows.is_empty() { Value::Null } else { Value::Array(rows) }));
    }
    let heads = ["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"].map(str::to_owned).to_vec();
    let text = |row: &Value, field: &str| match &row[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let fields = ["id", "pid", "status", "bundle", "created", "owner"];
    let cells = rows.iter().map(|row| fields.iter().map(|field| text(row, field)).collect::<Vec<_>>());
    print(&table(std::iter::once(heads).chain(cells).collect()))
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
