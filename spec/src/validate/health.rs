//! The health check.

use super::process::string;
use super::rules::require;
use crate::invalid::Invalid;
use crate::task::Task;

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    let Some(health) = &task.healthcheck else { return Ok(()) };
    let field = "healthcheck.exec";
    require(health.exec.first().is_some_and(|command| !command.is_empty()), field, || {
        "is empty; write the command to run, such as [\"/bin/sh\", \"-c\", \"test -e /tmp/ready\"]".into()
    })?;
    for (index, word) in health.exec.iter().enumerate() {
        string(&format!("{field}[{index}]"), word)?;
    }
    let spans = [
        ("healthcheck.interval", health.interval()),
        ("healthcheck.timeout", health.timeout()),
        ("healthcheck.start_interval", health.start_interval()),
    ];
    for (field, span) in spans {
        require(!span.is_zero(), field, || "is 0; write how long, such as 10s".into())?;
    }
    require(health.retries() >= 1, "healthcheck.retries", || "is 0; at least 1 failure makes a task unhealthy".into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{accepted, refused, task};

    #[test]
    fn a_command_is_all_that_a_check_needs() {
        let task = task("healthcheck.exec = ['true']").unwrap();
        let health = task.healthcheck.unwrap();
        assert_eq!((health.interval().as_secs(), health.timeout().as_secs(), health.retries()), (30, 30, 3));
        assert_eq!((health.start_period().as_secs(), health.start_interval().as_secs()), (0, 5));
    }

    #[test]
    fn the_command_is_a_list() {
        refused("healthcheck.exec = 'true'", "healthcheck.exec", "expected a list");
        refused("healthcheck.exec = []", "healthcheck.exec", "is empty");
        refused("healthcheck.exec = ['']", "healthcheck.exec", "is empty");
        refused("healthcheck.interval = 3", "healthcheck.exec", "is empty");
        refused("healthcheck.exec = [\"a\", \"b\\u0000\"]", "healthcheck.exec[1]", "NUL");
    }

    #[test]
    fn times_and_retries_are_above_zero() {
        let with = |line: &str| format!("[healthcheck]\nexec = ['true']\n{line}");
        refused(&with("interval = 0"), "healthcheck.interval", "is 0");
        refused(&with("timeout = '0s'"), "healthcheck.timeout", "is 0");
        refused(&with("start_interval = 0"), "healthcheck.start_interval", "is 0");
        refused(&with("retries = 0"), "healthcheck.retries", "is 0");
        refused(&with("on_unhealthy = 'restart'"), "healthcheck.on_unhealthy", "unknown variant");
        accepted(&with("start_period = 0\non_unhealthy = 'stop'\nretries = 1\ninterval = '1ns'"));
    }
}
