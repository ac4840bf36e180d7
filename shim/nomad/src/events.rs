//! What happens to tasks, as Nomad shows it among a task's events.
//!
//! From the journal, which no shim's death interrupts. Must not: tell what Nomad tells itself, such as a start or an end
//! that it has asked for.

use std::collections::BTreeMap;

use bowline_client::{Entry, Event};
use bowline_model::health::HealthStatus;
use bowline_model::report::StoppedBy;

use crate::proto::driver::DriverTaskEvent;
use crate::stats::timestamp;
use crate::tasks::Known;

/// The event of `known` that Nomad shows for `entry`; `None` for what it shows anyway.
pub fn told(entry: &Entry, known: &Known) -> Option<DriverTaskEvent> {
    let (message, annotations) = text(&entry.event)?;
    let annotations: BTreeMap<String, String> = annotations
        .into_iter()
        .chain([("event", entry.event.name().to_owned())])
        .map(|(k, v)| (k.to_owned(), v))
        .collect();
    Some(DriverTaskEvent {
        task_id: known.nomads.clone(),
        alloc_id: known.allocation.clone(),
        task_name: known.name.clone(),
        timestamp: Some(timestamp(entry.time)),
        message,
        annotations,
    })
}

type Text = (String, Vec<(&'static str, String)>);

fn text(event: &Event) -> Option<Text> {
    let plain = |message: &str| (message.to_owned(), Vec::new());
    Some(match event {
        Event::Started { pid, .. } => ("Command executed".to_owned(), vec![("pid", pid.to_string())]),
        Event::Oom { kills, last, .. } => {
            let who = last.as_ref().map(|kill| format!(", the last one {}", kill.name)).unwrap_or_default();
            let message = format!("Killed by the OOM killer: {kills} so far{who}");
            (message, vec![("kills", kills.to_string())])
        }
        Event::Health { status, failing_streak, .. } => {
            let message = match status {
                HealthStatus::Starting => return None,
                HealthStatus::Healthy => "Health check: healthy".to_owned(),
                HealthStatus::Unhealthy => format!("Health check: unhealthy, {failing_streak} failed in a row"),
            };
            (message, vec![("health", status.as_str().to_owned())])
        }
        Event::Watch { finding, action, failed, .. } => {
            let failed = failed.as_ref().map(|why| format!(", which failed: {why}")).unwrap_or_default();
            let message = format!("Watch found {}; action: {}{failed}", finding.policy(), action.as_str());
            let figures = serde_json::to_string(finding).unwrap_or_default();
            (message, vec![("action", action.as_str().to_owned()), ("found", figures)])
        }
        Event::Paused => plain("Frozen"),
        Event::Resumed => plain("Running again after it was frozen"),
        Event::Updated { .. } => plain("Limits changed"),
        Event::Exited { shim_died: true, .. } => plain("Ended while its shim was dead; how is not known"),
        Event::Exited { stopped_by: Some(by), .. } if *by != StoppedBy::Request => {
            let message = match by {
                StoppedBy::Health => "Stopped: it was unhealthy",
                StoppedBy::Watch => "Stopped: its watch says so",
                StoppedBy::Timeout => "Stopped: its time was over",
                StoppedBy::Caller => "Stopped: whoever ran it has ended",
                _ => return None,
            };
            (message.to_owned(), vec![("stopped_by", by.as_str().to_owned())])
        }
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bowline_client::Client;
    use bowline_executor::StateDir;

    use super::*;

    fn told_of(event: &str) -> Option<DriverTaskEvent> {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path());
        let known = Known::new("1c2f/web/0f0e", "1c2f", "web", Client::new(folder.path()).unwrap(), state);
        let line = format!("{{\"time\":\"2026-05-01T12:00:00Z\",\"id\":\"{}\",\"seq\":3,{event}}}", known.id);
        told(&serde_json::from_str(&line).unwrap(), &known)
    }

    #[test]
    fn what_a_person_should_know_is_told_with_its_figures() {
        for (event, message, key, value) in [
            (r#""event":"started","pid":47"#, "Command executed", "pid", "47"),
            (r#""event":"oom","kills":2"#, "Killed by the OOM killer: 2 so far", "kills", "2"),
            (
                r#""event":"health","status":"unhealthy","failing_streak":3"#,
                "Health check: unhealthy, 3 failed in a row",
                "health",
                "unhealthy",
            ),
            (
                r#""event":"watch","policy":"oom","kills":1,"action":"stop""#,
                "Watch found oom; action: stop",
                "found",
                r#"{"policy":"oom","kills":1}"#,
            ),
            (
                r#""event":"exited","exit_code":143,"signal":"SIGTERM","oom_killed":false,"stopped_by":"timeout","shim_died":false"#,
                "Stopped: its time was over",
                "stopped_by",
                "timeout",
            ),
        ] {
            let told = told_of(event).unwrap();
            assert_eq!(
                (told.message.as_str(), told.task_id.as_str(), told.task_name.as_str()),
                (message, "1c2f/web/0f0e", "web")
            );
            assert_eq!(told.annotations[key], value, "{told:?}");
        }
    }

    #[test]
    fn what_nomad_tells_itself_is_not_told_twice() {
        for event in [
            r#""event":"created","command":["x"]"#,
            r#""event":"exited","exit_code":0,"signal":null,"oom_killed":false,"stopped_by":"request","shim_died":false"#,
            r#""event":"removed""#,
        ] {
            assert_eq!(told_of(event), None, "{event}");
        }
    }
}
