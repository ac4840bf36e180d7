//! Describes the findings of a watch in words, with the figures that triggered them.

use bowline_model::watch::{Finding, Part, PressureExceeded};
use bowline_spec::{Stalled, WatchAction};

use crate::ui::words::{bytes, span};

/// Returns the policy, the finding in words, the action of the shim, and why the action failed.
pub fn details(finding: &Finding, action: WatchAction, failed: Option<&str>) -> Vec<String> {
    let done = match (action, failed) {
        (WatchAction::Report, _) => None,
        (action, None) => Some(format!("action: {}", action.as_str())),
        (action, Some(why)) => Some(format!("action: {}, failed: {why}", action.as_str())),
    };
    [finding.policy().to_owned(), sentence(finding)].into_iter().chain(done).collect()
}

/// Returns a finding as a sentence without a full stop.
pub fn sentence(finding: &Finding) -> String {
    match finding {
        Finding::Oom { kills, .. } => format!("killed by the OOM killer: {kills} so far"),
        Finding::MemoryHigh { events, above, .. } => {
            format!("slowed down {events} times above memory.high; more than {above} is watched for")
        }
        Finding::Memory { part, bytes: used, above_bytes, .. } => {
            let what = match part {
                Part::Total => "memory, cache and swap included",
                Part::Anon => "anonymous memory",
                Part::Cache => "page cache",
            };
            format!("uses {} of {what}, above {}", bytes(*used), bytes(*above_bytes))
        }
        Finding::Throttled { usec, above_usec, every_usec, .. } => {
            format!(
                "held back by its CPU limit for {} in {}, above {}",
                span(*usec),
                span(*every_usec),
                span(*above_usec)
            )
        }
        Finding::CpuPressure(exceeded) => waited(exceeded, "a CPU"),
        Finding::MemoryPressure(exceeded) => waited(exceeded, "memory"),
        Finding::IoPressure(exceeded) => waited(exceeded, "block devices"),
        Finding::UnexpectedProcesses { processes, others, .. } => {
            let mut names: Vec<String> = processes.iter().map(|p| format!("{} (pid {})", p.name, p.pid)).collect();
            names.extend((*others > 0).then(|| format!("{others} more")));
            format!("in the shim's cgroup: {}", names.join(", "))
        }
        _ => finding.policy().to_owned(),
    }
}

fn waited(exceeded: &PressureExceeded, what: &str) -> String {
    let who = match exceeded.who {
        Stalled::Some => "a process",
        Stalled::Full => "all processes",
    };
    let total = exceeded.total_usec.map(|total| format!(", {} in all", span(total))).unwrap_or_default();
    format!("{who} waited for {what}: {} within {}{total}", span(exceeded.above_usec), span(exceeded.window_usec))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_finding_has_its_figures() {
        let finding = |json| serde_json::from_value::<Finding>(json).expect("a finding");
        let throttled =
            json!({ "policy": "throttled", "usec": 2_500_000, "above_usec": 2_000_000, "every_usec": 10_000_000 });
        assert_eq!(sentence(&finding(throttled)), "held back by its CPU limit for 2.5 s in 10 s, above 2 s");
        let waited = json!({ "policy": "io_pressure", "who": "full", "above_usec": 150_000, "window_usec": 1_000_000,
            "total_usec": 3_000_000 });
        let told = "all processes waited for block devices: 150 ms within 1 s, 3 s in all";
        assert_eq!(sentence(&finding(waited)), told);
        let told = details(&finding(json!({ "policy": "oom", "kills": 2 })), WatchAction::Lift, Some("x"));
        assert_eq!(told, ["oom", "killed by the OOM killer: 2 so far", "action: lift, failed: x"]);
    }
}
