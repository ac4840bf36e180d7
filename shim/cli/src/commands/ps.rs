//! `ps`: lists all tasks, one per line.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::mem::discriminant;

use bowline_client::Presence;
use bowline_model::folder::StateDir;
use bowline_model::status::Shown;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::Serialize;

use crate::commands::inspect::{Inspection, examine_all};
use crate::input::args::{PsArgs, SortBy};
use crate::input::filter::Filter;
use crate::input::task_names;
use crate::ui::colour;
use crate::ui::json;
use crate::ui::numbers;
use crate::ui::print::{complain, say, show};
use crate::ui::screen;
use crate::ui::table::{Cell, Column, render};
use crate::ui::template::Template;

/// One task, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Row {
    id: TaskId,
    status: Shown,
    exit_code: Option<i32>,
    /// The health in one word, if the task runs and has checks.
    health: Option<&'static str>,
    pid: Option<i32>,
    shim_pid: Option<i32>,
    command: String,
    created_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    exited_at: Option<Timestamp>,
    /// Why the exit report is not on disk yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    unwritten: Option<String>,
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<TaskId>,
    /// Why the task is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
}

impl Row {
    /// A task with a damaged record: shows what the other record says, and its shim.
    async fn damaged(state: &StateDir, id: &TaskId, damage: &Error) -> Row {
        let folder = state.folder(id);
        let record = folder.record().ok().flatten();
        let state = match bowline_client::look(&folder, id).await {
            Ok(Presence::Live(shim)) => shim.state().await.ok().flatten(),
            Ok(_) | Err(_) => None,
        };
        let damage = Some(damage.message().to_owned());
        let row = Row::from(Inspection {
            id: id.clone(),
            status: Shown::Damaged,
            pid: state.map(|state| state.pid).filter(|pid| *pid > 0),
            shim_pid: None,
            cgroup: None,
            sandbox: folder.sandbox_by_socket(),
            enforcement: None,
            differing_limits: Vec::new(),
            created_at: record.as_ref().map(|record| record.created_at),
            started_at: record.as_ref().and_then(|record| record.started_at),
            interfaces: Vec::new(),
            labels: record.as_ref().and_then(|r| r.task.as_ref()).map(|task| task.labels.clone()).unwrap_or_default(),
            task: record.and_then(|record| record.task),
            health: None,
            exit: folder.exit().ok().flatten(),
        });
        Row { damage, ..row }
    }
}

impl From<Inspection> for Row {
    fn from(found: Inspection) -> Row {
        let command = found.task.map(|task| {
            let words = std::iter::once(task.command).chain(task.args);
            words.collect::<Vec<_>>().join(" ")
        });
        Row {
            id: found.id,
            status: found.status,
            exit_code: found.exit.as_ref().and_then(|exit| exit.exit_code),
            health: found.health.filter(|_| found.exit.is_none()).map(|health| health.status.as_str()),
            pid: found.pid,
            shim_pid: found.shim_pid,
            command: command.unwrap_or_default(),
            created_at: found.created_at,
            started_at: found.started_at,
            exited_at: found.exit.as_ref().map(|exit| exit.exited_at),
            unwritten: found.exit.and_then(|exit| exit.unwritten),
            labels: found.labels,
            sandbox: found.sandbox,
            damage: None,
        }
    }
}

impl Filter {
    fn keeps(&self, row: &Row) -> bool {
        match self {
            Filter::Name(name) => name.is_match(row.id.as_str()),
            Filter::Status(status) => row.status == *status,
            Filter::Exited(code) => row.exit_code == Some(*code),
            Filter::Sandbox(id) => row.sandbox.as_ref().is_some_and(|of| of.as_str() == id),
            Filter::Label(label) => label.is_among(&row.labels),
        }
    }
}

/// Whether `row` is listed, by docker's rules: it has all of the labels, and of each other kind passes one filter, if there
/// are any.
fn is_listed(row: &Row, filters: &[Filter]) -> bool {
    filters.iter().all(|filter| match filter {
        Filter::Label(_) => filter.keeps(row),
        _ => filters.iter().any(|other| discriminant(other) == discriminant(filter) && other.keeps(row)),
    })
}

/// The fields of a task that `--format` may name, as docker has them.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Named {
    #[serde(rename = "ID")]
    id: String,
    names: String,
    command: String,
    created_at: String,
    running_for: String,
    status: String,
    state: Shown,
    labels: String,
    pid: Option<i32>,
    exit_code: Option<i32>,
    sandbox: String,
}

impl Named {
    /// The names of the columns: `CREATED AT` for `CreatedAt`.
    fn heads() -> Result<BTreeMap<String, String>> {
        let fields = serde_json::to_value(Named::default()).doing(Kind::Internal, || "cannot write JSON")?;
        let head = |field: &String| {
            let mut head = String::new();
            for letter in field.chars() {
                if letter.is_uppercase() && head.ends_with(char::is_lowercase) {
                    head.push(' ');
                }
                head.push(letter);
            }
            (field.clone(), head.to_uppercase())
        };
        Ok(fields.as_object().into_iter().flat_map(|fields| fields.keys()).map(head).collect())
    }

    fn of(row: &Row, now: Timestamp) -> Named {
        let labels: Vec<String> = row.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Named {
            id: row.id.to_string(),
            names: row.id.to_string(),
            command: row.command.clone(),
            created_at: row.created_at.map(|at| at.to_string()).unwrap_or_default(),
            running_for: row.created_at.map(|at| format!("{} ago", span(at, now))).unwrap_or_default(),
            status: status(row, now),
            state: row.status,
            labels: labels.join(","),
            pid: row.pid,
            exit_code: row.exit_code,
            sandbox: row.sandbox.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }
}

/// What docker writes before a format for a table.
const TABLE: &str = "table";

/// Prints a line for each task: `{{.ID}} {{.Status}}`; with `table` before that, in columns below their names, which a
/// tab separates.
fn print_as(format: &str, rows: &[Row], width: Option<usize>) -> Result<()> {
    let hint = "write fields as in '{{.ID}} {{.Status}}', perhaps with `table` before them, or json";
    let in_table = format.strip_prefix(TABLE).filter(|rest| rest.starts_with([' ', '\t', '\\']));
    let format = in_table.map_or(format, |rest| rest.trim_start().trim_start_matches("\\t"));
    let template = Template::parse(format).map_err(|error| error.hint(hint))?;
    // Names of fields are checked also where there is no task.
    let heads = template.fill(&Named::heads()?)?;
    let now = Timestamp::now();
    let lines = rows.iter().map(|row| template.fill(&Named::of(row, now)));
    if in_table.is_none() {
        return lines.into_iter().try_for_each(|line| say(&line?));
    }
    let columns: Vec<Column<'_>> = heads.split('\t').map(Column::Left).collect();
    let cells = lines.map(|line| Ok(line?.split('\t').map(Cell::from).collect()));
    show(&render(&columns, &cells.collect::<Result<Vec<Vec<Cell>>>>()?, width))
}

pub async fn run(state: &StateDir, args: PsArgs) -> Result<u8> {
    let ids = state.ids()?;
    let mut rows = Vec::new();
    for (id, found) in ids.iter().zip(examine_all(state, &ids).await) {
        match found {
            Ok(found) => rows.push(Row::from(found)),
            // The task was removed meanwhile.
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) if error.kind() == Kind::Damaged => rows.push(Row::damaged(state, id, &error).await),
            Err(error) => return Err(error),
        }
    }
    rows.retain(|row| is_listed(row, &args.filter));
    rows.sort_by(|a, b| order(a, b, args.sort));
    if args.reverse {
        rows.reverse();
    }
    let width = || screen::width().filter(|_| !args.no_trunc);
    match args.format.as_deref() {
        Some("json") => return json::print_list(&rows).map(|()| 0),
        _ if args.json => return json::print_list(&rows).map(|()| 0),
        None | Some(TABLE) => {}
        Some(format) => return print_as(format, &rows, width()).map(|()| 0),
    }
    if args.quiet {
        rows.iter().try_for_each(|row| say(row.id.as_str()))?;
        return Ok(0);
    }
    show(&table(&rows, &ids, Timestamp::now(), width()))?;
    for (id, damage) in rows.iter().filter_map(|row| Some((&row.id, row.damage.as_ref()?))) {
        complain(&format!("task {id} is damaged: {damage}"), None);
    }
    Ok(0)
}

fn order(a: &Row, b: &Row, by: SortBy) -> Ordering {
    let first = match by {
        SortBy::Id => Ordering::Equal,
        SortBy::Created => a.created_at.cmp(&b.created_at),
        SortBy::Status => a.status.cmp(&b.status),
    };
    first.then_with(|| a.id.cmp(&b.id))
}

/// How long ago that was, in short.
fn span(since: Timestamp, now: Timestamp) -> String {
    numbers::age(now.duration_since(since).try_into().unwrap_or_default())
}

/// The status with what belongs to it: `exited (3) 7m ago`.
fn status(row: &Row, now: Timestamp) -> String {
    let ended = row.exited_at.map_or_else(String::new, |at| format!(" {} ago", span(at, now)));
    match (row.exit_code, row.health) {
        (Some(code), _) if row.unwritten.is_some() => format!("{} ({code}){ended}, unwritten", row.status),
        (Some(code), _) => format!("{} ({code}){ended}", row.status),
        (None, Some(health)) => format!("{} ({health})", row.status),
        (None, None) => format!("{}{ended}", row.status),
    }
}

/// Makes the table. A shortened id must differ from all ids in `all`.
fn table(rows: &[Row], all: &[TaskId], now: Timestamp, width: Option<usize>) -> Vec<String> {
    const COLUMNS: [Column<'_>; 5] = [
        Column::Left("ID"),
        Column::Left("STATUS"),
        Column::Right("AGE"),
        Column::Right("PID"),
        Column::Left("COMMAND"),
    ];
    let ids: Vec<TaskId> = rows.iter().map(|row| row.id.clone()).collect();
    // Ids get a third of the line: a prefix is enough to name a task, but a cut command cannot be restored.
    let ids = task_names::shortened(&ids, all, width.map_or(usize::MAX, |width| width / 3));
    let cells = |(row, id): (&Row, String)| {
        let look =
            if row.health == Some("unhealthy") { colour::BAD } else { colour::of_status(row.status, row.exit_code) };
        let age = row.created_at.map(|at| span(at, now));
        vec![
            Cell::from(id),
            Cell::from(status(row, now)).styled(look),
            Cell::from(numbers::or_dash(age)),
            Cell::from(numbers::or_dash(row.pid.map(|pid| pid.to_string()))),
            Cell::from(&row.command),
        ]
    };
    let cells: Vec<Vec<Cell>> = rows.iter().zip(ids).map(cells).collect();
    render(&COLUMNS, &cells, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, status: Shown, created: i64) -> Row {
        Row {
            id: id.parse().expect("an id"),
            status,
            exit_code: (status == Shown::Exited).then_some(3),
            health: (status == Shown::Running).then_some("healthy"),
            pid: (status == Shown::Running).then_some(4711),
            shim_pid: None,
            command: "sleep 1000".to_owned(),
            created_at: Timestamp::from_second(created).ok(),
            started_at: None,
            exited_at: (status == Shown::Exited).then(|| Timestamp::from_second(created + 60).expect("a time")),
            unwritten: None,
            labels: BTreeMap::from([("tier".to_owned(), "web".to_owned())]),
            sandbox: None,
            damage: None,
        }
    }

    #[test]
    fn a_row_has_what_a_person_asks_for() {
        let rows = [row("api", Shown::Exited, 0), row("web", Shown::Running, 300)];
        let ids: Vec<TaskId> = rows.iter().map(|row| row.id.clone()).collect();
        let now = Timestamp::from_second(480).expect("a time");
        let lines: Vec<String> = table(&rows, &ids, now, Some(80));
        let plain: Vec<String> = lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect();
        assert_eq!(
            plain,
            [
                "ID   STATUS             AGE   PID  COMMAND",
                "api  exited (3) 7m ago   8m     -  sleep 1000",
                "web  running (healthy)   3m  4711  sleep 1000"
            ]
        );
    }

    #[test]
    fn rows_are_sorted_and_ties_go_by_id() {
        let mut rows = [row("a", Shown::Exited, 5), row("c", Shown::Running, 2), row("b", Shown::Running, 9)];
        let ids = |rows: &[Row]| rows.iter().map(|row| row.id.to_string()).collect::<Vec<_>>();
        rows.sort_by(|a, b| order(a, b, SortBy::Status));
        assert_eq!(ids(&rows), ["b", "c", "a"]);
        rows.sort_by(|a, b| order(a, b, SortBy::Created));
        assert_eq!(ids(&rows), ["c", "a", "b"]);
    }

    #[test]
    fn filters_of_one_kind_add_up_and_kinds_narrow_down() {
        let listed = |filters: &[&str]| {
            let filters: Vec<Filter> = filters.iter().map(|text| text.parse().expect("a filter")).collect();
            is_listed(&row("a", Shown::Running, 0), &filters)
        };
        assert!(listed(&[]) && listed(&["status=running"]) && listed(&["status=exited", "status=running"]));
        assert!(listed(&["label=tier"]) && listed(&["label=tier=web", "status=running"]));
        assert!(listed(&["name=b", "name=^a"]) && !listed(&["name=b"]) && !listed(&["exited=3"]));
        assert!(!listed(&["status=exited"]) && !listed(&["label=tier=db"]) && !listed(&["label=x", "status=running"]));
        for wrong in ["", "status", "status=up", "label=", "names=x", "name=", "name=(", "exited=x"] {
            assert!(wrong.parse::<Filter>().is_err(), "{wrong}");
        }
    }
}
